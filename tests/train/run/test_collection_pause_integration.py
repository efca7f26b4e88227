"""The garbage collector of a driver: paused while workers start, and at work otherwise."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import dray.data
import dray.train
from dray.errors import SerializationError
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig, UserCallback


class Looks(UserCallback):
    """Notes, by hooks, whether the driver's collector is at work."""

    def __init__(self) -> None:
        self.seen: dict[str, bool] = {}

    def before_run(self, run_context: Any) -> None:
        self.seen["before"] = gc.isenabled()

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        self.seen["report"] = gc.isenabled()


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.enable()


def fit(engine: str, **options: Any) -> dict[str, bool]:
    looks = Looks()
    expected = gc.isenabled() or engine != "inline"

    def function() -> None:
        assert gc.isenabled() == expected
        dray.train.report({})

    DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(callbacks=[looks]),
        **options,
    ).fit()
    return looks.seen


def test_it_is_paused_while_workers_start_alone(engine: str) -> None:
    assert fit(engine) == {"before": engine == "inline", "report": True}
    assert gc.isenabled()


def test_datasets_are_made_ready_with_it_at_work(process_engine: None) -> None:
    datasets = {"train": dray.data.range(8)}
    assert fit("process", datasets=datasets) == {"before": True, "report": True}


def test_it_is_back_after_a_run_that_fails_to_begin(process_engine: None) -> None:
    lock = threading.Lock()
    with pytest.raises(SerializationError):
        DataParallelTrainer(lambda: lock.acquire()).fit()
    assert gc.isenabled()


def test_a_program_that_has_paused_it_keeps_it_so(engine: str) -> None:
    gc.disable()
    assert fit(engine) == {"before": False, "report": False}
    assert not gc.isenabled()
