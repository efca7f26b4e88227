"""Calls of an actor at the same time: async methods, threads, concurrency groups, limits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import dray
from dray.errors import (
    ConfigError,
    PendingCallsLimitExceeded,
)
from tests.support.gates import PATIENCE_S, Gate

pytestmark = pytest.mark.usefixtures("core_engine")


def test_an_async_actor_runs_many_calls_at_the_same_time() -> None:
    @dray.remote
    class Meeting:
        def __init__(self) -> None:
            self.there = 0
            self.complete = asyncio.Event()

        async def join(self, size: int) -> int:
            self.there += 1
            if self.there == size:
                self.complete.set()
            await self.complete.wait()
            return self.there

    meeting = Meeting.remote()
    assert dray.get([meeting.join.remote(20) for _ in range(20)]) == [20] * 20


def test_max_concurrency_limits_an_async_actor() -> None:
    @dray.remote(max_concurrency=2)
    class Narrow:
        def __init__(self) -> None:
            self.inside = self.most = 0
            self.two = asyncio.Event()

        async def enter(self) -> int:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside == 2:
                self.two.set()
            await self.two.wait()
            for _ in range(5):
                await asyncio.sleep(0.001)
            self.inside -= 1
            return self.most

    narrow = Narrow.remote()
    assert max(dray.get([narrow.enter.remote() for _ in range(10)])) == 2


def test_async_methods_await_references() -> None:
    @dray.remote
    def square(x: int) -> int:
        return x * x

    @dray.remote
    class Asker:
        async def ask(self, n: int) -> list[int]:
            return list(await asyncio.gather(*(square.remote(i) for i in range(n))))

        async def first(self, refs: list[dray.ObjectRef]) -> Any:
            return await refs[0]

        def plain(self) -> bool:
            return asyncio.get_running_loop().is_running()

        def given(self, refs: list[dray.ObjectRef]) -> dray.ObjectRef:
            return refs[0]

        async def fail(self) -> None:
            raise ValueError("async")

    asker = Asker.remote()
    assert isinstance(dray.get(asker.given.remote([square.remote(3)])), dray.ObjectRef)
    assert dray.get(asker.ask.remote(5)) == [0, 1, 4, 9, 16]
    assert dray.get(asker.first.remote([square.remote(3)])) == 9
    assert dray.get(asker.plain.remote()) is True
    with pytest.raises(ValueError, match="async"):
        dray.get(asker.fail.remote())


def test_a_threaded_actor_runs_calls_in_threads() -> None:
    @dray.remote(max_concurrency=3)
    class Threads:
        def __init__(self) -> None:
            self.barrier = threading.Barrier(3)

        def meet(self) -> int:
            self.barrier.wait(PATIENCE_S)
            return threading.get_ident()

    threads = Threads.remote()
    assert len(set(dray.get([threads.meet.remote() for _ in range(3)]))) == 3


def test_concurrency_groups_do_not_hold_each_other_up(gate: Gate) -> None:
    @dray.remote(concurrency_groups={"io": 2, "compute": 1})
    class Grouped:
        def __init__(self) -> None:
            self.barrier = threading.Barrier(2)

        @dray.method(concurrency_group="io")
        def meet(self) -> str:
            self.barrier.wait(PATIENCE_S)
            return "met"

        @dray.method(concurrency_group="compute")
        def block(self, gate: Gate) -> str:
            gate.pass_through()
            return "done"

        def default(self) -> str:
            return "default"

    grouped = Grouped.remote()
    blocked = grouped.block.remote(gate)
    gate.heard()
    assert dray.get([grouped.meet.remote(), grouped.meet.remote()]) == ["met", "met"]
    assert dray.get(grouped.default.remote()) == "default"
    queued = grouped.default.options(concurrency_group="compute")
    waits = [queued.remote() for _ in range(200)]
    assert dray.get(grouped.default.options(concurrency_group="io").remote()) == "default"
    assert dray.wait([*waits, blocked], timeout=0.05)[0] == []
    gate.open()
    assert set(dray.get(waits)) == {"default"}
    assert dray.get(blocked) == "done"


def test_what_blocks_a_group_of_an_async_actor_holds_up_no_other(gate: Gate) -> None:
    @dray.remote(concurrency_groups={"health": 1})
    class Grouped:
        async def block(self, gate: Gate) -> str:
            gate.pass_through()
            return "done"

        @dray.method(concurrency_group="health")
        def ping(self) -> str:
            return "pong"

    grouped = Grouped.remote()
    blocked = grouped.block.remote(gate)
    gate.heard()
    assert dray.get(grouped.ping.remote(), timeout=PATIENCE_S) == "pong"
    gate.open()
    assert dray.get(blocked) == "done"


def test_a_concurrency_group_that_the_actor_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="'io'"):

        @dray.remote
        class Grouped:
            @dray.method(concurrency_group="io")
            def meet(self) -> None:
                return None


@pytest.mark.parametrize("groups", [{}, {"io": 1}])
def test_a_call_for_a_concurrency_group_that_the_actor_lacks_fails(
    groups: dict[str, int],
) -> None:
    @dray.remote(concurrency_groups=groups)
    class Grouped:
        def meet(self) -> str:
            return "met"

    made = Grouped.options(name="grouped").remote()
    for grouped in (made, dray.get(dray.put(made)), dray.get_actor("grouped")):
        with pytest.raises(ConfigError, match="no concurrency group 'nowhere'"):
            dray.get(grouped.meet.options(concurrency_group="nowhere").remote())
        assert dray.get(grouped.meet.remote()) == "met"


def test_a_call_that_waits_for_its_argument_holds_up_those_of_its_caller_alone(gate: Gate) -> None:
    @dray.remote
    class Notes:
        def __init__(self) -> None:
            self.notes: list[str] = []

        def add(self, note: str) -> list[str]:
            self.notes.append(note)
            return self.notes

    @dray.remote
    def late(gate: Gate) -> str:
        gate.pass_through()
        return "late"

    @dray.remote
    def other(notes: Any) -> list[str]:
        return list(dray.get(notes.add.remote("of another process")))

    notes = Notes.remote()
    first, second = notes.add.remote(late.remote(gate)), notes.add.remote("after it")
    gate.heard()
    assert dray.get(other.remote(notes), timeout=PATIENCE_S) == ["of another process"]
    gate.open()
    assert dray.get([first, second])[1] == ["of another process", "late", "after it"]


def test_max_pending_calls(gate: Gate) -> None:
    @dray.remote(max_pending_calls=2)
    class Busy:
        def work(self, gate: Gate) -> str:
            gate.pass_through()
            return "done"

    @dray.remote
    def elsewhere(busy: Any, gate: Gate) -> str:
        return str(dray.get(busy.work.remote(gate)))

    busy = Busy.remote()
    refs = [busy.work.remote(gate), busy.work.remote(gate)]
    with pytest.raises(PendingCallsLimitExceeded):
        busy.work.remote(gate)
    another = elsewhere.remote(busy, gate)
    assert dray.wait([another], timeout=0.05)[0] == []
    gate.open()
    assert dray.get([*refs, another]) == ["done", "done", "done"]
    assert dray.get(busy.work.remote(gate)) == "done"


# Handles.
