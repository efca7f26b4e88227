"""One start of a run's workers: their ranks, their reports, and their ends or failures."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dray.engines.base import Actor, Died
from dray.engines.rpc import wire
from dray.errors import NodeDiedError, PreemptionError, RemoteTraceback, TrainingFailedError
from dray.train.checkpoint import Checkpoint
from dray.train.run.checkpoint_store import CheckpointStore
from dray.train.run.failure import FailureLog, to_error
from dray.train.run.nodes.preemptions import Preemptions
from dray.train.run.output.reading import ReadingRecord
from dray.train.run.report_files import ReportFiles
from dray.train.run.report_tracker import CollectiveTracker, PendingReport, ReportTracker
from dray.train.run.waits import Wait
from dray.train.run.worker_group import WorkerGroup
from dray.train.storage.place import path_within
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker import preemption, run_messages

# Attempts to read the books while the run's own thread writes them.
_LOOKS = 10


@dataclass(eq=False)
class Attempt:
    """One start of a run's workers, as the controller follows it.

    Attributes:
        number: Number of earlier starts of the workers.
        store: Makes checkpoints of what the workers have staged.
        files: Has what ranks report in their files of metrics alone.
        barrier: As `RunConfig.report_barrier`.
        finds_room: Tells, once a checkpoint is committed, whether ranks are to start again with
            more of them: those that wait for it stop there.
        preemptions: Has what is known of nodes that are about to be taken away.
        alive: The actors whose end is not known.
        running: The ranks whose function has not ended.
        at_failure: The ranks whose function had not ended when the first of them failed.
        stop_at: The report at which ranks were asked to stop.
        patient: Whether it is worth waiting for reports that are not made yet.
    """

    number: int
    group: WorkerGroup
    directory: RunDirectory
    store: CheckpointStore
    files: ReportFiles
    barrier: bool
    finds_room: Callable[[Attempt], bool]
    preemptions: Preemptions
    failures: FailureLog = field(default_factory=FailureLog)
    at_failure: set[int] = field(default_factory=set)
    stop_at: int | None = None
    patient: bool = True
    _all_returned_at: float | None = None  # by the monotonic clock
    _stopped: set[int] = field(default_factory=set)
    _next_reports: dict[int, int] | None = None  # of ranks, once they were asked to stop
    _listings: list[tuple[int, run_messages.Listing]] = field(default_factory=list)
    _heard: dict[int, int] = field(default_factory=dict)  # reports of which ranks are to be told

    def __post_init__(self) -> None:
        size = len(self.group)
        self.alive: set[Actor] = {worker.actor for worker in self.group.workers}
        self.running = set(range(size))
        self._book = ReportTracker(size, barrier=self.barrier)
        self._collectives = CollectiveTracker(size)
        self._reading = ReadingRecord(self.directory.record)

    # What ranks say.

    def take(self, rank: int, message: object) -> bool:
        """Take a message of a rank; `settle` does what is due then.

        Returns:
            Whether the rank waits for others now.

        Raises:
            TrainingFailedError: It has come to another collective than the others.
        """
        if isinstance(message, run_messages.Reported):
            self._book.reported(rank, message, time.monotonic())
            self._reading.told(rank, message)
            if self.group.paced and message.report % run_messages.TOLD_EVERY == 0:
                self._heard[rank] = message.report
            return self.barrier or message.files is not None
        if isinstance(message, run_messages.Staged):
            self._book.staged(rank, message)
        elif isinstance(message, run_messages.Secured):
            self.store.secured(rank, message)
        elif isinstance(message, run_messages.CollectiveArrival):
            data = self._collectives.joined(rank, message, time.monotonic())
            if data is not None and message.name == preemption.COLLECTIVE:
                self._tell_preemption(message.sequence)
            elif data is not None:
                self.group.tell(run_messages.CollectiveResult(message.sequence, data))
            return data is None
        elif isinstance(message, run_messages.NextReport):
            assert self._next_reports is not None
            self._next_reports[rank] = message.report
            self._agree_to_stop()
        elif isinstance(message, run_messages.Listing):
            self._listings.append((rank, message))
        return False

    def _tell_preemption(self, sequence: int) -> None:
        info = self.preemptions.told(self.group.positions)
        data = (wire.dump(info, "what is known of preemptions"),)
        self.group.tell(run_messages.CollectiveResult(sequence, data))

    def settle(self) -> Iterator[tuple[PendingReport, Checkpoint | None]]:
        """Do what is due: have files staged, commit; yield the reports that are complete.

        Raises:
            StorageError: A checkpoint cannot be committed.
        """
        for waiting in (*self._book.given_up(), *self._collectives.given_up(self._stopped)):
            self.group.tell(run_messages.GivenUp(), waiting)
        for entry in self._book.to_stage():
            staging = path_within(self.store.staging(entry))
            for rank, files in entry.shares.items():
                self.group.tell(run_messages.Share(entry.report, staging, files), [rank])
        for entry in self._book.complete():
            checkpoint = self._commit(entry)
            if checkpoint is not None or entry.has_metrics:
                yield entry, checkpoint
        for rank, asked in list(self._listings):
            awaited = asked.validated and self.store.to_validate()
            if self._book.is_done(asked.below) and not awaited:
                self._listings.remove((rank, asked))
                self.group.tell(run_messages.Listed(asked.request, self.store.listed()), [rank])
        while self._heard:  # callbacks have heard of what was yielded
            rank, report = self._heard.popitem()
            self.group.tell(run_messages.Heard(report), [rank])

    def _commit(self, entry: PendingReport) -> Checkpoint | None:
        committed = None
        if entry.trouble is not None:
            self.store.abandon(entry)
        elif entry.files:
            self._look_up_rest(entry)
            committed = self.store.commit(entry, len(self.group))
            if self.stop_at is None and self.finds_room(self):
                self._stop_at(entry.report)
        if entry.files or self.barrier:
            done = run_messages.ReportDone(
                entry.report,
                None if committed is None else path_within(committed.path),
                entry.trouble,
                entry.alone,
                committed is not None and committed.is_provisional,
            )
            self.group.tell(done)
        if committed is None:
            return None
        self.store.delete_surplus()  # ranks do not wait for it
        return Checkpoint.at(committed.path)

    def _look_up_rest(self, entry: PendingReport) -> None:
        """Look up the metrics of ranks that have brought no files, and reported more since."""
        for rank in range(len(self.group)):
            if rank not in entry.told and (written := self.files.find(rank, entry.report)):
                entry.told[rank] = written

    def check_collectives(self) -> None:
        """Look whether those who wait in a collective can still be met there.

        Raises:
            TrainingFailedError: They wait for a rank whose function has returned.
        """
        self._collectives.check(self.running)

    def ask_to_stop(self) -> None:
        """Ask all ranks to stop at the same report, the next one of whoever is ahead.

        A rank may be further than is known here, or about to be. So each says which report is its
        next one, and waits there until it hears at which they stop.
        """
        if self.stop_at is None and self._next_reports is None:
            self._next_reports = {}
            self.group.tell(run_messages.StopAsked(), sorted(self.running))

    def _agree_to_stop(self) -> None:
        """Tell where to stop, once all that are at work have said how far they are."""
        told = self._next_reports
        if told is not None and self.stop_at is None and told.keys() >= self.running:
            self._stop_at(max((told[rank] for rank in self.running), default=0))

    def _stop_at(self, report: int) -> None:
        self.stop_at = report
        self.group.tell(run_messages.StopRequested(report))

    @property
    def has_stopped(self) -> bool:
        """True once a rank has stopped, as it was asked to."""
        return bool(self._stopped)

    # How ranks end.

    def returned(self, rank: int, *, stopped: bool) -> None:
        """Take note that a rank's function has returned, perhaps because it was asked to stop."""
        self.running.discard(rank)
        if stopped:
            self._stopped.add(rank)
        note = self._book.stopped if stopped else self._book.ended
        note(rank, time.monotonic())
        if not self.running:
            self._all_returned_at = time.monotonic()
        self._agree_to_stop()

    def failed(self, rank: int, error: BaseException) -> None:
        """Take note that a rank has failed; what it has reported before counts."""
        if not self.failures:
            self.at_failure = set(self.running)
        self.failures.add(rank, error)
        self.running.discard(rank)
        self._book.failed(rank)
        if isinstance(error, NodeDiedError):
            self.preemptions.look(self.group.positions)  # it may have been announced just before
        if rank in self.preemptions.left_out(self.failures.by_cause()):
            self._book.leave_out(rank)
            for sequence in self._collectives.leave_out(rank, preemption.COLLECTIVE):
                self._tell_preemption(sequence)
        self._agree_to_stop()

    @property
    def goes_on(self) -> bool:
        """True if ranks have failed with their nodes, and the others are to go on for a while."""
        return bool(self.running) and self.preemptions.spare(self.failures.by_cause())

    @property
    def loses_nodes(self) -> bool:
        """True if nodes of it are known to be taken away."""
        return self.preemptions.info is not None

    def overdue(self) -> dict[int, NodeDiedError]:
        """Return rank -> its error, of those at work on nodes that were to be gone by now."""
        return self.preemptions.overdue(self.running)

    def error(self, failures_so_far: int) -> TrainingFailedError:
        """Return what `fit()` raises if the workers are not started again."""
        failures = self.failures.by_cause()
        rank, cause = next(iter(failures.items()))
        log = self.directory.log_path(self.number, rank)
        error = to_error(
            failures,
            log if isinstance(log, Path) and log.exists() else None,  # far away it is in parts
            self.directory.path,
            failures_so_far,
            sorted(self.at_failure),
            sorted(set(range(len(self.group))) - self.at_failure),
            self.store.newest,
        )
        if not isinstance(cause.__cause__, RemoteTraceback):  # else the message holds it
            error.__cause__ = cause
        info = self.preemptions.info
        if info is None or not self.preemptions.were_cause(failures):
            return error
        preempted = PreemptionError(info, drain_timed_out=not self.preemptions.left_s)
        preempted.__cause__ = error
        return preempted

    def died(self, event: Died) -> None:
        """Take note that a worker's process has ended."""
        self.alive.discard(event.actor)

    def kill(self, events: Callable[[], object]) -> None:
        """Kill the workers; return when all have ended, as the next events tell."""
        self.group.kill()
        while self.alive:  # every worker's end is told, and a killed one's comes at once
            event = events()
            if isinstance(event, Died):
                self.died(event)

    # What is under way.

    def to_commit(self) -> list[int]:
        """Return the reports that every rank has made, and whose files are on their way."""
        return self._book.to_commit()

    def under_way(self, within_s: float) -> bool:
        """Return whether reports may still be made that are committed though ranks have failed.

        Args:
            within_s: As for `ReportTracker.is_behind`.
        """
        if self._book.to_commit():
            return True
        return self.patient and (self.goes_on or self._book.is_behind(time.monotonic(), within_s))

    def waits(self) -> list[Wait]:
        """Return who is waited for; once all functions have returned, whose process goes on."""
        if self._all_returned_at is None:
            return [*self._book.waits(), *self._collectives.waits()]
        ranks = sorted(rank for rank in map(self.group.rank_of, self.alive) if rank is not None)
        what = "ended, though all functions have returned,"
        return [Wait(what, tuple(ranks), (), self._all_returned_at)] if ranks else []

    def told_waits(self) -> list[str]:
        """Return who is waited for, in words. May be called from any thread."""
        now = time.monotonic()
        for _ in range(_LOOKS):
            with contextlib.suppress(RuntimeError, LookupError, ValueError):
                return [wait.short(now) for wait in self.waits()]
        return []

    def where(self, rank: int) -> str:
        """Return where a rank runs, and how to look at it."""
        worker = self.group.workers[rank]
        pid = worker.actor.pid
        look = f"; `py-spy dump --pid {pid}` shows where it is" if pid is not None else ""
        return f"rank {rank}: pid {pid}, node {worker.node_id}{look}"
