"""Functions that come and go: the session forgets those that nobody can use, and no other."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.util.state import summarize_objects
from tests.support.gates import Gate, count_up


@pytest.fixture(autouse=True)
def one_worker(session: Callable[..., object]) -> None:
    """A session in which every task runs in the same process, one after another."""
    session({"num_cpus": 1})


class Told:
    """Something that tells where it ends."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __del__(self) -> None:
        self.gate.ring(os.getpid())


def _run(function: Callable[..., Any], *args: object, **options: Any) -> dray.ObjectRef:
    remote: Any = dray.remote(function)
    return remote.options(**options).remote(*args)


@dray.remote
def here() -> int:
    return os.getpid()


def _memory() -> int:
    gc.collect()
    return summarize_objects()["cluster"]["memory_bytes"]


def test_a_process_with_counted_calls_of_a_forgotten_function_serves_others() -> None:
    pid = dray.get(_run(lambda: os.getpid(), max_calls=5))
    gc.collect()
    assert dray.get(here.remote()) == pid


def test_a_worker_forgets_a_function_that_nobody_can_call(gate: Gate) -> None:
    def run() -> int:
        told = Told(gate)

        def use() -> tuple[int, bool]:
            return os.getpid(), told is None

        return dray.get(_run(use))[0]

    pid = run()
    gc.collect()
    assert gate.heard() == [str(os.getpid())]
    assert gate.silent()
    assert dray.get(here.remote()) == pid
    assert gate.heard() == [str(pid)]


def test_what_a_function_refers_to_goes_with_it() -> None:
    def run(number: int) -> int:
        ref = dray.put(bytes(1 << 20))
        return dray.get(_run(lambda: len(dray.get(ref)) + number))

    for number in range(10):
        assert run(number) == (1 << 20) + number
    for _ in range(2):  # with the second the worker has told what went with the first
        dray.get(here.remote())
    assert _memory() == 0


def test_a_function_stays_until_its_tasks_are_over(gate: Gate, tmp_path: Path) -> None:
    def run() -> list[dray.ObjectRef]:
        ref = dray.put(b"x" * (1 << 20))

        def again(path: Path) -> int:
            gate.pass_through()
            if count_up(path) == 1:
                os._exit(1)
            return len(dray.get(ref))

        return [_run(again, tmp_path / str(number), max_retries=1) for number in range(3)]

    refs = run()
    gc.collect()
    gate.heard()
    gate.open()
    assert dray.get(refs) == [1 << 20] * 3


def test_a_function_that_was_forgotten_comes_again() -> None:
    for _ in range(3):
        assert dray.get(_run(lambda: "the same")) == "the same"
        gc.collect()
        dray.get(here.remote())


def test_a_function_with_many_options_stays() -> None:
    @dray.remote
    def name() -> str:
        return dray.get_runtime_context().get_task_name() or ""

    first = name.options(name="first")
    assert dray.get(first.remote()) == "first"
    for number in range(40):
        assert dray.get(name.options(name=f"{number}").remote()) == f"{number}"
    assert dray.get(first.remote()) == "first"


def test_tasks_have_functions_that_come_and_go() -> None:
    def outer() -> list[int]:
        def inner(number: int) -> dray.ObjectRef:
            return _run(lambda: number)

        refs = [inner(number) for number in range(20)]
        gc.collect()
        return dray.get(refs)

    assert dray.get(_run(outer)) == list(range(20))


def test_an_actor_outlives_its_class(tmp_path: Path) -> None:
    def make() -> Any:
        ref = dray.put(b"x" * (1 << 20))

        @dray.remote(num_cpus=0, max_restarts=1, max_task_retries=1)
        class Once:
            def use(self, path: Path) -> int:
                if count_up(path) == 1:
                    os._exit(1)
                return len(dray.get(ref))

        return Once.remote()

    actor = make()
    gc.collect()
    for _ in range(2):
        dray.get(here.remote())
    for _ in range(3):
        assert dray.get(actor.use.remote(tmp_path / "count")) == 1 << 20
    dray.kill(actor)
    del actor
