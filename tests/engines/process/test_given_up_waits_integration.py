"""Waits that are given up: cancelled in an event loop, or ended with their process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dray
from dray import session
from dray.engines.process.hub.driver import DriverRuntime
from tests.support.gates import PATIENCE_S, Gate, until


@pytest.fixture(autouse=True)
def own_session(session: Any) -> None:
    session(num_cpus=2, log_to_driver=False)


def runtime() -> DriverRuntime:
    found = session.current_runtime()
    assert isinstance(found, DriverRuntime)
    return found


@dray.remote(num_cpus=0)
def held(gate: Gate) -> Any:
    gate.pass_through()
    return np.zeros(1 << 20, np.uint8)


@dray.remote(num_cpus=0)
def held_items(gate: Gate) -> Iterator[int]:
    gate.pass_through()
    yield 1
    yield 2


async def give_up(waits: Callable[[], Any]) -> None:
    """Wait and be cancelled, again and again."""
    here: Any = session.current_runtime()
    for _ in range(5):
        waiting = asyncio.ensure_future(waits())
        while not here._asked:
            await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting


async def value(ref: dray.ObjectRef) -> Any:
    return await ref


async def value_of_future(ref: dray.ObjectRef) -> Any:
    return await asyncio.wrap_future(ref.future())


def callbacks(number: int) -> int:
    """Return how many wait for an object or a stream."""
    stream = runtime().streams._streams.get(number)
    waiting = runtime().hub.store.find(number).waiting or ()
    return len(waiting) + (0 if stream is None else len(stream.sought))


@pytest.mark.parametrize("wait", [value, value_of_future])
def test_values_that_are_polled_for_leave_nothing_behind(wait: Any, gate: Gate) -> None:
    ref: Any = held.remote(gate)
    asyncio.run(give_up(lambda: wait(ref)))
    assert not runtime()._asked
    assert not runtime().client.questions
    assert not callbacks(ref.number)
    gate.open()
    assert asyncio.run(value(ref)).size == 1 << 20


def test_items_that_are_polled_for_leave_nothing_behind_and_are_not_lost(gate: Gate) -> None:
    items: Any = held_items.remote(gate)
    asyncio.run(give_up(lambda: anext(items)))
    assert not runtime()._asked
    assert not runtime().client.questions
    assert not callbacks(items.number)
    gate.open()

    async def read() -> list[int]:
        return [await ref async for ref in items]

    assert asyncio.run(read()) == [1, 2]


def test_what_comes_though_it_is_given_up_is_given_back() -> None:
    @dray.remote(num_cpus=0)
    class Impatient:
        def give_up(self, refs: list[Any]) -> int:
            return sum(refs[0].future().cancel() for _ in range(20))

    actor = Impatient.remote()
    assert dray.get(actor.give_up.remote([dray.put(np.zeros(1 << 20, np.uint8))])) > 0
    until(lambda: runtime().hub.store.status()["memory_bytes"] == 0)


def test_a_task_that_has_polled_has_its_cpu_again(gate: Gate, second_gate: Gate) -> None:
    @dray.remote
    def poller(refs: list[Any], gate: Gate) -> None:
        asyncio.run(give_up(lambda: value(refs[0])))
        gate.pass_through()

    ref = held.remote(gate)
    task = poller.remote([ref], second_gate)
    second_gate.heard()
    until(lambda: dray.available_resources().get("CPU") == 1)
    second_gate.open()
    dray.get(task)
    gate.open()


def test_a_process_that_ends_leaves_no_wait_behind(gate: Gate, second_gate: Gate) -> None:
    @dray.remote(num_cpus=0)
    class Waiter:
        async def get(self, refs: list[Any]) -> Any:
            return await refs[0]

        async def wait(self, refs: list[Any]) -> Any:
            return await asyncio.to_thread(dray.wait, refs)

        async def next(self, items: Any) -> Any:
            return await anext(items)

        async def pid(self) -> int:
            return os.getpid()

    ref: Any = held.remote(gate)
    items: Any = held_items.remote(second_gate)
    waiter = Waiter.remote()
    _calls = waiter.get.remote([ref]), waiter.wait.remote([ref, items]), waiter.next.remote(items)
    until(lambda: callbacks(ref.number) == 2 and callbacks(items.number) == 2)
    os.kill(dray.get(waiter.pid.remote()), signal.SIGKILL)
    until(lambda: not callbacks(ref.number) and not callbacks(items.number))
    gate.open()
    second_gate.open()
    assert dray.get(ref, timeout=PATIENCE_S).size == 1 << 20
    assert [dray.get(item) for item in items] == [1, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_exits_ends_nobody_elses_wait(gate: Gate) -> None:
    future = held.remote(gate).future()
    future.add_done_callback(lambda _: sys.exit("of the callback alone"))
    gate.open()
    assert len(future.result(PATIENCE_S)) == 1 << 20
    # By the thread that reads for all, which the callback was called on; then by this one.
    assert dray.put(1).future().result(PATIENCE_S) == 1
    assert len(dray.get(held.remote(gate))) == 1 << 20
