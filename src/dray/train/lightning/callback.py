"""The Lightning callback that reports metrics, with a checkpoint of the whole Trainer."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from dray import train  # for the report() that is there when it is called
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
    """Reports Lightning's metrics with a checkpoint, at the end of each training epoch.

    The checkpoint has one file, `checkpoint.ckpt` (a folder of this name, if the strategy writes a
    sharded one): model, optimizers, loops and callbacks, for `Trainer.fit(ckpt_path=...)`. The
    metrics are `trainer.callback_metrics`, `epoch` and `step`.

    Args:
        checkpoint_upload_mode: Default: the Trainer writes into the run's directory, and nothing
            is copied. SYNC and ASYNC have it write to a temporary directory first.
        validation: As in `dray.train.report`.
        every_n_epochs: Report after each of so many epochs; 0: after none.
        every_n_train_steps: Report after so many optimizer steps; 0: not by steps.
        on_validation: Whether to report after each validation.
        on_exception: Whether to report what there is when the training fails. One worker only:
            several would wait for the one that has failed.

    Raises:
        ConfigError: An argument is malformed; or, as training starts, `on_exception` is set and
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
        """Refuse what would wait for a rank that has failed; begin to count where it resumes."""
        self._last_step = trainer.global_step
        if self._reports_exception and get_context().get_world_size() > 1:
            self._reports_exception = False  # Lightning tells of this one, too
            raise ConfigError(
                "RayTrainReportCallback(on_exception=True) needs ScalingConfig(num_workers=1): "
                "the other workers do not know that one has failed, and cannot take part in a "
                "checkpoint. Report more often instead: every_n_train_steps=..."
            )

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Report, if so many steps have been made."""
        step = trainer.global_step
        if self._steps and step != self._last_step and step % self._steps == 0:
            self._report(trainer)
        self._last_step = step

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report, if asked for; not for the check before training."""
        if self._reports_validation and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._report(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report, if it is an epoch's turn."""
        if self._epochs and (trainer.current_epoch + 1) % self._epochs == 0:
            self._report(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Report, if asked for; not as the run itself ends the training."""
        if self._reports_exception and isinstance(exception, Exception):
            self._report(trainer)

    def _report(self, trainer: Any) -> None:
        """Have the Trainer save, and report that: one rank of each node that has written files."""
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        mode = self._mode
        if mode is CheckpointUploadMode.NO_UPLOAD and not get_context().get_storage().is_local:
            mode = CheckpointUploadMode.SYNC  # Lightning cannot save there by itself
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
        """Return where to save, the same path on every rank."""
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
