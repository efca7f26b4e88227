"""Reports that ranks leave in their files of metrics, where the driver reads them a little later.

A report without files is a line in its rank's file. Where all workers run on the driver's host, no
message says the same once more: a rank that makes reports gives a notice, and none for `NOTICE_S`
after it. The driver reads the rank's file as it takes the notice, before it takes anything else
that is said, and once more when it has heard no notice for longer than `NOTICE_S`. None is missed
so: a rank looks at the time when it has written the line, so a line without a notice lay in the
file before that last look. The end of a rank is said after its last notice, and read up to there.

A report of which a message tells as well, of a checkpoint or of positions in datasets, is marked in
the file. Reading stops at such a line until the message has come, which may be much later: the
reports of a rank are taken in the order in which it has made them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from dray.engines.base import Posted
from dray.train.storage.run_directory import RunDirectory
from dray.train.storage.sealed import LineFollower, sealed_body
from dray.train.worker.run_messages import NOTICE, NOTICE_S, TOLD, Reported, WrittenReport

# Seconds after a notice until its rank's file is read once more, if no other notice has come.
_LOOK_S = 1.25 * NOTICE_S


class ReportFiles:
    """The files of the ranks of one attempt after the other, as far as they have been read."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._followers: list[LineFollower] = []
        self._newest: list[float] = []  # by rank, the newest report of which a message has told
        self._due: dict[int, float] = {}  # rank -> when its file is to be read once more
        self._halted: dict[int, int] = {}  # rank -> marked report at which reading has stopped

    def begin(self, size: int) -> None:
        """Follow the files of an attempt's ranks, before these have begun to write."""
        self.end()
        self._followers = [self._directory.follow_metrics(rank) for rank in range(size)]
        self._newest = [-1] * size

    def end(self) -> None:
        """Free the files."""
        self._due.clear()
        self._halted.clear()
        for follower in self._followers:
            follower.close()
        self._followers = []

    @property
    def due(self) -> float:
        """The time, by the monotonic clock, at which to read though nothing is said."""
        return min(self._due.values(), default=math.inf)

    def said_until(self, event: object, rank: int | None) -> list[tuple[int, object]]:
        """Return rank and message or report, of all that was said until an event, with this.

        Args:
            rank: The rank whose event it is, if it is one's.

        Raises:
            StorageError: A file cannot be read.
        """
        message = event.message if isinstance(event, Posted) else None
        if rank is not None and message == NOTICE:
            self._notice(rank)
        elif rank is not None and message is None:  # its end: no message will come any more
            self._told(rank, math.inf)
        said: list[tuple[int, object]] = list(self._read())
        if rank is not None and message:
            message = WrittenReport(message) if isinstance(message, bytes) else message
            said.append((rank, message))
            if isinstance(message, Reported):
                self._told(rank, message.report)
        return said

    def _told(self, rank: int, report: float) -> None:
        """Take note that a message has told of a report: reading goes on after its line."""
        if self._followers:
            self._newest[rank] = report
        if rank in self._halted and report >= self._halted[rank]:
            del self._halted[rank]
            self._notice(rank)

    def _notice(self, rank: int) -> None:
        self._due[rank] = time.monotonic() + _LOOK_S

    def _read(self) -> Iterator[tuple[int, WrittenReport]]:
        for rank, due in list(self._due.items()):
            if time.monotonic() >= due:
                del self._due[rank]
            for line in self._followers[rank].lines():
                body = sealed_body(line)
                if body is None:  # cut short by a full disk
                    continue
                report = WrittenReport(line)
                if not body.endswith(TOLD):
                    yield rank, report
                elif report.report > self._newest[rank]:
                    self._halted[rank] = report.report
                    self._due.pop(rank, None)
                    break
