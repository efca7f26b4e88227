"""The verdict on an attempt: start again, or the value or error of `fit()`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dray.errors import NodeDiedError, SerializationError, describe
from dray.train.run.attempt import Attempt
from dray.train.run.failure import FailurePolicy, to_driver_error
from dray.train.run.journal import Journal
from dray.train.run.progress import Progress
from dray.train.worker.train_worker import Ended


class Verdict:
    """The verdict as far as it is known.

    Args:
        policy: Decides about restarts.
        progress: Tells the user.
        journal: Keeps what is told.

    Attributes:
        error: What `fit()` raises; the first cause stays it.
        return_value: What rank 0's function returned.
    """

    def __init__(self, policy: FailurePolicy, progress: Progress, journal: Journal) -> None:
        self._policy = policy
        self._progress = progress
        self._journal = journal
        self.error: BaseException | None = None
        self.return_value: Any = None

    def returned(self, ended: Ended) -> None:
        """Take what rank 0's function has returned."""
        try:
            self.return_value = ended.returned()
        except SerializationError as error:  # the training is done all the same
            self.return_value = None
            self._journal.record("return value lost", cause=str(error))
            self._progress.warn(f"{str(error).rstrip('.')}; Result.return_value is None")

    def failed_on_driver(self, error: BaseException, failing: Attempt | None) -> None:
        """Take an error that is not one of workers.

        Args:
            error: What has failed.
            failing: The attempt that has failed before, if one has.
        """
        if self.error is None and failing is not None and failing.failures:
            self.error = failing.error(self._policy.total + 1)
        if self.error is None:
            self.error = to_driver_error(error)
        else:
            self._progress.warn(f"after the failure, on the driver: {describe(error)}")

    def tries_again(
        self, attempt: Attempt, failures: Mapping[int, BaseException], *, wanted: bool
    ) -> bool:
        """Take the end of an attempt that has failed; return whether there is another one.

        Args:
            attempt: Which has failed.
            failures: Its failures, the cause first.
            wanted: Whether the user still wants the run to go on.
        """
        rank, cause = next(iter(failures.items()))
        lost = any(isinstance(error, NodeDiedError) for error in failures.values())
        again = self._policy.failed(lost_node=lost) and wanted
        if again:
            self._progress.warn(
                f"rank {rank} failed ({describe(cause)}); restarting ({self._policy.count(lost)})"
            )
        else:
            self.error = attempt.error(self._policy.total)
        return again
