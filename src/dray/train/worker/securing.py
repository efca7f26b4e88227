"""Securing of committed files beside the train function: flushes and checksums.

A commit is safe from kills immediately, since data in a file outlives the process that has written
it, but not yet from a power cut. So a checkpoint is provisional until the ranks with its files have
flushed them to the disk, each in a thread of its own while the training continues. A rank secures
one checkpoint at a time: its next report with a checkpoint waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dray.engines.base import Post
from dray.errors import StorageError, describe
from dray.train.storage.checkpoint_files import secure
from dray.train.storage.checksums import Fingerprint
from dray.train.storage.copies import Care
from dray.train.worker.beside import Beside
from dray.train.worker.run_messages import ReportDone, Secured


class Securing(Beside):
    """The files of one rank that are committed, and not known to be on the disk."""

    def __init__(self, care: Care, post: Post) -> None:
        super().__init__("dray-securing")
        self._care = care
        self._post = post
        self._staged: dict[int, Mapping[str, Fingerprint]] = {}

    def staged(self, report: int, files: Mapping[str, Fingerprint]) -> bool:
        """Take note of the files that a rank has staged; return whether they are to be secured."""
        due = self._care.is_due(files)
        if due:
            self._staged[report] = files
        else:
            self._staged.pop(report, None)
        return due

    def begin(self, done: ReportDone) -> None:
        """Begin to secure the files of a report that is done, if that is awaited."""
        if self._is_awaited(done):
            self.submit(self._secure, done)

    def see_through(self, done: ReportDone) -> None:
        """Do so on this thread.

        Raises:
            StorageError: The disk does not take them.
        """
        if self._is_awaited(done):
            self._secure(done)

    def _is_awaited(self, done: ReportDone) -> bool:
        if not done.provisional:
            self._staged.pop(done.report, None)
        return done.report in self._staged

    def _secure(self, done: ReportDone) -> None:
        assert done.path is not None
        files = self._staged.pop(done.report)
        try:
            files = secure(Path(done.path), files, self._care)
        except BaseException as error:  # whatever it is, the controller waits for these files
            text = str(error) if isinstance(error, StorageError) else describe(error)
            self._post(Secured(done.report, {}, text))
            raise
        self._post(Secured(done.report, dict(files)))
