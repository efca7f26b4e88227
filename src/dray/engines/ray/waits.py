"""Waits for Ray that the program's signal handlers and another thread's `shutdown()` can end.

Ray ends a wait if a handler raises KeyboardInterrupt or SystemExit. It ignores any other exception,
such as that of a time limit: it continues to wait, and then loses the exception or raises
SystemError. So while the main thread waits, a handler that raises another exception raises
KeyboardInterrupt for Ray instead.

When Ray shuts down, it frees objects that its waits use, and the waits then hang or end the
process. So all waits end before Ray shuts down.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import ray
from ray import _raylet

from dray.errors import EngineError
from dray.errors.base import is_left_over

# The signals for which programs have handlers that raise.
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGHUP")
    if hasattr(signal, name)
)
# Within which threads leave their waits: Ray looks once in a second whether they are to.
_LEAVING_S = 5.0

_changed = threading.Condition()
_waits: Counter[int] = Counter()  # of each thread, by its id
_ending: int | None = None  # the thread that shuts Ray down
# Of values that are not there yet, with the threads that have asked.
_futures: WeakKeyDictionary[Future[Any], threading.Thread] = WeakKeyDictionary()


class _Stand:
    """Stands in for a program's handler of a signal."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler
        self.raised: Exception | None = None

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        try:
            answer = self.handler(number, frame)
            if _ends_here():
                raise _shut_down()
            return answer
        except Exception as error:
            self.raised = error
            raise KeyboardInterrupt from error


@contextlib.contextmanager
def hear_signals() -> Iterator[None]:
    """Wait for Ray in a `with` statement, where handlers and `shutdown()` are heard.

    Raises:
        EngineError: Another thread has called `shutdown()`.
    """
    stands: dict[int, _Stand] = {}
    try:
        try:
            if threading.current_thread() is threading.main_thread():
                _stand_in(stands)
            with _counted():
                yield
        finally:
            for number, stand in stands.items():
                if signal.getsignal(number) is stand:  # else the handler has set another one
                    signal.signal(number, stand.handler)
    except KeyboardInterrupt:
        raised = next((stand.raised for stand in stands.values() if stand.raised), None)
        if raised is None:
            raise
        raise raised from raised.__cause__
    except SystemExit:
        if ray.is_initialized() and _ending is None:
            raise
        raise _shut_down() from None


def _stand_in(stands: dict[int, _Stand]) -> None:
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            stands[number] = _Stand(handler)
            signal.signal(number, stands[number])


@contextlib.contextmanager
def _counted() -> Iterator[None]:
    me = threading.get_ident()
    with _changed:
        if _ending is not None:
            raise _shut_down()
        _waits[me] += 1
    try:
        yield
    finally:
        with _changed:
            _waits[me] -= 1
            if not _waits[me]:
                del _waits[me]
                _changed.notify_all()
        if _ends_here():
            shut_down()


def _ends_here() -> bool:
    """Return whether this thread has a shutdown to finish as it leaves its wait."""
    return _ending == threading.get_ident()


def _shut_down() -> EngineError:
    return EngineError("dray.shutdown() was called; the results will not arrive")


def ends_with_session(future: Future[Any]) -> Future[Any]:
    """Return a future that Ray sets, and that learns of `shutdown()`."""
    _futures[future] = threading.current_thread()
    return future


class _EndingInterpreter:
    """A `sys` for Ray that has those leave who wait, as if the program ended."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    def is_finalizing(self) -> bool:
        return threading.get_ident() in _waits or sys.is_finalizing()


def shut_down() -> None:
    """Shut Ray down once all who wait for it have left.

    A wait that a signal's handler has interrupted to call this one does it as it ends.
    """
    global _ending
    _ending = threading.get_ident()
    if _ending in _waits:
        return
    try:
        _end_waits()
        for future, thread in list(_futures.items()):
            if is_left_over(thread):
                continue  # its event loop would show the error
            with contextlib.suppress(InvalidStateError):  # it has come just now
                future.set_exception(_shut_down())
    finally:  # also if Ctrl-C interrupts what waits for a future
        try:
            ray.shutdown()
        finally:
            _ending = None


def _end_waits() -> None:
    try:
        with _changed:
            vars(_raylet)["sys"] = _EndingInterpreter()
            _changed.wait_for(lambda: not _waits, _LEAVING_S)
    finally:
        vars(_raylet)["sys"] = sys
