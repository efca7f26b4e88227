"""Uploads of checkpoints beside the train function, one after another in a thread.

A report with `CheckpointUploadMode.ASYNC` is made like any other, but does not wait: this thread
waits for the share of files that the controller asks for once every rank has made the report, puts
them in place, and waits for the commit. Reports are committed in order, so one thread is enough,
and what waits its turn is a path: no memory grows with it.
"""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec

from dray.errors import StorageError
from dray.train.storage.checksums import Fingerprint
from dray.train.worker.run_messages import ReportDone, Share

P = ParamSpec("P")


@dataclass(frozen=True)
class Upload:
    """A checkpoint to put in place.

    Attributes:
        files: Files that the rank brings, by name.
        place: Puts a share of the files where the run wants them; returns what is there then.
        local: The directory to delete once the checkpoint is committed; None is none.
    """

    files: tuple[str, ...]
    place: Callable[[Share], Mapping[str, Fingerprint]]
    local: str | None


class _UnderWay:
    """An upload, and what the controller says of it."""

    def __init__(self, upload: Upload) -> None:
        self.upload = upload
        self.messages: queue.SimpleQueue[Share | ReportDone | None] = queue.SimpleQueue()
        self.is_due = threading.Event()  # every rank has made the report


class Uploads:
    """The uploads of one rank that are under way.

    Args:
        stage: Puts a share of an upload's files in place, and tells the controller.
        secure: Sees to the files of a report that is done.
    """

    def __init__(
        self, stage: Callable[[Share, Upload], None], secure: Callable[[ReportDone], None]
    ) -> None:
        self._stage = stage
        self._secure = secure
        self._pending: dict[int, _UnderWay] = {}  # by report
        self._thread = ThreadPoolExecutor(1, "dray-uploads")
        self._last: Future[None] | None = None
        self._given_up = False
        self._error: BaseException | None = None

    # On the train function's thread.

    def add(self, report: int, upload: Upload) -> None:
        """Begin an upload; its report is about to be made."""
        self._pending[report] = _UnderWay(upload)
        self._last = self._thread.submit(self._run, report)

    def check(self) -> None:
        """Raise what an upload has failed with, once."""
        error = self._error
        if error is not None:
            self._error = None
            raise error.with_traceback(None)  # all of it is of this file

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
        if self._last is not None:  # which comes after all others
            self._last.result()
        self.check()

    def finish_begun(self) -> None:
        """Wait for the files that every rank's report has made due; the rest is given up."""
        self._end_waits()
        if self._last is not None:
            self._last.result()

    # On the control thread.

    def take(self, message: Share | ReportDone) -> bool:
        """Take a message of the controller, if it is of an upload; return whether it is."""
        under_way = self._pending.get(message.report)
        if under_way is None:
            return False
        under_way.messages.put(message)
        under_way.is_due.set()
        return True

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
        self._thread.shutdown()

    # On the uploads' own thread.

    def _run(self, report: int) -> None:
        under_way = self._pending[report]
        if not self._given_up:
            self._see_through(under_way)
        del self._pending[report]
        under_way.is_due.set()

    def _see_through(self, under_way: _UnderWay) -> None:
        """Stage an upload's share when it is due, and conclude when the report is done."""
        message = under_way.messages.get()
        if isinstance(message, Share):
            self._attempt(self._stage, message, under_way.upload)
            message = under_way.messages.get()
        if isinstance(message, ReportDone):
            self._attempt(self._conclude, message, under_way.upload)

    def _attempt(self, step: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do something whose error belongs to the train function: its next report raises it."""
        try:
            step(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 (see above)
            self._error = self._error or error

    def _conclude(self, done: ReportDone, upload: Upload) -> None:
        """See a committed checkpoint onto the disk; delete its local directory.

        Raises:
            StorageError: There is no checkpoint, because some rank's files cannot be put in place,
                or the disk does not take them.
        """
        if done.trouble is not None:
            raise StorageError(f"report {done.report} has no checkpoint: {done.trouble}")
        self._secure(done)
        if upload.local is not None:
            delete_local(upload.local)


def delete_local(path: str) -> None:
    """Delete the directory of a checkpoint that is committed.

    Raises:
        StorageError: It cannot be deleted.
    """
    with StorageError.instead(f"the checkpoint {path} cannot be deleted"):
        shutil.rmtree(path)
