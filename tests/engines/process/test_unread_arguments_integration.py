"""Large arguments that nobody comes to read: they are freed all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest

import dray
from dray.errors import ConfigError, TaskCancelledError
from dray.session import current_runtime
from tests.support.gates import Gate, until


@pytest.fixture(autouse=True)
def own_session(session: Any) -> None:
    session(num_cpus=1, log_to_driver=False)


class Plain:
    def held(self, gate: Gate) -> None:
        gate.pass_through()

    def take(self, *values: Any) -> int:
        return len(values)


class Async:
    async def held(self, gate: Gate) -> None:
        await asyncio.get_running_loop().run_in_executor(None, gate.pass_through)

    async def held_with_its_loop(self, gate: Gate) -> None:
        gate.pass_through()

    async def take(self, *values: Any) -> int:
        return len(values)


class Unreadable:
    """Fails as it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_fail, ())


class HeldAsItIsRead:
    """Waits as it is unpickled."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __reduce__(self) -> tuple[object, ...]:
        return (Gate.pass_through, (self.gate,))


def _fail() -> NoReturn:
    raise ValueError("unreadable")


def large() -> Any:
    return np.zeros(1 << 20, np.uint8)


def memory() -> int:
    objects = current_runtime().status().objects
    assert objects is not None
    return objects.memory_bytes


ACTORS = pytest.mark.parametrize(
    ("kind", "hold"),
    [
        (dray.remote(num_cpus=0)(Plain), "held"),
        (dray.remote(num_cpus=0, max_concurrency=2)(Plain), "held"),
        (dray.remote(num_cpus=0, max_concurrency=1)(Async), "held"),
        (dray.remote(num_cpus=0)(Async), "held_with_its_loop"),
    ],
    ids=["plain", "threads", "async", "async-loop"],
)
WAYS = pytest.mark.parametrize("way", [large, lambda: dray.put(large())], ids=["value", "ref"])


@ACTORS
@WAYS
def test_a_call_that_is_cancelled_before_it_begins_holds_none(
    kind: Any, hold: str, way: Callable[[], Any], gate: Gate
) -> None:
    actor = kind.remote()
    held = [getattr(actor, hold).remote(gate) for _ in range(2)]
    gate.heard()
    refs = [actor.take.remote(way()) for _ in range(3)]
    for ref in refs:
        dray.cancel(ref)
    gate.open()
    dray.get(held)
    for ref in refs:
        with pytest.raises(TaskCancelledError):
            dray.get(ref)
    assert dray.get(actor.take.remote()) == 0
    until(lambda: memory() == 0)


@pytest.mark.parametrize("kind", [Plain, Async])
@WAYS
def test_a_call_for_a_group_that_is_not_there_holds_none(kind: Any, way: Callable[[], Any]) -> None:
    actor = dray.remote(num_cpus=0)(kind).remote()
    with pytest.raises(ConfigError, match="no concurrency group"):
        dray.get(actor.take.options(concurrency_group="none").remote(way()))
    until(lambda: memory() == 0)


@pytest.mark.parametrize("kind", [Plain, Async])
def test_a_call_with_an_unreadable_argument_holds_no_other(kind: Any) -> None:
    actor = dray.remote(num_cpus=0)(kind).remote()
    with pytest.raises(ValueError, match="unreadable"):
        dray.get(actor.take.remote(Unreadable(), dray.put(large())))
    with pytest.raises(ValueError, match="unreadable"):
        dray.get(actor.take.remote(dray.put(Unreadable()), dray.put(large())))
    until(lambda: memory() == 0)


def test_a_task_with_an_unreadable_argument_holds_no_other() -> None:
    take = dray.remote(lambda *values: len(values))
    with pytest.raises(ValueError, match="unreadable"):
        dray.get(take.remote(dray.put(Unreadable()), dray.put(large()), large()))
    until(lambda: memory() == 0)


def test_a_task_whose_function_cannot_be_read_holds_none() -> None:
    broken = Unreadable()
    task = dray.remote(lambda value: broken)
    for value in (large(), dray.put(large())):
        with pytest.raises(ValueError, match="unreadable"):
            dray.get(task.remote(value))
    del value
    until(lambda: memory() == 0)


def test_a_task_that_is_cancelled_as_its_arguments_are_read_holds_none(
    gate: Gate, second_gate: Gate
) -> None:
    slow = HeldAsItIsRead(gate)
    of_slow_function = dray.remote(lambda value: slow).remote(large())
    gate.heard()
    dray.cancel(of_slow_function)
    take = dray.remote(lambda *values: len(values))
    of_slow_argument = take.remote(HeldAsItIsRead(second_gate), dray.put(large()), large())
    second_gate.heard()
    dray.cancel(of_slow_argument)
    for ref in (of_slow_function, of_slow_argument):
        with pytest.raises(TaskCancelledError):
            dray.get(ref)
    until(lambda: memory() == 0)
