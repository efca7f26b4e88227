"""What programs for Ray take from `ray.util`: the pool of actors, and the queue."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest

import dray
from dray.errors import ActorDiedError, ConfigError, SerializationError
from dray.util import ActorPool
from dray.util.queue import Empty, Full, Queue
from tests.support.gates import PATIENCE_S, Gate

pytestmark = pytest.mark.usefixtures("core_engine")


@dray.remote
class Squarer:
    def __init__(self, name: str = "") -> None:
        self.name = name

    def square(self, x: int) -> int:
        if x < 0:
            raise ValueError(f"no square of {x}")
        return x * x

    def pass_gate(self, gate: Gate) -> str:
        gate.pass_through()
        return "slow"

    def open_gate(self, gate: Gate) -> str:
        gate.open()
        return "opened"

    def read_name(self, _: Any = None) -> str:
        return self.name

    def die(self, _: Any) -> None:
        os._exit(1)


def square(actor: Any, x: int) -> Any:
    return actor.square.remote(x)


def wait_at(actor: Any, gate: Gate) -> Any:
    return actor.pass_gate.remote(gate)


def two_actors() -> ActorPool:
    return ActorPool([Squarer.remote("a"), Squarer.remote("b")])


def test_a_pool_maps_in_order_and_out_of_it() -> None:
    pool = two_actors()
    assert list(pool.map(square, range(10))) == [x * x for x in range(10)]
    assert sorted(pool.map_unordered(square, range(10))) == [x * x for x in range(10)]
    assert list(pool.map(square, [])) == []
    assert not pool.has_next()


def test_a_pool_takes_several_results_of_a_call() -> None:
    pool = two_actors()
    for number in range(3):
        pool.submit(lambda actor, x: [actor.square.remote(x), actor.square.remote(x + 1)], number)
    results = []
    while pool.has_next():
        results.append(pool.get_next())
    assert results == [[0, 1], [1, 4], [4, 9]]


def test_a_pool_goes_on_while_one_actor_is_slow(gate: Gate) -> None:
    pool = two_actors()
    pool.submit(wait_at, gate)
    for x in range(3):
        pool.submit(square, x)
    assert [pool.get_next_unordered() for _ in range(3)] == [0, 1, 4]
    gate.open()
    assert pool.get_next_unordered() == "slow"
    with pytest.raises(StopIteration):
        pool.get_next_unordered()
    with pytest.raises(StopIteration):
        pool.get_next()


def test_a_slow_first_result_holds_up_no_actor(gate: Gate) -> None:
    # The other actor does all the rest, the last of which lets the first one go.
    pool = two_actors()
    pool.submit(wait_at, gate)
    pool.submit(square, 1)
    pool.submit(lambda actor, gate: actor.open_gate.remote(gate), gate)
    assert [pool.get_next(timeout=PATIENCE_S) for _ in range(3)] == ["slow", 1, "opened"]


def test_a_result_that_does_not_come_in_time(gate: Gate) -> None:
    pool = two_actors()
    pool.submit(wait_at, gate)
    pool.submit(square, 3)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0.05)
    with pytest.raises(ValueError, match="0 or more"):
        pool.get_next(timeout=-1, ignore_if_timedout=True)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0, ignore_if_timedout=True)
    assert pool.get_next() == 9
    assert not pool.has_next()
    gate.open()
    assert list(pool.map(square, range(5))) == [0, 1, 4, 9, 16]


def test_an_error_of_the_work_leaves_the_pool_usable() -> None:
    pool = two_actors()
    results = pool.map(square, [1, -1, 2])
    assert next(results) == 1
    with pytest.raises(ValueError, match="no square of -1"):
        next(results)
    assert pool.get_next() == 4
    with pytest.raises(SerializationError):
        pool.submit(square, psutil.Process().open_files)
    no_references: list[Any] = [None, [], [1]]
    for wrong in no_references:
        with pytest.raises(TypeError, match="must return what"):
            pool.submit(lambda actor, value: value, wrong)
    assert list(pool.map(square, [5])) == [25]


def test_an_actor_that_has_died_gets_no_more_work() -> None:
    def die(actor: Any, _: Any) -> Any:
        return actor.die.remote(None)

    pool = two_actors()
    pool.submit(die, None)
    for x in range(4):
        pool.submit(square, x)
    with pytest.raises(ActorDiedError):
        pool.get_next(timeout=PATIENCE_S)
    assert [pool.get_next() for _ in range(4)] == [0, 1, 4, 9]
    pool.submit(die, None)
    pool.submit(square, 4)
    with pytest.raises(ActorDiedError):
        pool.get_next(timeout=PATIENCE_S)
    with pytest.raises(ConfigError, match="no actor is left"):
        pool.get_next(timeout=PATIENCE_S)
    assert not pool.has_next()
    pool.push(Squarer.remote())
    assert list(pool.map(square, [5])) == [25]


def test_actors_come_and_go() -> None:
    pool = two_actors()
    assert pool.has_free()
    pool.submit(square, 1)
    pool.submit(square, 2)
    assert not pool.has_free()
    assert pool.pop_idle() is None
    pool.submit(square, 3)
    assert [pool.get_next() for _ in range(3)] == [1, 4, 9]
    assert pool.has_free()
    first, second = pool.pop_idle(), pool.pop_idle()
    assert first is not None
    assert second is not None
    assert sorted(dray.get([first.read_name.remote(), second.read_name.remote()])) == ["a", "b"]
    assert pool.pop_idle() is None
    pool.submit(square, 4)
    pool.push(first)
    assert pool.get_next() == 16
    with pytest.raises(ConfigError, match="pool"):
        pool.push(first)


def test_a_new_map_drops_what_is_left_of_the_last() -> None:
    pool = two_actors()
    first = pool.map(square, range(4))
    assert next(first) == 0
    assert list(pool.map(square, [7, 8])) == [49, 64]


def test_a_queue_is_first_in_first_out() -> None:
    items = Queue()
    for i in range(5):
        items.put(i)
    assert (items.qsize(), items.size(), len(items)) == (5, 5, 5)
    assert not items.empty()
    assert not items.full()
    assert [items.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert items.empty()
    items.put(None)
    assert items.get() is None
    items.shutdown()


def test_a_queue_has_limits() -> None:
    items = Queue(maxsize=2)
    items.put_nowait_batch([1, 2])
    assert items.full()
    gives: list[Callable[[], object]] = [
        lambda: items.put_nowait(3),
        lambda: items.put(3, timeout=0.05),
        lambda: items.put(3, block=False),
        lambda: items.put_nowait_batch([3]),
    ]
    for give in gives:
        with pytest.raises(Full) as caught:
            give()
        assert isinstance(caught.value, queue.Full)
    with pytest.raises(Empty):
        items.get_nowait_batch(3)
    assert items.get_nowait_batch(2) == [1, 2]
    for take in (items.get_nowait, lambda: items.get(timeout=0.05), lambda: items.get(block=False)):
        with pytest.raises(Empty) as caught_empty:
            take()
        assert isinstance(caught_empty.value, queue.Empty)
    with pytest.raises(ValueError, match="timeout"):
        items.get(timeout=-1)
    with pytest.raises(TypeError):
        items.get_nowait_batch("2")  # type: ignore[arg-type]
    items.shutdown()


def test_the_actor_of_a_queue_has_methods_of_its_own() -> None:
    """Programs call them to wait for many at once, or for none."""
    shared = Queue(maxsize=3)
    actor = shared.actor
    for method, item in ((actor.put, 1), (actor.put_nowait, 2), (actor.put_nowait_batch, [3])):
        dray.get(method.remote(item))  # on Ray, calls of an async actor may begin in any order
    assert dray.get([actor.qsize.remote(), actor.full.remote(), actor.empty.remote()]) == [3, 1, 0]
    for call in (actor.put.remote(4, 0.01), actor.put_nowait.remote(4)):
        with pytest.raises(Full):
            dray.get(call)
    with pytest.raises(Full, match="no room for 2 more items; 3 are allowed"):
        dray.get(actor.put_nowait_batch.remote([4, 5]))
    assert dray.get(actor.get.remote()) == 1
    assert dray.get(actor.get_nowait.remote()) == 2
    with pytest.raises(Empty, match="fewer than 2 items"):
        dray.get(actor.get_nowait_batch.remote(2))
    assert dray.get(actor.get_nowait_batch.remote(1)) == [3]
    for call in (actor.get.remote(timeout=0.01), actor.get_nowait.remote()):
        with pytest.raises(Empty):
            dray.get(call)
    shared.shutdown()


def test_a_queue_between_tasks() -> None:
    @dray.remote
    def produce(items: Queue, start: int) -> None:
        for i in range(start, start + 5):
            items.put(i)

    @dray.remote
    def consume(items: Queue) -> int:
        return sum(iter(items.get, None))

    items = Queue(maxsize=2)
    consumer = consume.remote(items)
    dray.get([produce.remote(items, start) for start in (0, 100)])
    items.put(None)
    assert dray.get(consumer) == 520
    items.shutdown()


def test_a_queue_in_async_code() -> None:
    async def main(items: Queue) -> list[int]:
        takers = [asyncio.ensure_future(items.get_async()) for _ in range(3)]
        for i in range(3):
            await items.put_async(i)
        with pytest.raises(Empty):
            await items.get_async(block=False)
        return sorted(await asyncio.gather(*takers))

    items = Queue(actor_options={"num_cpus": 0.5})
    assert asyncio.run(main(items)) == [0, 1, 2]
    items.shutdown()


def give_up_async(operation: Callable[..., Awaitable[object]], *arguments: object) -> None:
    async def main() -> None:
        await asyncio.wait_for(operation(*arguments), 0.1)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(main())


def interrupt(operation: Callable[..., object], *arguments: object) -> None:
    """Call an operation that waits; press Ctrl-C, as it were, when it does."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (as the time may be over at once)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            operation(*arguments)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_who_stops_waiting_for_a_queue_leaves_it_as_it_is() -> None:
    items = Queue(maxsize=1)
    give_up_async(items.get_async)
    interrupt(items.get)
    items.put(1)
    give_up_async(items.put_async, 2)
    interrupt(items.put, 3)
    assert items.get(timeout=PATIENCE_S) == 1
    assert items.empty()
    items.shutdown()


@pytest.mark.parametrize("force", [True, False])
def test_a_queue_is_shut_down(force: bool) -> None:
    items = Queue()
    items.put(1)
    assert items.get() == 1
    waiting = items.actor.get.remote(None)
    actor = items.actor
    items.shutdown(force=force)
    with pytest.raises(ActorDiedError):
        dray.get(waiting, timeout=PATIENCE_S)
    with pytest.raises(ActorDiedError):  # not before: Ray may answer a call that follows a kill
        dray.get(actor.qsize.remote(), timeout=PATIENCE_S)
    items.shutdown()
    with pytest.raises(ActorDiedError, match="the queue was shut down"):
        items.put(2)


def test_a_queue_may_be_shut_down_after_its_session(core_engine: str) -> None:
    if core_engine == "ray":
        pytest.skip("other tests use the session")
    before, after = Queue(), Queue()
    dray.shutdown()
    before.shutdown()
    assert not dray.is_initialized()
    dray.init(engine="inline")
    after.shutdown()
