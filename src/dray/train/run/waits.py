"""Ranks that others wait for: who they are, since when, and when to tell of it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dray.errors import join_names

# Ranks beyond these are as many lines that say nothing new.
_MOST_DESCRIBED = 4


@dataclass(frozen=True)
class Wait:
    """Ranks that have not come to where others are.

    Attributes:
        what: What they have not done, such as "made report 3" or "come to barrier()".
        missing: The ranks that have not.
        waiting: The ranks that wait for them.
        since: When the wait began, in the seconds of the clock that is used.
        returned: The ranks that have done it and returned since.
    """

    what: str
    missing: tuple[int, ...] = field(compare=False)  # fewer and fewer, of the same wait
    waiting: tuple[int, ...] = field(compare=False)
    since: float
    returned: tuple[int, ...] = field(default=(), compare=False)

    def short(self, now: float) -> str:
        """Return who is waited for, and for how long already, in the seconds of the same clock."""
        verb = "has" if len(self.missing) == 1 else "have"
        return f"{name_of(self.missing)}, which {verb} not {self.what} for {now - self.since:.0f} s"

    def text(self, now: float, describe: Callable[[int], str]) -> str:
        """Return what the user is told.

        Args:
            now: The time, in the seconds of the same clock.
            describe: Returns where a rank runs.
        """
        verb = "has" if len(self.missing) == 1 else "have"
        told = f"{name_of(self.missing)} {verb} not {self.what} for {now - self.since:.0f} s"
        it = "it" if len(self.missing) == 1 else "them"
        if self.waiting:
            waits = "waits" if len(self.waiting) == 1 else "wait"
            told += f"; {name_of(self.waiting)} {waits} for {it}"
        elif self.returned:
            have = "has" if len(self.returned) == 1 else "have"
            told += f"; {name_of(self.returned)} {have}, and {have} returned"
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


def name_of(ranks: Sequence[int]) -> str:
    """Return ranks as English: `rank 1`, `ranks 1 and 2`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {join_names([str(rank) for rank in ranks])}"
