"""Cancelling: tasks that wait, tasks that run, what they have started, calls of actors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from typing import Any

import psutil
import pytest

import dray
from dray.errors import ConfigError, TaskCancelledError, TaskError
from tests.support.gates import PATIENCE_S, TRY_S, Gate, three_tries_on_ray, until
from tests.support.holding import held

pytestmark = pytest.mark.usefixtures("core_engine")


@dray.remote
def endless(gate: Gate) -> None:
    try:
        gate.ring(os.getpid())
        while gate.is_there():  # if it cannot be interrupted: others need the CPU
            time.sleep(0.005)  # Ray interrupts Python code, and no system calls
    except KeyboardInterrupt:
        gate.ring("interrupted")
        raise


@dray.remote
def echo(value: Any) -> Any:
    return value


def has_raised(ref: Any) -> bool:
    """Return whether what was cancelled had begun, and has raised that itself."""
    with pytest.raises(TaskCancelledError) as caught:
        dray.get(ref, timeout=TRY_S)
    return isinstance(caught.value, TaskError)


def test_a_task_that_waits_for_resources_never_runs(gate: Gate, second_gate: Gate) -> None:
    special = held.options(num_cpus=0, resources={"special": 2})
    first = special.remote(gate)
    gate.heard()
    second = special.remote(second_gate)
    dray.cancel(second)
    assert not has_raised(second)
    gate.open()
    assert dray.get(first) == "let go"
    third = special.remote(gate)
    assert dray.get(third) == "let go"
    assert second_gate.silent()


def test_a_task_that_waits_for_an_argument_never_runs(gate: Gate, core_engine: str) -> None:
    if core_engine == "ray":
        pytest.skip("Ray itself: if the argument comes after all, it may abort the driver")
    argument = held.remote(gate)
    ref = echo.remote(argument)
    after = echo.remote(ref)
    gate.heard()
    dray.cancel(ref)
    for cancelled in (ref, after):
        with pytest.raises(TaskCancelledError):
            dray.get(cancelled, timeout=PATIENCE_S)
    gate.open()
    assert dray.get(argument) == "let go"


@three_tries_on_ray
def test_a_task_that_runs_is_interrupted(gate: Gate) -> None:
    ref = endless.remote(gate)
    gate.heard()
    dray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        dray.get(ref, timeout=TRY_S)
    assert gate.heard() == ["interrupted"]
    assert dray.get(echo.remote(1)) == 1


@three_tries_on_ray
def test_a_task_that_is_interrupted_is_not_retried(gate: Gate) -> None:
    ref = endless.options(max_retries=-1, retry_exceptions=True).remote(gate)
    gate.heard()
    dray.cancel(ref)
    assert has_raised(ref)
    assert gate.heard() == ["interrupted"]
    assert dray.get([echo.remote(i) for i in range(8)]) == list(range(8))
    assert gate.silent()


@three_tries_on_ray
def test_a_task_that_waits_for_another_is_interrupted(gate: Gate) -> None:
    @dray.remote
    def parent(gate: Gate) -> None:
        dray.get(held.remote(gate))

    ref = parent.remote(gate)
    gate.heard()
    dray.cancel(ref, recursive=False)
    assert has_raised(ref)


@dray.remote
def child(gate: Gate, stop: Gate) -> str:
    try:
        gate.ring("child")
        stopped: list[int] = []
        threading.Thread(target=lambda: (stop.wait(), stopped.append(1)), daemon=True).start()
        while not stopped:
            time.sleep(0.005)
    except KeyboardInterrupt:
        gate.ring("interrupted")
        raise
    gate.ring("let go")
    return "let go"


@dray.remote
def parent(gate: Gate, stop: Gate) -> None:
    dray.get(child.remote(gate, stop))


@three_tries_on_ray
def test_what_a_task_has_started_is_cancelled_with_it(gate: Gate, second_gate: Gate) -> None:
    ref = parent.remote(gate, second_gate)
    gate.heard()
    dray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        dray.get(ref, timeout=TRY_S)
    assert gate.heard(within_s=TRY_S) == ["interrupted"]


@three_tries_on_ray
def test_what_a_task_has_started_goes_on_without_it(gate: Gate, second_gate: Gate) -> None:
    ref = parent.remote(gate, second_gate)
    gate.heard()
    dray.cancel(ref, recursive=False)
    with pytest.raises(TaskCancelledError):
        dray.get(ref, timeout=TRY_S)
    assert gate.silent()
    second_gate.open()
    assert gate.heard() == ["let go"]


def test_force_ends_a_task_that_does_not_listen(gate: Gate, core_engine: str) -> None:
    if core_engine == "ray":
        pytest.skip("Ray itself: force=True had no effect in 1 of 30 tries without dray")

    @dray.remote(max_retries=5)
    def deaf(gate: Gate) -> None:
        while True:
            try:
                gate.ring(os.getpid())
                while True:
                    time.sleep(0.005)
            except KeyboardInterrupt:
                gate.ring("not listening")

    ref = deaf.remote(gate)
    process = psutil.Process(int(gate.heard()[0]))
    dray.cancel(ref)
    assert gate.heard(2)[0] == "not listening"
    dray.cancel(ref, force=True)
    with pytest.raises(TaskCancelledError):
        dray.get(ref, timeout=PATIENCE_S)
    process.wait(PATIENCE_S)
    assert dray.get(echo.remote(1)) == 1
    assert gate.silent()


def test_a_task_that_has_ended_keeps_its_result() -> None:
    ref = echo.remote("result")
    assert dray.get(ref) == "result"
    dray.cancel(ref)
    dray.cancel(ref, force=True)
    assert dray.get(ref) == "result"


@three_tries_on_ray
def test_cancelling_twice_is_fine(gate: Gate) -> None:
    ref = endless.remote(gate)
    gate.heard()
    dray.cancel(ref)
    dray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        dray.get(ref, timeout=TRY_S)
    dray.cancel(ref)


@dray.remote
class Worker:
    def hold(self, gate: Gate) -> str:
        gate.pass_through()
        return "let go"

    def call(self, gate: Gate | None = None) -> str:
        if gate:
            gate.ring("ran")
        return "called"


@dray.remote
class AsyncWorker:
    async def wait(self, gate: Gate) -> None:
        gate.ring("waiting")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            gate.ring("cancelled")
            raise

    async def endless(self) -> None:
        await asyncio.Event().wait()

    async def call(self) -> str:
        return "called"


def test_a_call_that_waits_never_runs(gate: Gate, second_gate: Gate, core_engine: str) -> None:
    worker = Worker.remote()
    if core_engine == "ray":
        pytest.skip("Ray itself may run such a call, and lose the calls after it")
    running, waiting = worker.hold.remote(gate), worker.call.remote(second_gate)
    last = worker.call.remote()
    gate.heard()
    dray.cancel(waiting)
    gate.open()
    assert not has_raised(waiting)
    assert dray.get([running, last]) == ["let go", "called"]
    assert second_gate.silent()


def test_a_call_of_an_async_actor_is_cancelled_while_it_runs(gate: Gate) -> None:
    worker = AsyncWorker.remote()
    ref = worker.wait.remote(gate)
    assert gate.heard() == ["waiting"]
    dray.cancel(ref)
    assert has_raised(ref)
    assert gate.heard() == ["cancelled"]
    assert dray.get(worker.call.remote()) == "called"


def test_a_call_of_an_async_actor_is_cancelled_as_it_begins(core_engine: str) -> None:
    if core_engine == "ray":
        pytest.skip("Ray itself: a call may run on, or end with another error")
    worker = AsyncWorker.remote()
    dray.get(worker.call.remote())
    for _ in range(20):  # the call and its end come by two sockets, in any order
        refs = [worker.endless.remote() for _ in range(20)]
        for ref in reversed(refs):
            dray.cancel(ref)
        for ref in refs:
            with pytest.raises(TaskCancelledError):
                dray.get(ref, timeout=PATIENCE_S)
    assert dray.get(worker.call.remote()) == "called"
    worker = AsyncWorker.options(max_concurrency=1).remote()
    running, waiting = worker.endless.remote(), worker.call.remote()
    dray.cancel(waiting)
    assert not has_raised(waiting)
    dray.cancel(running)
    assert dray.get(worker.call.remote()) == "called"


def test_a_call_of_an_async_actor_that_is_tried_again_is_cancelled(
    gate: Gate, core_engine: str
) -> None:
    if core_engine == "ray":
        pytest.skip("Ray itself: a call may run on, or end with another error")

    @dray.remote(max_task_retries=1)
    class FailsFirst:
        def __init__(self) -> None:
            self.failed: set[int] = set()

        @dray.method(retry_exceptions=True)
        async def run(self, gate: Gate, number: int) -> None:
            if number not in self.failed:
                self.failed.add(number)
                raise ValueError("the first time")
            gate.ring()
            await asyncio.Event().wait()

    worker = FailsFirst.remote()
    refs = [worker.run.remote(gate, number) for number in range(30)]
    gate.heard(30)
    for ref in refs:
        dray.cancel(ref)
    for ref in refs:
        with pytest.raises(TaskCancelledError):
            dray.get(ref, timeout=PATIENCE_S)


def test_force_is_not_for_actors(gate: Gate) -> None:
    worker = Worker.remote()
    ref = worker.hold.remote(gate)
    gate.heard()
    with pytest.raises(ConfigError, match="actor"):
        dray.cancel(ref, force=True)
    gate.open()
    assert dray.get(ref) == "let go"


def test_a_coroutine_that_goes_on_is_cancelled_all_the_same(gate: Gate) -> None:
    @dray.remote
    class Stubborn:
        async def run(self, gate: Gate) -> str:
            gate.ring("runs")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                gate.ring("cleans up")
            return "not heard of"

    ref = Stubborn.remote().run.remote(gate)
    gate.heard()
    dray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        dray.get(ref, timeout=PATIENCE_S)
    assert gate.heard() == ["cleans up"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_of_an_actor_asks_whether_it_is_cancelled(
    gate: Gate, threads: int, core_engine: str
) -> None:
    """It runs on, so that the actor's state stays whole; its result is not heard of."""

    @dray.remote
    class Steps:
        def run(self, gate: Gate) -> str:
            context = dray.get_runtime_context()
            gate.ring(context.is_canceled())
            while gate.is_there() and not context.is_canceled():
                time.sleep(0.005)
            gate.ring("left in order")
            return "x" * 200_000

        def asks(self) -> bool:
            return dray.get_runtime_context().is_canceled()

    worker = Steps.options(max_concurrency=threads).remote()
    ref = worker.run.remote(gate)
    assert gate.heard() == ["False"]
    dray.cancel(ref)
    assert gate.heard() == ["left in order"]
    # Ray itself: the result counts at times.
    may_count = contextlib.suppress(TaskCancelledError)
    with may_count if core_engine == "ray" else pytest.raises(TaskCancelledError):
        dray.get(ref, timeout=PATIENCE_S)
    assert not dray.get(worker.asks.remote())


def test_what_is_no_task_cannot_ask_whether_it_is_cancelled() -> None:
    with pytest.raises(ConfigError, match="runs in no task"):
        dray.get_runtime_context().is_canceled()


def test_many_that_wait_are_cancelled_at_once(gate: Gate, second_gate: Gate) -> None:
    special = held.options(num_cpus=0, resources={"special": 2})
    first = special.remote(gate)
    gate.heard()
    refs = [special.remote(second_gate) for _ in range(50)]
    for ref in refs:
        dray.cancel(ref)
    for ref in refs:
        with pytest.raises(TaskCancelledError):
            dray.get(ref, timeout=PATIENCE_S)
    gate.open()
    dray.get(first)
    until(lambda: dray.available_resources().get("special") == 2)
    assert second_gate.silent()


def test_a_call_whose_argument_fails_is_not_sent_by_the_one_that_needs_it(gate: Gate) -> None:
    """The second call is ended within the end of the first one."""

    @dray.remote
    def fails(gate: Gate) -> None:
        gate.pass_through()
        raise KeyError("no argument")

    worker = Worker.remote()
    first = worker.call.remote(fails.remote(gate))
    second = worker.call.remote(first)
    gate.heard()
    gate.open()
    for ref in (first, second):
        with pytest.raises(KeyError, match="no argument"):
            dray.get(ref, timeout=PATIENCE_S)
    assert dray.get(worker.call.remote()) == "called"
    actors = dray.session.current_runtime().status().actors
    assert all(actor.calls_running == 0 for actor in actors)
