"""Tasks, on every engine that runs them: arguments, results, nesting, dependencies."""

from __future__ import annotations

import collections
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dray
from dray.errors import ConfigError, TaskError, WorkerDiedError
from tests.support import programs
from tests.support.gates import Gate, count_up, counted, until

pytestmark = pytest.mark.usefixtures("core_engine")


@dray.remote
def of_this_module(x: int) -> int:
    return _helper(x) + 1


def _helper(x: int) -> int:
    return 2 * x


@dray.remote
def echo(value: Any = None) -> Any:
    return value


@dray.remote
def pid() -> int:
    return os.getpid()


def test_a_task_runs_in_another_process() -> None:
    assert dray.get(pid.remote()) != os.getpid()


def test_arguments_of_all_kinds() -> None:
    @dray.remote
    def collect(a: int, /, b: int = 2, *rest: int, c: int, d: int = 4, **others: int) -> Any:
        return a, b, rest, c, d, others

    assert dray.get(collect.remote(1, c=3)) == (1, 2, (), 3, 4, {})
    assert dray.get(collect.remote(1, 5, 6, 7, c=8, d=9, e=10)) == (1, 5, (6, 7), 8, 9, {"e": 10})


def test_a_default_that_can_change_does_not() -> None:
    @dray.remote
    def grow(values: list[int] = []) -> list[int]:  # noqa: B006
        return [*values, 1]

    assert dray.get([grow.remote(), grow.remote()]) == [[1], [1]]


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1})])
def test_arguments_that_do_not_fit_are_found_at_the_call(args: Any, kwargs: Any) -> None:
    @dray.remote
    def add(x: int, y: int = 0) -> int:
        return x + y

    with pytest.raises(TypeError, match="add"):
        add.remote(*args, **kwargs)


def test_arguments_are_copied_at_the_call(gate: Gate) -> None:
    @dray.remote
    def late(values: list[int], gate: Gate) -> list[int]:
        gate.wait()
        return values

    values = [1]
    ref = late.remote(values, gate)
    values.append(2)
    gate.open()
    assert dray.get(ref) == [1]


def test_many_tasks_keep_their_results_apart() -> None:
    @dray.remote
    def square(x: int) -> int:
        return x * x

    assert dray.get([square.remote(i) for i in range(300)]) == [i * i for i in range(300)]


def test_tasks_run_at_the_same_time(gate: Gate) -> None:
    @dray.remote
    def meet(gate: Gate) -> None:
        gate.pass_through()

    refs = [meet.remote(gate) for _ in range(3)]
    assert len(set(gate.heard(3))) == 3
    gate.open()
    dray.get(refs)


def test_functions_of_all_kinds() -> None:
    offset = 10

    def decorated(function: Callable[[int], int]) -> Callable[[int], int]:
        @functools.wraps(function)
        def outer(x: int) -> int:
            return function(x) + offset

        return outer

    @dray.remote
    @decorated
    def inner(x: int) -> int:
        return 3 * x

    @dray.remote(num_cpus=1)
    def closure(x: int) -> int:
        return x + offset

    def later(x: int) -> int:
        return -x

    assert dray.get(inner.remote(1)) == 13
    assert dray.get(closure.remote(1)) == 11
    assert dray.get(dray.remote(later).remote(1)) == -1
    assert dray.get(dray.remote(lambda x: x + offset).remote(2)) == 12
    assert dray.get(of_this_module.remote(4)) == 9
    assert dray.get(dray.remote(os.path.join).remote("a", "b")) == "a/b"


def test_a_remote_function_may_be_an_argument_and_in_a_closure() -> None:
    @dray.remote
    def apply(function: Any, x: int) -> Any:
        return dray.get([function.remote(x), echo.remote("closure")])

    assert dray.get(apply.remote(of_this_module, 1)) == [3, "closure"]


def test_a_function_that_calls_itself() -> None:
    @dray.remote
    def fib(n: int, first: int = 0, *, second: int = 1) -> int:
        if n < 2:
            return [first, second][n]
        return sum(dray.get([fib.remote(n - 1), fib.remote(n - 2)]))

    assert dray.get(fib.remote(4)) == 3


def test_functions_of_a_script(tmp_path: Path, core_variables: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import dray\n"
        "FACTOR = 7\n"
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "@dray.remote\n"
        "def scale(point): return Point(point.x * FACTOR)\n"
        "@dray.remote\n"
        "class Keeper:\n"
        "    def keep(self, point): self.point = point; return self.point\n"
        "point = dray.get(scale.remote(Point(6)))\n"
        "kept = dray.get(Keeper.remote().keep.remote(point))\n"
        "print('the answer is', kept.x, type(point) is Point, isinstance(kept, Point))\n"
    )
    done = programs.run(script, tmp_path, **core_variables)
    assert done.stdout.splitlines()[-1:] == ["the answer is 42 True True"], done.stderr


# Results and options.


def test_num_returns() -> None:
    @dray.remote(num_returns=3)
    def three() -> tuple[int, int, int]:
        return 1, 2, 3

    @dray.remote(num_returns=0)
    def nothing() -> None:
        return None

    refs = three.remote()
    assert isinstance(refs, list)
    assert dray.get(refs) == [1, 2, 3]
    assert dray.get(three.options(num_returns=1).remote()) == (1, 2, 3)
    assert nothing.remote() is None


PAIRS = {
    "array": (np.array([1, 2]), [1, 2]),
    "rows": (np.eye(2), [[1, 0], [0, 1]]),
    "range": (range(2), [0, 1]),
    "deque": (collections.deque([1, 2]), [1, 2]),
    "dict": ({"a": 1, "b": 2}, ["a", "b"]),
    "text": ("ab", ["a", "b"]),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_the_results_of_a_call_are_the_items_of_anything_sized(kind: str) -> None:
    @dray.remote
    class Echo:
        def echo(self, value: Any) -> Any:
            return value

    value, items = PAIRS[kind]
    for call in (echo, Echo.remote().echo):
        first, second = dray.get(call.options(num_returns=2).remote(value))
        assert [np.asarray(first).tolist(), np.asarray(second).tolist()] == items


@pytest.mark.parametrize("value", [[1, 2], range(5), "abcd", np.array(3), 7, None], ids=repr)
def test_a_result_that_has_another_length_than_num_returns_is_an_error(value: Any) -> None:
    for ref in echo.options(num_returns=3).remote(value):
        with pytest.raises((ValueError, TypeError), match=r"3|no len|unsized"):
            dray.get(ref)


def test_options_make_a_new_function_and_leave_the_old_one() -> None:
    @dray.remote
    def name() -> str | None:
        return dray.get_runtime_context().get_task_name()

    named = name.options(name="Esther", num_cpus=0.5)
    assert dray.get(named.remote()) == "Esther"
    assert "name" in str(dray.get(name.remote()))
    assert "Esther" not in str(dray.get(name.remote()))


def test_max_calls_replaces_a_process_after_so_many_calls() -> None:
    once, thrice = pid.options(max_calls=1), pid.options(max_calls=3)
    assert len({dray.get(once.remote()) for _ in range(3)}) == 3
    pids = [dray.get(thrice.remote()) for _ in range(6)]
    assert 1 < max(map(pids.count, pids)) <= 3  # Ray counts earlier calls of the function as well


def test_processes_are_used_again() -> None:
    assert len({dray.get(pid.remote()) for _ in range(20)}) < 20


def test_environment_variables_are_the_tasks_own() -> None:
    @dray.remote(runtime_env={"env_vars": {"DRAY_TEST_COLOUR": "green"}})
    def colour() -> str | None:
        return os.environ.get("DRAY_TEST_COLOUR")

    plain = dray.remote(colour._function)
    assert dray.get(colour.remote()) == "green"
    assert dray.get([plain.remote() for _ in range(4)]) == [None] * 4
    assert "DRAY_TEST_COLOUR" not in os.environ


def test_environment_variables_may_name_others() -> None:
    variables = {
        "DRAY_TEST_PATH": "/first:${PATH}",
        "DRAY_TEST_SHORT": "$PATH!",
        "DRAY_TEST_TWICE": "${DRAY_TEST_SHORT}?",
        "DRAY_TEST_UNSET": "a${DRAY_TEST_NOBODY}b$DRAY_TEST_NOBODY",
        "DRAY_TEST_PLAIN": "5 $ and ${",
    }

    @dray.remote(runtime_env={"env_vars": variables})
    def found() -> list[str]:
        return [os.environ[name] for name in variables]

    @dray.remote
    def path() -> str:
        return os.environ["PATH"]

    there = dray.get(path.remote())
    assert dray.get(found.remote()) == [
        f"/first:{there}",
        f"{there}!",
        f"{there}!?",
        "ab$DRAY_TEST_NOBODY",
        "5 $ and ${",
    ]


# Retries.


def test_references_as_arguments_are_waited_for(gate: Gate) -> None:
    @dray.remote
    def slow(gate: Gate) -> int:
        gate.wait()
        return 1

    @dray.remote
    def add(x: int, *rest: int, y: int = 0) -> int:
        return x + sum(rest) + y

    first = slow.remote(gate)
    ref = add.remote(first, add.remote(first, 10), y=add.remote(first, 100))
    assert dray.wait([ref], timeout=0.05) == ([], [ref])
    gate.open()
    assert dray.get(ref) == 1 + 11 + 101


def test_references_within_arguments_stay_references(gate: Gate) -> None:
    @dray.remote
    def slow(gate: Gate) -> int:
        gate.wait()
        return 5

    @dray.remote
    def look(values: list[Any], box: dict[str, Any]) -> Any:
        assert all(isinstance(v, dray.ObjectRef) for v in (*values, box["x"]))
        not_ready = dray.wait(values, timeout=0)[1]
        return len(not_ready), values

    ref = slow.remote(gate)
    count, (same,) = dray.get(look.remote([ref], {"x": ref}))
    assert count == 1
    assert same == ref
    gate.open()
    assert dray.get(same) == 5


def test_a_failed_dependency_fails_what_waits_for_it(tmp_path: Path) -> None:
    @dray.remote
    def origin() -> None:
        raise KeyError("the first cause")

    @dray.remote
    def dependent(value: Any) -> None:
        count_up(tmp_path / "ran")

    with pytest.raises(KeyError, match="the first cause") as caught:
        dray.get(dependent.remote(dependent.remote(origin.remote())))
    assert isinstance(caught.value, TaskError)
    assert "origin" in str(caught.value)
    assert counted(tmp_path / "ran") == 0


def test_a_dependency_that_died_fails_what_waits_for_it() -> None:
    @dray.remote(max_retries=0)
    def die() -> None:
        os._exit(1)

    with pytest.raises(WorkerDiedError):
        dray.get(echo.remote(die.remote()))


def test_a_large_argument_and_result() -> None:
    @dray.remote
    def double(array: Any) -> Any:
        return array * 2

    array: Any = np.arange(2_000_000, dtype=np.float64)
    assert np.array_equal(dray.get(double.remote(array)), array * 2)


# Nesting.


def test_tasks_start_tasks() -> None:
    @dray.remote
    def parent(n: int) -> Any:
        return dray.get([echo.remote(i) for i in range(n)])

    assert dray.get([parent.remote(3) for _ in range(2)]) == [[0, 1, 2]] * 2


def test_a_task_may_return_references_of_tasks_that_outlive_it(gate: Gate) -> None:
    @dray.remote
    def slow(gate: Gate) -> str:
        gate.wait()
        return "late"

    @dray.remote
    def parent(gate: Gate) -> Any:
        return [slow.remote(gate)]

    (ref,) = dray.get(parent.remote(gate))
    gate.open()
    assert dray.get(ref) == "late"


@pytest.mark.parametrize("waits", ["get", "wait"])
def test_nesting_deeper_than_there_are_cpus_ends(waits: str) -> None:
    # Every level takes a whole node: it runs only because the levels above give their CPUs back.
    @dray.remote(num_cpus=4)
    def descend(levels: int) -> int:
        if levels == 0:
            return 0
        ref = descend.remote(levels - 1)
        if waits == "wait":
            dray.wait([ref])
        value: int = dray.get(ref)
        return value + 1

    assert dray.get(descend.remote(3)) == 3


def test_more_parents_than_cpus_that_all_wait_for_children() -> None:
    @dray.remote(num_cpus=2)
    def parent(i: int) -> int:
        value: int = dray.get(of_this_module.options(num_cpus=2).remote(i))
        return value

    assert dray.get([parent.remote(i) for i in range(6)]) == [2 * i + 1 for i in range(6)]


def test_tasks_wait_for_the_resources_they_ask_for(gate: Gate) -> None:
    @dray.remote(num_cpus=0, resources={"special": 1})
    def hold(gate: Gate) -> None:
        gate.pass_through()

    refs = [hold.remote(gate) for _ in range(3)]
    gate.heard(2)
    assert dray.wait(refs, timeout=0.1)[0] == []
    assert gate.silent()
    gate.open()
    dray.get(refs)
    gate.heard(1)


def test_a_function_is_not_called_directly_and_not_made_remote_twice() -> None:
    with pytest.raises(TypeError, match=r"echo\.remote"):
        echo(1)  # type: ignore[operator]
    with pytest.raises((TypeError, ConfigError)):
        dray.remote(echo)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        dray.remote(5)  # type: ignore[call-overload]


def test_output_of_tasks_comes_to_the_driver(
    tmp_path: Path, core_variables: Any, core_engine: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, threading, dray\n"
        "@dray.remote\n"
        "def speak():\n"
        "    print('said aloud'); print('complained', file=sys.stderr)\n"
        "dray.get(speak.remote())\n"
        + ("threading.Event().wait()\n" if core_engine == "ray" else "")  # Ray's comes later
    )
    with programs.Program(script, tmp_path, **core_variables) as program:
        while not all(text in "".join(program.lines) for text in ("said aloud", "complained")):
            program.wait_for("\n")


def test_what_a_task_prints_after_its_end_has_its_name(
    process_engine: None, gate: Gate, capfd: pytest.CaptureFixture[str]
) -> None:
    @dray.remote
    def leaves(gate: Gate) -> None:
        def later() -> None:
            gate.wait()
            print("late", flush=True)

        threading.Thread(target=later).start()

    dray.get(leaves.remote(gate))
    gate.open()
    said: list[str] = []
    until(lambda: said.append(capfd.readouterr().out) or "late" in "".join(said))
    assert "leaves pid=" in "".join(said)


def test_each_remote_of_a_function_takes_what_it_refers_to_anew() -> None:
    limit = [1]

    def current() -> int:
        return limit[0]

    class Current:
        def get(self) -> int:
            return limit[0]

    first, first_class = dray.remote(current), dray.remote(Current)
    assert dray.get([first.remote(), first_class.remote().get.remote()]) == [1, 1]
    limit[0] = 2
    again = [dray.remote(current).remote(), dray.remote(Current).remote().get.remote()]
    assert dray.get(again) == [2, 2]
    task, kind = first.options(num_cpus=0.5), first_class.options(num_cpus=0.5)
    assert dray.get([task.remote(), kind.remote().get.remote()]) == [1, 1]
