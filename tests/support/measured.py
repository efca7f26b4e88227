"""Processes whose coverage is measured, and which have to write it before they are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from dray.engines.launch.server import Server
from dray.engines.rpc import lifeline

_LEAVE_S = 0.3
_WRITE_S = 2.0


def is_measured() -> bool:
    """Return whether coverage.py measures this process and those that it starts."""
    return "COVERAGE_PROCESS_CONFIG" in os.environ


def save_before_kill() -> None:
    """Have workers end before their server does, which kills them and what they know.

    Some leave by themselves when a session ends, and coverage.py writes then; at SIGTERM it does,
    too. One that is stopped, or deaf, is killed as ever.
    """
    close = Server.close

    def close_later(self: Server) -> None:
        left = _wait_for(self._process.pid, lifeline.children(self._process.pid), _LEAVE_S)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        _wait_for(self._process.pid, left, _WRITE_S)
        close(self)

    Server.close = close_later  # type: ignore[method-assign]


def _wait_for(server: int, workers: Sequence[int], seconds: float) -> Sequence[int]:
    """Return those that have not ended after so long."""
    deadline = time.monotonic() + seconds
    while left := [*{*workers} & {*lifeline.children(server)}]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)  # only where coverage is measured: they are not our children
    return left
