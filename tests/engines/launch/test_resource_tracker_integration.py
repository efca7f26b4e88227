"""Shared memory and semaphores that a worker makes and does not remove go when it goes."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.errors import ActorDiedError
from dray.train import DataParallelTrainer, RunConfig, WorkerGroupError
from tests.support import programs

pytestmark = [
    pytest.mark.usefixtures("process_engine"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists shared memory"),
]
HERE = Path("/dev/shm")


def gone(name: str) -> bool:
    """Return whether it goes within a moment: a worker's end is not waited for."""
    deadline = time.monotonic() + 10
    while (HERE / name).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not (HERE / name).exists()


def leave_memory() -> str:
    memory = SharedMemory(create=True, size=1000)
    assert (HERE / memory.name).exists()
    return memory.name


def leave_memory_as_python_3_15_tells() -> str:
    memory = SharedMemory(create=True, size=1000)
    name = "/" + memory.name
    resource_tracker.unregister(name, "shared_memory")
    told = {
        "cmd": "REGISTER",
        "rtype": "shared_memory",
        "base64_name": base64.urlsafe_b64encode(name.encode()).decode(),
    }
    tracker: Any = resource_tracker
    os.write(tracker.getfd(), json.dumps(told).encode() + b"\n")
    return memory.name


def leave_semaphore() -> str:
    semaphore: Any = multiprocessing.get_context("spawn").Semaphore()
    name = f"sem.{semaphore._semlock.name.lstrip('/')}"
    assert (HERE / name).exists()
    os.register_at_fork(before=lambda: semaphore)  # keeps it
    return name


def ends_well() -> None:
    """End well."""


def raises() -> None:
    raise ValueError


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("leave", "end"),
    [
        *itertools.product([leave_memory, leave_semaphore], [ends_well, raises, is_killed]),
        (leave_memory_as_python_3_15_tells, is_killed),
    ],
)
def test_what_a_train_function_leaves_goes(
    leave: Callable[[], str], end: Callable[[], None], tmp_path: Path
) -> None:
    def train() -> None:
        (tmp_path / "name").write_text(leave())
        end()

    with contextlib.nullcontext() if end is ends_well else pytest.raises(WorkerGroupError):
        DataParallelTrainer(train, run_config=RunConfig(storage_path=tmp_path)).fit()
    assert gone((tmp_path / "name").read_text())


def test_what_a_child_of_a_worker_leaves_goes(tmp_path: Path) -> None:
    def train() -> None:
        context = multiprocessing.get_context("fork")
        child = context.Process(target=lambda: (tmp_path / "name").write_text(leave_memory()))
        child.start()
        child.join()

    DataParallelTrainer(train, run_config=RunConfig(storage_path=tmp_path)).fit()
    assert gone((tmp_path / "name").read_text())


def test_what_the_driver_has_made_stays(tmp_path: Path) -> None:
    program = programs.write(
        tmp_path / "program.py",
        """
        from multiprocessing.shared_memory import SharedMemory

        ours = SharedMemory(create=True, size=1000)
        ours.buf[0] = 7

        def train(name):
            theirs = SharedMemory(name)
            value = theirs.buf[0]
            theirs.close()
            return value

        if __name__ == "__main__":
            import functools
            for attempt in range(2):
                assert fit(functools.partial(train, ours.name)).return_value == 7
            dray.shutdown()
            ours.close()
            ours.unlink()
        """,
    )
    ended = programs.run(program, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "resource_tracker" not in ended.stderr


class Memory:
    def make(self) -> str:
        self.memory = SharedMemory(create=True, size=1000)
        return self.memory.name

    def open(self, name: str) -> None:
        self.memory = SharedMemory(name)


def test_memory_stays_while_an_actor_that_uses_it_lives() -> None:
    maker, user = (dray.remote(Memory).remote() for _ in range(2))
    name = dray.get(maker.make.remote())
    own = dray.get(user.make.remote())
    dray.get(user.open.remote(name))
    dray.kill(maker)
    with pytest.raises(ActorDiedError):
        dray.get(maker.make.remote())
    assert (HERE / name).exists()
    del user
    assert gone(own)
    assert gone(name)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_nothing_stays_when_the_driver_is_killed(method: str, tmp_path: Path) -> None:
    program = programs.write(
        tmp_path / "program.py",
        """
        import signal
        from multiprocessing.shared_memory import SharedMemory

        def train():
            memory = SharedMemory(create=True, size=1000)
            print(memory.name, file=open(os.environ["STORAGE"] + "/name", "w"), flush=True)
            os.kill(int(os.environ["DRIVER"]), signal.SIGKILL)
            signal.pause()

        if __name__ == "__main__":
            os.environ["DRIVER"] = str(os.getpid())
            fit(train, workers=1)
        """,
    )
    ended = programs.run(program, tmp_path, DRAY_START_METHOD=method)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert gone((tmp_path / "name").read_text().strip())
