"""Report tracking: the ranks that have come to each report and each collective. No I/O.

A message of one rank costs the same for any number of ranks, so that a step of all ranks costs time
in proportion to their number. Ranks are therefore counted by the newest report they have made, and
not examined one by one.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from dray.errors import TrainingFailedError
from dray.train.run.output.line_dedup import describe_ranks
from dray.train.run.waits import Wait
from dray.train.storage.checksums import Fingerprint
from dray.train.storage.metrics_codec import decode
from dray.train.worker.run_messages import CollectiveArrival, Prepared, Reported, Staged

# A rank that reports far ahead of the others (only rank 0 reports, say) is not waited for.
MOST_OPEN = 1000


@dataclass
class PendingReport:
    """One report as its ranks make it.

    Attributes:
        since: Time at which the first rank made it.
        told: rank -> its word, of the ranks that have made it.
        files: rank -> the files of the checkpoint it brought, if it brought one.
        shares: rank -> the files it must stage; empty until every rank has reported.
        staging: The ranks that still have files to stage.
        to_secure: The ranks that see their files onto the disk after the commit.
        trouble: Rank that could not, and the reason; then there is no checkpoint.
        waiting: rank -> since when it waits for the others.
        ready: The files of a rank that alone has brought any, put together before its report.
    """

    report: int
    since: float
    told: dict[int, Reported] = field(default_factory=dict)
    files: dict[int, tuple[str, ...]] = field(default_factory=dict)
    shares: dict[int, tuple[str, ...]] = field(default_factory=dict)
    staged: dict[str, Fingerprint] = field(default_factory=dict)
    staging: set[int] = field(default_factory=set)
    to_secure: set[int] = field(default_factory=set)
    trouble: str | None = None
    waiting: dict[int, float] = field(default_factory=dict)
    ready: Prepared | None = None

    @property
    def alone(self) -> bool:
        """True if one rank alone has brought files."""
        return len(self.files) == 1

    @property
    def in_place(self) -> bool:
        """True if the checkpoint's files lie under its name already."""
        return any(told.in_place for told in self.told.values())

    @property
    def directory(self) -> str | None:
        """The lowest rank's name for the checkpoint: of those whose files lie there, or of all."""
        in_place, words = self.in_place, (self.told[rank] for rank in sorted(self.told))
        named = (told.directory for told in words if told.in_place == in_place)
        return next((name for name in named if name is not None), None)

    def metrics(self) -> dict[int, dict[str, object]]:
        """Return rank -> its metrics, encoded, in the order of ranks, of those that have any."""
        told = ((rank, self.told[rank].metrics) for rank in sorted(self.told))
        return {rank: metrics for rank, metrics in told if metrics}

    @property
    def has_metrics(self) -> bool:
        """True if a rank has made it with metrics."""
        return any(told.has_metrics for told in self.told.values())

    def decoded(self) -> list[dict[str, Any]]:
        """Return the metrics of each rank that has made it, in the order of ranks."""
        records = (self.told[rank].metrics for rank in sorted(self.told))
        return [decode(record) if record else {} for record in records]

    @property
    def is_lost(self) -> bool:
        """True if a rank could not make all of it: nothing is gained by waiting for the others."""
        return any(told.trouble is not None for told in self.told.values())

    def take_trouble(self, rank: int, trouble: str | None) -> None:
        """Take note that a rank's files cannot be had; the first reason counts."""
        if trouble is not None and self.trouble is None:
            self.trouble = f"rank {rank}: {trouble}"

    @property
    def validation(self) -> dict[str, object] | None:
        """The wish of the lowest rank that asks for a validation, as `Reported` has it."""
        wishes = (self.told[rank].validation for rank in sorted(self.told))
        return next((wish for wish in wishes if wish is not None), None)

    def divide(self) -> None:
        """Give every file to the lowest rank that has it."""
        taken: set[str] = set()
        for rank in sorted(self.files):
            self.shares[rank] = tuple(name for name in self.files[rank] if name not in taken)
            taken.update(self.shares[rank])
        self.staging = {rank for rank, names in self.shares.items() if names}
        (first, *others) = self.files
        self.ready = None if others else self.told[first].prepared
        if self.ready is not None:
            self.staged = self.ready.files
            self.staging = set()
            self.to_secure = {first} if self.ready.is_due else set()


class RankCounts:
    """Numbers of ranks by the newest report that each has made.

    Args:
        ranks: Number of ranks; none has made any.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = set(range(ranks))
        self.at = Counter({-1: ranks}) if ranks else Counter()
        self.lowest: float = -1 if ranks else math.inf  # of all; without any, nobody is waited for

    def move(self, rank: int, old: int, new: int) -> None:
        """Take note that a rank, if it is counted, has made a newer report."""
        if rank in self.ranks:
            self.at[new] += 1
            self._take_off(old)

    def leave(self, rank: int, newest: int) -> None:
        """Count a rank no more."""
        if rank in self.ranks:
            self.ranks.discard(rank)
            self._take_off(newest)

    def _take_off(self, newest: int) -> None:
        self.at[newest] -= 1
        if not self.at[newest]:
            del self.at[newest]
            if newest == self.lowest:
                self.lowest = min(self.at, default=math.inf)


class ReportTracker:
    """Follows the reports of one attempt. Reports that a rank made before it failed count.

    Args:
        barrier: Whether each report waits for every rank.
    """

    def __init__(self, world_size: int, *, barrier: bool = False) -> None:
        self._failed: set[int] = set()
        self._stopped_at = math.inf  # the lowest newest report of a rank that has stopped
        self._failed_at = math.inf  # the same of those that have failed
        self._counts = RankCounts(world_size)  # of those that have not returned
        self._at_work = RankCounts(world_size)  # of those that may still report
        self._barrier = barrier
        self._newest = dict.fromkeys(range(world_size), -1)
        self._reported_at = 0.0
        self._ended: dict[int, float] = {}
        # In the order of their numbers; its first is found at once, however many were before.
        self._open: OrderedDict[int, PendingReport] = OrderedDict()
        self._to_divide: dict[int, PendingReport] = {}  # of these, those that bring files
        self._done = -1  # the highest number that was complete

    @property
    def newest(self) -> int:
        """The highest number of a report that a rank has made; -1 if there is none."""
        return max(self._newest.values())

    def reported(self, rank: int, message: Reported, now: float = 0.0) -> None:
        """Take note of a rank's report, made `now` seconds after some moment."""
        self._reported_at = now
        old, self._newest[rank] = self._newest[rank], message.report
        self._counts.move(rank, old, message.report)
        self._at_work.move(rank, old, message.report)
        if message.report <= self._done and message.files is None and not self._barrier:
            return  # from far behind: the others were not kept waiting
        entry = self._open.get(message.report) or self._begin(message.report, now)
        entry.told[rank] = message
        if message.files is not None:
            entry.files[rank] = message.files
            entry.take_trouble(rank, message.trouble)
            if not entry.shares:
                self._to_divide[message.report] = entry
        if message.files is not None or self._barrier:
            entry.waiting[rank] = now

    def _begin(self, number: int, now: float) -> PendingReport:
        newest = next(reversed(self._open), -1)
        self._open[number] = entry = PendingReport(number, now)
        if number < newest:  # from far behind, with files
            self._open = OrderedDict(sorted(self._open.items()))
        return entry

    def _forget(self, number: int) -> PendingReport:
        self._to_divide.pop(number, None)
        return self._open.pop(number)

    def staged(self, rank: int, message: Staged) -> None:
        """Take note that a rank has staged its share, or cannot."""
        entry = self._open.get(message.report)
        if entry is not None:  # else it had nothing to stage
            entry.staged.update(message.files)
            entry.staging.discard(rank)
            if message.is_due:
                entry.to_secure.add(rank)
            entry.take_trouble(rank, message.trouble)

    def ended(self, rank: int, now: float = 0.0) -> None:
        """Take note that a rank's function has ended: it makes no more reports."""
        self._at_work.leave(rank, self._newest[rank])
        self._counts.leave(rank, self._newest[rank])
        self._ended[rank] = now

    def stopped(self, rank: int, now: float = 0.0) -> None:
        """Take note that a rank was asked to stop, and has: what it has not made, not all have."""
        self._at_work.leave(rank, self._newest[rank])
        self._stopped_at = min(self._newest[rank], self._stopped_at)
        self._ended[rank] = now

    def failed(self, rank: int) -> None:
        """Take note that a rank makes no more reports, and is not taken for one that returned."""
        self._at_work.leave(rank, self._newest[rank])
        if rank in self._counts.ranks:
            self._failed.add(rank)
            self._failed_at = min(self._newest[rank], self._failed_at)

    def leave_out(self, rank: int) -> None:
        """Have reports be complete without a failed rank, and without files that only it had."""
        self._counts.leave(rank, self._newest[rank])
        for entry in self._open.values():
            if not entry.shares:
                entry.files.pop(rank, None)
            elif rank in entry.staging:
                entry.staging.discard(rank)
                entry.take_trouble(rank, "its node was taken away before it had copied its files")

    def to_stage(self) -> Iterator[PendingReport]:
        """Yield the reports that every rank has made now, if they have files to stage, divided."""
        for number, entry in list(self._to_divide.items()):
            if entry.files and self._made_by_all(entry):
                del self._to_divide[number]
                entry.divide()
                if entry.ready is None and not entry.staging & self._failed:
                    yield entry

    def complete(self) -> Iterator[PendingReport]:
        """Yield, in order, and forget, the reports that have all they need."""
        while self._open:
            number, entry = next(iter(self._open.items()))
            if entry.files:
                if not entry.shares or entry.staging:
                    return
            elif not self._made_by_all(entry) and (self._barrier or len(self._open) <= MOST_OPEN):
                return
            self._done = max(self._done, number)
            yield self._forget(number)

    def given_up(self) -> Iterator[list[int]]:
        """Forget the reports that are beyond those of a stopped rank; yield who waits in each."""
        if self._stopped_at < math.inf:  # else this looks at all, after each message
            for number in sorted(number for number in self._open if number > self._stopped_at):
                yield sorted(self._forget(number).waiting)

    def is_done(self, below: int) -> bool:
        """Return whether no report below a number is still being made."""
        return all(number >= below for number in self._open)

    def _missing(self, entry: PendingReport) -> tuple[int, ...]:
        return tuple(
            rank for rank in sorted(self._counts.ranks) if self._newest[rank] < entry.report
        )

    def _made_by_all(self, entry: PendingReport) -> bool:
        return self._counts.lowest >= entry.report

    # After a failure: what is still to be had.

    def to_commit(self) -> list[int]:
        """Return the reports with a checkpoint that every rank has made, their files on the way.

        Files of a rank that has failed cannot be had, so its reports are not among them.
        """
        return [
            entry.report
            for entry in self._open.values()
            if entry.files and entry.trouble is None
            if self._made_by_all(entry) and not entry.staging & self._failed
        ]

    def is_behind(self, now: float, within_s: float) -> bool:
        """Return whether a rank may be about to make a report that all the failed ones have made.

        A rank that is behind by several reports, the next of them made long ago, reports at another
        pace or not at all, and is not waited for.

        Args:
            within_s: Age in seconds that counts as "long ago".
        """
        if not self._failed:
            return False
        last = self._failed_at
        for newest in self._at_work.at:
            to_make = (
                entry
                for entry in self._open.values()
                if newest < entry.report <= last and not entry.is_lost
            )
            first = next(to_make, None)
            if first is not None and (last - newest == 1 or now - first.since < within_s):
                return True
        return False

    # Who waits for whom.

    def waits(self) -> Iterator[Wait]:
        """Yield who is waited for in a report, and who lags behind ranks that have returned.

        Also who has only not returned, since the last sign of anybody: it may wait in a collective.
        """
        for entry in self._open.values():
            number, missing = entry.report, self._missing(entry)
            waiting = tuple(sorted(entry.waiting))
            if missing and waiting:
                yield Wait(f"made report {number}", missing, waiting, min(entry.waiting.values()))
                return  # the later ones wait for this one
            if entry.staging:
                staging = tuple(sorted(entry.staging))
                others = tuple(rank for rank in waiting if rank not in entry.staging)
                since = max(entry.waiting.values())
                yield Wait(f"put the files of report {number} in place", staging, others, since)
                return
        for entry in self._open.values():
            missing = self._missing(entry)
            ended = tuple(sorted(rank for rank in entry.told if rank in self._ended))
            if missing and ended:
                since = max(entry.since, min(self._ended[rank] for rank in ended))
                yield Wait(f"made report {entry.report}", missing, (), since, ended)
                return
        if self._ended and self._at_work.ranks:
            since = max(self._reported_at, *self._ended.values())
            running = tuple(sorted(self._at_work.ranks))
            yield Wait("returned", running, (), since, tuple(sorted(self._ended)))


class CollectiveTracker:
    """Follows the collectives of one attempt."""

    def __init__(self, world_size: int) -> None:
        self._ranks = set(range(world_size))
        self._left_out: dict[str, set[int]] = {}  # of collectives of a name
        self._open: dict[int, dict[int, CollectiveArrival]] = {}
        self._since: dict[int, float] = {}

    def joined(
        self, rank: int, message: CollectiveArrival, now: float = 0.0
    ) -> tuple[bytes, ...] | None:
        """Take note that a rank has come to a collective; return all their data once all have.

        Raises:
            TrainingFailedError: Another rank has come to a different one in its place.
        """
        come = self._open.setdefault(message.sequence, {})
        come[rank] = message
        self._since.setdefault(message.sequence, now)
        first = next(iter(come.values()))
        if first.name != message.name:
            names = {first.name, message.name}
            raise TrainingFailedError(
                f"ranks came to different collectives ({', '.join(sorted(names))}); every rank "
                "must call the same ones in the same order"
            )
        if len(come) < len(self._ranks) and not self._have_come(come):
            return None
        del self._since[message.sequence]
        del self._open[message.sequence]
        return tuple(data for each in sorted(come) for data in come[each].data)

    def leave_out(self, rank: int, name: str) -> list[int]:
        """Have collectives of a name do without a rank; return those that are complete so."""
        self._left_out.setdefault(name, set()).add(rank)
        done = [sequence for sequence, come in self._open.items() if self._have_come(come)]
        for sequence in done:
            del self._open[sequence], self._since[sequence]
        return done

    def _have_come(self, come: Mapping[int, CollectiveArrival]) -> bool:
        left_out = self._left_out.get(next(iter(come.values())).name)
        return left_out is not None and self._ranks - left_out <= come.keys()

    def waits(self) -> Iterator[Wait]:
        """Yield who is waited for in which collective."""
        for sequence, come in self._open.items():
            waiting = tuple(sorted(come))
            missing = tuple(sorted(self._ranks - set(come)))
            yield Wait(
                f"come to {come[waiting[0]].name}()", missing, waiting, self._since[sequence]
            )

    def given_up(self, stopped: Set[int]) -> Iterator[list[int]]:
        """Forget the collectives to which a stopped rank has not come; yield who waits there."""
        for sequence, come in list(self._open.items()):
            if not come.keys() >= stopped:  # costs as many look-ups as have stopped
                del self._open[sequence], self._since[sequence]
                yield sorted(come)

    def check(self, running: Set[int]) -> None:
        """Look whether every collective can still come about.

        Args:
            running: The ranks whose function has not ended; the others come to no more.

        Raises:
            TrainingFailedError: A rank waits for one whose function has ended.
        """
        if len(running) == len(self._ranks):
            return
        for come in self._open.values():
            waiting = sorted(running & set(come))
            gone = sorted(self._ranks - running - set(come))
            if waiting and gone:
                verb = "wait" if len(waiting) > 1 else "waits"
                ended = "functions have" if len(gone) > 1 else "function has"
                raise TrainingFailedError(
                    f"{describe_ranks(waiting)} {verb} in {come[waiting[0]].name}() for "
                    f"{describe_ranks(gone)}, whose {ended} returned; every rank must call it"
                )
