"""Generators without `async` in an actor that has async methods: they hold up nobody else."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

import dray
from dray.errors import ActorDiedError, TaskCancelledError
from tests.support.gates import PATIENCE_S, Gate

pytestmark = pytest.mark.usefixtures("process_engine")


@dray.remote(num_cpus=0)
class Source:
    async def answer(self) -> str:
        return "answer"

    def count(self, gate: Gate) -> Iterator[int]:
        for i in range(100):
            gate.ring(i)
            yield i

    def endless(self, gate: Gate) -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            gate.ring("closed")

    def held(self, gate: Gate) -> Iterator[object]:
        yield "first"
        gate.pass_through()
        context = dray.get_runtime_context()
        gate.ring(context.is_canceled())
        yield context.get_task_id() is not None

    def fail(self) -> Iterator[int]:
        yield 1
        raise KeyError("plain")

    def exit(self) -> Iterator[int]:
        yield 1
        dray.actor.exit_actor()

    def fork(self) -> Iterator[int]:
        yield 1
        child = os.fork()
        if child == 0:
            return
        yield os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def any_iterable(self) -> Any:
        return map(str, range(3))


def answers(source: Any) -> bool:
    return bool(dray.get(source.answer.remote(), timeout=PATIENCE_S) == "answer")


def test_it_keeps_the_pace_of_its_reader(gate: Gate) -> None:
    source = Source.remote()
    items = source.count.options(_generator_backpressure_num_objects=2).remote(gate)
    ahead = gate.heard(2)
    assert answers(source)
    assert gate.silent()
    assert [dray.get(ref) for ref in items] == list(range(100))
    assert [*ahead, *gate.heard(98)] == [str(i) for i in range(100)]


@pytest.mark.parametrize("most", [0, 1, 2])
def test_it_is_cancelled(most: int, gate: Gate) -> None:
    source = Source.options(max_concurrency=1).remote()
    options = {"_generator_backpressure_num_objects": most} if most else {}
    items = source.endless.options(**options).remote(gate)
    assert dray.get(next(items)) == 1
    dray.cancel(items)
    assert gate.heard() == ["closed"]
    with pytest.raises(TaskCancelledError):
        dray.get(list(items))
    assert answers(source)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_others_run_while_it_blocks(most: int, gate: Gate) -> None:
    source = Source.remote()
    options = {"_generator_backpressure_num_objects": most} if most else {}
    items = source.held.options(**options).remote(gate)
    assert dray.get(next(items)) == "first"
    ahead = source.held.remote(gate)
    gate.heard(1)
    assert answers(source)
    gate.open()
    assert dray.get(next(items)) is True
    assert [dray.get(ref) for ref in ahead] == ["first", True]
    assert next(items, None) is None


def test_it_learns_that_it_is_cancelled_and_ends_with_its_item(gate: Gate) -> None:
    source = Source.remote()
    items = source.held.remote(gate)
    assert dray.get(next(items)) == "first"
    gate.heard()
    dray.cancel(items)
    gate.open()
    assert gate.heard() == ["True"]
    with pytest.raises(TaskCancelledError):
        dray.get(list(items))


def test_what_it_raises_is_its_last_item(gate: Gate) -> None:
    items = Source.remote().fail.remote()
    assert dray.get(next(items)) == 1
    with pytest.raises(KeyError, match="plain") as caught:
        dray.get(next(items))
    told = "".join(traceback.format_exception(caught.value))
    assert "in fail" in told
    assert "concurrent" not in told
    assert next(items, None) is None


def test_it_may_exit_the_actor() -> None:
    source = Source.remote()
    items = source.exit.remote()
    assert dray.get(next(items)) == 1
    with pytest.raises(ActorDiedError, match="exit_actor"):
        dray.get(list(items))


def test_what_it_forks_ends_with_it() -> None:
    source = Source.remote()
    assert [dray.get(ref) for ref in source.fork.remote()] == [1, 0]
    assert answers(source)


def test_it_may_be_any_iterable() -> None:
    items = Source.remote().any_iterable.options(num_returns="streaming").remote()
    assert [dray.get(ref) for ref in items] == ["0", "1", "2"]
