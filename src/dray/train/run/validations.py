"""Validations of a run's checkpoints: tasks beside the training, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dray.core.options import task_options
from dray.engines.base import Engine, Mailbox
from dray.engines.object_ref import ObjectRef
from dray.errors import ConfigError, DrayError, EngineError, describe
from dray.train.checkpoint import Checkpoint
from dray.train.reported import ReportedCheckpointStatus
from dray.train.run.checkpoint_store import CheckpointStore
from dray.train.run.events import Alarm, OfValidation, Signal, ValidationEnded, ValidationTimedOut
from dray.train.storage.manifest import Committed, Validation
from dray.train.storage.metrics_codec import encode
from dray.train.validation import ValidationConfig, ValidationFn

_VALIDATED = ReportedCheckpointStatus.VALIDATED
_FAILED = ReportedCheckpointStatus.VALIDATION_FAILED
_TIMEOUT = ReportedCheckpointStatus.VALIDATION_TIMEOUT
_AGAIN_S = 1.0


def validate(fn: ValidationFn, checkpoint: Checkpoint, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Run a validation function, in a task; return its metrics, encoded."""
    metrics = fn(checkpoint, **kwargs)
    if not isinstance(metrics, Mapping):
        raise ConfigError(f"the validation function must return a dict, not {metrics!r}")
    return encode(metrics)


@dataclass(eq=False)
class Validations:
    """Validates the checkpoints whose reports ask for it, in the order of their reports.

    The manifests say which checkpoints are to be validated, so a resumed run validates those that
    an earlier start of it has left.

    Attributes:
        closed: Done when the engine is.
        config: How; None validates nothing.
        mailbox: Gets their events, for `take`.
        patience_s: After how long it says that a validation takes its time; 0 is never.
    """

    engine: Engine
    closed: Future[None]
    store: CheckpointStore
    config: ValidationConfig | None
    mailbox: Mailbox
    patience_s: float
    _current: Committed | None = None
    _ref: ObjectRef | None = None
    _retried: Committed | None = None

    def __post_init__(self) -> None:
        self._directory, self._progress = self.store.directory, self.store.progress
        self._limit = Alarm(self.mailbox)
        self._slow = Alarm(self.mailbox)
        self._slow_s = 0.0

    @property
    def under_way(self) -> bool:
        """Return whether any has not ended."""
        return bool(self.store.to_validate())

    def begin(self) -> None:
        """Take up what an earlier start of the run has left."""
        left = self.store.pending()
        if left and self.config is None:
            self._directory.warn_once(
                f"{_names(left)} had been reported with validation=..., and the trainer has no "
                "validation_config now: dray does not validate them"
            )
        self.look()

    def look(self) -> None:
        """Start the next one, if none runs."""
        todo = self.store.to_validate()
        if self._current is None and todo:
            self._current = todo[0]
            self._start(todo[0])

    def _start(self, committed: Committed) -> None:
        assert self.config is not None
        assert committed.validation is not None
        fn = self.config.fn
        kwargs, timeout_s = self.config.limits(committed.validation.asked)
        checkpoint = Checkpoint.of_run(committed, verified=self._directory.is_verified(committed))
        given = {"name": f"validate {committed.path.name}", **self.config.ray_remote_kwargs}
        try:
            submit = self.engine.runtime.bind_function(validate, task_options(validate, given))
            ref = submit((fn, checkpoint, kwargs), {})
        except DrayError as error:  # it can never run
            failed: Future[object] = Future()
            failed.set_exception(error)
            self.mailbox.put(ValidationEnded(committed, failed))
            return
        assert isinstance(ref, ObjectRef)
        self._ref = ref
        if timeout_s is not None:
            self._limit.set(timeout_s, ValidationTimedOut(timeout_s))
        self._slow_s = self.patience_s
        if self.patience_s:
            self._slow.set(self.patience_s, Signal.LOOK_AT_VALIDATION)
        ref.future().add_done_callback(
            lambda future: self.mailbox.put(ValidationEnded(committed, future))
        )

    def _tell_slow(self) -> None:
        """Tell the user that one takes long, and again when it is twice as old."""
        assert self._current is not None
        self._progress.warn(
            f"the validation of {self._current.path.name} has been running or waiting for "
            f"{self._slow_s:g} s; if there is no room for it beside the workers, it starts only "
            "after they have ended, so do not wait for it in get_all_reported_checkpoints()"
        )
        self._slow.set(self._slow_s, Signal.LOOK_AT_VALIDATION)
        self._slow_s *= 2

    def tell_awaited(self) -> None:
        """Tell for what the run waits now."""
        self._progress.warn(f"waiting for the validation of {_names(self.store.to_validate())}")

    def take(self, event: OfValidation) -> None:
        """Take an event of theirs."""
        if isinstance(event, ValidationEnded):
            self._ended(event)
        elif isinstance(event, ValidationTimedOut):
            self._give_up(event)
        elif event is Signal.LOOK_AT_VALIDATION:
            self._tell_slow()
        elif self._current is not None:
            self._start(self._current)

    def _ended(self, event: ValidationEnded) -> None:
        if event.committed is not self._current:
            return  # it was given up
        error = event.future.exception()
        if self.closed.done():
            return  # it has not failed, and runs again when the run goes on
        if type(error) is EngineError and self._retried is not event.committed:
            # Not its own fault. If the session is about to end, the controller hears so first.
            self._retried = event.committed
            self._slow.set(_AGAIN_S, Signal.RETRY_VALIDATION)
            return
        if error is None:
            self._conclude(_VALIDATED, event.future.result())
            return
        name = event.committed.path.name
        self._progress.warn(
            f"the validation of {name} failed, the checkpoint stays as it was reported: "
            f"{describe(error)}"
        )
        self._conclude(_FAILED, cause=describe(error))

    def _give_up(self, event: ValidationTimedOut) -> None:
        assert self._current is not None
        self._progress.warn(
            f"the validation of {self._current.path.name} was given up after {event.after_s:g} s; "
            "the checkpoint stays as it was reported"
        )
        self._cancel()
        self._conclude(_TIMEOUT)

    def _conclude(
        self,
        status: ReportedCheckpointStatus,
        metrics: dict[str, object] | None = None,
        **details: object,
    ) -> None:
        """Keep what one has come to, and start the next."""
        committed, self._current, self._ref = self._current, None, None
        assert committed is not None
        assert committed.validation is not None
        self._limit.cancel()
        self._slow.cancel()
        asked = committed.validation.asked
        self.store.validated(committed, Validation(status.name, asked, metrics))
        name = committed.path.name
        self._directory.record("validation", checkpoint=name, status=status.name, **details)
        self.look()

    def close(self) -> None:
        """Give up the one that runs; it runs again when the run goes on."""
        self._limit.cancel()
        self._slow.cancel()
        self._cancel()
        self._current = None

    def _cancel(self) -> None:
        ref, self._ref = self._ref, None
        if ref is not None and not self.closed.done():
            self.engine.runtime.cancel(ref, force=True, recursive=True)


def _names(checkpoints: list[Committed]) -> str:
    more = len(checkpoints) - 1
    return checkpoints[0].path.name + (f" and {more} more" if more else "")
