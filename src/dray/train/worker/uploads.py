"""Uploads of checkpoints beside the train function, one after another in a thread.

A report with `CheckpointUploadMode.ASYNC` is made like any other, but does not wait: this thread
waits for the share of files that the controller asks for once every rank has made the report, puts
them in place, and waits for the commit. Reports are committed in order, so one thread is enough,
and what waits its turn is a path: no memory grows with it.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
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
        self._changed = threading.Condition()
        self._pending: dict[int, Upload] = {}  # by report, in order
        self._shares: dict[int, Share] = {}
        self._done: dict[int, ReportDone] = {}
        self._given_up = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    # On the train function's thread.

    def add(self, report: int, upload: Upload) -> None:
        """Begin an upload; its report is about to be made."""
        with self._changed:
            self._pending[report] = upload
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dray-uploads", daemon=True)
                self._thread.start()

    def check(self) -> None:
        """Raise what an upload has failed with, once."""
        if self._error is None:  # as with almost every report, which the lock would cost
            return
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error.with_traceback(None)  # all of it is of this file

    def await_share(self, report: int) -> None:
        """Wait until every rank has made a report."""
        with self._changed:
            self._changed.wait_for(
                lambda: report in self._shares or report not in self._pending or self._given_up
            )

    def finish(self) -> None:
        """Wait until all is committed.

        Raises:
            StorageError: A checkpoint could not be put in place.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self._given_up)
        self.check()

    def finish_begun(self) -> None:
        """Wait for the files that every rank's report has made due; the rest is given up."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._pending.keys() & self._shares.keys() or self._given_up
            )
            self._given_up = True
            self._changed.notify_all()

    # On the control thread.

    def take(self, message: Share | ReportDone) -> bool:
        """Take a message of the controller, if it is of an upload; return whether it is."""
        with self._changed:
            if message.report not in self._pending:
                return False
            if isinstance(message, Share):
                self._shares[message.report] = message
            else:
                self._done[message.report] = message
            self._changed.notify_all()
        return True

    def give_up(self) -> None:
        """End every wait: the controller answers no more."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def close(self) -> None:
        """Give up what is left, and wait until the thread has ended."""
        self.give_up()
        if self._thread is not None:
            self._thread.join()

    # On the uploads' own thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._given_up)
                if self._given_up:
                    return
                report, upload = next(iter(self._pending.items()))
            self._see_through(report, upload)
            with self._changed:
                del self._pending[report]
                self._changed.notify_all()

    def _see_through(self, report: int, upload: Upload) -> None:
        """Stage an upload's share when it is due, and conclude when the report is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_due(report))
            share = self._shares.get(report)
        if share is not None:
            self._attempt(self._stage, share, upload)
        with self._changed:
            self._shares.pop(report, None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: report in self._done or self._given_up)
            done = self._done.pop(report, None)
        if done is not None:
            self._attempt(self._conclude, done, upload)

    def _is_due(self, report: int) -> bool:
        return report in self._shares or report in self._done or self._given_up

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
