"""Flax, Optax and Orbax on several processes: the same numbers after a kill, Ctrl-C, imports."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dray.train
from dray.train import FailureConfig, Result, RunConfig, ScalingConfig
from dray.train.jax import JaxTrainer
from examples.jax_digits import train_loop
from tests.support import ctrl_c

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of Orbax itself
    *(
        pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name} here")
        for name in ("flax", "optax", "orbax")
    ),
]


def few_digits(*, return_X_y: bool) -> Any:
    """Returns what scikit-learn's digits look like, of which there are two batches."""
    import numpy as np

    random = np.random.default_rng(0)
    return random.integers(17, size=(64, 64)), random.integers(10, size=64)


def keep_compiled(place: str) -> None:
    """Has JAX compile once for all runs of the test: else that is most of what it computes."""
    import jax

    jax.config.update("jax_compilation_cache_dir", place)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def train(config: dict[str, Any]) -> bool:
    """Trains as the example does; rank 1 may be killed, after its first report ever.

    Returns:
        Whether the imports were there.
    """
    imported = {"flax.nnx", "optax", "orbax.checkpoint"} <= sys.modules.keys()
    keep_compiled(config["compiled"])
    # Of scikit-learn, whose import takes longer than all the rest, only the data are needed.
    digits: dict[str, Any] = {"sklearn.datasets": SimpleNamespace(load_digits=few_digits)}
    sys.modules.update(digits | {"sklearn": SimpleNamespace()})
    report, first = dray.train.report, dray.train.get_checkpoint() is None

    def report_and_fail(*given: Any, **options: Any) -> None:
        report(*given, **options)
        if config["kill"] and first and dray.train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    dray.train.report = report_and_fail
    train_loop(config)
    return imported


def fit(
    path: Path, epochs: int, workers: int = 2, *, kill: bool = False, callbacks: Any = ()
) -> Result:
    return JaxTrainer(
        train,
        train_loop_config={
            "epochs": epochs,
            "kill": kill,
            "compiled": str(path.parent / "compiled"),
        },
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=path.parent,
            name=path.name,
            failure_config=FailureConfig(max_failures=1),
            on_mismatch="ignore",
            callbacks=list(callbacks),
        ),
    ).fit()


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
@pytest.mark.usefixtures("engine")
def test_a_killed_run_ends_alike_and_goes_on_with_other_processes(storage: Path) -> None:
    whole = fit(storage / "whole", epochs=3)
    assert whole.return_value is True
    assert fit(storage / "killed", epochs=2, kill=True).metrics == whole.best_checkpoints[1][1]
    alone = fit(storage / "killed", epochs=3, workers=1)
    assert alone.metrics is not None
    assert alone.metrics["epoch"] == 2
    assert alone.metrics == pytest.approx(whole.metrics, abs=0.01)


@pytest.mark.usefixtures("process_engine")
def test_ctrl_c_ends_it(storage: Path) -> None:
    ctrl_c.ends_run(lambda callbacks: fit(storage / "long", 10**6, callbacks=callbacks))
