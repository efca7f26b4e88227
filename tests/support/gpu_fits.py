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


def fit_whole_and_in_parts(
    function: Any, storage: Path, steps: str, stop: int, end: int, **options: Any
) -> tuple[Result, Result]:
    """Train to the end at once, and in two fits; return the first run and the last of the parts.

    The fork server of the parts has imported what the workers of the first run have.

    Args:
        steps: Name of the number, among what the function is given, that says how far to train.
    """
    whole = fit_on_a_gpu(function, storage / "whole", **options, **{steps: end})
    fit_on_a_gpu(function, storage / "stopped", **options, **{steps: stop})
    return whole, fit_on_a_gpu(function, storage / "stopped", **options, **{steps: end})
