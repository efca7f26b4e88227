"""What ranks and the controller say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dray.train.run_directory import Fingerprint


@dataclass(frozen=True)
class RunInfo:
    """What every worker of an attempt must know of the run.

    Attributes:
        path: The run directory.
        token: What the directory's lock file holds; None if workers need not look.
        attempt: The attempt's number.
        first_report: The number of the attempt's first report.
        checkpoint: Where to go on from.
    """

    path: str
    token: str | None
    attempt: int
    first_report: int
    checkpoint: str | None


@dataclass(frozen=True)
class Assignment:
    """A worker's place in the run."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    address: str
    run: RunInfo
    gpus: float = 0
    own_devices: bool = False


# Worker -> controller.


@dataclass(frozen=True)
class Reported:
    """A rank has made a report; with `files`, it waits for the checkpoint's commit."""

    report: int
    metrics: dict[str, Any]
    files: tuple[str, ...] | None = None
    directory: str | None = None


@dataclass(frozen=True)
class Staged:
    """A rank has put its share of a checkpoint's files in place."""

    report: int
    files: dict[str, Fingerprint]


@dataclass(frozen=True)
class Joined:
    """A rank has come to a collective, with pickled data, and waits for the others."""

    sequence: int
    name: str
    data: bytes


# Controller -> worker.


@dataclass(frozen=True)
class Share:
    """Stage these files of your checkpoint."""

    report: int
    staging: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class CommitDone:
    """The report's checkpoint is committed."""

    report: int
    path: str


@dataclass(frozen=True)
class Gathered:
    """All ranks have come to the collective."""

    sequence: int
    data: bytes


@dataclass(frozen=True)
class StopAsked:
    """End the train function at the first report that has this number, or a higher one."""

    report: int
