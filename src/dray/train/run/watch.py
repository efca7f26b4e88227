"""Looks whether ranks wait for others for long, and says for whom."""

from __future__ import annotations

import time
from typing import Any

from dray.engines.base import Mailbox
from dray.train.run.alarm import Alarm
from dray.train.run.attempt import Attempt
from dray.train.run.events import LookAtWaits
from dray.train.run.journal import Journal
from dray.train.run.progress import Progress
from dray.train.run.waits import Patience


class Watch:
    """Tells the user who is waited for; a timer runs only while somebody may wait.

    Args:
        first_s: After how many seconds it says so first; 0 is never.
        mailbox: Gets `LookAtWaits` when it is time to call `look`.
        progress: Tells the user.
        journal: Keeps what was told.
    """

    def __init__(
        self, first_s: float, mailbox: Mailbox, progress: Progress, journal: Journal
    ) -> None:
        self._first_s = first_s
        self._alarm = Alarm(mailbox)
        self._progress = progress
        self._journal = journal
        self._patience = Patience(first_s)
        self._watching = False

    def begin(self) -> None:
        """Begin to watch, if it does not yet: somebody has come to where ranks wait."""
        if not self._watching and self._first_s:
            self._watching = True
            self._alarm.set(self._first_s, LookAtWaits())

    def look(self, attempt: Attempt) -> None:
        """Tell of those that are waited for by now, and look again later if there are any."""
        waits, now = attempt.waits(), time.monotonic()
        for wait in self._patience.due(waits, now):
            self._progress.warn(wait.text(now, attempt.where))
            details: dict[str, Any] = {"missing": wait.missing, "waiting": wait.waiting}
            seconds = round(now - wait.since, 3)
            self._journal.record(
                "waiting", attempt=attempt.number, what=wait.what, seconds=seconds, **details
            )
        self._watching = bool(waits)
        if waits:
            self._alarm.set(self._patience.next_s(waits, now), LookAtWaits())

    def end(self) -> None:
        """Watch no longer."""
        self._watching = False
        self._alarm.cancel()
