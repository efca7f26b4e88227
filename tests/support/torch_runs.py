"""Runs with PyTorch whose function is all that a test is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dray.train import Result, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer


def fit(function: Any, storage: Path, **scaling: Any) -> Result:
    """Train with a function, and return what comes of it."""
    return TorchTrainer(
        function,
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(storage_path=storage),
    ).fit()


def fit_workers(function: Any, storage: Path, workers: int = 2, **trainer: Any) -> Result:
    """Take a function through a run called `run` on some workers, and return what comes of it."""
    return TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="run", storage_path=storage),
        **trainer,
    ).fit()


def gather(value: Any) -> list[Any]:
    """Return every rank's value."""
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, value)
    return gathered
