"""Failures of workers: the choice of the cause, its message, and the decision about a restart."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dray.checks import spec_of
from dray.errors import (
    ConfigError,
    DrayError,
    EngineError,
    InfeasibleError,
    RemoteTraceback,
    SerializationError,
    TrainingFailedError,
    WorkerDiedError,
    WorkerGroupError,
    as_instance_of_cause,
    describe,
    raised_in_driver,
    text_of,
)
from dray.train.run.output.line_dedup import describe_ranks
from dray.train.run.output.progress import Progress
from dray.train.run.state import State
from dray.train.storage.place import Place
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker.train_worker import Ended

_FIRST_BACK_OFF_S = 1.0
_LONGEST_BACK_OFF_S = 30.0


@dataclass
class FailurePolicy:
    """Decides about restarts.

    Attributes:
        failures: Number of failures so far, lost nodes left out.
        lost_nodes: Number of lost nodes so far.
    """

    max_failures: int
    max_preemption_failures: int = -1
    failures: int = 0
    lost_nodes: int = 0
    _in_a_row: int = 0

    @property
    def total(self) -> int:
        """The number of failures of workers, whatever the reason."""
        return self.failures + self.lost_nodes

    def failed(self, *, lost_node: bool = False) -> bool:
        """Count one failure; return whether to try again."""
        self._in_a_row += 1
        if lost_node:
            self.lost_nodes += 1
        else:
            self.failures += 1
        count, limit = self._count(lost_node)
        return limit < 0 or count <= limit

    def progressed(self) -> None:
        """Take note that the run has come further: the next restart is at once again."""
        self._in_a_row = 0

    def _count(self, lost_node: bool) -> tuple[int, int]:
        if lost_node:
            return self.lost_nodes, self.max_preemption_failures
        return self.failures, self.max_failures

    def count(self, lost_node: bool) -> str:
        """Return which failure this was, of how many."""
        count, limit = self._count(lost_node)
        what = "lost node" if lost_node else "failure"
        return f"{what} {count}, {'no limit' if limit < 0 else f'{limit} allowed'}"

    def back_off_s(self) -> float:
        """Return how long to wait before the next try: not at all at first, then ever longer."""
        if self._in_a_row <= 1:
            return 0.0
        return float(min(_FIRST_BACK_OFF_S * 2 ** (self._in_a_row - 2), _LONGEST_BACK_OFF_S))


class FailureLog:
    """The failures of one attempt, in the order they became known."""

    def __init__(self) -> None:
        self._failures: dict[int, BaseException] = {}

    def add(self, rank: int, error: BaseException) -> None:
        """Take note of a rank's failure; its first one counts."""
        self._failures.setdefault(rank, error)

    def __bool__(self) -> bool:
        return bool(self._failures)

    def by_cause(self) -> dict[int, BaseException]:
        """Return rank -> error, the cause first.

        A process that died on its own comes before exceptions: its peers' errors (a connection
        lost) may become known before its own end. An abort does not, because frameworks abort a
        process when a peer is gone.
        """
        ranks = sorted(self._failures, key=lambda rank: not _is_sudden(self._failures[rank]))
        return {rank: self._failures[rank] for rank in ranks}


def is_death(error: BaseException | None) -> bool:
    """Return whether a call failed because its worker has ended, of which `Died` tells too."""
    return isinstance(error, EngineError) and not isinstance(error.__cause__, RemoteTraceback)


def _is_sudden(error: BaseException) -> bool:
    return isinstance(error, WorkerDiedError) and error.exitcode != -signal.SIGABRT


def _waited_for(running: Sequence[int], returned: Sequence[int]) -> list[str]:
    """Say for whom a rank may have waited: first for those who cannot come any more."""
    if returned:
        return [
            f"{describe_ranks(returned)} had returned already; every rank must make the same "
            "collective calls, so give each the same number of batches"
        ]
    if not running:
        return []
    one_of = "one of the " if len(running) > 1 else ""
    return [f"it waited for {one_of}{describe_ranks(running)}; the log may show where"]


def _where_a_module_is(error: ModuleNotFoundError) -> list[str]:
    """Say how a module that only the driver finds comes to the machines of the workers."""
    name = (error.name or "").partition(".")[0]
    spec = spec_of(name) if name else None
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parents[1 if spec.submodule_search_locations else 0]
    return [
        f"this program has it in {spec.origin}, which that worker cannot see: send it to all "
        f"nodes with dray.init(runtime_env={{'working_dir': '{folder}'}}), or install it there"
    ]


def _asked_for_a_terminal(error: BaseException) -> bool:
    """Return whether a worker called breakpoint() or input()."""
    at_an_end = isinstance(error, EOFError) and "reading a line" in str(error)
    in_a_worker = isinstance(error.__cause__, RemoteTraceback)
    return in_a_worker and (at_an_end or type(error).__name__ == "BdbQuit")


# Parts of the messages and tracebacks of frameworks' collectives; downloads time out as well.
_OF_COLLECTIVES = (
    *("torch/distributed", "torch/autograd", "gloo", "nccl", "xccl", "hccl", "jax", "xgboost"),
    "lightgbm",
)


def _is_timeout(error: BaseException) -> bool:
    """Return whether a rank waited in vain for others, of which PyTorch's backends have no type."""
    text = text_of(error).lower()
    if not (isinstance(error, TimeoutError) or "timed out" in text or "timeout" in text):
        return False
    cause = error.__cause__
    passed = f"{text} {cause.text}" if isinstance(cause, RemoteTraceback) else text
    return any(name in passed for name in _OF_COLLECTIVES)


def to_driver_error(error: BaseException) -> DrayError:
    """Return what `fit()` raises when the driver's own side has failed."""
    if isinstance(error, TrainingFailedError | InfeasibleError | ConfigError):
        return error
    return raised_in_driver(error)


def to_error(
    failures: Mapping[int, BaseException],
    log_path: Place | None,
    run_path: Place,
    failures_so_far: int,
    running: Sequence[int] = (),
    returned: Sequence[int] = (),
    checkpoint: Place | None = None,
) -> WorkerGroupError:
    """Return what `fit()` raises.

    Args:
        failures: rank -> error, the cause first.
        failures_so_far: Number of failures of the run, this one included.
        running: The ranks that were still at work when the first one failed.
        returned: The ranks whose function had returned by then.
        checkpoint: The run's newest checkpoint, if it has one.
    """
    (rank, cause), *others = failures.items()
    lines = [f"rank {rank} failed: {describe(cause)}"]
    if isinstance(cause.__cause__, RemoteTraceback):
        lines.append(cause.__cause__.text.rstrip())
    followers: dict[str, list[int]] = {}
    for other, error in others:
        followers.setdefault(describe(error), []).append(other)
    lines += [
        f"{describe_ranks(ranks)} failed after that: {text}" for text, ranks in followers.items()
    ]
    if _is_timeout(cause):
        lines += _waited_for([other for other in running if other not in failures], returned)
    if isinstance(cause, ModuleNotFoundError):
        lines += _where_a_module_is(cause)
    if _asked_for_a_terminal(cause):
        lines.append(
            "workers have no terminal: ScalingConfig(num_workers=0) runs the function in this "
            "process, where breakpoint() and input() work"
        )
    if failures_so_far > 1:
        lines.append(f"this was failure number {failures_so_far} of the run")
    if log_path is not None:
        lines.append(f"log of rank {rank}: {log_path}")
    again = "it has no checkpoint to resume from"
    if checkpoint is not None:
        again = f"RunConfig(name={run_path.name!r}) resumes from {checkpoint.name}"
    lines.append(
        f"the run is in {run_path}; {again}; FailureConfig(max_failures=...) restarts automatically"
    )
    error = WorkerGroupError(
        "\n".join(lines), failures, log_path=None if log_path is None else str(log_path)
    )
    return as_instance_of_cause(error)


@dataclass
class Outcome:
    """The outcome of a run as far as it is known.

    Attributes:
        state: One of the final states, once the run is over.
        error: Exception of `fit()`; the first cause stays it.
        checkpoint: The newest one of the run.
    """

    policy: FailurePolicy
    progress: Progress
    directory: RunDirectory
    state: State = State.INITIALIZING
    error: BaseException | None = None
    return_value: object = None
    checkpoint: Place | None = None

    def returned(self, ended: Ended) -> None:
        """Take what rank 0's function has returned."""
        try:
            self.return_value = ended.returned()
        except SerializationError as error:  # the training is done all the same
            self.return_value = None
            self.directory.record("return value lost", cause=str(error))
            self.progress.warn(f"{str(error).rstrip('.')}; Result.return_value is None")

    def failed_on_driver(self, error: BaseException) -> None:
        """Take an error that is not one of workers."""
        self.directory.record("controller failed", cause=describe(error))
        if self.error is None:
            self.error = to_driver_error(error)
        else:
            self.progress.warn(f"after the failure, on the driver: {describe(error)}")

    def tries_again(
        self, failures: Mapping[int, BaseException], *, wanted: bool, free: bool, lost_node: bool
    ) -> bool:
        """Take the end of an attempt that has failed; return whether there is another one.

        Args:
            wanted: Whether the user still wants the run to go on.
            free: Whether it failed on a damaged checkpoint, which is left out the next time, and
                counts for no failure.
            lost_node: Whether it failed because a node was lost.
        """
        if free and wanted:
            return True
        rank, cause = next(iter(failures.items()))
        again = self.policy.failed(lost_node=lost_node) and wanted
        if again:
            count = self.policy.count(lost_node)
            self.progress.warn(f"rank {rank} failed ({describe(cause)}); restarting ({count})")
        return again
