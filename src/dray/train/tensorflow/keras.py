"""The Keras callback that reports metrics, with the model as a checkpoint."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from dray import train  # report() is looked up at each call
from dray.checks import plain, require
from dray.compat.attributes import attach_getattr
from dray.errors import ConfigError
from dray.train.checkpoint import Checkpoint
from dray.train.chosen_metrics import chosen, names_of
from dray.train.context import checkpoint_dir, get_context
from dray.train.tensorflow.checkpoint import MODEL, TensorflowCheckpoint

__all__ = ["DrayReportCheckpointCallback", "ReportCheckpointCallback"]

require("tensorflow", "dray[tensorflow]")

import tensorflow as tf  # noqa: E402 (what is above says how to install it)

_EVENTS = tuple(
    f"{what}_{end}"
    for what in ("epoch", "train_batch", "test_batch", "predict_batch", "train", "test", "predict")
    for end in ("begin", "end")
)


class ReportCheckpointCallback(tf.keras.callbacks.Callback):
    """A callback that reports Keras's logs, with the model as a checkpoint.

    The checkpoint has one file, `model.keras`: the model with its optimizer. Rank 0 writes it
    directly into the run's directory, without a copy.

    Args:
        checkpoint_on: Events after which the model is saved: one name such as "epoch_end" or
            "train_batch_end" (a method of a callback without `on_`), or several.
        report_metrics_on: Events after which metrics are reported. They are also reported whenever
            the model is saved.
        metrics: Logs to report: a name, names, or a dict of new name -> name; default: all.

    Raises:
        ConfigError: An argument is malformed, or an event comes without a log that `metrics` names.

    Example:
        >>> from dray.train import ScalingConfig
        >>> from dray.train.tensorflow import TensorflowTrainer
        >>> def train_loop():
        ...     import tensorflow as tf
        ...     from dray.train.tensorflow.keras import ReportCheckpointCallback
        ...     with tf.distribute.MultiWorkerMirroredStrategy().scope():
        ...         model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
        ...         model.compile("sgd", "mse")
        ...     points = tf.data.Dataset.from_tensors(([[1.0]], [[3.0]])).repeat(4)
        ...     model.fit(points, epochs=2, verbose=0, callbacks=[ReportCheckpointCallback()])
        >>> result = TensorflowTrainer(train_loop).fit()
        >>> list(result.metrics), len(result.best_checkpoints)
        (['loss'], 2)
    """

    CHECKPOINT_NAME: ClassVar[str] = MODEL

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._saves = _events(checkpoint_on, "checkpoint_on")
        self._names = names_of(metrics)
        self._reports = {*self._saves, *_events(report_metrics_on, "report_metrics_on")}
        for event in set(_EVENTS) - self._reports:
            # Keras collects the logs of each batch if a callback overrides a batch method.
            name = f"on_{event}"
            if getattr(type(self), name) is getattr(ReportCheckpointCallback, name):
                setattr(self, name, getattr(super(), name))

    def _report(self, event: str, *given: Any, **named: Any) -> None:
        """Report the logs of an event; an event with a number has it before the logs."""
        found = [value for value in (*given, *named.values()) if isinstance(value, Mapping)]
        metrics = self._chosen(found[0] if found else {})
        if event not in self._saves:
            train.report(metrics)
        elif get_context().get_world_rank() == 0:
            with checkpoint_dir() as path:
                self._save(path)
                checkpoint = Checkpoint(path)
                numbers = {"epoch": given[0]} if event == "epoch_end" else {}
                checkpoint.set_metadata({TensorflowCheckpoint.MODEL_FILENAME_KEY: MODEL, **numbers})
                train.report(metrics, checkpoint=checkpoint)
        else:
            with tempfile.TemporaryDirectory(prefix="dray-model-") as path:
                self._save(path)  # on every rank: a variable may be a mean over all ranks
            train.report(metrics)

    def _save(self, directory: str) -> None:
        self.model.save(os.path.join(directory, MODEL))

    def _chosen(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        found = chosen(logs, self._names, f"Keras has logged {', '.join(logs) or 'nothing'}")
        return {name: plain(value) for name, value in found.items()}


DrayReportCheckpointCallback = ReportCheckpointCallback


def _method(event: str) -> Callable[..., None]:
    """Return the method for an event; a subclass may extend it."""

    def method(self: ReportCheckpointCallback, *given: Any, **named: Any) -> None:
        getattr(super(ReportCheckpointCallback, self), f"on_{event}")(*given, **named)
        if event in self._reports:
            self._report(event, *given, **named)

    return method


for _event in _EVENTS:
    setattr(ReportCheckpointCallback, f"on_{_event}", _method(_event))


def _events(given: str | Sequence[str], what: str) -> tuple[str, ...]:
    events = (given,) if isinstance(given, str) else tuple(given)
    for event in events:
        if event not in _EVENTS:
            raise ConfigError(f"{what} has {event!r}; there are {', '.join(_EVENTS)}")
    return events


attach_getattr(__name__)
