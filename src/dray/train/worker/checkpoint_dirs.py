"""Directories in which a rank writes checkpoints: staging areas of its own.

They are in the run's directory, on its file system, so that a report moves their files and copies
none. On a remote storage nothing can be moved, so there they are temporary directories.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dray.errors import StorageError
from dray.train.storage.base import Storage
from dray.train.storage.local_storage import STAGING
from dray.train.storage.remote.downloads import own_directory


class CheckpointDirs:
    """The directories of one rank that are not reported yet.

    Args:
        rank: The rank, for their names.
    """

    def __init__(self, storage: Storage[Any], run: str, rank: int) -> None:
        self._storage = storage
        self._run = run
        self._rank = rank
        self._made: set[str] = set()
        self._left: set[str] = set()  # those of them that nobody writes to any more
        self._taken: set[str] = set()  # those of a report that has not ended
        self._own: Path | None = None  # a directory for them, where they do not lie in the run's
        self._ends = contextlib.ExitStack()

    def make(self) -> str:
        """Make an empty directory.

        Raises:
            StorageError: It cannot be made.
        """
        with StorageError.instead("no directory for a checkpoint can be made"):
            if self._storage.in_place:
                if self._own is None:
                    self._own, delete = own_directory()
                    self._ends.callback(delete)
                path = tempfile.mkdtemp(prefix="checkpoint-", dir=self._own)
            else:
                name = f"{STAGING}rank-{self._rank:05d}-{os.urandom(4).hex()}"
                path = os.path.join(self._run, name)
                os.mkdir(path)
        self._made.add(path)
        return path

    @contextlib.contextmanager
    def lend(self) -> Iterator[str]:
        """Give a directory to write to; one that was left and never reported is deleted first.

        Raises:
            StorageError: It cannot be made.
        """
        for old in list(self._left):
            self.delete(old)
        path = self.make()
        try:
            yield path
        except BaseException:
            if path in self._made:
                self.delete(path)
            raise
        if path in self._made:
            self._left.add(path)

    def owns(self, path: str) -> bool:
        """Return whether a directory is one of these, so that a report may take it."""
        return path in self._made

    def take(self, path: str) -> None:
        """Take note that a report has a directory, and deletes what it leaves of it."""
        self._made.discard(path)
        self._left.discard(path)
        self._taken.add(path)

    def delete(self, path: str) -> None:
        """Delete a directory, of which perhaps nothing is there any more."""
        for known in (self._made, self._left, self._taken):
            known.discard(path)
        shutil.rmtree(path, ignore_errors=True)  # the next start of the run finds what is left

    def close(self) -> None:
        """Delete all."""
        for path in [*self._made, *self._taken]:
            self.delete(path)
        self._ends.close()
