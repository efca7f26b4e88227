"""Async actors and generators on the inline engine: an event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dray
from dray.errors import (
    ActorDiedError,
    ConfigError,
    GetTimeoutError,
    PendingCallsLimitExceeded,
    TaskCancelledError,
    TaskError,
)

pytestmark = pytest.mark.usefixtures("inline_session")


@dray.remote
class Signal:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def wait(self) -> str:
        await self.event.wait()
        return "sent"

    def send(self) -> None:
        self.event.set()

    async def me(self) -> Any:
        return await dray.get_runtime_context().current_actor.answer.remote()

    async def answer(self) -> int:
        return threading.get_ident()

    async def leave(self) -> None:
        dray.exit_actor()

    async def leave_in_the_background(self) -> None:
        async def leave() -> None:
            sys.exit(3)

        self.leaving = asyncio.create_task(leave())
        await self.event.wait()

    async def count(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            await asyncio.sleep(0)
            yield i


def test_an_async_actor_runs_calls_side_by_side() -> None:
    signal = Signal.remote()
    waiting = signal.wait.remote()
    assert dray.wait([waiting], timeout=0) == ([], [waiting])
    with pytest.raises(GetTimeoutError):
        dray.get(waiting, timeout=0)
    dray.get(signal.send.remote())
    assert dray.get(waiting) == "sent"
    assert dray.get(signal.me.remote()) != threading.get_ident()


def test_what_an_async_actor_works_on_is_cancelled_or_dies() -> None:
    signal = Signal.options(max_pending_calls=2).remote()
    refs = signal.wait.options(num_returns=2).remote()[:1]
    dray.get(signal.answer.remote())  # so the other one has begun
    refs.append(signal.wait.remote())
    with pytest.raises(PendingCallsLimitExceeded, match="max_pending_calls is 2"):
        signal.wait.remote()
    with pytest.raises(ConfigError, match="kill"):
        dray.cancel(refs[0], force=True)
    dray.cancel(refs[0])
    with pytest.raises(TaskCancelledError) as caught:
        dray.get(refs[0])
    assert isinstance(caught.value, TaskError)
    dray.kill(signal)
    with pytest.raises(ActorDiedError, match="killed"):
        dray.get(refs[1])


def test_an_async_actor_exits() -> None:
    signal = Signal.remote()
    with pytest.raises(ActorDiedError, match="exit_actor"):
        dray.get(signal.leave.remote())


def test_an_async_actor_ends_as_a_task_exits_that_a_call_has_left() -> None:
    signal = Signal.options(max_restarts=1).remote()
    with pytest.raises(TaskCancelledError):
        dray.get(signal.leave_in_the_background.remote())
    dray.get(signal.answer.remote())
    with pytest.raises(ActorDiedError, match="exited with status 3"):
        dray.get(signal.leave_in_the_background.remote())
    with pytest.raises(ActorDiedError, match="exited with status 3"):
        dray.get(signal.answer.remote())


def test_async_generators() -> None:
    signal = Signal.remote()
    assert [dray.get(ref) for ref in signal.count.remote(3)] == [0, 1, 2]

    async def read() -> list[int]:
        return [await ref async for ref in signal.count.remote(3)]

    assert asyncio.run(read()) == [0, 1, 2]


def test_an_async_generator_goes_on_when_it_is_asked() -> None:
    @dray.remote
    class Slow:
        def __init__(self) -> None:
            self.gate = asyncio.Event()
            self.made = 0

        async def items(self) -> AsyncIterator[int]:
            while True:
                self.made += 1
                yield self.made
                await self.gate.wait()

        async def count(self) -> int:
            return self.made

        async def open(self) -> None:
            self.gate.set()

    slow = Slow.remote()
    items = slow.items.remote()
    assert dray.get(slow.count.remote()) == 0
    assert dray.get(next(items)) == 1
    assert dray.wait([items], timeout=0) == ([], [items])
    assert not items.next_ready()
    dray.get(slow.open.remote())
    assert dray.wait([items]) == ([items], [])
    assert dray.get(next(items)) == 2


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_an_async_generator_is_ended_while_it_is_waited_for(how: str) -> None:
    @dray.remote
    class Stuck:
        async def items(self) -> AsyncIterator[int]:
            yield 1
            await asyncio.Event().wait()

    stuck = Stuck.remote()
    items = stuck.items.remote()
    assert dray.get(next(items)) == 1
    assert dray.wait([items], timeout=0) == ([], [items])
    if how == "cancel":
        dray.cancel(items)
    else:
        dray.kill(stuck)
    with pytest.raises(TaskCancelledError if how == "cancel" else ActorDiedError):
        dray.get(next(items))
    assert list(items) == []
    assert items.is_finished()


def test_the_end_of_an_async_generator() -> None:
    signal = Signal.remote()
    items = signal.count.remote(3)
    assert dray.get(items.completed()) is None
    assert [dray.get(ref) for ref in items] == [0, 1, 2]
