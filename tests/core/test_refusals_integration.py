"""Tasks, actors and values that are refused: options, what cannot travel, what can never run."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

import dray
import dray.exceptions
from dray.errors import ConfigError, DrayError, InfeasibleError, SerializationError
from dray.util.placement_group import placement_group
from tests.support.gates import refused_at_once

pytestmark = pytest.mark.usefixtures("core_engine")


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
        dray.get(actor)  # type: ignore[call-overload]


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
