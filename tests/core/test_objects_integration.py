"""Objects: values, get, put, wait, and futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import dray
from dray.errors import ConfigError, GetTimeoutError
from dray.util import placement_group, remove_placement_group
from tests.support.gates import PATIENCE_S, Gate

pytestmark = pytest.mark.usefixtures("core_engine")


@dray.remote
def echo(value: Any = None) -> Any:
    return value


@dray.remote
def held(gate: Gate, value: Any = None) -> Any:
    gate.wait()
    return value


@dray.remote
def fail() -> None:
    raise ValueError("failed")


@dataclass
class Point:
    x: int
    others: list[Any]


VALUES = [
    None,
    True,
    0,
    2**70,
    1.5,
    "naïve ☃",
    b"bytes",
    [bytearray(b"bytes")],  # alone, Ray makes it bytes
    [1, [2, (3,)]],
    {"a": {"b": {1, 2}}, 3: None},
    Point(1, [Point(2, [])]),
    ValueError("a value, not raised"),
    int,
    range(3),
    "x" * 500_000,
    [],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_come_back_as_they_were(value: Any) -> None:
    for came_back in dray.get([dray.put(value), echo.remote(value), echo.remote(dray.put(value))]):
        assert type(came_back) is type(value)
        if isinstance(value, Exception):
            assert came_back.args == value.args
        else:
            assert came_back == value


def test_functions_and_classes_are_values() -> None:
    class Local:
        def f(self) -> int:
            return 3

    assert dray.get(dray.put(lambda x: x + 1))(1) == 2
    assert dray.get(echo.remote(Local())).f() == 3
    assert dray.get(echo.remote(Local))().f() == 3


# Get.


def test_get_of_a_list_keeps_its_order() -> None:
    first, second = dray.put(1), echo.remote(2)
    assert dray.get([second, first, second]) == [2, 1, 2]
    assert dray.get([]) == []


def test_get_may_be_called_again() -> None:
    ref = echo.remote([1])
    value = dray.get(ref)
    value.append(2)
    assert dray.get(ref) == [1]


def test_get_with_a_timeout(gate: Gate) -> None:
    ref = held.remote(gate, "value")
    for timeout in (0, 0.05):
        began = time.monotonic()
        with pytest.raises(GetTimeoutError) as caught:
            dray.get(ref, timeout=timeout)
        assert timeout <= time.monotonic() - began < 5
        assert isinstance(caught.value, TimeoutError)
    with pytest.raises(GetTimeoutError):
        dray.get([dray.put(1), ref], timeout=0.01)
    gate.open()
    assert dray.get(ref, timeout=PATIENCE_S) == "value"
    assert dray.get([dray.put(1), ref], timeout=0) == [1, "value"]


def test_get_of_a_list_raises_the_error_among_values() -> None:
    with pytest.raises(ValueError, match="failed"):
        dray.get([echo.remote(1), fail.remote(), echo.remote(2)])


def test_what_else_get_takes() -> None:
    """As Ray does: a generator is its own value, and -1 is no limit."""

    @dray.remote
    def items() -> Any:
        yield "item"

    generator = items.remote()
    assert dray.get(generator) is generator
    assert [dray.get(ref, timeout=-1) for ref in generator] == ["item"]


@pytest.mark.parametrize("timeout", [-2, "1", True])
def test_get_refuses_a_timeout_that_is_none(timeout: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        dray.get(dray.put(1), timeout=timeout)


@pytest.mark.parametrize("value", [1, "text", None, [1], [[]], {}])
def test_get_refuses_what_is_no_reference(value: Any) -> None:
    with pytest.raises(TypeError, match="get"):
        dray.get(value)


# Put.


def test_put_copies() -> None:
    value = [1]
    ref = dray.put(value)
    value.append(2)
    assert dray.get(ref) == [1]


def test_put_refuses_a_reference_but_takes_a_list_of_them() -> None:
    ref = dray.put(1)
    with pytest.raises(TypeError, match="reference"):
        dray.put(ref)
    assert dray.get(dray.put([ref])) == [ref]


def test_put_within_tasks_and_actors() -> None:
    @dray.remote
    class Store:
        def __init__(self) -> None:
            self.refs = [dray.put("in init")]

        def add(self, value: Any) -> list[Any]:
            self.refs.append(dray.put(value))
            return self.refs

    @dray.remote
    def make() -> list[Any]:
        return [dray.put("in a task"), dray.put(np.ones(100_000))]

    text, array = dray.get(dray.get(make.remote()))
    assert text == "in a task"
    assert array.sum() == 100_000
    store = Store.remote()
    assert dray.get(dray.get(store.add.remote("in a method"))) == ["in init", "in a method"]


def test_references_are_equal_by_what_they_stand_for() -> None:
    ref, other = dray.put(1), dray.put(1)
    (same,) = dray.get(echo.remote([ref]))
    assert same == ref
    assert hash(same) == hash(ref)
    assert ref != other
    assert bytes.fromhex(ref.hex()) == ref.binary()
    assert ref.hex() in repr(ref)
    assert len({ref, other, same}) == 2


# Wait.


def test_wait_gives_what_is_ready(gate: Gate) -> None:
    slow, quick, broken = held.remote(gate), echo.remote(), fail.remote()
    ready, rest = dray.wait([slow, quick, broken], num_returns=2)
    assert (ready, rest) == ([quick, broken], [slow])
    assert dray.wait([slow], timeout=0) == ([], [slow])
    began = time.monotonic()
    assert dray.wait([quick, slow], num_returns=2, timeout=0.1) == ([quick], [slow])
    assert 0.1 <= time.monotonic() - began < 5
    gate.open()
    assert dray.wait([slow, quick], num_returns=2) == ([slow, quick], [])


def test_wait_gives_no_more_than_asked_for() -> None:
    refs = [dray.put(i) for i in range(4)]
    assert dray.wait(refs, num_returns=4, fetch_local=False) == (refs, [])
    for count in (1, 3):
        ready, rest = dray.wait(refs, num_returns=count, timeout=0)
        assert len(ready) == count
        assert ready == [ref for ref in refs if ref not in rest]
        assert rest == [ref for ref in refs if ref not in ready]
    assert dray.wait([]) == ([], [])


def test_wait_refuses_what_makes_no_sense() -> None:
    ref = dray.put(1)
    for refs, options in (
        ([ref, ref], {}),
        ([ref], {"num_returns": 0}),
        ([ref], {"num_returns": 2}),
        ([ref], {"timeout": -1}),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 (each of them says something else)
            dray.wait(refs, **options)  # type: ignore[arg-type]
    for wrong in (ref, [1], 5):
        with pytest.raises(TypeError):
            dray.wait(wrong)  # type: ignore[arg-type, type-var]


def test_waiting_for_results_as_they_come(gate: Gate, second_gate: Gate) -> None:
    late, early = held.remote(gate, "late"), held.remote(second_gate, "early")
    second_gate.open()
    ready, rest = dray.wait([late, early])
    assert dray.get(ready) == ["early"]
    gate.open()
    ready, rest = dray.wait(rest)
    assert dray.get(ready) == ["late"]
    assert rest == []


def test_a_time_limit_ends_a_wait(gate: Gate, request: pytest.FixtureRequest) -> None:
    class TimeLimit(Exception):
        """Raised by the handler of a signal."""

    def end(number: int, frame: object) -> None:
        raise TimeLimit

    @dray.remote
    def items() -> Iterator[Any]:
        gate.pass_through()
        yield "item"

    before = signal.signal(signal.SIGALRM, end)
    request.addfinalizer(lambda: signal.signal(signal.SIGALRM, before))
    ref, generator = held.remote(gate, "value"), items.remote()
    holder, group = placement_group([{"special": 2}]), placement_group([{"special": 1}])
    request.addfinalizer(lambda: [remove_placement_group(one) for one in (group, holder)])
    gate.heard()
    for wait in (
        lambda: dray.get(ref),
        lambda: dray.wait([ref]),
        lambda: next(generator),
        lambda: group.wait(2 * PATIENCE_S),
    ):
        with pytest.raises(TimeLimit):  # noqa: PT012 (as the time may be over at once)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            wait()
    gate.open()
    assert dray.get(ref) == "value"
    assert dray.get(next(generator)) == "item"


def test_many_objects() -> None:
    refs = [dray.put(i) for i in range(2000)]
    assert dray.get(refs) == list(range(2000))
    assert dray.get(dray.get(echo.remote(refs))) == list(range(2000))


def test_results_that_nobody_reads_do_no_harm() -> None:
    for _ in range(20):
        echo.remote(np.ones(50_000))
        fail.remote()
    assert dray.get(echo.remote("fine")) == "fine"


# Async code and futures.


def test_references_are_awaited_in_the_driver() -> None:
    async def main() -> list[Any]:
        first = await echo.remote(1)
        rest = await asyncio.gather(echo.remote(2), *(echo.remote(i) for i in (3, 4)))
        with pytest.raises(ValueError, match="failed"):
            await fail.remote()
        return [first, *rest]

    assert asyncio.run(main()) == [1, 2, 3, 4]


def test_awaiting_lets_other_coroutines_run(gate: Gate) -> None:
    async def main() -> Any:
        waiting = asyncio.ensure_future(_await(held.remote(gate, "came")))
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.open()
        return await waiting

    assert asyncio.run(main()) == "came"


async def _await(ref: dray.ObjectRef) -> Any:
    return await ref


def test_futures_of_references(gate: Gate) -> None:
    future = held.remote(gate, 5).future()
    assert isinstance(future, concurrent.futures.Future)
    assert not future.done()
    gate.open()
    assert future.result(PATIENCE_S) == 5
    with pytest.raises(ValueError, match="failed"):
        fail.remote().future().result(PATIENCE_S)
    done, _ = concurrent.futures.wait([echo.remote(i).future() for i in range(3)], PATIENCE_S)
    assert sorted(f.result() for f in done) == [0, 1, 2]
