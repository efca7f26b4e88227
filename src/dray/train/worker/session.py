"""The session of a rank: its place in a run, and its conversation with the controller."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import replace
from pathlib import Path
from typing import Any

from dray.engines.base import Post
from dray.engines.rpc import wire
from dray.errors import StorageError, describe
from dray.session import refuse_forks
from dray.train.checkpoint import Checkpoint
from dray.train.data_config import DataConfig, Datasets
from dray.train.reported import ReportedCheckpoint, ReportedCheckpointStatus
from dray.train.storage.checkpoint_files import has_lone_files, list_files
from dray.train.storage.checksums import Fingerprint
from dray.train.storage.metrics_codec import decode_all, encode, encode_plain, json_bytes
from dray.train.storage.paths import check_directory
from dray.train.storage.place import RemotePath
from dray.train.storage.remote.transfer import list_remote, look_at
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker import run_messages
from dray.train.worker.checkpoint_dirs import CheckpointDirs
from dray.train.worker.securing import Securing
from dray.train.worker.uploads import Upload, Uploads


class TrainingStopped(BaseException):
    """Ends the train function at a report, after the user asked the run to stop.

    Not an Exception, so that a train function's `except Exception` lets it pass.
    """


# Put in place of an answer when the controller is gone.
_OVER = object()


def files_of(checkpoint: Checkpoint) -> list[str]:
    """Return the files of a checkpoint, wherever it lies.

    Raises:
        StorageError: It is not there, or has something that cannot be kept.
    """
    place = checkpoint.place
    return list_remote(place) if isinstance(place, RemotePath) else list_files(checkpoint.path)


class TrainSession:
    """One rank's place in a run, in its worker: what `report` and the others work on.

    Attributes:
        clean_ups: Changes to take back at its end in a process that goes on, which is the user's.
        shards: Name -> this rank's share, of those that were asked for.
        positions: Name -> tells where in its share the rank is.
        waited: Name -> tells how many seconds the rank has waited for rows of its share.
        directories: The directories that it was given for checkpoints.
        outer: The session that its thread had before, if its run is within another.
    """

    def __init__(self, assignment: run_messages.Assignment, post: Post) -> None:
        self.assignment = assignment
        self.post = post
        self.clean_ups = contextlib.ExitStack()
        self.outer: TrainSession | None = None
        self.datasets = Datasets({}, DataConfig())
        self.shards: dict[str, Any] = {}
        self.positions: dict[str, Callable[[], object]] = {}
        self.waited: dict[str, Callable[[], float]] = {}
        self._pid = os.getpid()
        run = assignment.run
        self.checkpoint = Checkpoint.at(run.place_of(run.checkpoint)) if run.checkpoint else None
        self._report = run.first_report
        self._attempt = run.attempt
        self._barrier = run.report_barrier
        self._late = run.may_be_late
        self._paced = run.paced
        self._heard = run.first_report - 1  # the newest report of which callbacks have heard
        self._hearings: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._followed = run.files_followed
        self._noticed_until = 0.0
        self._sequence = 0
        self._requests = 0
        self._stop_at: Future[int] | None = None  # once a stop is asked for, the report
        self._answers: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Collectives are beside reports: a thread may wait for other ranks in one of either.
        self._results: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._joining = threading.Lock()
        self._securing = Securing(run.care, post)
        self._uploads = Uploads(self._stage, self._securing.see_through)
        self._directory = RunDirectory(run.place)
        self.directories = CheckpointDirs(self._directory.storage, run.path, assignment.rank)
        # Whether this rank alone brings files, as far as it knows.
        self._alone = assignment.world_size == 1
        self._metrics = self._directory.metrics(assignment.rank, run.attempt)

    def close(self) -> None:
        """End the uploads; delete directories that were not reported; free the metrics file."""
        self._uploads.close()
        self._securing.close()
        self.directories.close()
        self._metrics.close()
        self._directory.storage.close()

    def deliver(self, message: object) -> None:
        """Take a message of the controller, on the control thread."""
        if isinstance(message, run_messages.StopAsked):
            self._stop_at = self._stop_at or Future()  # before it looks: no report slips through
            self.post(run_messages.NextReport(self._report))
            return
        if isinstance(message, run_messages.StopRequested):
            self._stop(message.report)
            return
        if isinstance(message, run_messages.GivenUp):
            self.wake()
            return
        if isinstance(message, run_messages.ReportDone) and message.path is not None:
            self.checkpoint = Checkpoint.at(self.assignment.run.place_of(message.path))
        if isinstance(message, run_messages.Share | run_messages.ReportDone):
            self._uploads.take(message)
        elif isinstance(message, run_messages.CollectiveResult):
            self._results.put(message)
        elif isinstance(message, run_messages.Heard):
            self._hearings.put(message.report)
        else:
            self._answers.put(message)

    def wake(self) -> None:
        """End a wait, now or later, for a controller that answers no more."""
        self._uploads.give_up()
        self._answers.put(_OVER)
        self._results.put(_OVER)
        self._hearings.put(_OVER)
        if self._stop_at is not None:
            self._stop(0)

    def _stop(self, report: int) -> None:
        self._stop_at = stop_at = self._stop_at or Future()
        with contextlib.suppress(InvalidStateError):  # it was told before
            stop_at.set_result(report)

    @contextlib.contextmanager
    def uploading(self) -> Iterator[None]:
        """Have uploads beside the train function end with it, which runs while this lasts."""
        try:
            yield
        except BaseException as error:
            stopped = isinstance(error, SystemExit) and error.code in (None, 0)
            if stopped or isinstance(error, TrainingStopped):
                self._finish()
            else:
                self._uploads.finish_begun()
            with contextlib.suppress(StorageError):  # the function's own error says more
                self._directory.storage.flush()
            raise
        self._finish()
        self._directory.storage.flush()

    def _finish(self) -> None:
        self._uploads.finish()
        self._securing.wait()
        self._securing.check()

    def report(
        self,
        metrics: Mapping[str, object],
        upload: Upload | None = None,
        validation: dict[str, object] | None = None,
    ) -> None:
        """Make a report; see `dray.train.report`.

        Args:
            upload: Checkpoint to keep, before this returns or beside the train function.
            validation: Wish for a validation, as in `Reported`.

        Raises:
            ConfigError: The metrics hold something else than metrics.
            StorageError: The metrics or the checkpoint cannot be written; or one of an earlier
                report could not, and this one is made.
        """
        # Most are made between steps, whose work has filled the caches: a function that is called
        # here costs microseconds then, not nanoseconds.
        if os.getpid() != self._pid:
            refuse_forks(self._pid)
        with self._lock:
            number = self._report
            try:
                plain = encode_plain(metrics)
                members = (
                    json_bytes(encode(metrics))[1:-1] if plain is None else b'"metrics":' + plain
                )
                told = upload is not None or self._barrier or bool(self.positions)
                line = run_messages.line_of(number, self._attempt, time.time(), members)
                self._metrics.append_text(self._marked(line) if told else line)
                self._report = number + 1
                word = self._word(number, metrics, upload, validation) if told else None
            except Exception as error:
                self._tell_failed(number, {}, error, brings=upload is not None)
                raise
            if word is not None:
                self._tell(word, upload)
            elif not self._followed:
                self.post(line, quiet=self._late)
            elif (now := time.monotonic()) >= self._noticed_until:  # now that it is written
                self.post(run_messages.NOTICE, quiet=True)
                self._noticed_until = now + run_messages.NOTICE_S
            while self._paced and number - self._heard > run_messages.MOST_UNHEARD:
                self._heard = _told(self._hearings)
            if self._uploads.error is not None:
                self._uploads.check()
            if self._securing.error is not None:
                self._securing.check()
        if self._stop_at is not None and number >= self._stop_at.result():
            raise TrainingStopped

    def _marked(self, line: bytes) -> bytes:
        """Return the line of a report of which a message tells as well, as the file has it."""
        return b"%b%b}" % (line[:-1], run_messages.TOLD) if self._followed else line

    def report_without(self, metrics: Mapping[str, object], error: Exception) -> None:
        """Make a report whose checkpoint this rank cannot bring, so that no rank waits for it.

        Args:
            metrics: Metrics of the report, which are kept if they can be.
            error: Reason for it, which the other ranks hear.
        """
        refuse_forks(self._pid)
        with self._lock:
            encoded: dict[str, object] = {}
            with contextlib.suppress(Exception):  # the first error says more
                found = encode(metrics)
                members = json_bytes(found)[1:-1]
                line = run_messages.line_of(self._report, self._attempt, time.time(), members)
                self._metrics.append_text(self._marked(line))
                encoded = found
            self._tell_failed(self._report, encoded, error, brings=True)

    def _tell_failed(
        self, number: int, metrics: dict[str, object], error: Exception, *, brings: bool
    ) -> None:
        """Tell the controller of a report that has failed here: the other ranks count it as well.

        Otherwise what a rank that goes on reports next would join what the others have reported
        before.
        """
        files = () if brings else None
        self._report = number + 1
        trouble = str(error) if isinstance(error, StorageError) else describe(error)
        self.post(self._reported(number, metrics, files=files, trouble=trouble))

    def _reported(
        self, number: int, metrics: dict[str, object], **details: Any
    ) -> run_messages.Reported:
        """Return the word of a report, with where this rank is in its datasets."""
        return run_messages.Reported(
            number,
            metrics,
            positions={name: tell() for name, tell in self.positions.items()} or None,
            waited={name: tell() for name, tell in self.waited.items()},
            **details,
        )

    def _word(
        self,
        number: int,
        metrics: Mapping[str, object],
        upload: Upload | None,
        validation: dict[str, object] | None,
    ) -> run_messages.Reported:
        """Return the word of a report with more than metrics, its files put together if may be."""
        if upload is not None and not upload.beside:
            self._securing.wait()
        return self._reported(
            number,
            encode(metrics),
            files=None if upload is None else upload.files,
            directory=None if upload is None else upload.directory,
            in_place=upload is not None and upload.in_place,
            validation=validation,
            prepared=None if upload is None else self._prepare(number, upload),
        )

    def _tell(self, word: run_messages.Reported, upload: Upload | None) -> None:
        """Tell the controller of a report with more than metrics; wait for what it waits for."""
        number = word.report
        if upload is not None and word.prepared is not None:
            upload = replace(upload, source=Checkpoint(word.prepared.path))
        if upload is not None or self._barrier:
            self._uploads.begin(number, upload)
        self.post(word, quiet=upload is None and self._late)
        if upload is not None and upload.beside:
            self._uploads.go_on_beside(number)
            if self._barrier:
                self._uploads.await_share(number)
        elif upload is not None or self._barrier:
            self._see_through(number, upload)

    def _prepare(self, number: int, upload: Upload) -> run_messages.Prepared | None:
        """Put the files of a checkpoint together before its report: then it costs one round trip.

        Returns:
            Where they are; None if they must be put together after it.
        """
        storage, dirs = self._directory.storage, self.directories
        later = upload.beside or not (self._alone and upload.files)
        if later or storage.in_place or isinstance(upload.source.place, RemotePath):
            return None
        staging = source = upload.source.path
        try:
            if not upload.in_place and not (
                dirs.owns(source) and has_lone_files(source, upload.files)
            ):
                staging = dirs.make()
            found = storage.stage(source, Path(staging), upload.files, self.assignment.run.care)
        except Exception:  # noqa: BLE001 (it comes again, when those who wait can hear of it)
            if staging != source:
                dirs.delete(staging)
            return None
        return run_messages.Prepared(staging, dict(found), self._securing.staged(number, found))

    def _see_through(self, number: int, upload: Upload | None) -> None:
        """Wait until a report is done, and its checkpoint committed if there is one.

        Raises:
            StorageError: There is no checkpoint.
        """
        try:
            done = self._uploads.see_through(number)
        finally:
            if upload is not None and self.directories.owns(str(upload.source.place)):
                self.directories.delete(str(upload.source.place))
        if done is None:
            raise TrainingStopped
        self._securing.begin(done)
        if upload is not None:
            self._alone = done.alone
            upload.conclude()

    def bring(self, checkpoint: Checkpoint, share: run_messages.Share) -> Mapping[str, Fingerprint]:
        """Put a share of the files of a checkpoint into the run, unless they lie there.

        Raises:
            StorageError: A file cannot be read or written.
        """
        if isinstance(checkpoint.place, RemotePath):
            return look_at(checkpoint.place, share.files)
        check_directory(checkpoint.path)
        run = self.assignment.run
        staging = run.place_of(share.staging)
        return self._directory.storage.stage(checkpoint.path, staging, share.files, run.care)

    def _stage(self, share: run_messages.Share, upload: Upload) -> None:
        """Put files in place, and tell the controller, also that they cannot be."""
        number = share.report
        if not share.files:  # nobody waits for it, and its directory may be gone
            self._securing.staged(number, {})
            return
        try:
            staged = dict(upload.place(share) if upload.place else self.bring(upload.source, share))
        except BaseException as error:  # whatever it is, the others wait for these files
            text = str(error) if isinstance(error, StorageError) else describe(error)
            self.post(run_messages.Staged(number, {}, text))
            raise
        due = self._securing.staged(number, staged)
        self.post(run_messages.Staged(number, staged, is_due=due))

    def name_to_upload(self) -> str:
        """Return the name for a checkpoint that the user's code brings into the run's directory.

        The same on every rank, and another one after a restart, which may find the rest of one.
        """
        attempt = self.assignment.run.attempt
        return f"checkpoint_{self._report:06d}" + (f"-{attempt}" if attempt else "")

    def checkpoints(self, timeout_s: float | None, *, validated: bool) -> list[ReportedCheckpoint]:
        """List the run's checkpoints; see `get_all_reported_checkpoints`."""
        refuse_forks(self._pid)
        with self._lock:
            listed = self._list(self._report, timeout_s, validated) or self._list(0, None, False)
        assert listed is not None
        run = self.assignment.run
        return [
            ReportedCheckpoint(
                Checkpoint.at(run.place_of(path)),
                decode_all(records),
                ReportedCheckpointStatus[status],
            )
            for path, records, status in listed.checkpoints
        ]

    def _list(
        self, below: int, timeout_s: float | None, validated: bool
    ) -> run_messages.Listed | None:
        """Ask for the checkpoints once the reports below a number are done; None: too late."""
        self._requests += 1
        self.post(run_messages.Listing(self._requests, below, validated))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                answer = _told(self._answers, deadline)
            except queue.Empty:
                return None
            if isinstance(answer, run_messages.Listed) and answer.request == self._requests:
                return answer

    def join(self, name: str, *data: object) -> list[Any]:
        """Wait until all ranks have come to the same collective; return what they brought, by rank.

        Args:
            data: Nothing, or what this rank brings.

        Raises:
            SerializationError: The data cannot be sent; then this rank has not come to it.
        """
        sent = tuple(wire.dump(each, "broadcast data") for each in data)
        with self._joining:
            sequence = self._sequence
            self._sequence += 1
            self.post(run_messages.CollectiveArrival(sequence, name, sent))
            while True:
                answer = _told(self._results)
                assert isinstance(answer, run_messages.CollectiveResult)
                if answer.sequence == sequence:
                    return [wire.load(each) for each in answer.data]


def _told(answers: queue.SimpleQueue[Any], deadline: float | None = None) -> Any:
    """Wait for the controller's next answer.

    Raises:
        TrainingStopped: It gives none any more.
    """
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    answer = answers.get(timeout=left)
    if answer is _OVER:
        raise TrainingStopped
    return answer
