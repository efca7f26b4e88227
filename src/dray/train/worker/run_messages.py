"""Messages between ranks and the controller."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dray.train.storage.checksums import Fingerprint
from dray.train.storage.copies import Care
from dray.train.storage.place import Place, RemotePath


@dataclass(frozen=True)
class RunInfo:
    """The facts of a run that every worker of an attempt needs.

    Attributes:
        token: Contents of the directory's lock file; None if workers need not look.
        first_report: The number of the attempt's first report.
        report_barrier: Whether each report waits for every rank.
        may_be_late: Whether nobody waits for what a report without files tells.
        paced: Whether ranks keep close to the callbacks that hear of each report, see `Heard`.
        files_followed: Whether the driver reads reports without files where ranks write them.
        positions: rank -> dataset -> the rank's position in it, of the checkpoint; of as many ranks
            as made that.
        working_directory: Working directory of workers; None leaves them where they are.
        filesystem: File system of `path`, of fsspec; None is the local one.
        log_level: The level of the root logger, if the script has configured it.
    """

    path: str
    token: str | None
    attempt: int
    first_report: int
    checkpoint: str | None
    report_barrier: bool = False
    may_be_late: bool = True
    paced: bool = False
    files_followed: bool = False
    positions: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    working_directory: str | None = None
    validates: bool = False
    care: Care = Care()  # noqa: RUF009 (it cannot be changed)
    filesystem: Any = field(default=None, repr=False)
    log_level: int | None = None

    @property
    def place(self) -> Place:
        """The place of the run."""
        return self.place_of(self.path)

    def place_of(self, path: str) -> Place:
        """Return the place of a path on the run's file system."""
        return Path(path) if self.filesystem is None else RemotePath(path, self.filesystem)


@dataclass(frozen=True)
class Assignment:
    """A worker's place in the run.

    Attributes:
        address: Its node's.
        family: The family of its accelerators, such as "nvidia"; None if it has none.
        devices: The ids of its accelerators, by resource name.
        node_devices: Those of all workers on its node.
        shares_devices: Whether it is shown those of all.
        cpus: Number of CPUs that the user has asked for; None is a fair share of its node's.
        pinned: Whether it runs on cores of its own.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    address: str
    run: RunInfo
    family: str | None = None
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    node_devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shares_devices: bool = False
    cpus: float | None = None
    pinned: bool = False


# Worker -> controller.


@dataclass(frozen=True)
class Prepared:
    """The files of a checkpoint, put together by a rank before its report.

    Attributes:
        path: Their directory, which becomes the checkpoint if no other rank brings files.
        is_due: Whether `Secured` is to follow.
    """

    path: str
    files: dict[str, Fingerprint]
    is_due: bool = False


@dataclass(frozen=True)
class Reported:
    """A rank has made a report; with `files`, it waits for the checkpoint's commit.

    Attributes:
        metrics: Its metrics, encoded; empty if that could not be done.
        directory: The name that the checkpoint is to have, if it was given one.
        in_place: Whether the files lie in the run's directory already, under that name.
        validation: Wish for a validation, as `ValidationTaskConfig.to_json` says it, or empty;
            None if there is to be none.
        positions: Dataset -> the rank's position in it.
        waited: Dataset -> seconds that the rank has waited for its rows in this attempt.
        prepared: The files, if they are put together already.
        trouble: Reason why it has no files, though it was to bring some, or not its metrics; None
            if all is well.
    """

    report: int
    metrics: dict[str, object]
    files: tuple[str, ...] | None = None
    directory: str | None = None
    in_place: bool = False
    validation: dict[str, object] | None = None
    positions: dict[str, object] | None = None
    waited: dict[str, float] | None = None
    prepared: Prepared | None = None
    trouble: str | None = None
    count = 1  # of the reports for which it stands

    @property
    def has_metrics(self) -> bool:
        """True if there are metrics, be they an empty dict."""
        return bool(self.metrics)


# Of a rank that leaves reports in its file of metrics alone: there are some, see `report_files`.
NOTICE = b""
# Seconds after a notice whose reports it covers: the rank gives no other.
NOTICE_S = 1.0
# Last member, before the checksum, of the line of a report of which a message tells as well.
TOLD = b',"told":true'


def line_of(report: int, attempt: int, now: float, members: bytes) -> bytes:
    """Return a report as a JSON object: a line of the rank's file, and, without files, a message.

    Args:
        now: The time, in seconds since the epoch.
        members: The members of the object that `encode` makes of its metrics, as JSON.
    """
    return b'{"report":%d,"attempt":%d,"time":%.6f,%b}' % (report, attempt, now, members)


def report_of(line: bytes) -> int:
    """Return the number of the report that `line_of` has written."""
    return int(line[line.index(b":") + 1 : line.index(b",")])


class WrittenReport(Reported):
    """A report without files, of which there is the line alone; its metrics are read as needed.

    Args:
        line: As `line_of` has made it, with the members that its file may have added.
        count: Number of reports of which it is the last, all like it, and for which it stands.
    """

    line: bytes
    has_metrics = True

    def __init__(self, line: bytes, count: int = 1) -> None:
        self.__dict__.update(report=report_of(line), line=line, count=count)

    @functools.cached_property
    def metrics(self) -> dict[str, object]:
        """Its metrics, encoded."""
        record = json.loads(self.line.decode())
        return {name: record[name] for name in ("metrics", "types") if name in record}


@dataclass(frozen=True)
class Staged:
    """A rank has put its share of a checkpoint's files in place.

    Attributes:
        trouble: Reason why it could not; None if it could.
        is_due: Whether `Secured` is to follow.
    """

    report: int
    files: dict[str, Fingerprint]
    trouble: str | None = None
    is_due: bool = False


@dataclass(frozen=True)
class Secured:
    """A rank has seen its share of a committed checkpoint onto the disk.

    Attributes:
        trouble: Reason why it could not; None if it could.
    """

    report: int
    files: dict[str, Fingerprint]
    trouble: str | None = None


@dataclass(frozen=True)
class CollectiveArrival:
    """A rank has come to a collective, with pickled data or none, and waits for the others."""

    sequence: int
    name: str
    data: tuple[bytes, ...]


@dataclass(frozen=True)
class Listing:
    """A rank asks for the run's checkpoints, once the reports below a number are done.

    Attributes:
        request: Number of the request, of that rank.
        below: The number.
        validated: Whether their validations are to be done as well.
    """

    request: int
    below: int
    validated: bool


@dataclass(frozen=True)
class NextReport:
    """The number of a rank's next report, which it was asked for before it stops."""

    report: int


# Controller -> worker.


@dataclass(frozen=True)
class Share:
    """Stage these files of your checkpoint."""

    report: int
    staging: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class ReportDone:
    """Every rank has made the report, and its checkpoint, if it has one, is committed.

    Attributes:
        path: Its checkpoint.
        trouble: Reason why there is no checkpoint, though ranks have brought one.
        alone: Whether one rank alone has brought files.
        provisional: Whether `Secured` is awaited of ranks that have said so.
    """

    report: int
    path: str | None
    trouble: str | None = None
    alone: bool = False
    provisional: bool = False


# Reports of a rank that callbacks have not heard of at most, and after how many it is told.
MOST_UNHEARD, TOLD_EVERY = 32, 8


@dataclass(frozen=True)
class Heard:
    """The driver has taken a rank's reports up to one, and its callbacks have heard of them.

    Without it, ranks would run ahead of slow callbacks without limit, and the driver would hear
    of Ctrl-C only after all that they have reported meanwhile.
    """

    report: int


@dataclass(frozen=True)
class GivenUp:
    """End the train function: it waits for a rank that has stopped."""


@dataclass(frozen=True)
class Listed:
    """The run's checkpoints, oldest first: path, metrics (encoded, in parts), and status."""

    request: int
    checkpoints: tuple[tuple[str, tuple[dict[str, object], ...], str], ...]


@dataclass(frozen=True)
class CollectiveResult:
    """All ranks have come to the collective; this is what they brought, by rank."""

    sequence: int
    data: tuple[bytes, ...]


@dataclass(frozen=True)
class StopAsked:
    """Say which report is your next one, and go on no further than it before `StopRequested`."""


@dataclass(frozen=True)
class StopRequested:
    """End the train function at the first report that has this number, or a higher one."""

    report: int
