"""Requests to stop a run before its end: by Ctrl-C or SIGTERM, or by a callback."""

from __future__ import annotations

from dataclasses import dataclass

from dray.engines.base import Engine, Mailbox
from dray.train.run.events import Interrupt, Signal
from dray.train.run.output.progress import Progress
from dray.train.run.state import Event


@dataclass
class StopRequests:
    """Hands requests to the mailbox, after what workers had said before, and words them.

    Attributes:
        asked: Whether a callback has asked, so that the run is not tried again.
        reason: Its words.
    """

    engine: Engine
    mailbox: Mailbox
    progress: Progress
    asked: bool = False
    reason: str = ""
    _interrupted: bool = False
    _how: str = ""

    def interrupt(self, cause: str) -> None:
        """Ask for a graceful stop; the second time, enough has been waited for."""
        event = Interrupt(cause)
        self._how = "press Ctrl-C" if cause == Event.INTERRUPTED.value else f"send {cause}"
        if self._interrupted:
            self.mailbox.put(event)
        else:
            self._interrupted = True
            self.engine.hear_out(lambda: self.mailbox.put(event))

    def stop(self, reason: str) -> None:
        """Ask that the run end well at the next report of every rank."""
        self.asked, self.reason = True, reason
        self.engine.hear_out(lambda: self.mailbox.put(Signal.STOP_REQUESTED))

    def cause(self) -> str:
        """Return what a callback has asked for, as the record of events has it."""
        return Event.STOP_REQUESTED.value + (f": {self.reason}" if self.reason else "")

    def tell_stop(self) -> None:
        """Tell the user that a callback stops the run."""
        self.progress.warn(f"stopping at the next report of every rank, as {self.cause()}")

    def tell_interrupt(self) -> None:
        """Tell the user that the run stops, and how to end it at once."""
        self.progress.warn(
            f"stopping at the next report of every rank; {self._how} again to stop at once"
        )
