"""The hub where processes end, are cancelled or cannot be started: nobody waits for ever."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dray
from dray import session
from dray.engines.process.hub.driver import DriverRuntime
from dray.engines.rpc.framing import Inbox
from dray.errors import EngineError
from tests.support.gates import Gate


@pytest.fixture(autouse=True)
def own_session() -> Iterator[None]:
    dray.shutdown()
    yield
    dray.shutdown()


def runtime() -> DriverRuntime:
    found = session.current_runtime()
    assert isinstance(found, DriverRuntime)
    return found


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_result_counts_though_its_process_ends_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = Inbox.receive_raw

    def late(self: Inbox, flags: int = 0) -> list[memoryview] | None:
        frames = received(self, flags)
        if any(b"done" in bytes(frame) for frame in frames or ()):
            time.sleep(0.3)  # the thread that reads is held up here
        return frames

    @dray.remote(max_retries=0)
    def last_words() -> str:
        threading.Timer(0.05, lambda: os._exit(1)).start()
        return "a result"

    dray.init(num_cpus=1, log_to_driver=False)
    monkeypatch.setattr(Inbox, "receive_raw", late)
    assert dray.get(last_words.remote()) == "a result"


def test_all_of_many_calls_are_cancelled(tmp_path: Path) -> None:
    @dray.remote(num_cpus=0, max_concurrency=1000)
    class Waiter:
        async def wait(self) -> None:
            await asyncio.sleep(1000)

        async def answer(self) -> int:
            return 1

    @dray.remote(num_cpus=0)
    def calls(waiter: Any, gate: Gate) -> None:
        refs = [waiter.wait.remote() for _ in range(900)]
        dray.get(waiter.answer.remote())
        gate.pass_through()
        dray.get(refs)

    dray.init(num_cpus=1, log_to_driver=False)
    waiter, gate = Waiter.remote(), Gate(tmp_path)
    task = calls.remote(waiter, gate)
    gate.heard()
    dray.cancel(task, recursive=True)
    gate.open()
    until(lambda: sum(it.calls_running for it in runtime().status().actors) == 0)


def test_a_worker_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    @dray.remote
    def task() -> int:
        return 1

    @dray.remote
    class Actor:
        pass

    (tmp_path / "work").mkdir()
    dray.init(num_cpus=1, runtime_env={"working_dir": str(tmp_path / "work")})
    (tmp_path / "work").rmdir()
    with pytest.raises(EngineError, match=r"task has no worker process.*not a directory"):
        dray.get(task.remote())
    with pytest.raises(EngineError, match=r"has no worker process.*not a directory"):
        Actor.remote()
    assert dray.available_resources()["CPU"] == 1
    (tmp_path / "work").mkdir()
    assert dray.get(task.remote()) == 1


def test_what_was_asked_for_and_is_not_wanted_any_more_holds_up_nobody() -> None:
    @dray.remote(num_cpus=1)
    class Holder:
        def answer(self) -> int:
            return 1

    @dray.remote(num_cpus=2)
    def large() -> None:
        pass

    dray.init(num_cpus=2)
    holder = Holder.remote()
    dray.get(holder.answer.remote())
    waiting = Holder.options(num_cpus=2).remote()
    refs = [large.remote() for _ in range(3)]
    until(lambda: len(runtime().status().waiting) == 2)
    dray.kill(waiting)
    for ref in reversed(refs):
        dray.cancel(ref)
    assert not runtime().status().waiting


def test_processes_of_many_environments_do_not_stay() -> None:
    @dray.remote
    def trial() -> int:
        return int(os.environ["TRIAL"])

    dray.init(num_cpus=1)
    most = runtime().pool._most_idle
    for number in range(most + 4):
        variables = {"env_vars": {"TRIAL": str(number)}}
        assert dray.get(trial.options(runtime_env=variables).remote()) == number
    until(lambda: len(runtime().pool.all) <= most)
    assert len(runtime().tasks.kinds.shapes) <= most + 4
    del trial
    until(lambda: not runtime().tasks.kinds.shapes)
