"""Leader/followers: the thread that waits for an answer also reads the shared sockets for all.

If one thread waits while another one reads, each answer costs two thread switches, more than the
rest of a call. So the thread that waits also reads, for all threads. When it has its answer it
leaves, and another waiting thread takes over. A driver also has a thread that reads while no thread
waits.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, TypeVar

from dray import interrupts
from dray.engines.process.lock import IN_A_FINALISER
from dray.engines.rpc.io_thread import start_thread
from dray.errors import EngineError
from dray.errors.base import of_end
from dray.interrupts import pending

T = TypeVar("T")
# Seconds without a reader before the background thread reads. It looks that often while a program
# asks again and again, which costs less than to be woken each time. Each look takes the GIL from
# the program, so it looks less and less often while the program asks so many times a second. Who
# asks only now and then, and awaits answers in an event loop, needs this thread after the first.
_LINGER_S, _LONGEST_LINGER_S = 0.001, 0.008
_OFTEN = 2000

# To fall asleep and be woken takes a thread tens of microseconds on a core of its own, and a core
# that was idle is slow at first: calls one at a time are twice as fast if those who wait stay
# awake. For longer than that costs it does not pay.
_AWAKE_S = 0.0001
# After so many waits at most, one is spent awake again.
_MOST_ASLEEP = 63

# The system's calls take no time beyond 24 days; who waits for longer looks up once a day.
LONGEST_S = 86400.0


class AdaptiveSpin:
    """Waits awake for a moment, but only where that has paid lately.

    It does not where an answer takes long, nor where other processes want the core, be it the one
    that is to answer: then the awake one is in its way, and to sleep is cheap. So each wait that
    was spent awake in vain lets the next ones sleep, more and more of them.

    Args:
        cores: Number of cores; with one alone, it is left to the awaited process.
    """

    def __init__(self, cores: int) -> None:
        self._several_cores = cores > 1
        self._pause = 0  # after the next wait in vain, so many sleep
        self._asleep = 0  # so many are to sleep

    def awake(self, look: Callable[[], T]) -> T | None:
        """Return what `look` finds within a moment; None if it is time to sleep.

        Args:
            look: Returns at once; something false if there is nothing.
        """
        if not self._several_cores:
            return None
        if self._asleep:
            self._asleep -= 1
            return None
        clock = time.perf_counter
        end = clock() + _AWAKE_S
        while not (found := look()):
            if clock() > end:
                break
        else:
            self._pause //= 2
            return found
        self._asleep = self._pause = min(2 * self._pause + 1, _MOST_ASLEEP)
        return None


class Waiter:
    """Something that a thread waits for, once."""

    __slots__ = ("_lock", "done", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, timeout_s: float | None) -> None:
        """Sleep until somebody wakes it, perhaps for nothing."""
        self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s)

    def wake(self) -> None:
        """Wake it. A second call before it sleeps again does nothing."""
        with contextlib.suppress(RuntimeError):
            self._lock.release()


class LeaderFollowers:
    """Leader/followers over the sockets that threads share: one thread reads for all.

    Args:
        read: Waits for something to read, at most so many seconds, and deals with it.
        interrupt: Has a `read` in another thread return soon.
    """

    def __init__(self, read: Callable[[float | None], None], interrupt: Callable[[], None]) -> None:
        self._read = read
        self._interrupt = interrupt
        self._baton = threading.Lock()
        self._leader: Waiter | None = None
        self._leading_thread = 0
        self._reading_thread = 0  # which has the baton; 0 if nobody does
        self._is_aside = False  # it does something else at the moment, see `aside`
        self._followers: set[Waiter] = set()
        self._counting = threading.Lock()
        self._waiting_threads = 0
        self._visits = 0
        self._closed = False
        self._end: Callable[[], EngineError] | None = None  # why nobody shall wait any more
        self._left = threading.Event()  # set when somebody leaves after that
        self._background: Waiter | None = None
        self._parked = False  # the background thread sleeps until somebody leaves
        self._thread: threading.Thread | None = None
        interrupts.attend(self)

    @property
    def crowded(self) -> bool:
        """True while several threads wait here."""
        return self._waiting_threads > 1

    def wait(
        self, waiter: Waiter, timeout_s: float | None = None, *, interruptible: bool = True
    ) -> bool:
        """Wait, and read meanwhile if nobody else does; return whether it is done.

        Args:
            interruptible: Whether handlers of signals run meanwhile, and may raise. If not, the
                answer must be near.

        Raises:
            EngineError: Nothing will come any more.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._wait(waiter, deadline, interruptible):
            if self._end is not None:
                raise of_end(self._end())
            if deadline is not None and time.monotonic() >= deadline:
                return False
            interrupts.deliver()
        return True

    def _wait(self, waiter: Waiter, deadline: float | None, interruptible: bool) -> bool:
        """Wait until the time is up or a handler is due; return whether it is done."""
        if waiter.done:
            return True
        self._enter()
        try:
            while not waiter.done and self._end is None:
                if interruptible and pending and interrupts.due():
                    break
                if not self._take_turn(waiter, deadline, interruptible):
                    break
            return waiter.done
        finally:
            self._leave()

    def read_for(self, found: Collection[object]) -> bool:
        """Read once, unless something is found already; return False if another thread reads.

        Args:
            found: Grows as this is read, by whatever thread.
        """
        if not self._baton.acquire(blocking=False):
            return False
        self._reading_thread = threading.get_ident()
        try:
            if not found:  # not looked at before: another thread may have read until then
                self._read(None)
        finally:
            self._put_down()
            if self._followers:
                self._promote()
        return True

    def look(self, calls: int) -> None:
        """Read what is there already, unless another thread of the program reads.

        A thread that submits without pause holds the GIL: the background thread gets it every 5 ms,
        and needs it three times to read once.

        Args:
            calls: So many calls the program has made since the last look.
        """
        if self.reads_here():
            return
        self._enter(calls)
        try:
            if self._end is None and self._takes_over():
                self._reading_thread = threading.get_ident()
                try:
                    self._read(0)
                finally:
                    self._put_down()
        finally:
            self._leave()

    def _takes_over(self) -> bool:
        """Take the baton if nobody reads, or the thread in the background leaves off at once."""
        if self._baton.acquire(blocking=False):
            return True
        if self._leader is not self._background:
            return False
        self._interrupt()
        return self._baton.acquire(timeout=_LINGER_S)

    def finish(self, waiter: Waiter) -> None:
        waiter.done = True
        if self._leader is waiter:
            if self._leading_thread != threading.get_ident():
                self._interrupt()
        else:
            waiter.wake()

    def disturb(self) -> None:
        """Have all that wait look up, whoever they are: a handler may be due."""
        for follower in tuple(self._followers):
            follower.wake()
        self._interrupt()

    def end(self, error: Callable[[], EngineError]) -> None:
        """End every wait, and those to come, with an error."""
        self._end = error
        self.disturb()

    def _take_turn(self, waiter: Waiter, deadline: float | None, interruptible: bool) -> bool:
        """Read or sleep for a while; return False when the time is up."""
        if self.reads_here():
            return self._lead_within(waiter, deadline, interruptible)
        if self._baton.acquire(blocking=False):
            self._leader = waiter
            self._reading_thread = self._leading_thread = threading.get_ident()
            try:
                return self._lead(waiter, deadline, interruptible)
            finally:
                self._leader = None
                self._put_down()
                if self._followers:
                    self._promote()
        self._followers.add(waiter)
        try:
            leader = self._leader
            if leader is None and not self._baton.locked():
                return True  # whoever read has just left, and may not have seen this one
            if leader is not None and leader is self._background:
                self._interrupt()
            left = None if deadline is None else deadline - time.monotonic()
            if waiter.done or self._end is not None:
                return True
            if interruptible and pending and interrupts.due():
                return True  # not before this one is a follower, which a handler wakes
            if left is not None and left <= 0:
                return False
            waiter.sleep(None if left is None else min(left, LONGEST_S))
            return True
        finally:
            self._followers.discard(waiter)

    def _lead(self, waiter: Waiter, deadline: float | None, interruptible: bool) -> bool:
        while not waiter.done and self._end is None:
            if interruptible and pending and interrupts.due():
                return True
            left = None
            if deadline is not None:
                left = min(max(0.0, deadline - time.monotonic()), LONGEST_S)
            self._read(left)
            if left == 0 and not waiter.done:
                return False
        return True

    def reads_here(self) -> bool:
        return self._reading_thread == threading.get_ident()

    def aside(self, task: Callable[[], None]) -> None:
        """Do something of the program's on the thread that reads, between two messages.

        It may wait itself: then this thread reads on meanwhile.
        """
        if not self.reads_here():
            task()
            return
        outer, self._is_aside = self._is_aside, True
        try:
            task()
        finally:
            self._is_aside = outer

    def _lead_within(self, waiter: Waiter, deadline: float | None, interruptible: bool) -> bool:
        """Read for what this thread waits for while it reads."""
        if not self._is_aside:
            raise EngineError(IN_A_FINALISER)
        outer, self._leader, self._is_aside = self._leader, waiter, False
        try:
            return self._lead(waiter, deadline, interruptible)
        finally:
            self._leader, self._is_aside = outer, True

    def _put_down(self) -> None:
        self._reading_thread = 0
        self._baton.release()

    def _promote(self) -> None:
        """Wake one that waits, to read from now on."""
        for follower in tuple(self._followers):
            if not follower.done:
                follower.wake()
                return

    def _enter(self, visits: int = 1) -> None:
        with self._counting:
            self._waiting_threads += 1
            self._visits += visits

    def _leave(self) -> None:
        with self._counting:
            self._waiting_threads -= 1
            parked, self._parked = self._parked, False
        if parked and self._background is not None:
            self._background.wake()
        if self._end is not None:
            self._left.set()
        if self._followers and not self._baton.locked():
            self._promote()  # this one may have been woken to read, and has its answer, or no time

    def start_background(self, name: str) -> None:
        """Start the thread that reads while nobody waits, unless there is one."""
        with self._counting:
            if self._thread is not None or self._closed:
                return
            self._background = Waiter()
            thread = threading.Thread(target=self._stand_in, name=name, daemon=True)
            start_thread(thread)
            self._thread = thread

    def _stand_in(self) -> None:
        me, seen, linger_s = self._background, -1, _LINGER_S
        assert me is not None
        while not self._closed:
            with self._counting:
                visits, quiet = self._visits, self._visits == seen
                self._parked = quiet and self._waiting_threads > 0
            if self._parked:
                me.sleep(None)
            elif not quiet:
                me.sleep(linger_s)
                often = visits - seen >= _OFTEN * linger_s
                linger_s = min(2 * linger_s, _LONGEST_LINGER_S) if often else _LINGER_S
            else:
                linger_s = _LINGER_S
                self._lead_for_nobody(me)
            seen = visits

    def _lead_for_nobody(self, me: Waiter) -> None:
        self._followers.add(me)
        leads = self._baton.acquire(blocking=False)
        if not leads:
            me.sleep(None)  # whoever reads now wakes a follower when it leaves
        self._followers.discard(me)
        if not leads:
            self._promote()  # it may be this one that was woken, and others wait
            return
        self._leader = me
        self._reading_thread = self._leading_thread = threading.get_ident()
        try:
            while not self._closed and not self._waiting_threads:
                self._read(None)
        finally:
            self._leader = None
            self._put_down()
            self._promote()

    def close(self) -> None:
        """End the background thread, after `end`; nobody else waits or reads any more then."""
        with self._counting:
            self._closed = True
        if self._thread is not None and self._thread is not threading.current_thread():
            if self._background is not None:
                self._background.wake()
            self._interrupt()
            self._thread.join()
        own = _waits_of_this_thread()
        while self._waiting_threads > own:
            self._left.wait()
            self._left.clear()


def _waits_of_this_thread() -> int:
    """Return how often this thread waits: what it has read may have called whatever closes."""
    count = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        count += frame.f_code is LeaderFollowers._wait.__code__
        frame = frame.f_back
    return count
