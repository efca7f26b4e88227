"""Uploads of checkpoints into the run, each with its report.

When every rank has made the report, the controller requests a share of the files from each rank
that has a checkpoint. The rank waits for this, puts the files in place, and waits for the commit.
With `CheckpointUploadMode.ASYNC`, a thread does so. Reports are committed in order, so one thread
is enough, and a waiting upload is only a path, so that memory does not grow.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dray.errors import StorageError
from dray.train.checkpoint import Checkpoint
from dray.train.storage.checksums import Fingerprint
from dray.train.worker.beside import Beside
from dray.train.worker.run_messages import ReportDone, Share
from dray.user_warnings import warn_user


@dataclass(frozen=True)
class Upload:
    """A checkpoint that a rank reports.

    Attributes:
        source: Checkpoint of the rank.
        files: Files that it brings, by name.
        directory: Name of the checkpoint in the run's directory, if it was given one.
        in_place: Whether the files lie there already, or `place` puts them there.
        beside: Whether the report does not wait for it.
        place: Puts a share of the files where the run wants them, in place of dray; returns what
            is there then.
        local: The directory to delete once the checkpoint is committed; None is none.
    """

    source: Checkpoint
    files: tuple[str, ...]
    directory: str | None = None
    in_place: bool = False
    beside: bool = False
    place: Callable[[Share], Mapping[str, Fingerprint]] | None = None
    local: str | None = None

    def conclude(self) -> None:
        """Delete the local directory, if it is there still, of a committed checkpoint.

        The run may have taken it; other ranks that have reported the same one delete it as well.
        """
        if self.local is None:
            return
        if os.path.islink(self.local):
            with contextlib.suppress(OSError):
                os.unlink(self.local)
        else:
            shutil.rmtree(self.local, ignore_errors=True)
        if os.path.lexists(self.local):
            warn_user(
                f"the checkpoint is kept, and its directory {self.local} could not be deleted"
            )


class _UnderWay:
    """A report that is waited for, and what the controller says of it."""

    def __init__(self, upload: Upload | None) -> None:
        self.upload = upload
        self.messages: queue.SimpleQueue[Share | ReportDone | None] = queue.SimpleQueue()
        self.is_due = threading.Event()  # every rank has made the report


def _without_checkpoint(report: int, why: object) -> StorageError:
    return StorageError(f"report {report} has no checkpoint: {why}")


@contextlib.contextmanager
def _naming(report: int) -> Iterator[None]:
    """Have an error of a report's files name the report: a later one may raise it."""
    try:
        yield
    except StorageError as error:
        named = _without_checkpoint(report, error)
        named.errno = error.errno
        raise named from error.__cause__


class Uploads(Beside):
    """The reports of one rank that are waited for, and the checkpoints that they have brought.

    Args:
        stage: Puts a share of an upload's files in place, and tells the controller.
        secure: Sees to the files of a report that is done, on the uploads' own thread.
    """

    def __init__(
        self, stage: Callable[[Share, Upload], None], secure: Callable[[ReportDone], None]
    ) -> None:
        super().__init__("dray-uploads")
        self._stage = stage
        self._secure = secure
        self._pending: dict[int, _UnderWay] = {}  # by report
        self._given_up = False

    # On the train function's thread.

    def begin(self, report: int, upload: Upload | None) -> None:
        """Take note of a report that is about to be made, and will be waited for."""
        under_way = self._pending[report] = _UnderWay(upload)
        if self._given_up:
            under_way.messages.put(None)

    def see_through(self, report: int) -> ReportDone | None:
        """Wait until a report is done; put this rank's share of its files in place before.

        Returns:
            The controller's word; None if it answers no more.

        Raises:
            StorageError: There is no checkpoint.
        """
        under_way = self._pending[report]
        try:
            message = under_way.messages.get()
            if isinstance(message, Share):
                assert under_way.upload is not None
                with _naming(report):
                    self._stage(message, under_way.upload)
                message = under_way.messages.get()
        finally:
            del self._pending[report]
            under_way.is_due.set()
        if not isinstance(message, ReportDone):
            return None
        if message.trouble is not None:
            raise _without_checkpoint(report, message.trouble)
        return message

    def go_on_beside(self, report: int) -> None:
        """See a report through in the thread; `check` or `finish` raises what goes wrong."""
        self.submit(self._see_through_beside, report)

    def await_share(self, report: int) -> None:
        """Wait until every rank has made a report."""
        under_way = self._pending.get(report)
        if under_way is not None:
            under_way.is_due.wait()

    def finish(self) -> None:
        """Wait until all is committed.

        Raises:
            StorageError: A checkpoint could not be put in place.
        """
        self.wait()
        self.check()

    def finish_begun(self) -> None:
        """Wait for the files that every rank's report has made due; the rest is given up."""
        self._end_waits()
        self.wait()

    # On the control thread.

    def take(self, message: Share | ReportDone) -> None:
        """Take a message of the controller; nobody waits for that of another report."""
        under_way = self._pending.get(message.report)
        if under_way is not None:
            under_way.messages.put(message)
            under_way.is_due.set()

    def _end_waits(self) -> None:
        for under_way in list(self._pending.values()):
            under_way.messages.put(None)
            under_way.is_due.set()

    def give_up(self) -> None:
        """End every wait: the controller answers no more."""
        self._given_up = True
        self._end_waits()

    def close(self) -> None:
        """Give up what is left, and wait until the thread has ended."""
        self.give_up()
        super().close()

    # On the uploads' own thread.

    def _see_through_beside(self, report: int) -> None:
        upload = self._pending[report].upload
        assert upload is not None
        done = self.see_through(report)
        if done is not None:
            self._secure(done)
            upload.conclude()
