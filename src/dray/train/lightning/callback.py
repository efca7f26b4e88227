"""The Lightning callback that reports metrics, with a checkpoint of the whole Trainer."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from dray import train  # report() is looked up at each call
from dray.checks import is_whole
from dray.errors import ConfigError
from dray.train.checkpoint import Checkpoint
from dray.train.context import get_context
from dray.train.lightning.package import load_lightning
from dray.train.reported import CheckpointUploadMode
from dray.train.validation import ValidationTaskConfig
from dray.train.worker.current_session import current_session

_Callback: Any = load_lightning().Callback


class RayTrainReportCallback(_Callback):
    """A callback that reports Lightning's metrics with a checkpoint after each training epoch.

    The checkpoint has one file, `checkpoint.ckpt`, or a directory of this name if the strategy
    writes a sharded checkpoint. It contains the model, optimizers, loops and callbacks, for
    `Trainer.fit(ckpt_path=...)`. The metrics are `trainer.callback_metrics`, `epoch` and `step`.

    Args:
        checkpoint_upload_mode: By default the Trainer writes directly into the run's directory,
            without a copy. With SYNC and ASYNC it writes to a temporary directory first.
        validation: As in `dray.train.report`.
        every_n_epochs: Report after every n epochs; 0 does not report after epochs.
        every_n_train_steps: Report after every n optimizer steps; 0 does not report after steps.
        on_validation: Whether to report after each validation.
        on_exception: Whether to report the present state when the training fails. This works with
            one worker only: several would wait for the one that has failed.

    Raises:
        ConfigError: An argument is malformed; or, when training starts, `on_exception` is set and
            there are several workers.
    """

    CHECKPOINT_NAME = "checkpoint.ckpt"

    def __init__(
        self,
        checkpoint_upload_mode: CheckpointUploadMode | None = None,
        validation: bool | ValidationTaskConfig = False,
        *,
        every_n_epochs: int = 1,
        every_n_train_steps: int = 0,
        on_validation: bool = False,
        on_exception: bool = False,
    ) -> None:
        super().__init__()
        self._validation = validation
        mode = checkpoint_upload_mode
        if mode is not None and not isinstance(mode, CheckpointUploadMode):
            raise ConfigError(
                f"checkpoint_upload_mode must be a CheckpointUploadMode, not {mode!r}"
            )
        self._mode = mode or CheckpointUploadMode.NO_UPLOAD
        self._epochs = _checked(every_n_epochs, "every_n_epochs")
        self._steps = _checked(every_n_train_steps, "every_n_train_steps")
        self._reports_validation, self._reports_exception = on_validation, on_exception
        self._last_step = 0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse `on_exception` with several workers, and start to count at the resumed step."""
        self._last_step = trainer.global_step
        if self._reports_exception and get_context().get_world_size() > 1:
            self._reports_exception = False  # Lightning calls on_exception for this error, too
            raise ConfigError(
                "RayTrainReportCallback(on_exception=True) needs ScalingConfig(num_workers=1): "
                "the other workers do not know that one has failed, and cannot take part in a "
                "checkpoint. Report more often instead: every_n_train_steps=..."
            )

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Report after every `every_n_train_steps` steps."""
        step = trainer.global_step
        if self._steps and step != self._last_step and step % self._steps == 0:
            self._report(trainer)
        self._last_step = step

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report if `on_validation` is set, except after the sanity check before training."""
        if self._reports_validation and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._report(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report after every `every_n_epochs` epochs."""
        if self._epochs and (trainer.current_epoch + 1) % self._epochs == 0:
            self._report(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Report if `on_exception` is set, except when the run itself ends the training."""
        if self._reports_exception and isinstance(exception, Exception):
            self._report(trainer)

    def _report(self, trainer: Any) -> None:
        """Save a checkpoint and report it, from one rank of each node that has written files."""
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        mode = self._mode
        if mode is CheckpointUploadMode.NO_UPLOAD and not get_context().get_storage().is_local:
            mode = CheckpointUploadMode.SYNC  # Lightning cannot write to remote storage
        directory = self._new_directory(trainer, mode)
        path = os.path.join(directory, self.CHECKPOINT_NAME)
        trainer.save_checkpoint(path, weights_only=False)
        context = get_context()
        if mode is CheckpointUploadMode.NO_UPLOAD:
            writes = context.get_world_rank() == 0
        else:
            writes = context.get_local_rank() == 0 and os.path.isdir(directory)
        if not writes:
            train.report(metrics)
            return
        train.report(
            metrics,
            checkpoint=Checkpoint.from_directory(directory),
            checkpoint_upload_mode=mode,
            validation=self._validation,
        )
        if mode is CheckpointUploadMode.SYNC:
            shutil.rmtree(directory, ignore_errors=True)

    def _new_directory(self, trainer: Any, mode: CheckpointUploadMode) -> str:
        """Return the directory to save in, the same path on every rank."""
        session = current_session("RayTrainReportCallback")
        if mode is CheckpointUploadMode.NO_UPLOAD:
            name = session.name_to_upload()
            return get_context().get_storage().build_checkpoint_path_from_name(name)
        first = session.assignment.rank == 0
        made = tempfile.mkdtemp(prefix="dray-checkpoint-") if first else ""
        path: str = trainer.strategy.broadcast(made)
        return path


def _checked(count: int, what: str) -> int:
    if not is_whole(count, 0):
        raise ConfigError(f"{what} must be a whole number, 0 or more, not {count!r}")
    return count


DrayTrainReportCallback = RayTrainReportCallback
