"""Signals that come while the main thread is inside dray: their handlers run when it is not.

Python runs a signal's handler on the main thread between any two of its steps, and what the handler
raises (Ctrl-C, a time limit) comes out there: with a lock held, a count half changed, half of a
message sent. No `try` helps, since its own first and last steps are such places too. So a program's
handlers are wrapped. The wrapper looks at the stack: if the innermost function that is marked here
is a `shielded` one, the handler has to wait; it runs where that function waits, or as it is left.

A signal that comes as the main thread is about to sleep does not wake it: Python has taken note of
it, and runs the handler when the thread wakes by itself. So Python also writes to a socket as one
comes, unless it does so for the program already, and whoever reads for all wakes the main thread.
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

# Handlers that wait, by signal. There is one main thread a process, and so one of these.
pending: dict[int, Callable[..., object]] = {}

# Per signal that was sent again: held until it has come, or is lost after these seconds.
_resent: dict[int, threading.Lock] = {}
LOST_S = 0.2

# The socket that becomes readable as a signal comes, and that which Python writes to.
_arrivals: list[socket.socket] = []

# The signals for which programs have handlers that raise.
_INT, _TERM = signal.SIGINT, signal.SIGTERM
_ALRM = getattr(signal, "SIGALRM", _TERM)
# The handlers found last, so that a look costs next to nothing.
_seen: list[object] = [None, None, None]


class Sleeper(Protocol):
    """Something in which the main thread may sleep."""

    def disturb(self) -> None:
        """Have whoever sleeps there look up."""


_sleepers: weakref.WeakSet[Sleeper] = weakref.WeakSet()


class Guard:
    """Stands in for a program's handler of a signal, and equals it.

    Trio takes its handler back only if it finds that very object. It drops it all the same as its
    loop ends; then it is gone, and this stands in for Python's own.
    """

    def __init__(self, handler: Callable[..., object]) -> None:
        self._find = weakref.ref(handler) if _is_of_trio(handler) else lambda: handler

    @property
    def handler(self) -> Callable[..., object]:
        """The program's handler."""
        handler = self._find()
        return signal.default_int_handler if handler is None else handler

    def __call__(self, number: int, frame: FrameType | None) -> object:
        """Call the handler, now or later."""
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
    """Return the mark that decides: the innermost, but none within a function that is shut.

    What is shielded within what is final does not hear of it either.
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
    """Send a signal once more, from a thread, and so a moment later."""
    heard = threading.Lock()
    heard.acquire()
    _resent[number] = heard
    try:
        start_new_thread(_send, (number, heard))
    except RuntimeError:  # no more threads
        del _resent[number]
        return False
    return True


def _send(number: int, heard: threading.Lock) -> None:
    """Send the main thread a signal until its handler is called.

    Python loses one that comes as the main thread is about to sleep, until the next comes; and
    that is what a main thread does first that lets others run.
    """
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)
    while not heard.acquire(timeout=LOST_S):
        signal.pthread_kill(main, number)


# Marks.


def shielded(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that handlers must not interrupt: they run as it is left."""
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
    """The same for a function whose caller calls `watch` before it and `leave` after it."""
    _marks[function.__code__] = _SHIELD
    return function


def interruptible(function: F) -> F:
    """Mark a function that runs a program's own code, which handlers may interrupt."""
    _marks[function.__code__] = _OPEN
    return function


def final(function: F) -> F:
    """Mark what is called as something ends, where nobody would hear of what a handler raises."""
    _marks[function.__code__] = _FINAL
    return function


def shut(function: F) -> F:
    """Mark a function that handlers must not interrupt, whatever it calls."""
    _marks[function.__code__] = _SHUT
    return function


def bottom(function: F) -> F:
    """Mark where a process's work begins: below it may lie the stack that it was forked from."""
    _marks[function.__code__] = _BOTTOM
    return function


# The places where handlers run.


def watch() -> None:
    """See to it that the program's handlers are wrapped, also those that it has just set."""
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
    """Return whether `asyncio.run` has set a handler: it takes back none but this very one.

    What it does is no harm: it cancels a task, and raises only when Ctrl-C is pressed twice.
    """
    return getattr(getattr(handler, "func", None), "__module__", None) == "asyncio.runners"


def unwrap() -> None:
    """Put the program's handlers back; without effect on another thread, and harmless there."""
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
    """Forget what a fork has from its parent."""
    pending.clear()
    _sleepers.clear()
    if _arrivals:
        _have_written(-1)
        _arrivals.clear()


os.register_at_fork(after_in_child=_begin_fork)


def arrivals() -> socket.socket:
    """Return what becomes readable as a signal comes, from the next look at handlers on."""
    if not _arrivals:
        _arrivals[:] = socket.socketpair()
        for end in _arrivals:
            end.setblocking(False)
        _seen[:] = [None] * 3
    return _arrivals[0]


def wake_main() -> None:
    """Have the main thread look up if it sleeps: a signal has come."""
    for end in _arrivals[:1]:
        with contextlib.suppress(OSError):  # read by another thread, or closed just now
            end.recv(4096)
    for sleeper in list(_sleepers):
        sleeper.disturb()


def _have_written(descriptor: int) -> None:
    """Have Python write to a descriptor as a signal comes, or -1, unless the program uses that."""
    before = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    if before not in (-1, _arrivals[1].fileno()):
        signal.set_wakeup_fd(before)


def attend(sleeper: Sleeper) -> None:
    """Have a sleeper disturbed, while it lives, when a handler waits."""
    _sleepers.add(sleeper)


def due() -> bool:
    """Return whether a handler waits for this thread."""
    return bool(pending) and _on_main()


def leave() -> None:
    """Run the handlers that wait, unless the caller was called by something shielded."""
    if due() and _nearest(sys._getframe(1)) in (None, _OPEN):
        deliver()


@interruptible
def deliver() -> None:
    """Run the handlers that wait; raise what they raise."""
    frame = sys._getframe(1)
    while pending:
        number = next(iter(pending))
        handler = pending[number]
        del pending[number]  # from here to the handler's first step nothing comes between
        handler(number, frame)


def is_handlers(error: BaseException) -> bool:
    """Return whether a handler has raised an error, so that it is nobody else's to deal with."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in (Guard.__call__.__code__, deliver.__code__):
            return True
        step = step.tb_next
    return False


def _on_main() -> bool:
    return get_ident() == threading.main_thread().ident
