"""What goes wrong with tasks, actors and objects, and what users are told."""

from __future__ import annotations

import builtins
import gc
import os
import re
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psutil
import pytest

import dray
import dray.exceptions
from dray.errors import ConfigError, DrayError, InfeasibleError, SerializationError, TaskError
from dray.util.placement_group import placement_group
from tests.support.gates import PATIENCE_S, refused_at_once

pytestmark = pytest.mark.usefixtures("core_engine")


class OrderError(Exception):
    """As programs define them: with more to say than a text."""

    def __init__(self, order: int, *, reason: str) -> None:
        super().__init__(f"order {order}: {reason}")
        self.order = order
        self.reason = reason


# What user code raises.


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


# Options.


def _task() -> None:
    return None


class _Actor:
    def method(self) -> None:
        return None


TASK_OPTIONS = [
    ({"num_cpus": -1}, "CPU"),
    ({"num_cpus": "2"}, "CPU"),
    ({"num_cpus": 0.00001}, "1/10000"),
    ({"memory": -5}, "memory"),
    ({"resources": {"special": -1}}, "special"),
    ({"resources": {"special": 0.00001}}, "special"),
    ({"resources": ["special"]}, "resources"),
    ({"resources": {"GPU": 1}}, "num_gpus"),
    ({"resources": {"CPU": 1}}, "num_cpus"),
    ({"num_cpu": 1}, "num_cpus"),
    ({"colour": 1}, "num_cpus.*resources.*max_retries"),
    ({"max_restarts": 1}, "max_retries"),
    ({"num_returns": -1}, "num_returns"),
    ({"num_returns": "many"}, "num_returns"),
    ({"max_retries": -2}, "max_retries"),
    ({"max_calls": -1}, "max_calls"),
    ({"retry_exceptions": "ValueError"}, "retry_exceptions"),
    ({"name": 5}, "name"),
    ({"scheduling_strategy": "RANDOM"}, "scheduling_strategy"),
    ({"label_selector": {"zone": "in("}}, "label_selector"),
    ({"label_selector": ""}, "label_selector"),
    ({"label_selector": {"a b": "x"}}, "label_selector: 'a b' is no name of a label"),
    ({"runtime_env": {"variables": {}}}, "env_vars"),
    ({"runtime_env": {"env_vars": {"A": 1}}}, "env_vars"),
]
ACTOR_OPTIONS = [
    ({"num_cpus": -1}, "CPU"),
    ({"resources": {"GPU": 1}}, "num_gpus"),
    ({"max_retries": 1}, "max_restarts"),
    ({"max_restarts": -2}, "max_restarts"),
    ({"max_task_retries": -2}, "max_task_retries"),
    ({"max_concurrency": 0}, "max_concurrency"),
    ({"max_pending_calls": -2}, "max_pending_calls"),
    ({"lifetime": "forever"}, "lifetime"),
    ({"name": ""}, "name"),
    ({"concurrency_groups": {"io": 0}}, "io"),
    ({"colour": 1}, "num_cpus.*max_restarts"),
]


@pytest.mark.parametrize(("options", "message"), TASK_OPTIONS, ids=str)
def test_options_of_tasks_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        dray.remote(**options)(_task)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError, match=message):
        dray.remote(_task).options(**options)


@pytest.mark.parametrize(("options", "message"), ACTOR_OPTIONS, ids=str)
def test_options_of_actors_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dray.remote(**options)(_Actor)
    with pytest.raises(ConfigError, match=message):
        dray.remote(_Actor).options(**options)


def test_options_of_methods_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="num_returns"):
        dray.method(num_cpus=1)
    actor = dray.remote(_Actor).remote()
    with pytest.raises(ConfigError, match="num_returns"):
        actor.method.options(num_return=2)
    with pytest.raises(ConfigError, match="num_returns"):
        actor.method.options(num_returns=-1)


def test_the_decorator_used_wrongly() -> None:
    with pytest.raises(ConfigError, match="parentheses"):
        dray.remote()
    with pytest.raises(ConfigError, match="num_cpus"):
        dray.remote(_task, num_cpus=1)  # type: ignore[call-overload]


# What cannot travel.


def test_an_argument_that_cannot_be_pickled() -> None:
    @dray.remote
    def use(x: Any, lock: Any = None) -> None:
        return None

    calls: list[tuple[Any, Any, str]] = [
        ((threading.Lock(),), {}, "argument 0 of"),
        ((1,), {"lock": [threading.Lock()]}, "argument 'lock' of"),
    ]
    for args, kwargs, argument in calls:
        with pytest.raises(SerializationError, match=f"^{argument} .*use.* cannot be") as caught:
            use.remote(*args, **kwargs)
        assert "lock" in str(caught.value)
        assert isinstance(caught.value, TypeError)


def test_an_argument_of_an_actor_that_cannot_be_pickled() -> None:
    @dray.remote
    class User:
        def __init__(self, value: Any = None) -> None:
            self.value = value

        def use(self, value: Any) -> str:
            return "used"

    with pytest.raises(SerializationError, match=r"^argument 0 of .*User cannot be"):
        User.remote(threading.Lock())
    user = User.remote()
    with pytest.raises(SerializationError, match=r"^argument 0 of .*use"):
        user.use.remote(threading.Lock())
    assert dray.get(user.use.remote(1)) == "used"


def test_a_function_that_cannot_be_pickled() -> None:
    mutex = threading.Lock()

    @dray.remote
    def guarded() -> None:
        with mutex:
            return None

    @dray.remote
    class Guarded:
        def enter(self) -> None:
            with mutex:
                return None

    with pytest.raises(SerializationError, match="mutex") as caught:
        guarded.remote()
    assert "guarded" in str(caught.value)
    with pytest.raises(SerializationError, match="mutex"):
        Guarded.remote()


def test_a_value_that_cannot_be_pickled() -> None:
    @dray.remote
    def make() -> Any:
        return {"lock": threading.Lock()}

    with pytest.raises(SerializationError, match="lock"):
        dray.put(threading.Lock())
    with pytest.raises(SerializationError, match="make") as caught:
        dray.get(make.remote())
    assert "lock" in str(caught.value)


# What can never run.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_cpus": 1000}, "1000"),
        ({"resources": {"unicorn": 1}}, "unicorn"),
        ({"resources": {"special": 3}}, "special"),
        ({"num_gpus": 64}, "GPU"),
        ({"memory": 2**60}, "memory"),
        ({"label_selector": {"zone": "atlantis"}}, "atlantis"),
        ({"accelerator_type": "ABACUS"}, "ABACUS"),
    ],
    ids=str,
)
def test_what_no_node_can_offer_is_refused_within_a_second(
    options: dict[str, Any], message: str
) -> None:
    for target in (_task, _Actor):
        ask = dray.remote(**options)(target).remote
        error = refused_at_once(InfeasibleError, ask, message)
        assert isinstance(error, DrayError)
        assert error.asked


def test_a_request_that_no_single_node_can_meet_names_the_shortfall() -> None:
    with pytest.raises(InfeasibleError) as caught:
        dray.remote(num_cpus=0, resources={"special": 2.5})(_task).remote()
    assert "2.5" in str(caught.value)
    assert "2" in str(caught.value)
    assert caught.value.asked["special"] == 2.5
    assert caught.value.available["special"] == 2


def test_cancel_and_kill_refuse_what_they_cannot_end() -> None:
    ref = dray.put(1)
    with pytest.raises(TypeError, match="remote"):
        dray.cancel(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="handle"):
        dray.kill(ref)  # type: ignore[arg-type]
    actor = dray.remote(_Actor).remote()
    with pytest.raises(TypeError, match="method"):
        dray.get(actor)


@pytest.mark.parametrize("asked", [{"num_cpus": 999}, {"num_gpus": 9}, {"resources": {"lake": 1}}])
def test_what_can_never_run_is_not_told_what_trainers_can_ask_for(asked: dict[str, Any]) -> None:
    @dray.remote(**asked)
    def task() -> None: ...

    @dray.remote(**asked)
    class Actor: ...

    bundle = asked.get("resources") or {
        "GPU" if "num_gpus" in asked else "CPU": next(iter(asked.values()))
    }
    makers: list[Callable[[], object]] = [
        task.remote,
        Actor.remote,
        lambda: placement_group([bundle]),
    ]
    for make in makers:
        with pytest.raises(InfeasibleError) as refused:
            make()
        text = str(refused.value)
        assert "Ask for" in text
        assert not re.search("num_workers|resources_per_worker|use_gpu", text)
