"""The checkpoints of a run: made whole at once, gone on from if they are sound, deleted if many."""

from __future__ import annotations

import time
from pathlib import Path

from dray.errors import StorageError
from dray.train.config import CheckpointConfig
from dray.train.progress import Progress
from dray.train.reports import Entry
from dray.train.retention import surplus
from dray.train.run_directory import Committed, RunDirectory


class Commits:
    """Knows the checkpoints that a run has committed.

    Args:
        directory: The run's.
        config: Which of them to keep.
        progress: Tells the user.
    """

    def __init__(
        self, directory: RunDirectory, config: CheckpointConfig, progress: Progress
    ) -> None:
        self._directory = directory
        self._config = config
        self._progress = progress
        self._kept = directory.checkpoints()

    def newest_good(self) -> Committed | None:
        """Returns the newest checkpoint that is as it was committed, if there is one."""
        for committed in reversed(self._kept):
            damaged = committed.damage()
            if damaged is None:
                return committed
            self._progress.warn(
                f"{committed.path.name} is damaged ({damaged} is not as it was committed); "
                "going back to the one before"
            )
            self._directory.record(
                "damaged checkpoint", checkpoint=committed.path.name, file=damaged
            )
        return None

    def commit(self, entry: Entry, world_size: int) -> Path:
        """Makes the staged files of a report a checkpoint, and deletes what is not to be kept.

        Raises:
            StorageError: It cannot be written.
        """
        name = entry.directory or self._directory.next_checkpoint_name()
        path = self._directory.path / name
        committed = Committed(
            path, entry.report, world_size, entry.staged, entry.metrics, time.time()
        )
        try:
            self._directory.commit(self._directory.staging(entry.report), committed)
        except OSError as error:
            raise StorageError(f"the checkpoint {path} cannot be committed: {error}") from error
        self._kept = [*(known for known in self._kept if known.path != path), committed]
        for old in surplus(self._kept, self._config):
            self._directory.delete(old)
            self._kept.remove(old)
        self._progress.committed(path)
        return path
