"""Runs with PyTorch whose function is all that a test is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dray.train import Result, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer


def fit(function: Any, storage: Path, **scaling: Any) -> Result:
    """Train with a function, and return what comes of it."""
    return TorchTrainer(
        function,
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(storage_path=storage),
    ).fit()
