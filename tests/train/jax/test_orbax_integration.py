"""Flax, Optax and Orbax on several processes: the same numbers after a kill, and with others."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.train import FailureConfig, Result, RunConfig, ScalingConfig
from dray.train.jax import JaxTrainer
from examples import jax_digits
from tests.support import ctrl_c

pytestmark = [
    pytest.mark.usefixtures("process_engine"),
    pytest.mark.filterwarnings("ignore"),  # of Orbax itself
    *(
        pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name} here")
        for name in ("flax", "optax", "orbax")
    ),
]


def train(config: dict[str, Any]) -> None:
    """Trains as the example does; rank 1 may be killed, after its first report ever."""
    report, first = dray.train.report, dray.train.get_checkpoint() is None

    def report_and_fail(*given: Any, **options: Any) -> None:
        report(*given, **options)
        if config["kill"] and first and dray.train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    dray.train.report = report_and_fail
    jax_digits.train_loop(config)


def fit(
    path: Path, epochs: int, workers: int = 2, *, kill: bool = False, callbacks: Any = ()
) -> Result:
    return JaxTrainer(
        train,
        train_loop_config={"epochs": epochs, "kill": kill},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=path.parent,
            name=path.name,
            failure_config=FailureConfig(max_failures=1),
            on_mismatch="ignore",
            callbacks=list(callbacks),
        ),
    ).fit()


def test_a_killed_run_ends_alike_and_goes_on_with_other_processes(storage: Path) -> None:
    whole = fit(storage / "whole", epochs=3)
    assert fit(storage / "killed", epochs=2, kill=True).metrics == whole.best_checkpoints[1][1]
    alone = fit(storage / "killed", epochs=3, workers=1)
    assert alone.metrics is not None
    assert alone.metrics["epoch"] == 2
    assert alone.metrics == pytest.approx(whole.metrics, abs=0.01)


def test_ctrl_c_ends_it(storage: Path) -> None:
    ctrl_c.ends_run(lambda callbacks: fit(storage / "long", 10**6, callbacks=callbacks))
