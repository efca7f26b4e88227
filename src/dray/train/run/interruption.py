"""Ctrl-C and SIGTERM during a run, which then stops at its next report."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

# Takes what asks a run to stop, and that takes the cause.
GoesTo: TypeAlias = Callable[[Callable[[str], None]], None]
# `timeout` sends a signal to its child, and then to the group, of which the child is.
_SAME_S = 0.2


@contextlib.contextmanager
def interrupts_go_to(interrupt: Callable[[], None]) -> Iterator[None]:
    """Take Ctrl-C while a run goes on: the first asks, another, after a moment, raises it."""
    python_answers = callable(signal.getsignal(signal.SIGINT))  # not so under nohup
    if threading.current_thread() is not threading.main_thread() or not python_answers:
        yield
        return
    came: float | None = None

    def handler(number: int, frame: object) -> None:
        nonlocal came
        now = time.monotonic()
        if came is None:
            came = now
            interrupt()
        elif now - came >= _SAME_S:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def termination_held() -> Iterator[GoesTo]:
    """Hold SIGTERM back until a run has stopped; then it ends the program as it would have.

    Only on the main thread, and if nobody else has said what SIGTERM does. A second one, after a
    moment, ends the program at once. Used around all that is to be done before the end.

    Yields:
        Takes what asks a run to stop; before that there is nothing to wait for.
    """
    interrupts: list[Callable[[str], None]] = []
    came: float | None = None

    def handler(number: int, frame: object) -> None:
        nonlocal came
        now = time.monotonic()
        if came is not None and now - came < _SAME_S:
            return
        if came is not None or not interrupts:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        came = now
        for interrupt in interrupts:
            interrupt("SIGTERM")

    on_main = threading.current_thread() is threading.main_thread()
    holds = on_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if holds:
        signal.signal(signal.SIGTERM, handler)
    try:
        yield interrupts.append
    finally:
        if holds:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if came is not None:
            os.kill(os.getpid(), signal.SIGTERM)
