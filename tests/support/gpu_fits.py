"""Runs with PyTorch whose ranks have a GPU each, or share one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dray.train import Result, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer


def fit_on_a_gpu(function: Any, path: Path, ranks: int = 1, **config: Any) -> Result:
    """Train with a GPU that all ranks share; a path that was used before goes on with that run."""
    part = None if ranks == 1 else {"GPU": 1 / ranks}
    return TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=ranks, use_gpu=True, resources_per_worker=part),
        run_config=RunConfig(storage_path=path.parent, name=path.name, on_mismatch="ignore"),
    ).fit()
