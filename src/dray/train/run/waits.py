"""Ranks that others wait for: their numbers, the start of the wait, and the times of warnings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dray.engines.base import Mailbox
from dray.train.run.events import Alarm, Signal
from dray.train.run.output.line_dedup import describe_ranks
from dray.train.run.output.progress import Progress
from dray.train.storage.run_directory import RunDirectory

# Ranks beyond these are as many lines that say nothing new.
_MOST_DESCRIBED = 4


@dataclass(frozen=True)
class Wait:
    """Ranks that have not come to where others are.

    Attributes:
        what: Awaited action, such as "made report 3", "come to barrier()", "returned" or "ended".
        missing: The ranks that have not.
        waiting: The ranks that wait for them.
        since: Start of the wait, in seconds of the clock that is used.
        returned: The ranks that have done it and returned since.
    """

    what: str
    missing: tuple[int, ...] = field(compare=False)  # fewer and fewer, of the same wait
    waiting: tuple[int, ...] = field(compare=False)
    since: float
    returned: tuple[int, ...] = field(default=(), compare=False)

    def short(self, now: float) -> str:
        """Return who is waited for, and for how long already, in the seconds of the same clock."""
        return f"{describe_ranks(self.missing)}, which {self._late(now)}"

    def _late(self, now: float) -> str:
        verb = "has" if len(self.missing) == 1 else "have"
        return f"{verb} not {self.what} for {now - self.since:.0f} s"

    def text(self, now: float, describe: Callable[[int], str]) -> str:
        """Return what the user is told.

        Args:
            now: The time, in the seconds of the same clock.
            describe: Returns where a rank runs.
        """
        told = f"{describe_ranks(self.missing)} {self._late(now)}"
        it = "it" if len(self.missing) == 1 else "them"
        if self.waiting:
            waits = "waits" if len(self.waiting) == 1 else "wait"
            told += f"; {describe_ranks(self.waiting)} {waits} for {it}"
        elif self.returned:
            have = "has" if len(self.returned) == 1 else "have"
            also = "" if self.what == "returned" else f", and {have} returned"
            told += f"; {describe_ranks(self.returned)} {have}{also}"
        where = "; ".join(describe(rank) for rank in self.missing[:_MOST_DESCRIBED])
        return f"{told} ({where})"


class Patience:
    """The times to warn of a wait: after some seconds first, and then ever more rarely.

    Args:
        first_s: After how many seconds a wait is told of; it is again when it is twice as old.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._told: dict[Wait, float] = {}

    def due(self, waits: Sequence[Wait], now: float) -> list[Wait]:
        """Return the waits to tell of now, and forget those that are over."""
        self._told = {wait: self._told.get(wait, self._first_s) for wait in waits}
        due = [wait for wait in waits if now - wait.since >= self._told[wait]]
        for wait in due:
            self._told[wait] = 2 * max(now - wait.since, self._first_s)
        return due

    def next_s(self, waits: Sequence[Wait], now: float) -> float:
        """Return in how many seconds to look again."""
        return max(min(wait.since + self._told[wait] - now for wait in waits), self._first_s / 10)


@dataclass
class Watch:
    """Tells the user who is waited for; a timer runs only while somebody may wait.

    Attributes:
        first_s: After how many seconds it says so first; 0 is never.
        mailbox: Gets `Signal.LOOK_AT_WAITS` when it is time to call `look`.
    """

    first_s: float
    mailbox: Mailbox
    progress: Progress
    directory: RunDirectory
    _watching: bool = False

    def __post_init__(self) -> None:
        self._alarm = Alarm(self.mailbox)
        self._patience = Patience(self.first_s)

    def begin(self) -> None:
        """Begin to watch, if it does not yet: somebody has come to where ranks wait."""
        if not self._watching and self.first_s:
            self._watching = True
            self._alarm.set(self.first_s, Signal.LOOK_AT_WAITS)

    def look(self, attempt: int, waits: Sequence[Wait], where: Callable[[int], str]) -> None:
        """Tell of those that are waited for by now, and look again later if there are any."""
        now = time.monotonic()
        for wait in self._patience.due(waits, now):
            self.progress.warn(wait.text(now, where))
            self.directory.record(
                "waiting",
                attempt=attempt,
                what=wait.what,
                seconds=round(now - wait.since, 3),
                missing=wait.missing,
                waiting=wait.waiting,
            )
        self._watching = bool(waits)
        if waits:
            self._alarm.set(self._patience.next_s(waits, now), Signal.LOOK_AT_WAITS)

    def end(self) -> None:
        """Watch no longer."""
        self._watching = False
        self._alarm.cancel()
