"""What a user's function forks ends as a script's fork would, and never speaks for the worker."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray.train import DataParallelTrainer, RunConfig

pytestmark = pytest.mark.usefixtures("process_engine")


def returns() -> str:
    return "child"


def exits() -> None:
    sys.exit()


def exits_with_three() -> None:
    sys.exit(3)


def raises() -> None:
    raise ValueError("in the child")


def status_of_a_fork(end: Callable[[], Any]) -> Any:
    """Forks; the child ends by `end`, and the parent returns how it has."""
    child = os.fork()
    if child == 0:
        return end()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


ends = pytest.mark.parametrize(
    ("end", "status"), [(returns, 0), (exits, 0), (exits_with_three, 3), (raises, 1)]
)


def fit(function: Callable[[], Any], storage: Path) -> dray.train.Result:
    return DataParallelTrainer(function, run_config=RunConfig(storage_path=storage)).fit()


@ends
def test_a_fork_in_a_train_function(end: Callable[[], Any], status: int, tmp_path: Path) -> None:
    assert fit(lambda: status_of_a_fork(end), tmp_path).return_value == status
    logs = "".join(log.read_text() for log in tmp_path.rglob("*.log"))
    assert ("ValueError: in the child" in logs) == (end is raises)
    assert fit(lambda: "fine", tmp_path).return_value == "fine"


def test_a_fork_cannot_report(tmp_path: Path) -> None:
    def train() -> Any:
        return status_of_a_fork(lambda: dray.train.report({}))

    result = fit(train, tmp_path)
    assert (result.return_value, result.metrics) == (1, None)
    logs = "".join(log.read_text() for log in tmp_path.rglob("*.log"))
    assert "was forked off the worker" in logs


def test_a_fork_runs_what_ends_a_script(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def registers() -> None:
        import atexit

        atexit.register(done.write_text, "by the child")
        sys.exit()

    def train() -> Any:
        status = status_of_a_fork(registers)
        return status, done.read_text()

    assert fit(train, tmp_path).return_value == (0, "by the child")


def test_a_fork_leaves_its_siblings_alone(tmp_path: Path) -> None:
    def train() -> Any:
        import multiprocessing

        context = multiprocessing.get_context("fork")
        go = context.Event()
        sibling = context.Process(target=go.wait, daemon=True)
        sibling.start()
        status = status_of_a_fork(exits)
        alive = sibling.is_alive()
        go.set()
        sibling.join()
        return status, alive, sibling.exitcode

    assert fit(train, tmp_path).return_value == (0, True, 0)


@ends
def test_a_fork_in_a_task(end: Callable[[], Any], status: int) -> None:
    task = dray.remote(status_of_a_fork)
    assert dray.get(task.remote(end)) == status
    assert dray.get(task.remote(returns)) == 0


def test_a_fork_in_a_generator() -> None:
    @dray.remote
    def numbers() -> Iterator[int]:
        yield 1
        yield status_of_a_fork(returns)  # the child goes on here, and may not say so
        yield 2

    values = [dray.get(reference) for reference in numbers.remote()]
    assert values == [1, 1, 2]


class Forks:
    def fork(self, end: Callable[[], Any]) -> Any:
        return status_of_a_fork(end)


class ForksInALoop:
    async def fork(self, end: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return status_of_a_fork(end)


class ForksAtOnce:
    def __init__(self) -> None:
        self.status = status_of_a_fork(returns)

    def fork(self, end: Callable[[], Any]) -> Any:
        return self.status, status_of_a_fork(end)


@ends
@pytest.mark.parametrize(
    ("kind", "options"), [(Forks, {}), (Forks, {"max_concurrency": 2}), (ForksInALoop, {})]
)
def test_a_fork_in_an_actor(kind: Any, options: Any, end: Callable[[], Any], status: int) -> None:
    actor = dray.remote(kind).options(**options).remote()
    assert dray.get(actor.fork.remote(end)) == status
    assert dray.get(actor.fork.remote(returns)) == 0


def test_a_fork_in_the_making_of_an_actor() -> None:
    actor = dray.remote(ForksAtOnce).remote()
    assert dray.get(actor.fork.remote(exits_with_three)) == (0, 3)
