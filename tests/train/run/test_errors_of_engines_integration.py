"""Errors of an engine that a train function raises itself: they are the function's, no deaths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dray
from dray.errors import ActorError, DrayError, EngineError, NodeDiedError
from dray.train import (
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    UserCallback,
    WorkerGroupError,
)

pytestmark = pytest.mark.usefixtures("process_engine")


class CountFailures(UserCallback):
    def __init__(self) -> None:
        self.count = 0

    def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
        self.count += 1
        if self.count > 3:
            run_context.stop("it restarts without limit")


def raise_engine_error() -> None:
    raise EngineError("the other program is over")


def call_a_killed_actor() -> None:
    @dray.remote(num_cpus=0)
    class Store:
        def get(self) -> None: ...

    store = Store.remote()
    dray.kill(store)
    dray.get(store.get.remote())


def raise_lost_node() -> None:
    raise NodeDiedError(None, details="its node is gone")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (raise_engine_error, EngineError),
        (call_a_killed_actor, ActorError),
        (raise_lost_node, NodeDiedError),
    ],
)
@pytest.mark.timeout(60)
def test_an_error_of_an_engine_fails_the_function(
    storage: Path, function: Any, kind: type[DrayError], workers: int
) -> None:
    count = CountFailures()
    trainer = DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=storage, callbacks=[count], failure_config=FailureConfig(max_failures=1)
        ),
    )
    with pytest.raises(WorkerGroupError) as caught:
        trainer.fit()
    assert isinstance(caught.value, kind)
    assert count.count == 2
