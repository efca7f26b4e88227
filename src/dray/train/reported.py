"""Upload modes of reported checkpoints, and their status."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from dray.train.checkpoint import Checkpoint


class CheckpointUploadMode(Enum):
    """The way of a reported checkpoint into the run's directory.

    Members:
        SYNC: `report()` copies it, and returns when it is committed.
        NO_UPLOAD: It is there already, written to a path from `get_context().get_storage()`.
        ASYNC: A thread copies it, and deletes the original; `report()` returns at once.

    Example:
        >>> from dray.train import Checkpoint, CheckpointUploadMode, get_context, report
        >>> def train_loop():  # writes where the run keeps its checkpoints
        ...     path = get_context().get_storage().build_checkpoint_path_from_name("first")
        ...     ...
        ...     mode = CheckpointUploadMode.NO_UPLOAD
        ...     report({"loss": 0.5}, Checkpoint(path), checkpoint_upload_mode=mode)
    """

    ASYNC = "ASYNC"
    SYNC = "SYNC"
    NO_UPLOAD = "NO_UPLOAD"

    def default_delete_local_checkpoint_after_upload(self) -> bool:
        """Return whether `report()` deletes the checkpoint that it has copied, unless told."""
        return self is CheckpointUploadMode.ASYNC


class CheckpointConsistencyMode(Enum):
    """The condition that `get_all_reported_checkpoints` waits for.

    Members:
        COMMITTED: That the reports made so far are committed.
        VALIDATED: That they are, and that the validations which they ask for have ended.

    Example:
        >>> from dray.train import CheckpointConsistencyMode
        >>> CheckpointConsistencyMode("COMMITTED").name
        'COMMITTED'
    """

    COMMITTED = "COMMITTED"
    VALIDATED = "VALIDATED"


class ReportedCheckpointStatus(Enum):
    """The status of a reported checkpoint.

    Members:
        COMMITTED: It is there, and was reported without a validation.
        PENDING_VALIDATION: Its validation runs, or waits for its turn.
        VALIDATED: Its metrics have those of the validation.
        VALIDATION_TIMEOUT: Its validation took longer than `timeout_s`, and was given up.
        VALIDATION_FAILED: Its validation raised, or its process died. The checkpoint is there.

    Example:
        >>> from dray.train import ReportedCheckpointStatus
        >>> ReportedCheckpointStatus("COMMITTED").name
        'COMMITTED'
    """

    COMMITTED = "COMMITTED"
    PENDING_VALIDATION = "PENDING_VALIDATION"
    VALIDATED = "VALIDATED"
    VALIDATION_TIMEOUT = "VALIDATION_TIMEOUT"
    VALIDATION_FAILED = "VALIDATION_FAILED"


@dataclass
class ReportedCheckpoint:
    """A checkpoint of the run.

    Attributes:
        checkpoint: Reference to its files.
        metrics: Metrics that rank 0 reported with it, and those of its validation.
        status: Whether it is pending, committed or validated.

    Example:
        >>> from dray.train import DataParallelTrainer, get_all_reported_checkpoints
        >>> def train_loop():
        ...     return [reported.metrics for reported in get_all_reported_checkpoints()]
        >>> DataParallelTrainer(train_loop).fit().return_value  # a new run has none yet
        []
    """

    checkpoint: Checkpoint
    metrics: dict[str, Any]
    status: ReportedCheckpointStatus
