"""Warnings name the line of the program that they are about."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from dray.train import DataConfig, DataParallelTrainer, ScalingConfig
from dray.train.torch import TorchTrainer

NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def import_a_renamed_name() -> None:
    from dray.util.accelerators import NVIDIA_TESLA_A100  # noqa: F401


def name_no_dataset(kind: type[DataParallelTrainer]) -> object:
    config = DataConfig(datasets_to_split=["validation"])
    return kind(print, scaling_config=ScalingConfig(num_workers=0), dataset_config=config)


@pytest.mark.parametrize(
    ("category", "use"),
    [
        (DeprecationWarning, lambda: ScalingConfig(trainer_resources={"CPU": 1})),
        (DeprecationWarning, import_a_renamed_name),
        (UserWarning, lambda: ScalingConfig(accelerator_type="A100")),
        (UserWarning, lambda: name_no_dataset(DataParallelTrainer)),
        pytest.param(UserWarning, lambda: name_no_dataset(TorchTrainer), marks=NEEDS_TORCH),
    ],
)
def test_a_warning_names_the_line_of_the_program(
    category: type[Warning], use: Callable[[], Any]
) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        use()
    assert {(warning.category, warning.filename) for warning in told} == {(category, __file__)}
