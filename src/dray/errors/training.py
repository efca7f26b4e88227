"""The errors of training; they are public in `dray.errors`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dray.errors.base import DrayError, mixed_with, text_of

if TYPE_CHECKING:
    from dray.errors.preemption import PreemptionInfo


class TrainingFailedError(DrayError):
    """`fit()` has failed; the subclasses tell apart resources, workers, nodes and the driver."""

    def __init__(self, message: str = "") -> None:
        # Not super().__init__: a subclass made by `mixed_with` has the user's class in its MRO.
        Exception.__init__(self, message)
        self.__message = message

    @property
    def message(self) -> str:
        """The message of the error."""
        return self.__message

    def __str__(self) -> str:
        return self.__message


class StartTimeoutError(TrainingFailedError, TimeoutError):
    """A run has waited for resources up to its time limit.

    Attributes:
        seconds: Duration of the wait.
        reason: Resources that were missing at the end of the wait.
    """

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(
            f"the run could not start within {seconds:g} s: {reason} To wait longer, set "
            "DRAY_START_TIMEOUT_S (seconds)"
        )
        self.seconds = seconds
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.seconds, self.reason))


class WorkerGroupError(TrainingFailedError):
    """Workers have failed; the first failure is the cause of the others.

    If the cause is an exception of the user's function, the error that `fit()` raises is also an
    instance of that exception's type, so `except ValueError` catches a worker's ValueError.

    Attributes:
        worker_failures: Rank -> exception of that rank, with the cause first.
        rank: The rank that failed first.
        log_path: Log file of that rank, or None.
    """

    def __init__(
        self,
        error_message: str,
        worker_failures: Mapping[int, BaseException],
        *,
        log_path: str | None = None,
    ) -> None:
        TrainingFailedError.__init__(self, error_message)
        self.worker_failures = dict(worker_failures)
        self.rank = next(iter(self.worker_failures), None)
        self.log_path = log_path

    def __reduce__(self) -> tuple[object, ...]:
        plain = functools.partial(WorkerGroupError, log_path=self.log_path)
        if type(self) is WorkerGroupError:
            return (plain, (self.message, self.worker_failures))
        return (as_instance_of_cause, (plain(self.message, self.worker_failures),))


def as_instance_of_cause(error: WorkerGroupError) -> WorkerGroupError:
    """Return `error` as an error that is also of its first failure's type, if Python allows it."""
    cause = next(iter(error.worker_failures.values()), None)
    if not isinstance(cause, Exception) or isinstance(cause, WorkerGroupError):
        return error
    return mixed_with(
        error,
        cause,
        lambda both: both(error.message, error.worker_failures, log_path=error.log_path),
    )


class PreemptionError(TrainingFailedError):
    """Nodes were preempted more often than `max_preemption_failures` allows.

    Args:
        preemption_info: The nodes and their ranks.
        drain_timed_out: Whether ranks were still running when the announced time was over.

    Example:
        >>> from dray.train import PreemptionError, PreemptionInfo
        >>> error = PreemptionError(PreemptionInfo(None, {"node-b": [2, 3]}))
        >>> error.preemption_info.preempted_node_ids, error.drain_timed_out
        (['node-b'], False)
    """

    def __init__(self, preemption_info: PreemptionInfo, drain_timed_out: bool = False) -> None:
        nodes = ", ".join(preemption_info.preempted_node_ids)
        ranks = ", ".join(map(str, preemption_info.preempted_ranks))
        over = "; some ranks were still at work when its time was over" if drain_timed_out else ""
        super().__init__(
            f"the run lost nodes whose preemption was announced ({nodes}), and ranks {ranks} "
            f"with them{over}. FailureConfig(max_preemption_failures=...) sets how often it "
            "restarts after that (-1: always); fit() with the same RunConfig(name=...) "
            "continues from its newest checkpoint"
        )
        self.preemption_info = preemption_info
        self.drain_timed_out = drain_timed_out

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.preemption_info, self.drain_timed_out))


class ControllerError(TrainingFailedError):
    """The driver's part of a run has failed.

    The error that `fit()` raises is also an instance of that failure's type, so `except OSError`
    catches a full disk.

    Attributes:
        controller_failure: The exception that ended the run.
    """

    def __init__(self, controller_failure: BaseException) -> None:
        TrainingFailedError.__init__(
            self,
            "The run was ended by its controller, not by a worker: "
            f"{type(controller_failure).__name__}: {text_of(controller_failure)}",
        )
        self.controller_failure = controller_failure

    def __reduce__(self) -> tuple[object, ...]:
        mixed = type(self) is not ControllerError
        return (raised_in_driver if mixed else ControllerError, (self.controller_failure,))


def raised_in_driver(cause: BaseException) -> ControllerError:
    """Return a `ControllerError` that is also of its cause's type, if Python allows it."""
    error = mixed_with(ControllerError(cause), cause, lambda both: both(cause))
    error.__cause__ = cause
    return error
