"""Runs whose function is all that a test is about, on the session's engine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import dray.train
from dray.train import Checkpoint, DataParallelTrainer, Result, RunConfig, ScalingConfig


def fit(
    function: Any, storage: Path | str, workers: int = 2, config: Any = None, **run: Any
) -> Result:
    """Take a function through a run, whose name is `run`, and return what comes of it."""
    return DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=storage, **{"name": "run", **run}),
    ).fit()


def save(directory: str, **files: str) -> Checkpoint:
    """Write files into a directory, and return the checkpoint that it is."""
    for name, text in files.items():
        Path(directory, name).write_text(text)
    return Checkpoint.from_directory(directory)


def report_step(step: int, *, metadata: bool = False) -> None:
    """Report a step, with a checkpoint that says which."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "weights").write_text(f"weights of step {step}")
        checkpoint = Checkpoint(directory)
        if metadata:
            checkpoint.set_metadata({"step": step})
        dray.train.report({"step": step}, checkpoint=checkpoint)


def three_steps() -> None:
    """Report three."""
    for step in range(3):
        report_step(step)


def rank() -> int:
    """Return the rank of the worker that calls it."""
    return dray.train.get_context().get_world_rank()
