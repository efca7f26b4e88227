"""Ctrl-C and time limits at any moment: what was going on ends, and the session goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray import session
from dray.errors import TaskCancelledError
from dray.train import DataParallelTrainer, RunConfig, UserCallback
from tests.support.gates import PATIENCE_S, Gate
from tests.support.programs import environment

pytestmark = pytest.mark.usefixtures("process_engine")


@dray.remote
def echo(value: Any) -> Any:
    return value


@dray.remote(num_cpus=0)
def held(gate: Gate, pid: int = 0, number: int = signal.SIGINT) -> str:
    """Wait at a gate; send a process a signal before that.

    It comes from another process, because Python may not see a signal that one of its own threads
    sends as the main thread falls asleep.
    """
    if pid:
        os.kill(pid, number)
    gate.pass_through()
    return "let go"


@contextmanager
def handler_of(number: int, handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Have a handler answer a signal meanwhile."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def interrupted(call: Callable[[], object]) -> None:
    """Call something that Ctrl-C is to interrupt, whose signal may come early or late."""

    def wait_for_it() -> None:
        call()
        while True:
            threading.Event().wait(0.01)

    with pytest.raises(KeyboardInterrupt):
        wait_for_it()


@pytest.mark.parametrize("kind", ["int", "alarm"])
def test_a_session_works_and_leaks_nothing_after_a_hundred_interrupts(
    kind: str, storage: Path
) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.program_interrupts", kind, "7", "100"],
        env=environment(storage),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    assert found.stdout == "all is free\n", found.stderr
    assert not found.stderr


@pytest.mark.parametrize("wait", [dray.get, lambda ref: dray.wait([ref])])
def test_ctrl_c_ends_a_wait_at_once_and_what_was_waited_for_goes_on(
    wait: Callable[[Any], object], gate: Gate, second_gate: Gate
) -> None:
    ref = held.remote(gate)
    second_gate.open()

    def call() -> None:
        held.remote(second_gate, os.getpid())
        wait(ref)

    interrupted(call)
    gate.open()
    assert dray.get(ref) == "let go"


def test_ctrl_c_ends_the_wait_for_the_next_item_and_none_is_lost(
    gate: Gate, second_gate: Gate
) -> None:
    @dray.remote(num_cpus=0)
    def items(gate: Gate) -> Iterator[int]:
        gate.wait()
        yield from range(3)

    refs = items.remote(gate)
    second_gate.open()

    def call() -> None:
        held.remote(second_gate, os.getpid())
        next(refs)

    interrupted(call)
    gate.open()
    assert [dray.get(ref) for ref in refs] == [0, 1, 2]


def test_ctrl_c_is_heard_while_another_thread_reads_for_all(gate: Gate, second_gate: Gate) -> None:
    first = held.remote(gate)
    gate.heard()
    found: list[str] = []
    other = threading.Thread(target=lambda: found.append(dray.get(first)))
    other.start()
    interrupted(lambda: dray.get(held.remote(second_gate, os.getpid())))
    second_gate.open()
    gate.open()
    other.join()
    assert found == ["let go"]
    assert dray.get(echo.remote(1)) == 1


def test_a_signal_that_another_thread_takes_wakes_the_main_thread(
    gate: Gate, second_gate: Gate
) -> None:
    """As a signal does that comes when the main thread is about to sleep."""
    others = held.remote(second_gate)
    second_gate.heard()
    reader = threading.Thread(target=dray.get, args=(others,))
    reader.start()
    awaited = held.remote(gate)

    def take_a_signal() -> None:
        gate.heard()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    taker = threading.Thread(target=take_a_signal)

    def wait_for_it() -> None:
        taker.start()
        dray.get(awaited, timeout=PATIENCE_S)

    interrupted(wait_for_it)
    gate.open()
    second_gate.open()
    taker.join()
    reader.join()
    assert dray.get(awaited) == "let go"


def test_the_socket_that_a_program_has_its_signals_written_to_stays_the_programs() -> None:
    dray.get(echo.remote(1))
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        drays = signal.set_wakeup_fd(writer.fileno())
        assert drays != -1
        with handler_of(signal.SIGALRM, lambda number, frame: None):
            assert dray.get(echo.remote(2)) == 2
            signal.raise_signal(signal.SIGALRM)
        assert reader.recv(1) == bytes([signal.SIGALRM])
        dray.shutdown()
        assert signal.set_wakeup_fd(-1) == writer.fileno()


def test_a_handler_that_does_not_raise_runs_at_once_and_the_wait_goes_on(gate: Gate) -> None:
    heard: list[int] = []

    def handler(number: int, frame: Any) -> None:
        heard.append(number)
        gate.open()

    with handler_of(signal.SIGALRM, handler):
        assert dray.get(held.remote(gate, os.getpid(), signal.SIGALRM)) == "let go"
    assert heard == [signal.SIGALRM]


def test_a_handler_may_use_the_session_itself(gate: Gate) -> None:
    found: list[int] = []

    def handler(number: int, frame: Any) -> None:
        found.append(dray.get(echo.remote(3)))
        gate.open()

    with handler_of(signal.SIGALRM, handler):
        assert dray.get(held.remote(gate, os.getpid(), signal.SIGALRM)) == "let go"
    assert found == [3]


def test_handlers_that_others_set_meanwhile_are_theirs_again() -> None:
    def handler(number: int, frame: Any) -> None:
        raise AssertionError("nobody has sent this")

    dray.get(echo.remote(1))
    with handler_of(signal.SIGINT, handler):
        dray.get(echo.remote(1))
        assert signal.getsignal(signal.SIGINT) == handler
    dray.get(echo.remote(1))
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    dray.shutdown()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    async def main() -> int:
        return dray.get(echo.remote(1)) + await echo.remote(1)

    assert asyncio.run(main()) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_is_heard_after_a_loop_of_trio_that_found_its_handler_wrapped() -> None:
    def drop(number: int, frame: Any) -> None:
        """Do what Trio's does once its loop has ended."""

    drop.__module__ = "trio._core._ki"
    signal.signal(signal.SIGINT, drop)
    dray.get(echo.remote(1))
    assert signal.getsignal(signal.SIGINT) is not drop  # so Trio leaves it, and forgets its own
    del drop
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    dray.shutdown()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_session_whose_end_is_interrupted_has_ended(gate: Gate) -> None:
    waiting = held.remote(gate).future()
    gate.heard()
    waiting.add_done_callback(lambda _: signal.raise_signal(signal.SIGINT))
    interrupted(dray.shutdown)
    assert waiting.done()
    assert not dray.is_initialized()
    assert dray.get(echo.remote(1)) == 1


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert dray.get(echo.remote(1)) == 1
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_programs_own_code_is_interrupted_within_dray(gate: Gate) -> None:
    class Slow:
        def __reduce__(self) -> tuple[Any, ...]:
            held.remote(gate, os.getpid())
            while True:
                threading.Event().wait(0.01)

    interrupted(lambda: dray.put(Slow()))
    interrupted(lambda: echo.remote(Slow()))
    assert dray.get(echo.remote(1)) == 1


def test_an_interrupt_at_the_end_of_a_reference_is_not_lost(gate: Gate) -> None:
    gate.open()
    refs: list[Any] = []

    def forget() -> None:
        refs.extend(dray.put(index) for index in range(1000))
        held.remote(gate, os.getpid())
        while refs:
            refs.pop()

    for _ in range(10):
        interrupted(forget)
        refs.clear()
    assert dray.get(echo.remote(1)) == 1


def test_a_cancelled_task_leaves_a_worker_that_works() -> None:
    @dray.remote
    def busy(gate: Gate) -> None:
        gate.ring()
        kept = []
        while True:
            kept = dray.get([echo.remote(i) for i in range(5)])
            dray.put(kept)

    runtime: Any = session.current_engine().runtime
    for index in range(30):
        gate = Gate(Path(os.environ["TMPDIR"]), f"busy{index}")
        ref = busy.remote(gate)
        gate.heard()
        threading.Event().wait(index / 3000)
        dray.cancel(ref)
        with pytest.raises(TaskCancelledError):
            dray.get(ref, timeout=PATIENCE_S)
        gate.close()
    assert dray.get([echo.remote(i) for i in range(50)], timeout=PATIENCE_S) == [*range(50)]
    workers = [w.client for w in runtime.pool.all.values()]
    assert not [c for c in workers if c.questions or c.blocked or c.rooms]


def test_ctrl_c_stops_a_run_whose_callback_waits_for_a_task(storage: Path, gate: Gate) -> None:
    waited: list[str] = []
    opener = threading.Thread(target=lambda: (gate.heard(), gate.open()))

    class Waits(UserCallback):
        def after_report(self, *arguments: Any) -> None:
            if not waited:
                opener.start()
                waited.append(dray.get(held.remote(gate, os.getpid())))

    def train() -> None:
        while True:
            dray.train.report({"step": 1})

    config = RunConfig(name="run", storage_path=str(storage), callbacks=[Waits()])
    with pytest.raises(KeyboardInterrupt):
        DataParallelTrainer(train, run_config=config).fit()
    opener.join()
    assert waited == ["let go"]  # the first Ctrl-C asks: it raises nothing in the callback
    assert dray.get(echo.remote(1)) == 1
