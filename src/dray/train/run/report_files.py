"""Reports without files, which the driver reads in the ranks' metrics files a little later.

Such a report is a line in its rank's file. If all workers run on the driver's host, no message
repeats it. Instead a rank that makes a report sends a notice, which covers the reports of the next
`NOTICE_S`. The driver reads the rank's file when it receives the notice, then every 0.1 s together
with the files of all other ranks whose notices are valid, and for the last time when it has
received no notice for longer than `NOTICE_S`. No report is missed this way: a rank looks at the
time after it has written a line, so a line without a notice was in the file before the last read.
At the end of a rank its file is read once more, for lines that the rank could not announce.

Between two reads, a file may contain reports that precede messages of other ranks. So when a
rank sends a message other than a notice, the driver reads the files of all ranks as soon as no
further message is waiting. It reads once for all messages that ranks send together, because a read
for each would cost more with many ranks. Before it handles an end, it reads them at once.

A report that a message repeats (with a checkpoint, or with positions in datasets) is marked in the
file. The driver stops reading at such a line until the message has arrived, which may be much
later, because it takes the reports of a rank in the order in which the rank has made them.

If many reports are read at once, the last one stands for the others, which limits the driver's work
for ranks that report a thousand times a second. One of the others is looked up if it turns out to
belong to a checkpoint of another rank.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from dray.engines.base import Output, Posted
from dray.train.run.events import Signal
from dray.train.storage.line_follower import LineFollower
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker.run_messages import (
    NOTICE,
    NOTICE_S,
    TOLD,
    Reported,
    WrittenReport,
    report_of,
)

# Seconds between two reads of a file while its rank's notice is valid.
_READ_EVERY_S = 0.1
# Seconds after a notice until its rank's file is read for the last time, if no other has come.
_VALID_S = 1.25 * NOTICE_S


class ReportFiles:
    """The files of the ranks of one attempt after the other, as far as they have been read."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._followers: list[LineFollower] = []
        self._newest: list[float] = []  # by rank, the newest report of which a message has told
        self._valid: dict[int, float] = {}  # rank -> until when its notice is valid
        self._next_read = 0.0  # when to read the files of these ranks again
        self._halted: dict[int, int] = {}  # rank -> marked report at which reading has stopped
        self._behind = False  # whether something has been said after what may lie in files

    def begin(self, size: int) -> None:
        """Follow the files of an attempt's ranks, before these have begun to write."""
        self.end()
        self._followers = [self._directory.follow_metrics(rank) for rank in range(size)]
        self._newest = [-1] * size

    def end(self) -> None:
        """Follow none of them any more."""
        self._valid.clear()
        self._halted.clear()
        self._behind = False
        self._followers = []

    @property
    def due(self) -> float:
        """The time, by the monotonic clock, at which to read though nothing is said."""
        if not self._valid:
            return math.inf
        return 0.0 if self._behind else self._next_read

    def said_until(self, event: object, rank: int | None) -> list[tuple[int, object]]:
        """Return what ranks have said until an event, and with it: each rank, message or report.

        Args:
            rank: The rank whose event it is, if it is one's.

        Raises:
            StorageError: A file cannot be read.
        """
        message = event.message if isinstance(event, Posted) else None
        if isinstance(message, bytes) and message != NOTICE:
            message = WrittenReport(message)
        known = rank in self._valid
        if rank is not None and self._followers and not isinstance(event, Output):
            self._prepare(rank, message)
        to_read = [] if message == NOTICE and known else self._to_read(event, rank)
        said: list[tuple[int, object]] = [each for of in to_read for each in self._read(of)]
        if rank is not None and message:
            said.append((rank, message))
            if isinstance(message, Reported) and self._followers:
                self._told(rank, message.report)
        return said

    def find(self, rank: int, report: int) -> WrittenReport | None:
        """Return a report that a rank has made without files, if it is one of those read.

        Raises:
            StorageError: The file cannot be read.
        """
        body = self._followers[rank].find(report, report_of) if self._followers else None
        return None if body is None else WrittenReport(body + b"}")

    def _prepare(self, rank: int, message: object) -> None:
        """See to it that a rank's file is read as far as it may be before its event is taken."""
        if message == NOTICE:
            self._notice(rank)
        elif message is None:  # its end: no message will come any more
            self._told(rank, math.inf)
            self._valid[rank] = 0.0  # for one read
        elif isinstance(message, Reported):
            self._told(rank, message.report - 1)  # or never will

    def _to_read(self, event: object, rank: int | None) -> list[int]:
        """Return the ranks whose files are to be read before an event is taken."""
        if isinstance(event, Posted):
            self._behind |= event.message != NOTICE
            return [rank] if rank in self._valid else []
        if time.monotonic() >= self._next_read:
            self._next_read = time.monotonic() + _READ_EVERY_S
        elif isinstance(event, Output) or (event is Signal.READ_REPORTS and not self._behind):
            return []
        self._behind = False
        return list(self._valid)

    def _told(self, rank: int, report: float) -> None:
        """Take note that messages have told of the reports up to one: reading goes on after it."""
        self._newest[rank] = report
        if rank in self._halted and report >= self._halted[rank]:
            del self._halted[rank]
            self._notice(rank)

    def _notice(self, rank: int) -> None:
        now = time.monotonic()
        if not self._valid:
            self._next_read = now + _READ_EVERY_S
        self._valid[rank] = now + _VALID_S

    def _read(self, rank: int) -> Iterator[tuple[int, WrittenReport]]:
        if time.monotonic() >= self._valid[rank]:
            del self._valid[rank]
        for body, count in self._followers[rank].lines(TOLD):
            report = WrittenReport(body + b"}", count)
            if not body.endswith(TOLD):
                yield rank, report
            elif report.report > self._newest[rank]:
                self._halted[rank] = report.report
                self._valid.pop(rank, None)
                return
