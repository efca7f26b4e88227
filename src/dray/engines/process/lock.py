"""The lock under which a process talks to the hub; in the driver it is the hub's own.

The garbage collector may run a program's finalisers (`__del__`, callbacks of weak references) at
any step, even while dray holds this lock, and they may call dray. The thread would then wait for
itself. So a thread does not take the lock twice: a call that needs no answer is done when the lock
is released, and any other call is refused.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dray.errors import EngineError
from dray.interrupts import shielded

if TYPE_CHECKING:
    from dray.engines.process.hub.records import Client

IN_A_FINALISER = (
    "the garbage collector ran a finaliser (__del__, or a weak reference's callback) in the "
    "middle of dray's own work, where it cannot wait for dray; have it submit a task or a call "
    "without waiting, or free its resource in a method that the program calls"
)
# Frames of Python's stack that work with the lock held may need.
_DEPTH = 150


class HubLock:
    """A lock that one thread has once; whoever lets it go does what has come up meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Whether this thread has it.
        self.is_mine: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        # For a thread that knows that it does not have it; ends in `release`.
        self.acquire = self._lock.acquire
        self.closed = False
        self.todo: deque[Callable[[], object]] = deque()  # with the lock held
        self.replies: deque[tuple[Client, int, Any]] = deque()  # without it

    def acquire_now(self) -> bool:
        """Take the lock if nobody has it, neither this thread; return whether it did."""
        return not self.is_mine() and self._lock.acquire(blocking=False)

    def release(self, *_: object) -> None:
        """Release the lock, after all work that was deferred while it was held.

        An error of that work does not concern the caller: it is reported, and the rest is done.
        """
        while True:
            try:
                while self.todo and not self.closed:
                    task = self.todo.popleft()
                    try:
                        task()
                    except Exception as error:  # noqa: BLE001
                        _tell(error)
            finally:
                self._lock.release()
            while self.replies:
                try:
                    client, question, answer = self.replies.popleft()
                except IndexError:  # another thread was faster
                    break
                try:
                    client.reply(question, answer)
                except Exception as error:  # noqa: BLE001
                    _tell(error)
            if not self.todo or self.closed or not self.acquire_now():
                return

    # As deep in the stack as `__enter__`, which had room there: a call more might have none.
    __exit__ = release

    def do(self, task: Callable[..., object], *args: object) -> None:
        """Do something with the lock: now, or as it is let go if this thread has it already."""
        if self.is_mine():  # a finaliser's
            self.later(functools.partial(task, *args))
            return
        with self:
            task(*args)

    @shielded
    def later(self, task: Callable[[], object]) -> None:
        """Do something with the lock, as soon as nobody else has it, unless it is closed."""
        self.todo.append(task)
        if self.acquire_now():
            self.release()

    def __enter__(self) -> None:
        """Take the lock.

        Raises:
            EngineError: This thread has it.
        """
        if self.is_mine():
            raise EngineError(IN_A_FINALISER)
        self._lock.acquire()


def has_depth() -> bool:
    """Return whether enough of the stack is left that no work ends halfway."""
    try:
        sys._getframe(sys.getrecursionlimit() - _DEPTH)
    except ValueError:  # the stack is not as deep as that
        return True
    return False


def check_depth() -> None:
    """Raise a RecursionError unless `has_depth`."""
    if not has_depth():
        raise RecursionError("maximum recursion depth exceeded while calling dray")


def _tell(error: Exception) -> None:
    logging.getLogger("dray").error("a bug in dray, or no memory left", exc_info=error)
