"""Errors of tasks and actors: their types, where they come from, and who hears of them."""

from __future__ import annotations

import builtins
import gc
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest

import dray
import dray.exceptions
from dray.errors import TaskError
from tests.support.gates import PATIENCE_S

pytestmark = pytest.mark.usefixtures("core_engine")


class OrderError(Exception):
    """As programs define them: with more to say than a text."""

    def __init__(self, order: int, *, reason: str) -> None:
        super().__init__(f"order {order}: {reason}")
        self.order = order
        self.reason = reason


def test_an_error_keeps_its_type_its_attributes_and_where_it_came_from() -> None:
    @dray.remote
    def deliver(order: int) -> None:
        error = FileNotFoundError(2, "no such parcel", "parcel.txt")
        error.order = order  # type: ignore[attr-defined]
        error.pid = os.getpid()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(FileNotFoundError) as caught:
        dray.get(deliver.remote(7))
    assert isinstance(caught.value, TaskError)
    error: Any = caught.value
    assert (error.errno, error.filename, error.order) == (2, "parcel.txt", 7)
    assert isinstance(error.cause, FileNotFoundError)
    for detail in ("deliver", str(error.pid), "FileNotFoundError", "no such parcel"):
        assert detail in str(error)
    assert "raise error" in error.remote_traceback
    if sys.version_info >= (3, 11):  # before, Python holds on to frames as it raises again
        assert "dray/engines" not in error.remote_traceback
    shown = "".join(traceback.format_exception(error))
    assert "raise error" in shown
    assert "in deliver" in shown


@pytest.mark.parametrize(
    "use",
    [
        lambda ref: ref + 1,
        lambda ref: 2 * ref,
        lambda ref: ref[0],
        lambda ref: list(ref),
        lambda ref: ref < 3,
        lambda ref: sorted([ref, 1]),
        lambda ref: 1 in ref,
    ],
)
def test_a_reference_is_not_taken_for_its_value(use: Any) -> None:
    with pytest.raises(TypeError, match=r"ObjectRef is not the value .* dray.get\(ref\)"):
        use(dray.put(1))


def test_messages_of_pythons_call_a_reference_as_programs_do() -> None:
    with pytest.raises(TypeError, match="'ObjectRef'"):
        len(dray.put(1))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="'ObjectRef' object has no attribute 'shape'"):
        dray.put(1).shape  # type: ignore[attr-defined] # noqa: B018


def test_an_error_says_which_function_raised_it_and_where() -> None:
    @dray.remote
    def fails() -> None:
        raise ValueError(os.getpid())

    class Fails:
        def now(self) -> None:
            raise ValueError(os.getpid())

    for ref, name in (
        (fails.remote(), "fails"),
        (fails.options(name="a name").remote(), "a name"),
        (dray.remote(Fails).remote().now.remote(), "Fails.now"),
    ):
        with pytest.raises(TaskError) as caught:
            dray.get(ref)
        error = caught.value
        assert error.function_name.endswith(name)
        assert error.pid == error.cause.args[0]
        assert error.ip


def test_an_error_of_the_programs_own_type() -> None:
    @dray.remote
    class Shop:
        def sell(self) -> None:
            raise OrderError(3, reason="sold out")

        async def sell_later(self) -> None:
            raise OrderError(4, reason="sold out")

        def sell_all(self) -> Iterator[int]:
            yield 1
            raise OrderError(5, reason="sold out")

        async def sell_all_later(self) -> AsyncIterator[int]:
            yield 1
            raise OrderError(6, reason="sold out")

    shop = Shop.remote()
    _, items = shop.sell_all.remote()
    asking = shop.sell_all_later.remote()
    next(asking)
    refs = (shop.sell.remote(), shop.sell_later.remote(), items, next(asking))
    for number, ref in enumerate(refs, 3):
        with pytest.raises(TaskError, match=f"order {number}: sold out") as caught:
            dray.get(ref)
        assert "sell" in str(caught.value)
        error: Any = caught.value
        assert isinstance(error, OrderError)
        assert (error.order, error.reason) == (number, "sold out")


def test_an_error_of_the_programs_own_type_passes_through_tasks() -> None:
    @dray.remote
    def sell() -> None:
        raise OrderError(3, reason="sold out")

    @dray.remote(num_cpus=0)
    def ask() -> None:
        dray.get(sell.remote())

    with pytest.raises(OrderError, match="order 3: sold out"):
        dray.get(ask.remote())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no groups of exceptions")
def test_a_group_of_errors_is_caught_as_one() -> None:
    group: Any = builtins.ExceptionGroup  # type: ignore[attr-defined,unused-ignore]

    @dray.remote
    def fails() -> None:
        raise group("both", [ValueError("a"), KeyError("b")])

    with pytest.raises(group) as caught:
        dray.get(fails.remote())
    error: Any = caught.value
    assert isinstance(error, TaskError)
    values, others = caught.value.split(ValueError)
    assert (repr(values.exceptions), repr(others.exceptions)) == (
        "(ValueError('a'),)",
        "(KeyError('b'),)",
    )


def test_an_error_with_a_cause_of_its_own_shows_both() -> None:
    @dray.remote
    def outer() -> None:
        try:
            int("x")
        except ValueError as error:
            raise RuntimeError("while reading") from error

    with pytest.raises(RuntimeError, match="while reading") as caught:
        dray.get(outer.remote())
    assert isinstance(caught.value, TaskError)
    assert "invalid literal" in caught.value.remote_traceback


def test_an_error_passes_through_tasks_that_wait_for_it() -> None:
    @dray.remote
    def inner() -> None:
        raise LookupError("deep down")

    @dray.remote
    def middle(catch: bool) -> str:
        try:
            dray.get(inner.remote())
        except LookupError as error:
            if not catch:
                raise
            return f"caught {type(error.cause).__name__}"  # type: ignore[attr-defined]
        return "nothing"

    assert dray.get(middle.remote(True)) == "caught LookupError"
    with pytest.raises(LookupError, match="deep down") as caught:
        dray.get(middle.remote(False))
    assert isinstance(caught.value, TaskError)
    assert "inner" in str(caught.value)


def test_an_error_that_cannot_be_pickled_still_tells_what_happened() -> None:
    @dray.remote
    def fail() -> None:
        error = ValueError("with a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(ValueError, match="with a lock") as caught:
        dray.get(fail.remote())
    assert isinstance(caught.value, TaskError)
    assert "raise error" in caught.value.remote_traceback


def test_errors_go_to_everybody_who_asks() -> None:
    @dray.remote
    def fail() -> None:
        raise ValueError("again and again")

    @dray.remote
    def look(box: list[Any]) -> str:
        try:
            dray.get(box[0])
        except ValueError as error:
            return str(error)
        return ""

    ref = fail.remote()
    for _ in range(2):
        with pytest.raises(ValueError, match="again and again"):
            dray.get(ref)
    assert "again and again" in dray.get(look.remote([ref]))


def test_an_error_keeps_nothing_of_its_caller_alive() -> None:
    @dray.remote
    class Actor:
        def pid(self) -> int:
            return os.getpid()

        def fail(self) -> None:
            raise ValueError("no")

    def use() -> psutil.Process:
        actor = Actor.remote()
        with pytest.raises(ValueError, match="no"):
            dray.get(actor.fail.remote())
        return psutil.Process(dray.get(actor.pid.remote()))

    gc.collect()
    gc.disable()  # a cycle of an error and its frames would be found late, or never
    try:
        use().wait(PATIENCE_S)
    finally:
        gc.enable()


def test_the_names_that_users_of_ray_catch() -> None:
    @dray.remote
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(dray.exceptions.RayTaskError):
        dray.get(fail.remote())
    with pytest.raises(dray.exceptions.RayError):
        dray.get(fail.remote())
