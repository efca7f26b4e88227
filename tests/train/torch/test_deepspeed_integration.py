"""DeepSpeed in workers without accelerators: its ZeRO, its checkpoints, its errors."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.errors import WorkerGroupError
from dray.train import FailureConfig, Result, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer
from tests.support import ctrl_c

pytest.importorskip("deepspeed", reason="deepspeed is not installed: see docs/accelerate.md")

# It compiles a part of itself when it first starts on a machine.
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),  # of DeepSpeed itself: what PyTorch has deprecated
]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def contradict_itself() -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    DeepSpeedConfig({"train_batch_size": 0})


def fit(path: Path, fails: Any = None, callbacks: Any = (), **config: Any) -> Result:
    """Trains as the example does; rank 1 may fail, after its first report ever."""
    from examples.deepspeed_digits import train_loop

    def train(config: dict[str, Any]) -> None:
        report, first = dray.train.report, dray.train.get_checkpoint() is None

        def report_and_fail(*given: Any, **options: Any) -> None:
            report(*given, **options)
            if fails and first and dray.train.get_context().get_world_rank() == 1:
                fails()

        dray.train.report = report_and_fail
        train_loop(config)

    return TorchTrainer(
        train,
        train_loop_config={"stage": 2, **config},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=path.parent,
            name=path.name,
            failure_config=FailureConfig(max_failures=int(fails is kill)),
            callbacks=list(callbacks),
            on_mismatch="ignore",
        ),
    ).fit()


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("stage", [1, 2])
def test_a_run_that_goes_on_ends_as_one_that_was_not_stopped(storage: Path, stage: int) -> None:
    whole = fit(storage / "whole", epochs=3, stage=stage).metrics
    assert whole is not None
    assert whole["accuracy"] > 0.85
    fit(storage / "stopped", epochs=1, stage=stage)
    assert fit(storage / "stopped", epochs=3, stage=stage).metrics == whole
    parts = (storage / "stopped" / "epoch-2").rglob("zero_pp_rank_*_optim_states.pt")
    assert len(list(parts)) == 2
    assert fit(storage / "killed", kill, epochs=3, stage=stage).metrics == whole


@pytest.mark.usefixtures("process_engine")
def test_its_own_error_comes_with_its_rank_and_ctrl_c_ends_it(storage: Path) -> None:
    with pytest.raises(WorkerGroupError, match=r"rank 1 failed: AssertionError: Train batch size"):
        fit(storage / "failed", contradict_itself, epochs=3)
    ctrl_c.ends_run(lambda callbacks: fit(storage / "long", callbacks=callbacks, epochs=10**6))
