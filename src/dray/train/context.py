"""The train function's side of a run: its context, `report`, `get_checkpoint`."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dray.answers import AbsentMember, answer_for, check_arguments
from dray.checks import is_number, plain
from dray.engines.rpc import wire
from dray.engines.rpc.actor_host import refuse_forks
from dray.errors import ConfigError, NotInTrainingError, StorageError, describe
from dray.train.checkpoint import Checkpoint
from dray.train.reported import (
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    ReportedCheckpoint,
    ReportedCheckpointStatus,
)
from dray.train.storage.checkpoint_files import list_files, stage
from dray.train.storage.metrics_codec import decode, encode, json_bytes
from dray.train.storage.paths import check_directory
from dray.train.storage.run_directory import RunDirectory, check_checkpoint_name
from dray.train.storage.sealed import LineFile
from dray.train.worker import run_messages
from dray.train.worker.storage_context import StorageContext


class TrainingStopped(BaseException):
    """Ends the train function at a report, after the user asked the run to stop.

    Not an Exception, so that a train function's `except Exception` lets it pass.
    """


# Put in place of an answer when the controller is gone.
_OVER = object()


class TrainSession:
    """One rank's place in a run, in its worker: what `report` and the others work on.

    Args:
        assignment: Which rank of which run.
        post: Pushes a message to the controller.

    Attributes:
        clean_ups: What to take back at its end in a process that goes on, which is the user's.
        outer: The session that its thread had before, if its run is within another.
    """

    def __init__(self, assignment: run_messages.Assignment, post: Callable[[Any], None]) -> None:
        self.assignment = assignment
        self.post = post
        self.clean_ups = contextlib.ExitStack()
        self.outer: TrainSession | None = None
        self._pid = os.getpid()
        run = assignment.run
        self.checkpoint = Checkpoint(run.checkpoint) if run.checkpoint else None
        self._report = run.first_report
        self._sequence = 0
        self._requests = 0
        self._stop_at: int | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        metrics = RunDirectory(Path(run.path)).metrics_path(assignment.rank)
        self._metrics = LineFile(metrics)

    def close(self) -> None:
        """Free the metrics file."""
        self._metrics.close()

    def deliver(self, message: Any) -> None:
        """Take a message of the controller, on the control thread."""
        if isinstance(message, run_messages.StopRequested):
            self._stop_at = message.report
            return
        if isinstance(message, run_messages.GivenUp):
            self.wake()
            return
        if isinstance(message, run_messages.ReportDone) and message.path is not None:
            self.checkpoint = Checkpoint(message.path)
        self._answers.put(message)

    def wake(self) -> None:
        """End a wait, now or later, for a controller that answers no more."""
        self._answers.put(_OVER)

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Checkpoint | None,
        directory: str | None,
        *,
        in_place: bool = False,
    ) -> None:
        """Make a report; see `report` below."""
        refuse_forks(self._pid)
        with self._lock:
            record = encode(metrics)
            number = self._report
            files = None if checkpoint is None else tuple(list_files(checkpoint.path))
            self._metrics.append_text(_line(number, self.assignment.run.attempt, record))
            self._report = number + 1
            self.post(run_messages.Reported(number, record, files, directory, in_place))
            if checkpoint is not None:
                self._stage(number, checkpoint)
            if checkpoint is not None or self.assignment.run.report_barrier:
                done = self._await(run_messages.ReportDone, number)
                if done.trouble is not None:
                    raise StorageError(f"report {number} has no checkpoint: {done.trouble}")
        if self._stop_at is not None and number >= self._stop_at:
            raise TrainingStopped

    def _stage(self, number: int, checkpoint: Checkpoint) -> None:
        """Put this rank's share of the files in place, once every rank has reported."""
        share = self._await(run_messages.Share, number)
        try:
            staged = stage(checkpoint.path, Path(share.staging), share.files)
        except BaseException as error:  # whatever it is, the others wait for these files
            text = str(error) if isinstance(error, StorageError) else describe(error)
            self.post(run_messages.Staged(number, {}, text))
            raise
        self.post(run_messages.Staged(number, staged))

    def name_to_upload(self) -> str:
        """Return the name for a checkpoint that the user's code brings into the run's directory.

        The same on every rank, and another one after a restart, which may find the rest of one.
        """
        attempt = self.assignment.run.attempt
        return f"checkpoint_{self._report:06d}" + (f"-{attempt}" if attempt else "")

    def checkpoints(self, timeout_s: float | None) -> list[ReportedCheckpoint]:
        """List the run's checkpoints; see `get_all_reported_checkpoints` below."""
        refuse_forks(self._pid)
        with self._lock:
            listed = self._list(self._report, timeout_s) or self._list(0, None)
        assert listed is not None
        committed = ReportedCheckpointStatus.COMMITTED
        return [
            ReportedCheckpoint(Checkpoint(path), decode(record), committed)
            for path, record in listed.checkpoints
        ]

    def _list(self, below: int, timeout_s: float | None) -> run_messages.Listed | None:
        """Ask for the checkpoints once the reports below a number are done; None: too late."""
        self._requests += 1
        self.post(run_messages.Listing(self._requests, below))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                answer = self._answer(deadline)
            except queue.Empty:
                return None
            if isinstance(answer, run_messages.Listed) and answer.request == self._requests:
                return answer

    def _await(self, kind: type, report: int) -> Any:
        while True:
            answer = self._answer()
            # That a report is done for which this rank has not waited is nobody's answer.
            if isinstance(answer, kind) and getattr(answer, "report", None) == report:
                return answer

    def _answer(self, deadline: float | None = None) -> Any:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        answer = self._answers.get(timeout=left)
        if answer is _OVER:
            raise TrainingStopped
        return answer

    def join(self, name: str, data: Any = None) -> Any:
        """Wait until all ranks have come to the same collective; return rank 0's data."""
        with self._lock:
            sequence = self._sequence
            self._sequence += 1
            self.post(run_messages.Joined(sequence, name, wire.dump(data, "broadcast data")))
            while True:
                answer = self._answer()
                if isinstance(answer, run_messages.Gathered) and answer.sequence == sequence:
                    return wire.load(answer.data)


def _line(report: int, attempt: int, record: Mapping[str, Any]) -> bytes:
    """Return a report as JSON; what is the same each time need not go through the encoder."""
    head = b'{"report":%d,"attempt":%d,"time":%.6f,' % (report, attempt, time.time())
    return head + json_bytes(record)[1:]


# One session a worker process; with the inline engine, one a thread that runs a train function.
_sessions: dict[int, TrainSession] = {}


def start_session(session: TrainSession) -> None:
    """Make a session the current one of this thread, and of threads that have none."""
    thread = threading.get_ident()
    session.outer, _sessions[thread] = _sessions.get(thread), session


def leave_session() -> None:
    """Take back what `start_session` of this thread did."""
    thread = threading.get_ident()
    session = _sessions.pop(thread)
    if session.outer is not None:
        _sessions[thread] = session.outer
    session.close()


def current_session(name: str) -> TrainSession:
    """Return the current session.

    Args:
        name: The function that needs it, for the message.

    Raises:
        NotInTrainingError: There is none.
    """
    session = _sessions.get(threading.get_ident())
    if session is None and len(_sessions) == 1:  # a thread that the train function started
        session = next(iter(_sessions.values()))
    if session is None:
        raise NotInTrainingError(name)
    return session


class TrainContext:
    """The ranks of this worker, and the names and paths of its run.

    Example:
        >>> from dray.train import DataParallelTrainer, ScalingConfig, get_context
        >>> def train_loop():
        ...     context = get_context()
        ...     return context.get_world_rank(), context.get_world_size()
        >>> scaling = ScalingConfig(num_workers=2)
        >>> DataParallelTrainer(train_loop, scaling_config=scaling).fit().return_value
        (0, 2)
    """

    def __init__(self, assignment: run_messages.Assignment) -> None:
        self._assignment = assignment

    def get_world_size(self) -> int:
        """Return the number of workers."""
        return self._assignment.world_size

    def get_world_rank(self) -> int:
        """Return this worker's rank, from 0."""
        return self._assignment.rank

    def get_local_rank(self) -> int:
        """Return this worker's rank among those of its node, from 0."""
        return self._assignment.local_rank

    def get_local_world_size(self) -> int:
        """Return the number of workers on this node."""
        return self._assignment.local_world_size

    def get_node_rank(self) -> int:
        """Return the rank of this worker's node, from 0."""
        return self._assignment.node_rank

    def get_experiment_name(self) -> str:
        """Return the run's name."""
        return os.path.basename(self._assignment.run.path)

    def get_storage(self) -> StorageContext:
        """Return where the run keeps its checkpoints."""
        return StorageContext(*os.path.split(self._assignment.run.path))

    get_metadata = AbsentMember()
    get_trial_name = AbsentMember()
    get_trial_id = AbsentMember()
    get_trial_resources = AbsentMember()
    get_trial_dir = AbsentMember()


def get_context() -> TrainContext:
    """Return who this worker is.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from dray.train import DataParallelTrainer, get_context
        >>> def train_loop():
        ...     if get_context().get_world_rank() == 0:
        ...         return "rank 0 alone writes the summary"
        >>> DataParallelTrainer(train_loop).fit().return_value
        'rank 0 alone writes the summary'
    """
    return TrainContext(current_session("get_context").assignment)


def get_checkpoint() -> Checkpoint | None:
    """Return the newest committed checkpoint of this run, or None if there is none yet.

    After a restart, and in a run whose name was used before, this is where to resume from.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from dray.train import DataParallelTrainer, get_checkpoint
        >>> def train_loop():
        ...     checkpoint = get_checkpoint()
        ...     if checkpoint is None:
        ...         return "from the start"
        ...     with checkpoint.as_directory() as path:
        ...         return f"from the files in {path}"
        >>> DataParallelTrainer(train_loop).fit().return_value
        'from the start'
    """
    return current_session("get_checkpoint").checkpoint


def get_all_reported_checkpoints(
    consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
    timeout_s: float | None = None,
) -> list[ReportedCheckpoint]:
    """Return the checkpoints of the run so far, those of earlier starts included, oldest first.

    Wait until every report that this rank has made is done: made by all ranks, and committed if
    any of them brought a checkpoint. What `CheckpointConfig` has not kept is not among them.

    Args:
        consistency_mode: As nothing is validated yet, both modes wait for the commit.
        timeout_s: How long to wait, in seconds, before what there is is returned; None is without
            limit.

    Raises:
        ConfigError: An argument is malformed.
        NotInTrainingError: Called outside a train function.

    Example:
        >>> import tempfile
        >>> from dray.train import Checkpoint, DataParallelTrainer, report
        >>> from dray.train import get_all_reported_checkpoints
        >>> def train_loop():
        ...     for step in range(2):
        ...         with tempfile.TemporaryDirectory() as directory:
        ...             report({"step": step}, Checkpoint(directory))
        ...     return [reported.metrics for reported in get_all_reported_checkpoints()]
        >>> DataParallelTrainer(train_loop).fit().return_value
        [{'step': 0}, {'step': 1}]
    """
    session = current_session("get_all_reported_checkpoints")
    if not isinstance(consistency_mode, CheckpointConsistencyMode):
        raise ConfigError(
            f"consistency_mode must be a CheckpointConsistencyMode, not {consistency_mode!r}"
        )
    wait = plain(timeout_s)
    if wait is not None and (not is_number(wait) or not 0 <= wait <= threading.TIMEOUT_MAX):
        raise ConfigError(f"timeout_s must be None or seconds, 0 or more, not {timeout_s!r}")
    return session.checkpoints(wait)


def report(
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
    validation: bool = False,
) -> None:
    """Report metrics, and with them perhaps a checkpoint.

    Without a checkpoint this writes a line to the rank's own metrics file and returns: ranks need
    not report equally often, and nothing is waited for. With a checkpoint it returns when the
    checkpoint is committed, which is when every rank has made its report of the same number and
    the files of all of them are in place. A file that several ranks have under the same name is
    taken from the lowest of them. With `RunConfig(report_barrier=True)` every report returns when
    every rank has made it, and its checkpoint, if one rank brought any, is committed.

    A report that every rank has made is kept, whatever fails afterwards.

    Args:
        metrics: Name to value: Python or numpy scalars, None, strings, and dicts or lists of them.
        checkpoint: A directory whose files are to be kept. They are copied: the directory stays
            yours.
        checkpoint_dir_name: The checkpoint's name in the run directory, where it may not be that of
            the run's own files. Default: `checkpoint_` and a number.
        checkpoint_upload_mode: SYNC copies the files. NO_UPLOAD leaves them where they are, which
            must be a directory in the run's own, such as
            `get_context().get_storage().build_checkpoint_path_from_name(name)`: then they are
            read once, for their checksums. ASYNC is not there yet.
        delete_local_checkpoint_after_upload: Whether the directory is deleted once its files are
            copied and committed. Default: no.
        checkpoint_upload_fn: What brings this rank's files into the run's directory in place of
            dray: called with the checkpoint and the name of its directory there, it returns the
            checkpoint that it has made in `get_context().get_storage().experiment_fs_path`.
        validation: False: not there yet.

    Raises:
        ConfigError: The metrics hold something else, such as a tensor, the name is taken, or the
            checkpoint of NO_UPLOAD or of `checkpoint_upload_fn` is not in the run's directory.
        StorageError: The metrics cannot be written, and the report does not count; or a file of
            the checkpoint cannot be copied: then every rank that waits for it hears so, and the
            report counts without one.
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from dray.train import DataParallelTrainer, report
        >>> def train_loop():
        ...     for epoch in range(3):
        ...         report({"epoch": epoch, "loss": 0.1})
        >>> DataParallelTrainer(train_loop).fit().metrics
        {'epoch': 2, 'loss': 0.1}
    """
    session = current_session("report")
    if validation is not False:
        check_arguments("dray.train.report", {"validation": validation}, ())
    in_place = _is_in_place(checkpoint_upload_mode)
    if checkpoint is None:
        session.report(metrics, None, checkpoint_dir_name)
        return
    if checkpoint_dir_name is not None:
        check_checkpoint_name(checkpoint_dir_name)
    local = _checked(checkpoint, "checkpoint")
    if checkpoint_upload_fn is not None and not in_place:
        name = checkpoint_dir_name or session.name_to_upload()
        checkpoint = _checked(
            checkpoint_upload_fn(local, name), "what checkpoint_upload_fn returns"
        )
    if checkpoint_upload_fn is not None or in_place:
        checkpoint_dir_name = _name_in_run(checkpoint.path, session.assignment.run.path)
        check_checkpoint_name(checkpoint_dir_name)
        session.report(metrics, checkpoint, checkpoint_dir_name, in_place=True)
    else:
        session.report(metrics, checkpoint, checkpoint_dir_name)
    if delete_local_checkpoint_after_upload and not in_place:
        with StorageError.instead(f"the checkpoint {local.path} cannot be deleted"):
            shutil.rmtree(local.path)


def _checked(checkpoint: object, what: str) -> Checkpoint:
    if not isinstance(checkpoint, Checkpoint):
        raise ConfigError(
            f"{what} must be a dray.train.Checkpoint, not {checkpoint!r}; make one with "
            "Checkpoint.from_directory(path)"
        )
    return checkpoint


def _is_in_place(mode: object) -> bool:
    if mode is CheckpointUploadMode.SYNC:
        return False
    if not isinstance(mode, CheckpointUploadMode):
        raise ConfigError(f"checkpoint_upload_mode must be a CheckpointUploadMode, not {mode!r}")
    if mode is CheckpointUploadMode.ASYNC:
        check_arguments("dray.train.report", {"checkpoint_upload_mode=ASYNC": mode}, ())
    return True


def _name_in_run(path: str, run: str) -> str:
    """Return the name of a checkpoint that lies in the run's directory."""
    check_directory(path)
    folder, name = os.path.split(path)
    if not os.path.samefile(folder, run):
        raise ConfigError(
            f"a checkpoint that dray does not copy must lie in the run's directory {run}, and "
            f"{path} does not; write it to get_context().get_storage()."
            "build_checkpoint_path_from_name(name), or leave the mode out to have it copied"
        )
    return name


answer_for(__name__)
