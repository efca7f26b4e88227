"""Streaming generators: values come one after another, while the task goes on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dray
from dray.errors import TaskCancelledError, TaskError, WorkerDiedError
from tests.support.gates import TRY_S, Gate, count_up, three_tries_on_ray

pytestmark = pytest.mark.usefixtures("core_engine")


@dray.remote
def numbers(n: int) -> Iterator[int]:
    for i in range(n):  # noqa: UP028 (what Ray makes of `yield from` has a test of its own)
        yield i


@dray.remote
def with_a_stop(gate: Gate) -> Iterator[int]:
    yield 1
    gate.pass_through()
    yield 2


@dray.remote
def broken() -> Iterator[int]:
    yield 1
    raise KeyError("in the middle")


def test_a_generator_gives_references_in_order() -> None:
    items = numbers.remote(5)
    assert isinstance(items, dray.ObjectRefGenerator)
    refs = list(items)
    assert all(isinstance(ref, dray.ObjectRef) for ref in refs)
    assert dray.get(refs) == [0, 1, 2, 3, 4]


def test_a_generator_may_yield_from_anything() -> None:
    # Ray itself cannot: it sends what no plain iterator takes.
    @dray.remote
    def chained() -> Iterator[int]:
        yield from range(2)
        yield from iter([2])

    assert [dray.get(ref) for ref in chained.remote()] == [0, 1, 2]


def test_a_generator_without_items_ends_at_once() -> None:
    items = numbers.remote(0)
    assert list(items) == []
    with pytest.raises(StopIteration):
        next(items)


def test_items_come_before_the_end(gate: Gate) -> None:
    items = with_a_stop.remote(gate)
    assert dray.get(next(items)) == 1
    gate.heard()
    assert dray.wait([items.completed()], timeout=0)[0] == []
    gate.open()
    assert dray.get(next(items)) == 2
    with pytest.raises(StopIteration):
        next(items)


def test_items_may_be_read_after_the_end() -> None:
    items = numbers.remote(3)
    dray.get(items.completed())
    assert [dray.get(ref) for ref in items] == [0, 1, 2]


def test_wait_takes_generators(gate: Gate) -> None:
    items = with_a_stop.remote(gate)
    assert dray.wait([items]) == ([items], [])
    next(items)
    assert dray.wait([items], timeout=0.05) == ([], [items])
    gate.open()
    assert dray.wait([items]) == ([items], [])


def test_an_error_in_the_middle_comes_after_the_items_before_it() -> None:
    items = broken.remote()
    assert dray.get(next(items)) == 1
    with pytest.raises(KeyError, match="in the middle") as caught:
        dray.get(next(items))
    assert isinstance(caught.value, TaskError)
    with pytest.raises(StopIteration):
        next(items)


def test_a_generator_that_fails_has_come_to_its_end() -> None:
    items = broken.remote()
    ended = items.completed()
    assert dray.wait([ended]) == ([ended], [])
    assert dray.get(next(items)) == 1


def test_a_death_in_the_middle_is_an_error_after_the_items_before_it(gate: Gate) -> None:
    @dray.remote(max_retries=0)
    def dying(gate: Gate) -> Iterator[int]:
        yield 1
        gate.wait()
        os._exit(1)

    items = dying.remote(gate)
    assert dray.get(next(items)) == 1
    gate.open()
    with pytest.raises(WorkerDiedError):
        dray.get(next(items))


def test_a_generator_whose_process_dies_runs_again(tmp_path: Path) -> None:
    @dray.remote(max_retries=1)
    def second_time(path: Path) -> Iterator[int]:
        count = count_up(path)
        yield 10
        if count < 2:
            os._exit(1)
        yield 20

    assert [dray.get(ref) for ref in second_time.remote(tmp_path / "count")] == [10, 20]


def test_async_iteration() -> None:
    async def read() -> list[int]:
        return [await ref async for ref in numbers.remote(4)]

    assert asyncio.run(read()) == [0, 1, 2, 3]


def test_items_are_handed_to_other_tasks() -> None:
    @dray.remote
    def total(*values: int) -> int:
        return sum(values)

    assert dray.get(total.remote(*numbers.remote(4))) == 6


def test_a_task_reads_the_generator_of_another_task() -> None:
    @dray.remote
    def reader() -> int:
        return sum(dray.get(ref) for ref in numbers.remote(4))

    assert dray.get(reader.remote()) == 6


def test_one_generator_feeds_another() -> None:
    @dray.remote
    def doubled(n: int) -> Iterator[int]:
        for ref in numbers.remote(n):
            yield 2 * dray.get(ref)

    assert [dray.get(ref) for ref in doubled.remote(3)] == [0, 2, 4]


def test_large_items() -> None:
    @dray.remote
    def arrays() -> Iterator[Any]:
        for i in range(3):
            yield np.full(200_000, i)

    assert [dray.get(ref).sum() for ref in arrays.remote()] == [0, 200_000, 400_000]


def test_many_items() -> None:
    assert [dray.get(ref) for ref in numbers.remote(500)] == list(range(500))


@pytest.mark.parametrize("how", ["task", "method", "async method"])
def test_back_pressure_holds_the_generator_up(gate: Gate, how: str, core_engine: str) -> None:
    if core_engine == "ray" and how == "async method":
        pytest.skip("Ray itself holds up no async generator")

    @dray.remote
    def eager(gate: Gate) -> Iterator[int]:
        for i in range(6):
            gate.ring(i)
            yield i

    @dray.remote
    class Eager:
        def eager(self, gate: Gate) -> Iterator[int]:
            for i in range(6):
                gate.ring(i)
                yield i

    @dray.remote
    class AsyncEager:
        async def eager(self, gate: Gate) -> AsyncIterator[int]:
            for i in range(6):
                gate.ring(i)
                yield i

    actor = (Eager if how == "method" else AsyncEager).remote()
    work = eager if how == "task" else actor.eager
    items = work.options(_generator_backpressure_num_objects=2).remote(gate)
    ahead = gate.heard(2)
    assert dray.wait([items.completed()], timeout=0.1)[0] == []  # it cannot have come to its end
    assert gate.silent()
    assert dray.get(next(items)) == 0
    assert [dray.get(ref) for ref in items] == [1, 2, 3, 4, 5]
    assert [*ahead, *gate.heard(4)] == ["0", "1", "2", "3", "4", "5"]


def test_async_generators_that_are_held_up_hold_up_no_other() -> None:
    @dray.remote
    class Counter:
        async def count(self) -> AsyncIterator[int]:
            for i in range(3):
                yield i

    counts = Counter.remote().count.options(_generator_backpressure_num_objects=1)
    several = [counts.remote() for _ in range(20)]
    for items in reversed(several):
        assert [dray.get(ref, timeout=TRY_S) for ref in items] == [0, 1, 2]


def test_a_generator_as_a_list_of_a_fixed_length() -> None:
    three = numbers.options(num_returns=3).remote(3)
    assert dray.get(three) == [0, 1, 2]


def test_one_result_of_a_generator_is_its_first_item() -> None:
    for work in (numbers, Source.remote().items):
        assert dray.get(work.options(num_returns=1).remote(3)) == 0
        with pytest.raises(ValueError, match="num_returns"):
            dray.get(work.options(num_returns=1).remote(0))


def test_no_number_of_results_is_the_usual_one() -> None:
    actor = Source.remote()
    for work in (numbers, actor.items):
        assert [dray.get(ref) for ref in work.options(num_returns=None).remote(2)] == [0, 1]


@dray.remote
class Yielding:
    def broken(self) -> Iterator[Any]:
        yield np.zeros(1 << 17)
        raise KeyError("in the middle")


def test_what_was_yielded_before_an_error_stays_in_a_list_of_a_fixed_length() -> None:
    first, *rest = broken.options(num_returns=3).remote()
    assert dray.get(first) == 1
    for ref in rest:
        with pytest.raises(KeyError, match="in the middle"):
            dray.get(ref)
    actor = Yielding.remote()
    large, nothing = actor.broken.options(num_returns=2).remote()
    assert dray.get(large).shape == (1 << 17,)
    with pytest.raises(KeyError, match="in the middle"):
        dray.get(nothing)


def test_a_generator_with_another_length_than_its_list_fails_only_what_is_missing() -> None:
    *there, missing = numbers.options(num_returns=3).remote(2)
    assert dray.get(there) == [0, 1]
    with pytest.raises(ValueError, match="3"):
        dray.get(missing)
    assert dray.get(numbers.options(num_returns=2).remote(4)) == [0, 1]


def test_a_generator_that_runs_again_goes_on_after_what_it_has_yielded(tmp_path: Path) -> None:
    @dray.remote(max_retries=2, retry_exceptions=[KeyError])
    def flaky(file: Path) -> Iterator[int]:
        tries = len(file.read_text()) if file.exists() else 0
        file.write_text("x" * (tries + 1))
        yield 0
        if tries < 2:
            raise KeyError("in the middle")
        yield tries

    assert [dray.get(ref) for ref in flaky.remote(tmp_path / "tries")] == [0, 2]
    refs = flaky.options(max_retries=1).remote(tmp_path / "others")
    with pytest.raises(KeyError):
        dray.get(list(refs))


def test_a_generator_of_a_fixed_length_that_runs_again_gives_the_values_of_one_run(
    core_engine: str, tmp_path: Path
) -> None:
    if core_engine == "ray":
        pytest.skip("Ray does not run one again that has yielded")

    @dray.remote(num_returns=2, max_retries=1, retry_exceptions=[KeyError])
    def flaky(file: Path) -> Iterator[tuple[int, Any]]:
        tries = len(file.read_text()) if file.exists() else 0
        file.write_text("x" * (tries + 1))
        yield tries, np.zeros(1 << 17)
        if not tries:
            raise KeyError("in the middle")
        yield tries, None

    values = dray.get(flaky.remote(tmp_path / "tries"))
    assert [tries for tries, _ in values] == [1, 1]


@dray.remote
def total(items: dray.DynamicObjectRefGenerator) -> int:
    return sum(dray.get(list(items)))


def test_a_dynamic_number_of_results_ends_with_an_error(core_engine: str, tmp_path: Path) -> None:
    @dray.remote(num_returns="dynamic", max_retries=1, retry_exceptions=[KeyError])
    def some(tries: Path | None) -> Iterator[int]:
        yield 1
        if tries and count_up(tries) == 1:
            raise KeyError("tried again")
        yield 2
        raise ValueError("the end")

    # Ray itself loses items when it tries again.
    *values, error = dray.get(some.remote(None if core_engine == "ray" else tmp_path / "tries"))
    assert dray.get(values) == [1, 2]
    with pytest.raises(ValueError, match="the end"):
        dray.get(error)


def test_a_dynamic_number_of_results(core_engine: str) -> None:
    outer = numbers.options(num_returns="dynamic").remote(3)
    inner = dray.get(outer)
    assert isinstance(inner, dray.DynamicObjectRefGenerator)
    assert len(inner) == 3
    assert [dray.get(ref) for ref in inner] == [0, 1, 2]
    if core_engine == "process":  # on Ray a task gets Ray's own references
        assert dray.get(total.remote(outer)) == 3


@three_tries_on_ray
def test_a_generator_is_cancelled(gate: Gate) -> None:
    @dray.remote
    def endless(gate: Gate) -> Iterator[int]:
        i = 0
        while gate.is_there():  # if it cannot be interrupted: others need the CPU
            yield i
            i += 1

    items = endless.options(_generator_backpressure_num_objects=4).remote(gate)
    assert dray.get(next(items)) == 0
    dray.cancel(items)

    def read_on() -> None:
        end = time.monotonic() + TRY_S
        for ref in items:
            dray.get(ref, timeout=TRY_S)
            if time.monotonic() > end:
                raise TimeoutError("it still goes on")

    with pytest.raises(TaskCancelledError):
        read_on()


@dray.remote
class Source:
    def __init__(self) -> None:
        self.given = 0

    def items(self, n: int) -> Iterator[int]:
        for i in range(n):
            self.given += 1
            yield i

    def count(self) -> int:
        return self.given

    def fail(self) -> Iterator[int]:
        yield 1
        raise ValueError("method")


def test_a_method_that_is_a_generator() -> None:
    source = Source.remote()
    assert [dray.get(ref) for ref in source.items.remote(3)] == [0, 1, 2]
    assert dray.get(source.count.remote()) == 3
    items = source.fail.remote()
    assert dray.get(next(items)) == 1
    with pytest.raises(ValueError, match="method"):
        dray.get(next(items))
    assert dray.get(source.count.remote()) == 3


@dray.remote
class Endless:
    def items(self, gate: Gate) -> Iterator[int]:
        try:
            while gate.is_there():
                yield 1
        finally:
            gate.ring("closed")

    def answer(self) -> str:
        return "answer"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("most", [0, 2])
def test_a_method_that_is_a_generator_is_cancelled(threads: int, most: int, gate: Gate) -> None:
    source = Endless.options(max_concurrency=threads).remote()
    options = {"_generator_backpressure_num_objects": most} if most else {}
    items = source.items.options(**options).remote(gate)
    assert dray.get(next(items)) == 1
    dray.cancel(items)
    with pytest.raises(TaskCancelledError):
        dray.get(list(items))
    assert gate.heard() == ["closed"]
    assert dray.get(source.answer.remote(), timeout=TRY_S) == "answer"


def test_async_generators_of_an_actor_run_side_by_side() -> None:
    @dray.remote
    class Talk:
        def __init__(self) -> None:
            self.turn = asyncio.Condition()
            self.said = 0

        def has_said(self, number: int) -> bool:
            return self.said == number

        async def speak(self, first: int) -> AsyncIterator[int]:
            for i in range(first, 6, 2):
                async with self.turn:
                    await self.turn.wait_for(partial(self.has_said, i))
                yield i
                async with self.turn:
                    self.said += 1
                    self.turn.notify_all()

        async def fail(self) -> AsyncIterator[int]:
            yield 1
            raise KeyError("async")

    talk = Talk.remote()
    even, odd = talk.speak.remote(0), talk.speak.remote(1)
    assert [dray.get(ref) for ref in even] == [0, 2, 4]
    assert [dray.get(ref) for ref in odd] == [1, 3, 5]
    items = talk.fail.remote()
    assert dray.get(next(items)) == 1
    with pytest.raises(KeyError, match="async"):
        dray.get(next(items))
