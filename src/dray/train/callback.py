"""Callbacks of the user, on the driver, while a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dray.compat.attributes import attach_getattr
from dray.train.storage.place import Place

if TYPE_CHECKING:
    from dray.train.checkpoint import Checkpoint

__all__ = ["RayTrainCallback", "RunContext", "UserCallback"]


def _ignore(reason: str) -> None:
    """Do nothing: there is no run to stop."""


@dataclass(frozen=True)
class RunContext:
    """The run that a callback is called for.

    Attributes:
        name: The run's name.
        path: Its directory; where storage is far away, an object whose `str` is the URL.
        attempt: Number of earlier starts of its workers.
        world_size: Number of its workers.
        stopper: Function that `stop` calls.
        run_config: The `RunConfig` of the trainer, its name and storage filled in.
        scaling_config: The `ScalingConfig` of the trainer.

    Example:
        >>> from dray.train import UserCallback
        >>> class Announce(UserCallback):
        ...     def before_run(self, run_context):
        ...         print(run_context.name, "starts with", run_context.world_size, "workers")
    """

    name: str
    path: Place
    attempt: int
    world_size: int
    stopper: Callable[[str], None] = field(default=_ignore, repr=False, compare=False)
    run_config: Any = field(default=None, repr=False, compare=False)
    scaling_config: Any = field(default=None, repr=False, compare=False)

    def get_run_config(self) -> Any:
        """Return `run_config`."""
        return self.run_config

    def stop(self, reason: str = "") -> None:
        """Have the run end well: every rank stops at its next report, of the same number.

        `fit()` then returns a result as usual, whose `return_value` is None, and the run's state is
        FINISHED. May be called in any hook and from any thread. In `before_run` it ends the run
        at the first report; in `after_exception` the workers are not restarted, and `fit()`
        raises their error.

        Args:
            reason: Why, in a few words, for events.jsonl and the terminal.

        Example:
            >>> from dray.train import DataParallelTrainer, RunConfig, UserCallback, report
            >>> class StopWhenGoodEnough(UserCallback):
            ...     def after_report(self, run_context, metrics, checkpoint):
            ...         if metrics[0]["loss"] < 0.1:
            ...             run_context.stop("the loss is low enough")
            >>> def train_loop():
            ...     for step in range(1_000_000):
            ...         report({"loss": 1 / (step + 1)})
            >>> config = RunConfig(callbacks=[StopWhenGoodEnough()])
            >>> DataParallelTrainer(train_loop, run_config=config).fit().metrics["loss"] < 0.1
            True
        """
        self.stopper(reason)


class RayTrainCallback:
    """The base of callbacks, under Ray's name for it; subclass `UserCallback`."""


class UserCallback(RayTrainCallback):
    """Subclass it, override what you need, and pass instances as `RunConfig(callbacks=[...])`.

    Methods run on the driver. An exception in one ends the run with a `ControllerError`, or with
    the workers' error if they have failed before. To end a run early and well, call
    `run_context.stop()`.

    Example:
        >>> from dray.train import DataParallelTrainer, RunConfig, UserCallback, report
        >>> class PrintLoss(UserCallback):
        ...     def after_report(self, run_context, metrics, checkpoint):
        ...         print([m["loss"] for m in metrics])
        >>> def train_loop():
        ...     report({"loss": 0.5})
        >>> trainer = DataParallelTrainer(train_loop, run_config=RunConfig(callbacks=[PrintLoss()]))
        >>> result = trainer.fit()
        [0.5]
    """

    def before_run(self, run_context: RunContext) -> None:
        """Called once, before the first workers start."""

    def after_report(
        self, run_context: RunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Called when all ranks have made a report.

        The ranks go on meanwhile. A rank that has made 32 further reports waits, so that Ctrl-C is
        heard soon: a callback that takes longer than the time between reports slows the training.

        Args:
            run_context: Run that it concerns.
            metrics: One dict a rank, in the order of ranks; an empty one if its report has failed.
            checkpoint: The checkpoint of this report, committed, or None.
        """

    def after_exception(
        self, run_context: RunContext, worker_exceptions: dict[int, BaseException]
    ) -> None:
        """Called when workers failed, before the decision to restart.

        Args:
            run_context: Run that it concerns.
            worker_exceptions: rank -> its exception, the cause first.
        """

    def after_run(self, run_context: RunContext) -> None:
        """Called once, when the run is over, however it ended."""


attach_getattr(__name__)
