"""Transformers' Trainer in the workers of a TorchTrainer: checks, and reports with checkpoints."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from dray import train  # report() is looked up at each call
from dray.checks import require
from dray.compat.attributes import attach_getattr
from dray.errors import ConfigError, StorageError
from dray.train import collective
from dray.train.checkpoint import Checkpoint
from dray.train.context import get_context
from dray.train.datasets import is_of_shard
from dray.train.reported import CheckpointUploadMode
from dray.train.worker.current_session import current_session

__all__ = ["DrayTrainReportCallback", "RayTrainReportCallback", "prepare_trainer"]

require("transformers", "dray[transformers]")

import transformers  # noqa: E402 (what is above says how to install it)

T = TypeVar("T")


class RayTrainReportCallback(transformers.TrainerCallback):
    """A callback that reports Transformers' metrics with each checkpoint that its Trainer saves.

    Rank 0 moves the Trainer's directory `checkpoint-N` from `output_dir` into the run's directory.
    There it is the directory `checkpoint` of the reported checkpoint: pass that to
    `Trainer.train(resume_from_checkpoint=...)`. Two kinds of checkpoints are copied instead: the
    best one so far, because the Trainer refers to it, and checkpoints that go to the Hub.

    Example:
        >>> def train_loop():
        ...     import transformers
        ...     from dray.train.huggingface.transformers import RayTrainReportCallback
        ...     trainer = transformers.Trainer(..., callbacks=[RayTrainReportCallback()])
        ...     trainer.train()
    """

    CHECKPOINT_NAME = "checkpoint"

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the last logged metrics, with the saved checkpoint."""
        metrics: dict[str, Any] = {}
        for logged in state.log_history:
            metrics.update(logged)
        name = current_session("RayTrainReportCallback").name_to_upload()
        collective.barrier()  # every rank writes one or two files into the directory
        if get_context().get_world_rank() != 0:
            train.report(metrics)
            return
        saved = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        keep = saved == state.best_model_checkpoint or args.push_to_hub
        if not get_context().get_storage().is_local:
            self._upload(metrics, saved, keep=keep)
            return
        directory = get_context().get_storage().build_checkpoint_path_from_name(name)
        bring = shutil.copytree if keep else shutil.move
        with StorageError.instead(f"{saved} cannot be brought into the run's directory"):
            os.makedirs(directory)
            bring(saved, os.path.join(directory, self.CHECKPOINT_NAME))
        train.report(
            metrics,
            checkpoint=Checkpoint.from_directory(directory),
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )

    def _upload(self, metrics: dict[str, Any], saved: str, *, keep: bool) -> None:
        """Report a directory on this machine, for a run on remote storage."""
        with tempfile.TemporaryDirectory(prefix="dray-checkpoint-") as directory:
            os.symlink(os.path.abspath(saved), os.path.join(directory, self.CHECKPOINT_NAME))
            train.report(metrics, checkpoint=Checkpoint.from_directory(directory))
        if not keep:
            shutil.rmtree(saved, ignore_errors=True)


DrayTrainReportCallback = RayTrainReportCallback


def prepare_trainer(trainer: T) -> T:
    """Check that a Trainer of Transformers fits the run, and return it.

    Args:
        trainer: The Trainer.

    Raises:
        ConfigError: The argument is no Trainer, or its number of processes is not the run's.
        NotInTrainingError: Called outside a train function.
    """
    workers = get_context().get_world_size()
    if not isinstance(trainer, transformers.Trainer):
        raise ConfigError(f"prepare_trainer() takes a transformers.Trainer, not {trainer!r}")
    found = trainer.args.world_size
    if found != workers:
        raise ConfigError(
            f"TrainingArguments sees {found} processes, but the run has {workers} workers; "
            "create it in the train function of a TorchTrainer"
        )
    _take_shards(trainer)
    return trainer


def _take_shards(trainer: Any) -> None:
    """Make a Trainer accept the results of `iter_torch_batches` as its datasets."""
    train, evaluate = trainer.get_train_dataloader, trainer.get_eval_dataloader

    def of_training() -> Any:
        given = trainer.train_dataset
        return _loader(given) if is_of_shard(given) else train()

    def of_evaluation(eval_dataset: Any = None) -> Any:
        given = trainer.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(given, str):  # the name of one of several datasets
            given = trainer.eval_dataset[given]
        return _loader(given) if is_of_shard(given) else evaluate(eval_dataset)

    trainer.get_train_dataloader = of_training
    trainer.get_eval_dataloader = of_evaluation
    if is_of_shard(trainer.train_dataset) and trainer.train_dataset.resumes:
        trainer.args.ignore_data_skip = True  # the shard has skipped the rows that were seen


def _loader(batches: Iterable[Any]) -> Any:
    """Return a loader of batches that draws nothing from the Trainer's restored random state."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Epochs(IterableDataset[Any]):
        """A dataset whose iterations are epochs of the batches."""

        def __iter__(self) -> Iterator[Any]:
            return _epoch(batches)

    return DataLoader(Epochs(), batch_size=None, generator=torch.Generator())


def _epoch(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the rest of an epoch; if that is empty, the next epoch, or the Trainer would stop."""
    is_empty = True
    for batch in batches:
        is_empty = False
        yield batch
    if is_empty:
        yield from batches


attach_getattr(__name__)
