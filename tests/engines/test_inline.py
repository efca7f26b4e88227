"""Tasks and objects on the inline engine: all in this process, for debugging."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.errors import (
    ConfigError,
    InfeasibleError,
    ObjectLostError,
    SerializationError,
    TaskCancelledError,
    TaskError,
    WorkerDiedError,
)
from dray.util.placement_group import (
    placement_group,
)
from dray.util.queue import Queue
from dray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
)

pytestmark = pytest.mark.usefixtures("inline_session")


@dray.remote
def double(x: int) -> int:
    return 2 * x


@dray.remote
def fail(message: str = "boom") -> None:
    raise ValueError(message)


@dray.remote
class Counter:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count


def test_a_task_runs_at_once_on_the_calling_thread() -> None:
    @dray.remote
    def task() -> tuple[int, int]:
        return os.getpid(), threading.get_ident()

    ref = task.remote()
    assert dray.wait([ref], timeout=0) == ([ref], [])
    assert dray.get(ref) == (os.getpid(), threading.get_ident())


def test_values_are_copied() -> None:
    given = {"numbers": [1]}

    @dray.remote
    def change(value: dict[str, list[int]]) -> dict[str, list[int]]:
        value["numbers"].append(2)
        return value

    ref = change.remote(given)
    assert given == {"numbers": [1]}
    first, second = dray.get(ref), dray.get(ref)
    assert first == second == {"numbers": [1, 2]}
    assert first is not second
    stored = dray.put(given)
    given["numbers"].clear()
    assert dray.get(stored) == {"numbers": [1]}


def test_what_cannot_be_pickled_shows() -> None:
    lock = threading.Lock()

    @dray.remote
    def hold() -> object:
        return lock

    @dray.remote
    def make() -> object:
        return threading.Lock()

    with pytest.raises(SerializationError, match="lock"):
        hold.remote()
    with pytest.raises(SerializationError, match="argument 0 of task"):
        double.remote(lock)
    with pytest.raises(SerializationError, match="lock"):
        dray.put(lock)
    with pytest.raises(SerializationError, match=r"what task .* returned"):
        dray.get(make.remote())


def test_references_among_arguments() -> None:
    @dray.remote
    def kinds(value: int, nested: list[Any], *, name: int) -> tuple[int, int, int]:
        return value, dray.get(nested[0]), name

    ref = kinds.remote(double.remote(1), [double.remote(2)], name=double.remote(3))
    assert dray.get(ref) == (2, 4, 6)


def test_a_stored_value_keeps_its_references() -> None:
    outer = dray.put([dray.put("inner")])
    gc.collect()
    assert dray.get(dray.get(outer)[0]) == "inner"


def test_an_error_keeps_the_original_as_its_cause() -> None:
    with pytest.raises(ValueError, match="boom") as caught:
        dray.get(fail.remote())
    assert isinstance(caught.value, TaskError)
    cause = caught.value.__cause__
    assert type(cause) is ValueError
    frames = traceback.extract_tb(cause.__traceback__)
    assert [frame.name for frame in frames] == ["fail"]  # the debugger starts where it was raised
    assert cause.__traceback__ is not None
    assert cause.__traceback__.tb_frame.f_locals["message"] == "boom"


def test_the_error_of_a_dependency_goes_on() -> None:
    with pytest.raises(ValueError, match="task fail"):
        dray.get(double.remote(fail.remote()))


def test_retries() -> None:
    tries = Counter.remote()

    @dray.remote(max_retries=3, retry_exceptions=[ValueError])
    def third_time(tries: Any) -> int:
        count: int = dray.get(tries.add.remote())
        if count < 3:
            raise ValueError("not yet")
        return count

    assert dray.get(third_time.remote(tries)) == 3
    others = third_time.options(max_retries=5, retry_exceptions=[KeyError])
    with pytest.raises(ValueError, match="not yet"):
        dray.get(others.remote(Counter.remote()))


def test_a_task_may_raise_stop_iteration() -> None:
    @dray.remote(max_retries=1, retry_exceptions=[StopIteration])
    def stops_first(tries: Any) -> int:
        if dray.get(tries.add.remote()) == 1:
            raise StopIteration("the first time")
        return 2

    assert dray.get(stops_first.remote(Counter.remote())) == 2
    with pytest.raises(TaskError, match="StopIteration: the first time") as caught:
        dray.get(stops_first.options(max_retries=0).remote(Counter.remote()))
    assert isinstance(caught.value.cause, StopIteration)


def test_options_take_no_globals_anew() -> None:
    shade = "light"

    @dray.remote
    def look() -> str:
        return shade

    assert dray.get(look.remote()) == "light"
    shade = "dark"
    assert dray.get([look.remote(), look.options(name="later").remote()]) == ["light", "light"]
    assert dray.get(dray.remote(look._function).remote()) == "dark"


def test_exit_is_a_death() -> None:
    @dray.remote
    def leave() -> None:
        sys.exit(3)

    with pytest.raises(WorkerDiedError) as caught:
        dray.get(leave.remote())
    assert caught.value.exitcode == 3


def test_many_returns() -> None:
    @dray.remote(num_returns=2)
    def split(text: str) -> str:
        return text

    assert dray.get(split.remote("ab")) == ["a", "b"]
    with pytest.raises(ValueError, match="num_returns"):
        dray.get(split.remote("abc")[0])
    assert split.options(num_returns=0).remote("ab") is None


def test_what_was_yielded_before_an_error_is_there() -> None:
    @dray.remote(num_returns=3)
    def broken(n: int) -> Iterator[int]:
        yield from range(n)
        raise KeyError("in the middle")

    first, *rest = broken.remote(1)
    assert dray.get(first) == 0
    for ref in rest:
        with pytest.raises(KeyError, match="in the middle"):
            dray.get(ref)
    assert dray.get(broken.remote(4)) == [0, 1, 2]


def test_tasks_within_tasks_know_where_they_are() -> None:
    @dray.remote
    def inner() -> str | None:
        return dray.get_runtime_context().get_task_name()

    @dray.remote(name="outer")
    def outer() -> tuple[str | None, str | None]:
        within = dray.get(inner.options(name="inner").remote())
        return dray.get_runtime_context().get_task_name(), within

    assert dray.get(outer.remote()) == ("outer", "inner")
    assert dray.get_runtime_context().get_task_name() is None


def test_a_runtime_environment_is_there_and_gone(tmp_path: Path) -> None:
    @dray.remote(runtime_env={"env_vars": {"FLAVOUR": "sweet"}, "working_dir": str(tmp_path)})
    def look() -> tuple[str, str]:
        return os.environ["FLAVOUR"], os.getcwd()

    here = os.getcwd()
    assert dray.get(look.remote()) == ("sweet", str(tmp_path))
    assert "FLAVOUR" not in os.environ
    assert os.getcwd() == here


def test_generators_go_on_when_they_are_asked() -> None:
    @dray.remote
    def count(tries: Any) -> Iterator[int]:
        while True:
            yield dray.get(tries.add.remote())

    tries = Counter.remote()
    items = count.remote(tries)
    assert [dray.get(next(items)) for _ in range(3)] == [1, 2, 3]
    assert dray.get(tries.add.remote()) == 4
    dray.cancel(items)
    with pytest.raises(TaskCancelledError) as caught:
        dray.get(next(items))
    assert isinstance(caught.value, TaskError)
    assert list(items) == []


def test_what_streams_may_be_any_iterable() -> None:
    @dray.remote(num_returns="streaming")
    def numbers() -> list[int]:
        return [1, 2]

    assert dray.get(list(numbers.remote())) == [1, 2]


def test_a_dynamic_number_of_results_ends_with_an_error() -> None:
    @dray.remote(num_returns="dynamic")
    def some() -> Iterator[int]:
        yield 1
        raise KeyError("end")

    first, error = dray.get(some.remote())
    assert dray.get(first) == 1
    with pytest.raises(KeyError, match="end"):
        dray.get(error)


def test_a_generator_that_fails() -> None:
    @dray.remote
    def some() -> Iterator[int]:
        yield 1
        raise KeyError("end")

    items = some.remote()
    assert dray.get(next(items)) == 1
    with pytest.raises(KeyError, match="end"):
        dray.get(next(items))
    assert list(items) == []
    items = some.remote()
    with pytest.raises(KeyError):
        dray.get(items.completed())
    assert len(list(items)) == 2
    with pytest.raises(KeyError):
        dray.get(items.completed())


def test_a_generator_that_exits_is_tried_again(tmp_path: Path) -> None:
    @dray.remote(max_retries=1)
    def leaving() -> Iterator[int]:
        yield 1
        if not (tmp_path / "left").exists():
            (tmp_path / "left").touch()
            sys.exit(3)
        yield 2

    assert [dray.get(ref) for ref in leaving.remote()] == [1, 2]
    (tmp_path / "left").unlink()
    first, last = leaving.options(max_retries=0).remote()
    assert dray.get(first) == 1
    with pytest.raises(WorkerDiedError):
        dray.get(last)


def test_waiting_and_cancelling() -> None:
    refs = [double.remote(i) for i in range(3)]
    assert dray.wait(refs, num_returns=2) == (refs[:2], refs[2:])
    dray.cancel(refs[0])
    assert dray.get(refs) == [0, 2, 4]


def test_what_can_never_run_is_refused() -> None:
    for options in (
        {"num_cpus": 5},
        {"resources": {"magic": 1}},
        {"label_selector": {"zone": "b"}},
        {"scheduling_strategy": NodeAffinitySchedulingStrategy("elsewhere")},
    ):
        with pytest.raises(InfeasibleError):
            double.options(**options).remote(1)
        with pytest.raises(InfeasibleError):
            Counter.options(**options).remote()
    soft = NodeAffinitySchedulingStrategy("elsewhere", soft=True)
    assert dray.get(double.options(scheduling_strategy=soft).remote(1)) == 2
    with pytest.raises(InfeasibleError):
        placement_group([{"CPU": 3}, {"CPU": 3}])
    dray.shutdown()
    with pytest.raises(ConfigError, match="nodes"):
        dray.init(engine="inline", nodes=[{"num_cpus": 1}])


def test_a_reference_does_not_outlive_what_holds_it() -> None:
    import pickle

    payload = pickle.dumps(dray.put(1))
    gc.collect()
    with pytest.raises(ObjectLostError):
        pickle.loads(payload)


def test_a_queue_may_be_shut_down_after_its_session() -> None:
    items = Queue()
    dray.shutdown()
    items.shutdown()
    assert not dray.is_initialized()


def test_status() -> None:
    counter = Counter.options(name="counter").remote()
    status = dray.session.current_runtime().status()
    assert [actor.name for actor in status.actors] == ["counter"]
    dray.kill(counter)
    assert [node["Alive"] for node in dray.nodes()] == [True]


@pytest.mark.parametrize("how", ["breakpoint", "quit"])
def test_the_debugger_works_in_a_task(how: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import dray\n"
        "@dray.remote\n"
        "def task(secret):\n"
        "    breakpoint()\n"
        "    return secret\n"
        "print('got', dray.get(task.remote(42)))\n"
    )
    quitting = "q\ny\n"  # from Python 3.14 on pdb asks whether to
    done = subprocess.run(
        [sys.executable, str(script)],
        input="p secret + 1\nc\n" if how == "breakpoint" else quitting,
        env={**os.environ, "DRAY_ENGINE": "inline"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ("(Pdb) 43" in done.stdout) == ("got 42" in done.stdout) == (how == "breakpoint")
    assert ("BdbQuit" in done.stderr) == (how == "quit")
