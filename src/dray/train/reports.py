"""The books of an attempt: which ranks came to which report and which collective. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from dray.errors import TrainingFailedError, join_names
from dray.train.messages import Joined, Reported, Staged
from dray.train.run_directory import Fingerprint

# A rank that reports far ahead of the others (only rank 0 reports, say) is not waited for.
MOST_OPEN = 1000


@dataclass
class Entry:
    """One report as its ranks make it.

    Attributes:
        report: Its number.
        metrics: rank -> encoded metrics, of the ranks that have made it.
        files: rank -> the files of the checkpoint it brought, if it brought one.
        shares: rank -> the files it must stage; empty until every rank has reported.
        staged: What has been staged so far.
        directory: The checkpoint's name, if a rank gave one.
    """

    report: int
    metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    files: dict[int, tuple[str, ...]] = field(default_factory=dict)
    shares: dict[int, tuple[str, ...]] = field(default_factory=dict)
    staged: dict[str, Fingerprint] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    directory: str | None = None

    def divide(self) -> None:
        """Gives every file to the lowest rank that has it."""
        taken: set[str] = set()
        for rank in sorted(self.files):
            self.shares[rank] = tuple(name for name in self.files[rank] if name not in taken)
            taken.update(self.shares[rank])
        self.waiting = set(self.shares)


class ReportBook:
    """Follows the reports of one attempt.

    Args:
        world_size: How many ranks report.
    """

    def __init__(self, world_size: int) -> None:
        self._ranks = set(range(world_size))
        self._open: dict[int, Entry] = {}

    def reported(self, rank: int, message: Reported) -> None:
        """Takes note of a rank's report."""
        entry = self._open.setdefault(message.report, Entry(message.report))
        entry.metrics[rank] = message.metrics
        if message.files is not None:
            entry.files[rank] = message.files
        if message.directory is not None and entry.directory is None:
            entry.directory = message.directory

    def staged(self, rank: int, message: Staged) -> None:
        """Takes note that a rank has staged its share."""
        entry = self._open[message.report]
        entry.staged.update(message.files)
        entry.waiting.discard(rank)

    def ended(self, rank: int) -> None:
        """Takes note that a rank's function has ended: it makes no more reports."""
        self._ranks.discard(rank)

    def missing(self) -> dict[int, list[int]]:
        """Returns report -> the ranks that it waits for, of reports with a checkpoint."""
        return {
            entry.report: sorted(self._ranks - set(entry.metrics))
            for entry in self._open.values()
            if entry.files and self._ranks - set(entry.metrics)
        }

    def to_stage(self) -> Iterator[Entry]:
        """Yields the reports with a checkpoint that every rank has made now, divided."""
        for entry in self._open.values():
            if entry.files and not entry.shares and self._ranks <= set(entry.metrics):
                entry.divide()
                yield entry

    def complete(self) -> Iterator[Entry]:
        """Yields, in order, and forgets, the reports that have all they need."""
        while self._open:
            number = min(self._open)
            entry = self._open[number]
            if entry.files:
                if not entry.shares or entry.waiting:
                    return
            elif not self._ranks <= set(entry.metrics) and len(self._open) <= MOST_OPEN:
                return
            yield self._open.pop(number)


class CollectiveBook:
    """Follows the collectives of one attempt.

    Args:
        world_size: How many ranks must come to each.
    """

    def __init__(self, world_size: int) -> None:
        self._ranks = set(range(world_size))
        self._open: dict[int, dict[int, Joined]] = {}

    def joined(self, rank: int, message: Joined) -> bytes | None:
        """Takes note that a rank has come to a collective; returns rank 0's data once all have.

        Raises:
            TrainingFailedError: Another rank has come to a different one in its place.
        """
        come = self._open.setdefault(message.sequence, {})
        come[rank] = message
        names = {other.name for other in come.values()}
        if len(names) > 1:
            raise TrainingFailedError(
                f"ranks came to different collectives ({', '.join(sorted(names))}); every rank "
                "must call the same ones in the same order"
            )
        if len(come) < len(self._ranks):
            return None
        return self._open.pop(message.sequence)[0].data

    def check(self, running: Set[int]) -> None:
        """Looks whether every collective can still come about.

        Args:
            running: The ranks whose function has not ended; the others come to no more.

        Raises:
            TrainingFailedError: A rank waits for one whose function has ended.
        """
        for come in self._open.values():
            waiting = sorted(running & set(come))
            gone = sorted(self._ranks - running - set(come))
            if waiting and gone:
                verb = "wait" if len(waiting) > 1 else "waits"
                ended = "functions have" if len(gone) > 1 else "function has"
                raise TrainingFailedError(
                    f"{_name(waiting)} {verb} in {come[waiting[0]].name}() for {_name(gone)}, "
                    f"whose {ended} returned; every rank must call it"
                )


def _name(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {join_names([str(rank) for rank in ranks])}"
