"""What the train function sees: its context, `report`, `get_checkpoint`, its seat in the run."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dray.answers import AbsentMember
from dray.engines import wire
from dray.engines.actor_host import refuse_forks
from dray.errors import ConfigError, NotInTrainingError
from dray.train import messages
from dray.train.checkpoint import Checkpoint
from dray.train.checkpoint_files import list_files, stage
from dray.train.metrics import encode
from dray.train.run_directory import RunDirectory, check_checkpoint_name
from dray.train.sealed import LineFile
from dray.train.storage import StorageContext


class TrainingStopped(BaseException):
    """Ends the train function at a report, after the user asked the run to stop.

    Not an Exception, so that a train function's `except Exception` lets it pass.
    """


# In place of an answer: there will be none.
_OVER = object()


class Seat:
    """One rank's place in a run, in its worker: what `report` and the others work on.

    Args:
        assignment: Which rank of which run.
        post: Pushes a message to the controller.

    Attributes:
        clean_ups: What to take back at its end in a process that goes on, which is the user's.
        outer: The seat that its thread had before, if its run is within another.
    """

    def __init__(self, assignment: messages.Assignment, post: Callable[[Any], None]) -> None:
        self.assignment = assignment
        self.post = post
        self.clean_ups = contextlib.ExitStack()
        self.outer: Seat | None = None
        self._pid = os.getpid()
        run = assignment.run
        self.checkpoint = Checkpoint(run.checkpoint) if run.checkpoint else None
        self._report = run.first_report
        self._sequence = 0
        self._stop_at: int | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        metrics = RunDirectory(Path(run.path)).metrics_path(assignment.rank)
        self._metrics = LineFile(metrics)

    def close(self) -> None:
        """Frees the metrics file."""
        self._metrics.close()

    def deliver(self, message: Any) -> None:
        """Takes a message of the controller, on the control thread."""
        if isinstance(message, messages.StopAsked):
            self._stop_at = message.report
            return
        if isinstance(message, messages.ReportDone) and message.path is not None:
            self.checkpoint = Checkpoint(message.path)
        self._answers.put(message)

    def wake(self) -> None:
        """Ends a wait, now or later, for a controller that answers no more."""
        self._answers.put(_OVER)

    def report(
        self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None, directory: str | None
    ) -> None:
        """Makes a report; see `report` below."""
        refuse_forks(self._pid)
        with self._lock:
            record = encode(metrics)
            number = self._report
            files = None if checkpoint is None else tuple(list_files(checkpoint.path))
            line = {
                "report": number,
                "attempt": self.assignment.run.attempt,
                "time": round(time.time(), 6),
                **record,
            }
            self._metrics.append(line)
            self._report = number + 1
            self.post(messages.Reported(number, record, files, directory))
            if checkpoint is not None:
                self._stage(number, checkpoint)
            if checkpoint is not None or self.assignment.run.report_barrier:
                self._await(messages.ReportDone, number)
        if self._stop_at is not None and number >= self._stop_at:
            raise TrainingStopped

    def _stage(self, number: int, checkpoint: Checkpoint) -> None:
        """Puts this rank's share of the files in place, once every rank has reported."""
        share = self._await(messages.Share, number)
        staged = stage(checkpoint.path, Path(share.staging), share.files)
        self.post(messages.Staged(number, staged))

    def _await(self, kind: type, report: int) -> Any:
        while True:
            answer = self._answer()
            # That a report is done for which this rank has not waited is nobody's answer.
            if isinstance(answer, kind) and getattr(answer, "report", None) == report:
                return answer

    def _answer(self) -> Any:
        answer = self._answers.get()
        if answer is _OVER:
            raise TrainingStopped
        return answer

    def join(self, name: str, data: Any = None) -> Any:
        """Waits until all ranks have come to the same collective; returns rank 0's data."""
        with self._lock:
            sequence = self._sequence
            self._sequence += 1
            self.post(messages.Joined(sequence, name, wire.dump(data, "broadcast data")))
            while True:
                answer = self._answer()
                if isinstance(answer, messages.Gathered) and answer.sequence == sequence:
                    return wire.load(answer.data)


# One seat a worker process; with the inline engine, one a thread that runs a train function.
_seats: dict[int, Seat] = {}


def take_seat(seat: Seat) -> None:
    """Makes a seat the current one of this thread, and of threads that have none."""
    thread = threading.get_ident()
    seat.outer, _seats[thread] = _seats.get(thread), seat


def leave_seat() -> None:
    """Takes back what `take_seat` of this thread did."""
    thread = threading.get_ident()
    seat = _seats.pop(thread)
    seat.close()
    if seat.outer is not None:
        _seats[thread] = seat.outer


def current_seat(name: str) -> Seat:
    """Returns the current seat.

    Args:
        name: The function that needs it, for the message.

    Raises:
        NotInTrainingError: There is none.
    """
    seat = _seats.get(threading.get_ident())
    if seat is None and len(_seats) == 1:  # a thread that the train function started
        seat = next(iter(_seats.values()))
    if seat is None:
        raise NotInTrainingError(name)
    return seat


class TrainContext:
    """Who this worker is among the workers of the run."""

    def __init__(self, assignment: messages.Assignment) -> None:
        self._assignment = assignment

    def get_world_size(self) -> int:
        """Returns the number of workers."""
        return self._assignment.world_size

    def get_world_rank(self) -> int:
        """Returns this worker's rank, from 0."""
        return self._assignment.rank

    def get_local_rank(self) -> int:
        """Returns this worker's rank among those of its node, from 0."""
        return self._assignment.local_rank

    def get_local_world_size(self) -> int:
        """Returns the number of workers on this node."""
        return self._assignment.local_world_size

    def get_node_rank(self) -> int:
        """Returns the rank of this worker's node, from 0."""
        return self._assignment.node_rank

    def get_experiment_name(self) -> str:
        """Returns the run's name."""
        return os.path.basename(self._assignment.run.path)

    def get_storage(self) -> StorageContext:
        """Returns where the run keeps its checkpoints."""
        return StorageContext(*os.path.split(self._assignment.run.path))

    get_metadata = AbsentMember()
    get_trial_name = AbsentMember()
    get_trial_id = AbsentMember()
    get_trial_resources = AbsentMember()
    get_trial_dir = AbsentMember()


def get_context() -> TrainContext:
    """Returns who this worker is.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> def train_loop():
        ...     if dray.train.get_context().get_world_rank() == 0:
        ...         print("I speak for all")
    """
    return TrainContext(current_seat("get_context").assignment)


def get_checkpoint() -> Checkpoint | None:
    """Returns the newest committed checkpoint of this run, or None if there is none yet.

    After a restart, and in a run whose name was used before, this is where to go on from.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> def train_loop():
        ...     checkpoint = dray.train.get_checkpoint()
        ...     if checkpoint:
        ...         with checkpoint.as_directory() as path:
        ...             model.load_state_dict(torch.load(f"{path}/model.pt"))
    """
    return current_seat("get_checkpoint").checkpoint


def report(
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
) -> None:
    """Reports metrics, and with them perhaps a checkpoint.

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

    Raises:
        ConfigError: The metrics hold something else, such as a tensor, or the name is taken.
        StorageError: The metrics cannot be written, and the report does not count; or the
            checkpoint's files cannot be copied.
        NotInTrainingError: Called outside a train function.

    Example:
        >>> def train_loop():
        ...     for epoch in range(3):
        ...         dray.train.report({"epoch": epoch, "loss": 0.1})
    """
    seat = current_seat("report")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise ConfigError(
            f"checkpoint must be a dray.train.Checkpoint, not {checkpoint!r}; make one with "
            "Checkpoint.from_directory(path)"
        )
    if checkpoint_dir_name is not None:
        check_checkpoint_name(checkpoint_dir_name)
    seat.report(metrics, checkpoint, checkpoint_dir_name)
