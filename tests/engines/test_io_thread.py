"""The thread that hears of everything outlives what it calls."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dray.engines.rpc import io_thread
from dray.engines.rpc.io_thread import Reader
from dray.errors import EngineError
from tests.support.gates import PATIENCE_S


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader(lambda: None)
    reader.start()
    yield reader
    with contextlib.suppress(EngineError):
        reader.stop()
    reader.close()


def broken(kind: type[BaseException] = ValueError) -> None:
    raise kind("a bug")


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_what_raises_is_not_called_again_and_the_rest_is(
    reader: Reader, kind: type[BaseException]
) -> None:
    failures: list[BaseException] = []
    heard = threading.Event()
    bad, tell_bad = socket.socketpair()
    good, tell_good = socket.socketpair()
    with bad, tell_bad, good, tell_good:
        reader.watch(bad, lambda: broken(kind), failures.append)
        reader.watch(good, lambda: (good.recv(1), heard.set()))
        reader.run(lambda: broken(kind))
        tell_bad.send(b"x")
        for _ in range(2):
            heard.clear()
            tell_good.send(b"x")
            assert heard.wait(PATIENCE_S)
        reader.stop()
    assert [type(error) for error in failures] == [kind]


def test_a_failure_that_fails_itself_ends_nothing(reader: Reader) -> None:
    done = threading.Event()
    reader.watch(-1, broken, lambda error: broken())  # cannot be watched
    reader.run(done.set)
    assert done.wait(PATIENCE_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_starts_it_after_its_end_is_told_why(reader: Reader) -> None:
    reader.run(lambda: reader._selector.close())  # as if the kernel refused to wait
    reader._thread.join(PATIENCE_S)
    with pytest.raises(EngineError, match=r"has ended.*call dray.shutdown"):
        reader.start()


def test_several_threads_may_start_it_at_once() -> None:
    for _ in range(100):
        reader, together = Reader(lambda: None), threading.Barrier(4)

        def start(reader: Reader = reader, together: threading.Barrier = together) -> None:
            together.wait()
            reader.start()

        with ThreadPoolExecutor(4) as threads:
            started = [threads.submit(start) for _ in range(4)]
        try:
            for each in started:
                each.result()
        finally:
            reader.stop()
            reader.close()


def test_who_rests_wakes_nobody_and_is_heard_before_others(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    ears = {name: socket.socketpair() for name in ("resting", "other")}
    rested, came = threading.Event(), threading.Event()

    def hear(name: str) -> None:
        try:
            words = ears[name][0].recv(100, socket.MSG_DONTWAIT).decode()
        except BlockingIOError:  # its rest has ended, and that is all
            return
        if name == "resting":
            heard.append(words)
            reader.rest(ears[name][0])
            rested.set()
        else:
            reader.in_order(lambda: (heard.append(words), came.set()))

    def say(name: str, words: str) -> None:
        ears[name][1].send(words.encode())

    for name in ears:
        reader.watch(ears[name][0], functools.partial(hear, name))
    monkeypatch.setattr(io_thread, "REST_S", 1000.0)
    say("resting", "first")
    assert rested.wait(PATIENCE_S)
    say("resting", "quiet")
    say("other", "loud")
    assert came.wait(PATIENCE_S)
    monkeypatch.setattr(io_thread, "REST_S", 0.1)
    rested.clear()
    say("resting", "quiet")
    reader.doorbell.send(b"!")
    assert rested.wait(PATIENCE_S)
    rested.clear()
    say("resting", "late")  # nobody rings: its time comes
    assert rested.wait(PATIENCE_S)
    assert heard == ["first", "quiet", "loud", "quiet", "late"]
    reader.stop()
    for pair in ears.values():
        for end in pair:
            end.close()


def test_a_source_that_cannot_be_waited_on_after_its_rest_fails_alone(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested, failed, heard = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(io_thread, "REST_S", 1000.0)
    (resting, far), (other, tell) = socket.socketpair(), socket.socketpair()
    with resting, far, other, tell:
        reader.watch(resting, lambda: None, lambda error: failed.set())
        reader.watch(other, lambda: (other.recv(1), heard.set()))
        reader.run(lambda: (reader.rest(resting), rested.set()))
        assert rested.wait(PATIENCE_S)
        with monkeypatch.context() as patch:
            patch.setattr(reader, "_register", lambda *args: broken(OSError))
            reader.doorbell.send(b"!")
            assert failed.wait(PATIENCE_S)
        tell.send(b"x")
        assert heard.wait(PATIENCE_S)
        reader.stop()
