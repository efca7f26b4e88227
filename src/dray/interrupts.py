"""Deferral of signal handlers while the main thread is inside dray.

Python runs a signal's handler on the main thread between any two bytecode instructions. An
exception of the handler (Ctrl-C, a time limit) is raised at that point, perhaps while a lock is
held, a count is half changed, or half of a message is sent. A `try` does not help, because a
handler can also run at its first and last instructions. So dray wraps a program's handlers. The
wrapper looks at the stack: if the innermost function that is marked here is a `shielded` one, the
handler is deferred. It runs where that function waits, or when the function returns.

If a signal arrives when the main thread is about to sleep, Python only records it, and runs the
handler when the thread wakes for another reason. So Python also writes a byte to a socket when a
signal arrives, unless it does so for the program already. The thread that reads the sockets for all
threads then wakes the main thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import threading
import weakref
from _signal import getsignal  # type: ignore[import-not-found] # signal's own is slow
from _thread import get_ident, start_new_thread
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_SHIELD, _OPEN, _FINAL, _SHUT, _BOTTOM = "shield", "open", "final", "shut", "bottom"
_marks: dict[CodeType, str] = {}

# Deferred handlers, by signal. A process has one main thread, and so one such dict.
pending: dict[int, Callable[..., object]] = {}

# By signal that was sent again: a lock that is held until the signal arrives. After these seconds
# the signal counts as lost, and is sent once more.
_resent: dict[int, threading.Lock] = {}
LOST_S = 0.2

# The socket that becomes readable when a signal arrives, and the socket that Python writes to.
_arrivals: list[socket.socket] = []

# The signals for which programs have handlers that raise.
_INT, _TERM = signal.SIGINT, signal.SIGTERM
_ALRM = getattr(signal, "SIGALRM", _TERM)
# The handlers that were found last, so that the check in `watch` is fast.
_seen: list[object] = [None, None, None]


class Sleeper(Protocol):
    """An object in which the main thread may sleep."""

    def disturb(self) -> None:
        """Wake the thread that sleeps in the object."""


_sleepers: weakref.WeakSet[Sleeper] = weakref.WeakSet()


class Guard:
    """A wrapper of a program's signal handler, which is equal to the handler.

    Trio removes its handler only if it finds that very object, and drops the object in any case
    when its loop ends. So a guard holds Trio's handler by a weak reference. When the handler is
    gone, the guard calls Python's own handler.
    """

    def __init__(self, handler: Callable[..., object]) -> None:
        self._find = weakref.ref(handler) if _is_of_trio(handler) else lambda: handler

    @property
    def handler(self) -> Callable[..., object]:
        """The program's handler."""
        handler = self._find()
        return signal.default_int_handler if handler is None else handler

    def __call__(self, number: int, frame: FrameType | None) -> object:
        """Call the handler now, or defer it."""
        heard = _resent.pop(number, None)
        if heard is not None:
            heard.release()
        mark = _nearest(frame)
        if mark is None or mark == _OPEN:
            return self.handler(number, frame)
        if mark == _FINAL and _deliver_again(number):
            return None
        pending[number] = self.handler
        for sleeper in list(_sleepers):
            sleeper.disturb()
        return None

    def __eq__(self, other: object) -> bool:
        return self is other or self.handler == other

    def __hash__(self) -> int:
        return hash(self.handler)


def _is_of_trio(handler: object) -> bool:
    return str(getattr(handler, "__module__", None)).startswith("trio.")


def _nearest(frame: FrameType | None) -> str | None:
    """Return the mark that decides: the innermost one, except for marks within a `shut` function.

    A shielded function that a final one has called counts as final.
    """
    mark, decided = None, False
    while frame is not None:
        found = _marks.get(frame.f_code)
        if found == _BOTTOM:
            break
        if found == _SHUT:
            mark, decided = None, False
        elif found == _OPEN and not decided:
            mark, decided = mark or _OPEN, True
        elif found is not None and not decided and mark != _FINAL:
            mark = found
        frame = frame.f_back
    return mark


def _deliver_again(number: int) -> bool:
    """Send a signal again from another thread, a moment later; return whether that is possible."""
    heard = threading.Lock()
    heard.acquire()
    _resent[number] = heard
    try:
        start_new_thread(_send, (number, heard))
    except RuntimeError:  # no thread can be started any more
        del _resent[number]
        return False
    return True


def _send(number: int, heard: threading.Lock) -> None:
    """Send the main thread a signal until its handler is called.

    Python does not handle a signal that arrives when the main thread is about to sleep, until the
    next signal arrives. And a main thread that lets this thread run is often about to sleep.
    """
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)
    while not heard.acquire(timeout=LOST_S):
        signal.pthread_kill(main, number)


# Marks.


def shielded(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that handlers must not interrupt; they run when it returns."""
    mark_shielded(function)

    @functools.wraps(function)
    def entered(*args: P.args, **kwargs: P.kwargs) -> T:
        watch()
        try:
            return function(*args, **kwargs)
        finally:
            if pending:
                leave()

    return entered


def mark_shielded(function: F) -> F:
    """Mark a function as shielded whose caller calls `watch` before it and `leave` after it."""
    _marks[function.__code__] = _SHIELD
    return function


def interruptible(function: F) -> F:
    """Mark a function that runs a program's own code, which handlers may interrupt."""
    _marks[function.__code__] = _OPEN
    return function


def final(function: F) -> F:
    """Mark a function that runs when an object is deleted, where Python ignores exceptions."""
    _marks[function.__code__] = _FINAL
    return function


def shut(function: F) -> F:
    """Mark a function that handlers must not interrupt, whatever it calls."""
    _marks[function.__code__] = _SHUT
    return function


def bottom(function: F) -> F:
    """Mark the function in which a process's work begins; a fork has its parent's frames below."""
    _marks[function.__code__] = _BOTTOM
    return function


# Functions that wrap and run handlers.


def watch() -> None:
    """Wrap the program's handlers that are not wrapped yet, such as those that it has just set."""
    seen = _seen
    if (
        getsignal(_INT) is not seen[0]
        or getsignal(_ALRM) is not seen[1]
        or getsignal(_TERM) is not seen[2]
    ):
        _wrap()


def _wrap() -> None:
    if not _on_main():
        return
    for number in signal.valid_signals():
        handler = getsignal(number)
        if callable(handler) and not isinstance(handler, Guard) and not _is_of_asyncio(handler):
            signal.signal(number, Guard(handler))
    _seen[:] = getsignal(_INT), getsignal(_ALRM), getsignal(_TERM)
    if _arrivals:
        _have_written(_arrivals[1].fileno())


def _is_of_asyncio(handler: object) -> bool:
    """Return whether `asyncio.run` has set a handler; it removes its handler only if unwrapped.

    This handler need not be deferred: it cancels a task, and raises only at the second Ctrl-C.
    """
    return getattr(getattr(handler, "func", None), "__module__", None) == "asyncio.runners"


def unwrap() -> None:
    """Restore the program's handlers; on another thread than the main one, do nothing."""
    if not _on_main():
        return
    for number in signal.valid_signals():
        handler = getsignal(number)
        if isinstance(handler, Guard):
            signal.signal(number, handler.handler)
    if _arrivals:
        _have_written(-1)
    while _arrivals:
        _arrivals.pop().close()


def _begin_fork() -> None:
    """Reset the state that a fork has from its parent."""
    pending.clear()
    _sleepers.clear()
    if _arrivals:
        _have_written(-1)
        _arrivals.clear()


os.register_at_fork(after_in_child=_begin_fork)


def arrivals() -> socket.socket:
    """Return the socket that becomes readable when a signal arrives, after the next `watch`."""
    if not _arrivals:
        _arrivals[:] = socket.socketpair()
        for end in _arrivals:
            end.setblocking(False)
        _seen[:] = [None] * 3
    return _arrivals[0]


def wake_main() -> None:
    """Wake the main thread if it sleeps, because a signal has arrived."""
    for end in _arrivals[:1]:
        with contextlib.suppress(OSError):  # another thread has read it, or closed it
            end.recv(4096)
    for sleeper in list(_sleepers):
        sleeper.disturb()


def _have_written(descriptor: int) -> None:
    """Make Python write to a descriptor (or -1: none) at signals, unless the program uses that."""
    before = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    if before not in (-1, _arrivals[1].fileno()):
        signal.set_wakeup_fd(before)


def attend(sleeper: Sleeper) -> None:
    """Register a sleeper, as long as it exists, to be woken when a handler is deferred."""
    _sleepers.add(sleeper)


def due() -> bool:
    """Return whether there is a deferred handler and this is the main thread."""
    return bool(pending) and _on_main()


def leave() -> None:
    """Run the deferred handlers, unless a shielded function has called the caller."""
    if due() and _nearest(sys._getframe(1)) in (None, _OPEN):
        deliver()


@interruptible
def deliver() -> None:
    """Run the deferred handlers; their exceptions propagate."""
    frame = sys._getframe(1)
    while pending:
        number = next(iter(pending))
        handler = pending[number]
        del pending[number]  # no other handler can run before this one's first instruction
        handler(number, frame)


def is_handlers(error: BaseException) -> bool:
    """Return whether a handler has raised an error, which other code then must not handle."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in (Guard.__call__.__code__, deliver.__code__):
            return True
        step = step.tb_next
    return False


def _on_main() -> bool:
    return get_ident() == threading.main_thread().ident
