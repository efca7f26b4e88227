"""Waits for Ray that end by the program's signal handlers and by other threads' `shutdown()`.

Ray leaves a wait as a handler raises KeyboardInterrupt or SystemExit. Of any other exception, such
as that of a time limit, it takes no notice: it waits on, and then loses it or raises SystemError.
So while the main thread waits, handlers that raise something else raise KeyboardInterrupt for Ray.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import ray

from dray.errors import EngineError

# The signals for which programs have handlers that raise.
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGHUP")
    if hasattr(signal, name)
)


class _Stand:
    """Stands in for a program's handler of a signal."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler
        self.raised: Exception | None = None

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        try:
            return self.handler(number, frame)
        except Exception as error:
            self.raised = error
            raise KeyboardInterrupt from error


@contextlib.contextmanager
def hear_signals() -> Iterator[None]:
    """Wait for Ray in a `with` statement, where handlers and `shutdown()` are heard.

    Raises:
        EngineError: Another thread has called `shutdown()`, for which Ray exits.
    """
    stands: dict[int, _Stand] = {}
    try:
        try:
            if threading.current_thread() is threading.main_thread():
                _stand_in(stands)
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
        if ray.is_initialized():
            raise
        raise EngineError("dray.shutdown() was called; what was waited for will not come") from None


def _stand_in(stands: dict[int, _Stand]) -> None:
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            stands[number] = _Stand(handler)
            signal.signal(number, stands[number])
