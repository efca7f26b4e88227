"""The journal of a run, events.jsonl; a run does not fail because it cannot be written."""

from __future__ import annotations

from typing import Any

from dray.errors import StorageError
from dray.train.run.progress import Progress
from dray.train.storage.run_directory import RunDirectory


class Journal:
    """Records what happens to a run.

    Args:
        directory: The run's.
        progress: Tells the user, once, if nothing can be written.
    """

    def __init__(self, directory: RunDirectory, progress: Progress) -> None:
        self._directory = directory
        self._progress = progress
        self._told = False

    def record(self, event: str, **details: Any) -> None:
        """Append a line."""
        try:
            self._directory.record(event, **details)
        except StorageError as error:
            if not self._told:
                self._progress.warn(f"what happens to the run is not recorded any more: {error}")
            self._told = True
