"""Ctrl-C and SIGTERM while a run goes on: it stops at the next report, rather than anywhere."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import TracebackType


@contextlib.contextmanager
def interrupts_go_to(interrupt: Callable[[], None]) -> Iterator[None]:
    """Take Ctrl-C while a run goes on: the first asks, the second raises KeyboardInterrupt."""
    python_answers = callable(signal.getsignal(signal.SIGINT))  # not so under nohup
    if threading.current_thread() is not threading.main_thread() or not python_answers:
        yield
        return
    pressed = False

    def handler(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        interrupt()

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Termination:
    """SIGTERM, held back until a run has stopped; then it ends the program as it would have.

    Only on the main thread, and if nobody else has said what SIGTERM does. A second one ends the
    program at once. Used as a context around all that is to be done before the end.
    """

    def __init__(self) -> None:
        self._interrupt: Callable[[str], None] | None = None
        self._holds = False
        self._came = False

    def goes_to(self, interrupt: Callable[[str], None]) -> None:
        """Have it ask a run to stop; before that there is nothing to wait for."""
        self._interrupt = interrupt

    def __enter__(self) -> Termination:
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
            self._holds = True
        return self

    def _handle(self, number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._came = True
        if self._interrupt is None:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._interrupt("SIGTERM")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._holds:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._came:
            os.kill(os.getpid(), signal.SIGTERM)
