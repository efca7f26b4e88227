"""One thread reads for all that wait: whoever leaves hands on to one that still does."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.engines.process.leader_follower import LeaderFollowers, Waiter
from dray.errors import EngineError


class Preempted:
    """A lock whose thread in the background is stopped once, just before it tries to take it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.about_to, self.goes_on = threading.Event(), threading.Event()
        self.release, self.locked = self._lock.release, self._lock.locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if threading.current_thread().name == "background" and not self.about_to.is_set():
            self.about_to.set()
            self.goes_on.wait()
        return self._lock.acquire(blocking, timeout)


class Answers:
    """Answers that come in on a socket: a byte is the number of who has it."""

    def __init__(self) -> None:
        self.waiters = [Waiter(), Waiter()]
        self._come, self._sent = socket.socketpair()
        self._woken, self._wake = socket.socketpair()
        self.readers = LeaderFollowers(self._read, self._interrupt)

    def _interrupt(self) -> None:
        self._wake.send(b"!")

    def _read(self, timeout_s: float | None) -> None:
        ready, _, _ = select.select([self._come, self._woken], [], [], timeout_s)
        if self._woken in ready:
            self._woken.recv(100)
        if self._come in ready:
            for number in self._come.recv(1):
                self.readers.finish(self.waiters[number])

    def answer(self, number: int) -> None:
        self._sent.send(bytes([number]))

    def close(self) -> None:
        self.readers.end(lambda: EngineError("the end"))
        self.readers.close()
        for sock in (self._come, self._sent, self._woken, self._wake):
            sock.close()


@pytest.fixture
def answers() -> Iterator[Answers]:
    answers = Answers()
    yield answers
    answers.close()


def test_who_is_woken_to_read_and_does_not_wakes_another(answers: Answers) -> None:
    baton: Any = Preempted()
    answers.readers._baton = baton
    answers.readers.start_background("background")
    assert baton.about_to.wait(20)

    def wait(waiter: Waiter) -> None:
        with contextlib.suppress(EngineError):
            answers.readers.wait(waiter)

    threads = []
    for waiter in answers.waiters:
        threads.append(threading.Thread(target=wait, args=(waiter,)))
        threads[-1].start()
        while answers.readers._waiting_threads < len(threads) or not baton.locked():
            threading.Event().wait(0.001)
        baton.goes_on.set()
        threading.Event().wait(0.02)  # the other thread is a follower now
    for number, thread in enumerate(threads):
        answers.answer(number)
        thread.join(10)
        assert answers.waiters[number].done


def test_what_is_found_already_is_not_waited_for(answers: Answers) -> None:
    """Another thread may read work between this one's look and its turn to read."""
    answers.answer(0)
    assert answers.readers.read_for(["work"])
    assert not answers.waiters[0].done  # it was not read
    assert answers.readers.read_for([])
    assert answers.waiters[0].done


def _switches(thread: threading.Thread) -> int:
    """Return how often a thread has gone to sleep."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def _looks_while_asking(answers: Answers, seconds: float) -> int:
    """Ask without pause for a while; return how often the background thread has slept."""
    background = answers.readers._thread
    assert background is not None
    before, end = _switches(background), time.monotonic() + seconds
    while time.monotonic() < end:
        waiter = answers.waiters[0] = Waiter()
        answers.answer(0)
        answers.readers.wait(waiter)
    return _switches(background) - before


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's count of a thread's switches")
def test_the_background_thread_leaves_a_program_alone_that_asks_on(answers: Answers) -> None:
    answers.readers.start_background("background")
    # One look a millisecond would be 100. Where another process has the core for long, the program
    # does not ask on: so it has several tries.
    looks = [_looks_while_asking(answers, 0.1)]
    while looks[-1] > 40 and len(looks) < 100:
        looks.append(_looks_while_asking(answers, 0.1))
    assert looks[-1] <= 40, f"{looks} looks in a tenth of a second each"
    late = answers.waiters[1]
    answers.answer(1)  # nobody waits: the background thread reads it
    late.sleep(20)
    assert late.done
