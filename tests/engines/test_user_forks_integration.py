"""A fork of a worker or of the driver ends as a script's would, and never speaks for its parent."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import dray
import dray.train
from dray import session
from dray.errors import EngineError
from dray.train import DataParallelTrainer, RunConfig
from tests.support.gates import PATIENCE_S, Gate, until

pytestmark = pytest.mark.usefixtures("process_engine")


def returns() -> str:
    return "child"


def exits() -> None:
    sys.exit()


def exits_with_three() -> None:
    sys.exit(3)


def raises() -> None:
    raise ValueError("in the child")


def status_of_a_fork(end: Callable[[], Any]) -> Any:
    """Forks; the child ends by `end`, and the parent returns how it has."""
    child = os.fork()
    if child == 0:
        return end()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def in_a_fork(act: Callable[[], object]) -> None:
    """Do something in a fork of this process that has to succeed, and ends there at once."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:  # noqa: BLE001 (what follows is done in the parent alone)
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


ends = pytest.mark.parametrize(
    ("end", "status"), [(returns, 0), (exits, 0), (exits_with_three, 3), (raises, 1)]
)


def fit(function: Callable[[], Any], storage: Path) -> dray.train.Result:
    return DataParallelTrainer(function, run_config=RunConfig(storage_path=storage)).fit()


@ends
def test_a_fork_in_a_train_function(end: Callable[[], Any], status: int, tmp_path: Path) -> None:
    assert fit(lambda: status_of_a_fork(end), tmp_path).return_value == status
    logs = "".join(log.read_text() for log in tmp_path.rglob("*.log"))
    assert ("ValueError: in the child" in logs) == (end is raises)
    assert fit(lambda: "fine", tmp_path).return_value == "fine"


def test_a_fork_cannot_report(tmp_path: Path) -> None:
    def train() -> Any:
        return status_of_a_fork(lambda: dray.train.report({}))

    result = fit(train, tmp_path)
    assert (result.return_value, result.metrics) == (1, None)
    logs = "".join(log.read_text() for log in tmp_path.rglob("*.log"))
    assert "is a fork of worker process" in logs


def test_a_fork_runs_what_ends_a_script(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def registers() -> None:
        import atexit

        atexit.register(done.write_text, "by the child")
        sys.exit()

    def train() -> Any:
        status = status_of_a_fork(registers)
        return status, done.read_text()

    assert fit(train, tmp_path).return_value == (0, "by the child")


def test_a_fork_leaves_its_siblings_alone(tmp_path: Path) -> None:
    def train() -> Any:
        import multiprocessing

        context = multiprocessing.get_context("fork")
        go = context.Event()
        sibling = context.Process(target=go.wait, daemon=True)
        sibling.start()
        status = status_of_a_fork(exits)
        alive = sibling.is_alive()
        go.set()
        sibling.join()
        return status, alive, sibling.exitcode

    assert fit(train, tmp_path).return_value == (0, True, 0)


@ends
def test_a_fork_in_a_task(end: Callable[[], Any], status: int) -> None:
    task = dray.remote(status_of_a_fork)
    assert dray.get(task.remote(end)) == status
    assert dray.get(task.remote(returns)) == 0


def test_a_fork_in_a_generator() -> None:
    @dray.remote
    def numbers() -> Iterator[int]:
        yield 1
        yield status_of_a_fork(returns)  # the child goes on here, and may not say so
        yield 2

    values = [dray.get(reference) for reference in numbers.remote()]
    assert values == [1, 1, 2]


class Forks:
    def fork(self, end: Callable[[], Any]) -> Any:
        return status_of_a_fork(end)


class ForksInALoop:
    async def fork(self, end: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return status_of_a_fork(end)


class ForksAtOnce:
    def __init__(self) -> None:
        self.status = status_of_a_fork(returns)

    def fork(self, end: Callable[[], Any]) -> Any:
        return self.status, status_of_a_fork(end)


@ends
@pytest.mark.parametrize(
    ("kind", "options"), [(Forks, {}), (Forks, {"max_concurrency": 2}), (ForksInALoop, {})]
)
def test_a_fork_in_an_actor(kind: Any, options: Any, end: Callable[[], Any], status: int) -> None:
    actor = dray.remote(kind).options(**options).remote()
    assert dray.get(actor.fork.remote(end)) == status
    assert dray.get(actor.fork.remote(returns)) == 0


def test_a_fork_in_the_making_of_an_actor() -> None:
    actor = dray.remote(ForksAtOnce).remote()
    assert dray.get(actor.fork.remote(exits_with_three)) == (0, 3)


def test_references_of_a_task_die_in_silence_in_its_forks() -> None:
    @dray.remote
    def task(references: list[Any]) -> Any:
        def let_go() -> None:
            sys.unraisablehook = lambda _: os._exit(3)
            references.clear()

        in_a_fork(let_go)
        return dray.get(references)

    assert dray.get(task.remote([dray.put(1), dray.put(2)])) == [1, 2]


def test_a_fork_of_a_worker_cannot_use_its_session(tmp_path: Path) -> None:
    """Neither has it a session of its own: what it made there could not be used."""
    status = dray.remote(status_of_a_fork)

    def work() -> Any:
        call = Echo.remote().say

        def refused() -> None:
            for use in (
                lambda: call.remote("the fork's"),
                lambda: status.remote(returns),
                lambda: dray.put(1),
                dray.nodes,
                dray.init,
            ):
                with pytest.raises(EngineError, match="is a fork of worker process"):
                    use()

        in_a_fork(refused)
        return dray.get(call.remote("the worker's"))

    assert dray.get(dray.remote(work).remote()) == "the worker's"
    assert fit(work, tmp_path).return_value == "the worker's"


# Of the driver.


@dray.remote(num_cpus=0)
class Echo:
    def say(self, value: Any) -> Any:
        return value


def test_handles_that_die_in_a_fork_of_the_driver_leave_the_actor_alive() -> None:
    handles = [Echo.remote()]
    assert dray.get(handles[0].say.remote(1)) == 1
    in_a_fork(handles.clear)
    assert dray.get(handles[0].say.remote(2)) == 2


def test_references_that_die_in_a_fork_of_the_driver_leave_the_values() -> None:
    dray.shutdown()
    dray.init(num_cpus=1, object_store_memory=4 << 20)
    references: list[dray.ObjectRef] = [
        dray.put(np.full(1 << 20, number, np.uint8)) for number in range(6)
    ]
    views = dray.get(references[-2:])
    in_a_fork(lambda: (references.clear(), views.clear()))
    assert [set(value) for value in dray.get(references)] == [{number} for number in range(6)]


def test_a_fork_of_the_driver_cannot_use_its_session() -> None:
    actor, reference = Echo.remote(), dray.put(1)
    assert dray.get(actor.say.remote(0)) == 0
    say = actor.say

    def refused() -> None:
        for call in (
            lambda: say.remote("the fork's"),
            lambda: say.remote(np.zeros(1 << 20)),
            lambda: reference.future(),
            lambda: dray.kill(actor),
            lambda: dray.get(reference),
        ):
            with pytest.raises(EngineError, match=rf"is a fork of process {os.getppid()}"):
                call()

    in_a_fork(refused)
    assert dray.get(say.remote("the parent's")) == "the parent's"
    assert dray.get(reference) == 1


def test_a_fork_of_the_driver_may_have_a_session_of_its_own() -> None:
    actor = Echo.remote()
    assert dray.get(actor.say.remote(0)) == 0

    def use_one() -> None:
        with dray.init(num_cpus=1):
            assert dray.get(Echo.remote().say.remote(1)) == 1

    in_a_fork(use_one)
    assert dray.get(actor.say.remote(2)) == 2


def test_a_fork_amid_another_threads_start_may_have_a_session_of_its_own() -> None:
    held, forked = threading.Event(), threading.Event()

    def starts_or_ends_a_session() -> None:
        with session._lock:
            held.set()
            forked.wait()

    thread = threading.Thread(target=starts_or_ends_a_session)
    thread.start()
    held.wait()

    def use_one() -> None:
        signal.alarm(PATIENCE_S)
        with dray.init(num_cpus=1):
            assert dray.get(dray.put(1)) == 1

    in_a_fork(use_one)
    forked.set()
    thread.join()


def test_a_signal_of_a_fork_does_not_wake_the_driver() -> None:
    dray.get(dray.put(1))

    def writes_to_no_socket_of_its_parent() -> None:
        assert signal.set_wakeup_fd(-1) == -1

    in_a_fork(writes_to_no_socket_of_its_parent)


# Ends.


def start_child(gate: Gate) -> int:
    """Start a child that is no daemon, and does not end."""
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=gate.pass_through)
    child.start()
    assert child.pid is not None
    return child.pid


def test_a_worker_of_tasks_ends_although_a_child_of_it_runs(gate: Gate) -> None:
    dray.shutdown()
    dray.init(num_cpus=1, num_gpus=1)

    @dray.remote(num_gpus=1)
    def of_a_worker_of_its_own() -> tuple[int, int]:
        return os.getpid(), start_child(gate)

    first, child = dray.get(of_a_worker_of_its_own.remote())
    second, _ = dray.get(of_a_worker_of_its_own.remote(), timeout=PATIENCE_S)
    assert first != second
    until(lambda: not psutil.pid_exists(child))


class Parent:
    def start(self, gate: Gate) -> int:
        return start_child(gate)

    def start_pool(self) -> list[int]:
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
        return list(self.pool.map(abs, [-1]))


def test_an_actor_ends_although_a_child_of_it_runs(gate: Gate) -> None:
    dray.shutdown()
    dray.init(num_cpus=1)
    actor = dray.remote(num_cpus=1)(Parent).remote()
    child = dray.get(actor.start.remote(gate))
    assert psutil.pid_exists(child)
    del actor
    successor = dray.remote(num_cpus=1)(Parent).remote()
    assert dray.get(successor.start_pool.remote(), timeout=PATIENCE_S) == [1]
    until(lambda: not psutil.pid_exists(child))
    del successor
    until(lambda: dray.available_resources().get("CPU") == 1)
