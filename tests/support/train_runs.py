"""Runs whose function is all that a test is about, on the session's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dray.train
from dray.train import DataParallelTrainer, Result, RunConfig, ScalingConfig


def fit(function: Any, storage: Path, workers: int = 2, config: Any = None, **run: Any) -> Result:
    """Take a function through a run called `run`, and return what comes of it."""
    return DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="run", storage_path=storage, **run),
    ).fit()


def rank() -> int:
    """Return the rank of the worker that calls it."""
    return dray.train.get_context().get_world_rank()
