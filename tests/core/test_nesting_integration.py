"""Workers that use the session they belong to: tasks in train functions, training in tasks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dray
from dray import host, session
from dray.errors import InfeasibleError, StartTimeoutError, TaskCancelledError, WorkerDiedError
from dray.train import ControllerError, DataParallelTrainer, RunConfig, ScalingConfig
from tests.support.gates import PATIENCE_S, Gate, until

pytestmark = pytest.mark.usefixtures("core_engine")


@dray.remote
def double(value: Any) -> Any:
    return value * 2


@dray.remote
class Board:
    def __init__(self) -> None:
        self.lines: dict[int, Any] = {}

    def write(self, key: int, line: Any) -> None:
        self.lines[key] = line

    def read(self) -> dict[int, Any]:
        return self.lines


def fit(function: Any, storage: Path, name: str = "run", workers: int = 1, **each: float) -> Any:
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(
            num_workers=workers, resources_per_worker=each or {"CPU": 0.5}
        ),
        run_config=RunConfig(name=name, storage_path=str(storage)),
    ).fit()


def test_a_train_function_uses_tasks_and_actors_of_its_session(storage: Path) -> None:
    board = Board.options(name="board").remote()
    array = np.arange(200_000)
    stored = dray.put(array)

    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        found = dray.get(stored)
        total = int(dray.get(double.remote(found)).sum())
        here = dray.get_actor("board")
        dray.get(here.write.remote(rank, (total, dray.cluster_resources()["CPU"])))
        dray.train.report({"total": total})

    result = fit(train, storage, workers=2)
    expected = int(array.sum()) * 2
    assert result.metrics == {"total": expected}
    lines = dray.get(board.read.remote())
    assert lines == {rank: (expected, dray.cluster_resources()["CPU"]) for rank in range(2)}


def test_threads_of_a_train_function_use_tasks(storage: Path) -> None:
    def train() -> None:
        found: list[int] = []
        threads = [
            threading.Thread(
                target=lambda i=i: found.extend(
                    dray.get([double.remote(i * 10 + j) for j in range(10)])
                )
            )
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        dray.train.report({"found": sorted(found)})

    assert fit(train, storage).metrics == {"found": [2 * i for i in range(40)]}


def test_a_thread_that_has_its_answer_hands_the_reading_on(
    storage: Path, gate: Gate, second_gate: Gate
) -> None:
    """Several get theirs at once; the one that still waits has nobody who reads for it."""

    @dray.remote(num_cpus=0.1)
    def held(gate: Gate) -> str:
        gate.pass_through()
        return "let go"

    def train() -> None:
        early, late = held.remote(gate), held.remote(second_gate)
        threads = [threading.Thread(target=lambda: dray.get(early)) for _ in range(6)]
        threads.append(threading.Thread(target=lambda: dray.get(late)))
        for thread in threads:
            thread.start()
        gate.ring("waiting")
        for thread in threads[:6]:
            thread.join()
        second_gate.ring("alone")
        threads[6].join(PATIENCE_S)
        dray.train.report({"waits": threads[6].is_alive()})

    results: list[Any] = []
    run = threading.Thread(target=lambda: results.append(fit(train, storage)))
    run.start()
    gate.heard(2)
    time.sleep(0.2)  # the threads have no other way to say that they sleep
    gate.open()
    second_gate.heard(2)
    second_gate.open()
    run.join()
    assert results[0].metrics == {"waits": False}


def test_an_error_of_a_task_reaches_the_train_function(storage: Path) -> None:
    @dray.remote
    def fail() -> None:
        raise KeyError("lost")

    def train() -> None:
        try:
            dray.get(fail.remote())
        except KeyError as error:
            dray.train.report({"error": type(error).__name__})

    assert "KeyError" in fit(train, storage).metrics["error"]


def test_a_worker_is_initialised(storage: Path, core_engine: str) -> None:
    def train() -> None:
        before = dray.is_initialized()
        with pytest.raises(RuntimeError, match="ignore_reinit_error=True") as refused:
            dray.init()
        dray.init(ignore_reinit_error=True)
        told = "it is a worker" in str(refused.value)
        dray.train.report({"before": before, "told": told, "cpus": dray.cluster_resources()["CPU"]})

    told = core_engine != "inline"  # there it is the program itself
    expected = {"before": True, "told": told, "cpus": dray.cluster_resources()["CPU"]}
    assert fit(train, storage).metrics == expected


def test_a_task_trains(storage: Path) -> None:
    def train() -> None:
        dray.train.report({"workers": dray.train.get_context().get_world_size()})

    @dray.remote
    def job(name: str) -> Any:
        return fit(train, storage, name, workers=2).metrics

    names = [f"trial-{i}" for i in range(3)]
    assert dray.get([job.remote(name) for name in names]) == [{"workers": 2}] * 3
    assert sorted(path.name for path in storage.iterdir()) == names


def test_nobody_else_can_connect_to_the_driver_of_a_training_in_a_task(
    storage: Path, core_engine: str
) -> None:
    if core_engine == "ray":
        pytest.skip("Ray's own driver listens on every address")

    def train() -> None:
        dray.train.report({"sum": dray.get(double.remote(21))})

    @dray.remote
    def job() -> Any:
        return fit(train, storage).metrics

    assert dray.get(job.remote()) == {"sum": 42}
    answered_to_all = [name for name in _listening() if f"dray-{os.getuid()}-" not in name]
    assert answered_to_all == []  # `dray status` asks at the other one, which sends others away


def _listening() -> list[str]:
    """Return the names at which this process listens."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # it was that of the listing
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as sock:
                    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found.append(str(sock.getsockname()))
    return found


def test_a_training_in_a_task_takes_resources_of_the_session(
    storage: Path, core_engine: str, gate: Gate
) -> None:
    def train() -> None:
        gate.pass_through()
        dray.train.report({"done": True})

    @dray.remote(num_cpus=0.5)
    def job() -> Any:
        return fit(train, storage, CPU=0.5, special=2).metrics

    @dray.remote(num_cpus=0, resources={"special": 1})
    def other() -> str:
        return "ran"

    running = job.remote()
    gate.heard()
    waiting = other.remote()
    ready, _ = dray.wait([waiting], timeout=0.3)
    assert not ready, "what the training holds was given to somebody else"
    gate.open()
    assert dray.get(running) == {"done": True}
    assert dray.get(waiting) == "ran"


def test_a_training_in_a_task_that_can_never_fit(storage: Path) -> None:
    @dray.remote
    def job() -> Any:
        return fit(lambda: None, storage, CPU=1000)

    with pytest.raises(InfeasibleError, match="1000"):
        dray.get(job.remote(), timeout=60)


def test_a_killed_task_gives_back_what_its_training_held(
    storage: Path, gate: Gate, core_engine: str
) -> None:
    if core_engine == "ray":
        pytest.skip("Ray keeps a placement group that a killed task has made until the job ends")

    def train() -> None:
        gate.ring(os.getppid())
        gate.wait()

    @dray.remote(max_retries=0)
    def job() -> Any:
        gate.ring(os.getpid())
        return fit(train, storage, CPU=0.5, special=2).metrics

    @dray.remote(num_cpus=0, resources={"special": 2})
    def other() -> str:
        return "ran"

    running = job.remote()
    pid, _ = gate.heard(2)
    os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(WorkerDiedError):
        dray.get(running, timeout=60)
    assert dray.get(other.remote(), timeout=60) == "ran"


@dray.remote(num_cpus=0, resources={"special": 1})
def pass_through(gate: Gate) -> None:
    gate.pass_through()


def test_a_training_in_an_actor_that_gives_up_waiting_holds_up_nobody(
    storage: Path, gate: Gate, second_gate: Gate
) -> None:
    @dray.remote(num_cpus=0)
    class Trainer:
        def go(self) -> str:
            os.environ["DRAY_START_TIMEOUT_S"] = "2"
            try:
                fit(lambda: None, storage, CPU=0.1, special=2)
            except StartTimeoutError:
                return "gave up"
            return "trained"

    trainer = Trainer.remote()
    held = pass_through.remote(gate)
    gate.heard()
    assert dray.get(trainer.go.remote(), timeout=60) == "gave up"
    second_gate.open()
    dray.get(pass_through.remote(second_gate), timeout=PATIENCE_S)
    gate.open()
    dray.get(held)


def test_a_training_in_a_task_that_is_cancelled_asks_for_nothing_any_more(
    storage: Path, gate: Gate, core_engine: str
) -> None:
    if core_engine == "ray":
        pytest.skip("Ray does not say what placement groups wait for")

    @dray.remote
    def job() -> None:
        fit(lambda: None, storage, CPU=0.1, special=2)

    def waiting() -> Any:
        return session.current_runtime().status().waiting

    held = pass_through.remote(gate)
    gate.heard()
    cancelled = job.remote()
    until(lambda: "special" in str(waiting()))
    dray.cancel(cancelled)
    with pytest.raises(TaskCancelledError):
        dray.get(cancelled, timeout=60)
    until(lambda: not waiting())
    gate.open()
    dray.get(held)


def test_a_training_in_a_task_ends_with_the_tasks_own_session(storage: Path, gate: Gate) -> None:
    @dray.remote(num_cpus=0)
    def job() -> str:
        errors: list[BaseException] = []

        def train() -> None:
            try:
                fit(lambda: None, storage, CPU=0.1, special=2)
            except ControllerError as error:
                errors.append(error)

        thread = threading.Thread(target=train)
        thread.start()
        until(lambda: session._engine is not None and bool(session._engine._asked._futures))
        dray.shutdown()
        thread.join(60)
        return str(*errors)

    held = pass_through.remote(gate)
    gate.heard()
    said = dray.get(job.remote(), timeout=PATIENCE_S)
    assert "dray.shutdown() was called while fit() waited for resources" in said
    gate.open()
    dray.get(held)


def test_a_training_runs_where_the_directory_is_gone(core_engine: str, storage: Path) -> None:
    def train() -> str | None:
        return os.environ.get("OMP_NUM_THREADS")

    @dray.remote(num_cpus=0.5)
    def fit() -> Any:
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
        try:
            scaling = ScalingConfig(resources_per_worker={"CPU": 2})
            run_config = RunConfig(storage_path=storage)
            trainer = DataParallelTrainer(train, scaling_config=scaling, run_config=run_config)
            return trainer.fit().return_value
        finally:
            os.chdir(before)

    # The number of its task is not the user's, and so not the training's.
    assert dray.get(fit.remote()) == str(min(2, host.cpu_count()))


def test_what_a_task_submits_has_its_environment_and_more() -> None:
    @dray.remote
    def child() -> tuple[str | None, str | None]:
        return os.environ.get("DRAY_TEST_OUTER"), os.environ.get("DRAY_TEST_INNER")

    @dray.remote(num_cpus=0)
    class Child:
        def look(self) -> str | None:
            return os.environ.get("DRAY_TEST_OUTER")

    @dray.remote(num_cpus=0)
    def parent() -> Any:
        inner = child.options(runtime_env={"env_vars": {"DRAY_TEST_INNER": "2"}})
        return dray.get([child.remote(), inner.remote(), Child.remote().look.remote()])

    outer = parent.options(runtime_env={"env_vars": {"DRAY_TEST_OUTER": "1"}})
    assert dray.get(outer.remote()) == [("1", None), ("1", "2"), "1"]
    assert dray.get(child.remote()) == (None, None)
