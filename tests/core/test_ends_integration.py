"""Ends of a session and of its means: what waits is told, and nothing else is touched."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dray
from dray import session as session_here
from dray.errors import (
    ActorDiedError,
    ConfigError,
    EngineError,
    GetTimeoutError,
    SerializationError,
    WorkerDiedError,
)
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig
from dray.util import placement_group
from tests.support import holding
from tests.support.gates import PATIENCE_S, Gate
from tests.support.programs import run, write

held = holding.held.options(num_cpus=0)


@dray.remote(num_cpus=0)
def items(gate: Gate) -> Iterator[int]:
    gate.pass_through()
    yield 1


@dray.remote
def echo(value: Any) -> Any:
    return value


async def _await(ref: Any) -> Any:
    return await ref


WAITS: dict[str, Callable[[Gate], object]] = {
    "get": lambda gate: dray.get(held.remote(gate)),
    "get several": lambda gate: dray.get([held.remote(gate), dray.put(1)]),
    "get with a limit": lambda gate: dray.get(held.remote(gate), timeout=2 * PATIENCE_S),
    "wait": lambda gate: dray.wait([held.remote(gate)]),
    "a generator": lambda gate: next(items.remote(gate)),
    "a future": lambda gate: held.remote(gate).future().result(),
    "await": lambda gate: asyncio.run(_await(held.remote(gate))),
    "a group": lambda gate: (
        held.remote(gate),
        placement_group([{"CPU": 2}]).wait(timeout_seconds=0),
        placement_group([{"CPU": 2}]).wait(timeout_seconds=2 * PATIENCE_S),
    ),
}


def test_shutdown_ends_every_wait_of_other_threads(session: Any, gate: Gate) -> None:
    session(num_cpus=2)
    found: dict[str, BaseException] = {}

    def run(name: str) -> None:
        try:
            WAITS[name](gate)
        except BaseException as error:  # noqa: BLE001 (it is looked at below)
            found[name] = error

    threads = [threading.Thread(target=run, args=(name,)) for name in WAITS]
    for thread in threads:
        thread.start()
    gate.heard(len(WAITS))
    dray.shutdown()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert set(found) == set(WAITS)
    for name, error in found.items():
        assert isinstance(error, EngineError), name
        assert "dray.shutdown() was called" in str(error), name


def test_shutdown_while_threads_submit_ends_them_with_an_error(session: Any) -> None:
    errors: list[BaseException] = []
    begun = threading.Barrier(4)
    session(num_cpus=2)
    runtime = dray.session.current_engine().runtime
    submit = runtime.bind_function(echo._function, echo._options)

    def run() -> None:
        try:
            begun.wait()
            while True:
                runtime.get([submit((1,), {}) for _ in range(5)], None)
        except BaseException as error:  # noqa: BLE001 (it is looked at below)
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    dray.shutdown()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [EngineError] * 3


def test_shutdown_by_a_signals_handler_ends_the_wait_that_it_interrupts(
    session: Any, gate: Gate
) -> None:
    session(num_cpus=2)
    before = signal.signal(signal.SIGALRM, lambda *_: dray.shutdown())

    @dray.remote
    def interrupt(pid: int) -> None:
        os.kill(pid, signal.SIGALRM)
        gate.wait()

    try:
        with pytest.raises(EngineError, match=r"dray\.shutdown\(\) was called"):
            dray.get(interrupt.remote(os.getpid()))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert dray.get(echo.remote(1)) == 1


def test_out_of_descriptors_fails_what_asked_and_nothing_else() -> None:
    program = """
        import os, resource
        import dray
        from dray.errors import EngineError

        @dray.remote(num_cpus=0)
        class A:
            def one(self):
                return 1

        @dray.remote
        def echo(value):
            return value

        def refused(ask):
            try:
                ask()
            except EngineError as error:
                assert "ulimit -n" in str(error), error
            else:
                raise AssertionError("there was room for one more")

        dray.init(num_cpus=64)
        assert dray.get(echo.remote(1)) == 1
        limit = len(os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        # Tasks that find a worker go on with it, all of them.
        assert dray.get([echo.remote(i) for i in range(200)], timeout=100) == [*range(200)]
        refused(lambda: dray.get(echo.options(max_calls=1).remote(1), timeout=100))
        actor = A.remote()  # in the one worker there is
        for _ in range(3):
            refused(A.remote)
            refused(lambda: dray.get(echo.remote(1), timeout=100))
        assert dray.get(actor.one.remote(), timeout=100) == 1
        assert dray.available_resources()["CPU"] == 64
        print("no hang")
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert found.stdout == "no hang\n", found.stderr


@pytest.mark.usefixtures("process_engine")
class TestWaits:
    """Limits of time."""

    @pytest.mark.parametrize(
        "timeout", [float("inf"), 3e6, 10**400, np.float32(60), np.int32(60), np.inf]
    )
    def test_long_limits_and_numbers_of_numpy(self, timeout: Any) -> None:
        assert dray.get(echo.remote(1), timeout=timeout) == 1
        ref = echo.remote([1])
        assert dray.wait([ref], timeout=timeout) == ([ref], [])

    @pytest.mark.parametrize("timeout", [-0.5, float("nan"), "5", True, np.float64(-2), 1j, [1]])
    def test_what_is_no_limit(self, timeout: Any) -> None:
        with pytest.raises(ConfigError, match="timeout must be a number of seconds"):
            dray.get(dray.put(1), timeout=timeout)
        with pytest.raises(ConfigError, match="timeout must be a number of seconds"):
            dray.wait([dray.put(1)], timeout=timeout)

    def test_who_asks_again_and_again_leaves_nothing_behind(self, gate: Gate) -> None:
        refs: list[Any] = [held.remote(gate) for _ in range(3)]
        store = dray.session.current_engine().runtime.hub.store  # type: ignore[attr-defined]
        for _ in range(50):
            assert dray.wait(refs, timeout=0) == ([], refs)
            for ref in refs[0], refs:
                with pytest.raises(GetTimeoutError):
                    dray.get(ref, timeout=0)
        assert [len(store.find(ref.number).waiting) for ref in refs] == [0, 0, 0]
        gate.open()
        assert dray.get(refs) == ["let go"] * 3


@pytest.mark.usefixtures("process_engine")
def test_a_value_whose_attributes_raise_is_named_by_the_error() -> None:
    class Strange:
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

        def __reduce__(self) -> Any:
            raise ValueError("it stays here")

    for send in (dray.put, echo.remote):
        with pytest.raises(SerializationError, match=r"Strange.*it stays here"):
            send(Strange())
    assert dray.get(echo.remote(1)) == 1


def test_nothing_starts_once_more_as_a_program_ends(tmp_path: Path) -> None:
    script = write(
        tmp_path / "late.py",
        """
        import atexit
        import dray

        def late():
            for use in (lambda: dray.put(1), dray.nodes, dray.init):
                try:
                    use()
                except dray.errors.EngineError as error:
                    print("late:", error)

        atexit.register(late)  # is called after what dray has registered
        dray.get(dray.put(1))
        """,
    )
    ended = run(script, tmp_path / "runs")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("late: this program is ending") == 3, ended.stdout


def test_daemon_threads_stop_in_silence_as_a_program_ends(tmp_path: Path) -> None:
    script = write(
        tmp_path / "daemons.py",
        """
        import asyncio, threading, time
        import dray

        @dray.remote
        def wait(seconds):
            time.sleep(seconds)

        @dray.remote
        class Actor:
            async def wait(self, seconds):
                await asyncio.sleep(seconds)

        def watch(seconds):
            while True:
                dray.get(wait.remote(seconds))
                begun.set()

        async def watch_calls(seconds):
            while True:
                await actor.wait.remote(seconds)
                awaited.set()

        async def watch_all_calls():
            await asyncio.gather(*map(watch_calls, (0, 0, 0.001, 0.001, 1000)))

        begun, awaited, actor = threading.Event(), threading.Event(), Actor.remote()
        for seconds in (0, 0, 1000):
            threading.Thread(target=watch, args=(seconds,), daemon=True).start()
        for calls in (lambda: watch_calls(1000), watch_all_calls):
            threading.Thread(target=lambda calls=calls: asyncio.run(calls()), daemon=True).start()
        begun.wait()
        awaited.wait()
        """,
    )
    ended = run(script, tmp_path / "runs")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_thread_that_outlives_the_main_one_uses_dray(tmp_path: Path) -> None:
    """Python makes no pools of threads for it."""
    script = write(
        tmp_path / "outlives.py",
        """
        import asyncio, threading
        import dray

        @dray.remote
        def length(data):
            return len(data)

        async def await_length(data):
            return await length.remote(data)

        def outlive():
            threading.main_thread().join()
            data = bytes(20 << 20)
            print(dray.get(length.remote(dray.put(data))), asyncio.run(await_length(data)))

        threading.Thread(target=outlive).start()
        """,
    )
    ended = run(script, tmp_path / "runs")
    assert (ended.stdout, ended.stderr) == (f"{20 << 20} {20 << 20}\n", "")


def test_objects_that_go_as_python_ends_may_clean_up(tmp_path: Path) -> None:
    """What they call for the first time could not be imported any more."""
    script = write(
        tmp_path / "late.py",
        """
        import dray

        class Actor:
            def call(self):
                return 1

        class Owner:
            def __init__(self):
                dray.init()
                self.actor = dray.remote(Actor).remote()
                dray.get(self.actor.call.remote())

            def __del__(self):
                dray.kill(self.actor)
                if dray.is_initialized():
                    dray.shutdown()
                print("cleaned up")

        owner = Owner()
        """,
    )
    ended = run(script, tmp_path / "runs")
    assert (ended.stdout, ended.stderr) == ("cleaned up\n", "")


# What cannot be understood, or heard.


def talk_nonsense(data: bytes) -> None:
    """Say something to the driver that no worker of dray's would; then wait for its end."""
    runtime: Any = session_here.current_runtime()
    runtime._sock.sendall(data)
    threading.Event().wait()


def nonsense(*message: Any) -> bytes:
    body = pickle.dumps(message)
    return len(body).to_bytes(4, "big") + body


@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\4junk",
        b"\0\0\0\0",
        nonsense("no such word"),
        nonsense("done"),
        nonsense("fetch", 1, None),
        nonsense(),
    ],
)
def test_a_worker_that_talks_nonsense_is_ended_and_the_rest_goes_on(data: bytes) -> None:
    with pytest.raises(WorkerDiedError):
        dray.get(dray.remote(max_retries=0)(talk_nonsense).remote(data), timeout=PATIENCE_S)
    actor = dray.remote(Nonsense).remote()
    with pytest.raises(ActorDiedError):
        dray.get(actor.talk.remote(data), timeout=PATIENCE_S)
    assert dray.get([echo.remote(n) for n in range(4)]) == [0, 1, 2, 3]


class Nonsense:
    def talk(self, data: bytes) -> None:
        talk_nonsense(data)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_end_of_the_thread_that_hears_ends_what_waits(session: Any, gate: Gate) -> None:
    session(num_cpus=2)
    ref = held.remote(gate)
    gate.heard()
    engine: Any = session_here.current_engine()
    ended = threading.Thread(target=engine._reader._thread.join)
    ended.start()
    engine._reader.run(engine._reader._selector.close)  # as if the system had
    with pytest.raises(EngineError, match=r"(workers|session) has ended"):
        dray.get(ref, timeout=PATIENCE_S)
    ended.join(PATIENCE_S)
    for use in (lambda: dray.put(1), lambda: echo.remote(1)):
        with pytest.raises(EngineError):
            use()
    dray.shutdown()
    session(num_cpus=2)
    assert dray.get(echo.remote(1)) == 1


@pytest.mark.usefixtures("process_engine")
def test_a_training_worker_whose_question_makes_no_sense_fails_its_run(tmp_path: Path) -> None:
    def train() -> None:
        runtime: Any = session_here.current_runtime()
        runtime.await_answer("fetch", None)

    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(WorkerDiedError):
        trainer.fit()
    assert dray.get(echo.remote(1)) == 1


def test_a_reference_that_outlives_the_session_says_nothing_at_the_end(tmp_path: Path) -> None:
    pytest.importorskip("torch")  # a program that has imported it is taken apart in another order
    script = write(tmp_path / "script.py", "import dray, torch\nref = dray.put(1)")
    ended = run(script, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
