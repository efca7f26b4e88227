"""Memory that a worker frees and takes again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dray.train import DataParallelTrainer, RunConfig, ScalingConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")


def faults() -> int:
    """Return the page faults of steps that each take and free what the one before did."""
    import resource

    def step() -> None:
        del [bytearray(1 << 20) for _ in range(100)][:]

    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def faults_of_a_worker(storage: Path, **variables: str) -> Any:
    run = RunConfig(storage_path=str(storage), worker_runtime_env={"env_vars": variables})
    trainer = DataParallelTrainer(
        faults, scaling_config=ScalingConfig(num_workers=1), run_config=run
    )
    return trainer.fit().return_value


PAGES_OF_A_STEP = 100 * (1 << 20) // 4096


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
def test_a_step_has_the_memory_of_the_one_before(engine: str, storage: Path) -> None:
    assert faults_of_a_worker(storage) < PAGES_OF_A_STEP


@pytest.mark.parametrize(
    ("variable", "value"),
    [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")],
)
def test_who_has_tuned_the_allocator_decides(
    process_engine: None, storage: Path, variable: str, value: str
) -> None:
    assert faults_of_a_worker(storage, **{variable: value}) > 5 * PAGES_OF_A_STEP
