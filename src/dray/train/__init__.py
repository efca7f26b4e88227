"""Scaling a training function by changing one config: the public names."""

import typing

from dray.compat.attributes import attach_getattr as _attach_getattr
from dray.errors import (
    ControllerError,
    PreemptionError,
    StartTimeoutError,
    TrainingFailedError,
    WorkerGroupError,
)
from dray.errors.preemption import PreemptionInfo
from dray.train.backend import BackendConfig
from dray.train.callback import RunContext, UserCallback
from dray.train.config import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig
from dray.train.constants import TRAIN_DATASET_KEY
from dray.train.data_config import DataConfig
from dray.train.scaling import ScalingConfig
from dray.train.trainer import DataParallelTrainer
from dray.train.validation import ValidationConfig, ValidationFn, ValidationTaskConfig

__all__ = [
    "TRAIN_DATASET_KEY",
    "BackendConfig",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointUploadMode",
    "ControllerError",
    "DataConfig",
    "DataParallelTrainer",
    "FailureConfig",
    "LoggingConfig",
    "Plan",
    "PlannedWorker",
    "PreemptionError",
    "PreemptionInfo",
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
    "Result",
    "RunConfig",
    "RunContext",
    "ScalingConfig",
    "StartTimeoutError",
    "TrainContext",
    "TrainingFailedError",
    "UserCallback",
    "ValidationConfig",
    "ValidationFn",
    "ValidationTaskConfig",
    "WorkerGroupError",
    "checkpoint_dir",
    "collective",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "report",
]

# Names that a program needs as it runs, if at all: workers import their framework meanwhile.
_HOMES = {
    "dray.train.checkpoint": ("Checkpoint",),
    "dray.train.context": (
        "TrainContext",
        "checkpoint_dir",
        "get_all_reported_checkpoints",
        "get_checkpoint",
        "get_context",
        "report",
    ),
    "dray.train.datasets": ("get_dataset_shard",),
    "dray.train.planning.plan": ("Plan", "PlannedWorker"),
    "dray.train.reported": (
        "CheckpointConsistencyMode",
        "CheckpointUploadMode",
        "ReportedCheckpoint",
        "ReportedCheckpointStatus",
    ),
    "dray.train.result": ("Result",),
    "dray.train.worker.preemption": ("get_preemption_info",),
}

_attach_getattr(
    __name__,
    names=_HOMES,
    later=(
        *("collective", "huggingface", "jax", "lightgbm", "lightning", "tensorflow", "torch"),
        "xgboost",
    ),
)

if typing.TYPE_CHECKING:
    # `as`: a checker then knows that they are there for programs. Of the others it would read the
    # whole framework, whatever the program uses: programs import those by name.
    from dray.train import backend as backend
    from dray.train import collective as collective
    from dray.train import torch as torch
    from dray.train.checkpoint import Checkpoint
    from dray.train.context import (
        TrainContext,
        checkpoint_dir,
        get_all_reported_checkpoints,
        get_checkpoint,
        get_context,
        report,
    )
    from dray.train.datasets import get_dataset_shard
    from dray.train.planning.plan import Plan, PlannedWorker
    from dray.train.reported import (
        CheckpointConsistencyMode,
        CheckpointUploadMode,
        ReportedCheckpoint,
        ReportedCheckpointStatus,
    )
    from dray.train.result import Result
    from dray.train.worker.preemption import get_preemption_info
