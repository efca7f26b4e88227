"""The run directory: its layout, and the commit of a checkpoint to it.

    run.json                     configs, versions, engine
    events.jsonl                 state changes and failures, with times
    metrics/rank-00000.jsonl     every report of that rank
    logs/attempt-000/rank-00000.log
    working_dir/                 where workers work, with RAY_CHDIR_TO_TRIAL_DIR=1
    checkpoint_000000/           files of all ranks, and the manifest .dray.json

A checkpoint exists only if it has a manifest under its final name. The storage writes the manifest
last, so that a kill at any moment leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dray import host
from dray.errors import NoRunError, StorageError, visible
from dray.train.storage.base import Lines, Log, Storage
from dray.train.storage.checkpoint_files import MANIFEST
from dray.train.storage.copies import Care
from dray.train.storage.line_follower import LineFollower
from dray.train.storage.local_storage import LocalStorage
from dray.train.storage.manifest import Committed
from dray.train.storage.names import EVENTS, LOGS, METRICS, RUN, WORKING, is_checkpoint_name
from dray.train.storage.place import Place, RemotePath, content_of
from dray.train.storage.remote.object_storage import ObjectStorage
from dray.train.storage.sealed import Fits, seal, unseal
from dray.user_warnings import warn_user

# The event of the first checkpoint of a run that has none.
FIRST_CHECKPOINT = "first checkpoint"
_NUMBERED = re.compile(r"checkpoint_(\d+)$")
# The folder of an attempt's logs, or a part of a rank's reports in it.
_OF_ATTEMPT = re.compile(r"(?:attempt-|rank-\d+\.)(\d+)")


class RunDirectory:
    """The directory of one run; what cannot be read or written there raises StorageError.

    Args:
        path: `<storage_path>/<name>`.

    Attributes:
        storage: Its storage, which opens it, and deletes what is in it.
        warn: Tells the user of damage, each once.
    """

    def __init__(self, path: Place) -> None:
        self.path = path
        self.warn: Callable[[str], object] = warn_user
        self.storage: Storage[Any] = (
            ObjectStorage(path, self.warn_once)
            if isinstance(path, RemotePath)
            else LocalStorage(path, self.warn_once)
        )
        self._warned: set[str] = set()
        self._verified: set[Place] = set()
        self._damaged: set[Place] = set()
        self._newest: int | None = None  # the highest number of a checkpoint, once that is known

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    def metrics(self, rank: int, attempt: int) -> Lines:
        """Open the file of a rank's reports, to add those of an attempt."""
        return self.storage.lines(_metrics_name(rank), attempt)

    def follow_metrics(self, rank: int) -> LineFollower:
        """Follow the file of a rank's reports, of a run in a local directory."""
        assert isinstance(self.path, Path)
        return LineFollower(self.path / _metrics_name(rank))

    def reports(self, rank: int, fits: Fits) -> Iterator[dict[str, Any]]:
        """Yield a rank's reports, in the order in which they were made; of damage, only warn."""
        return self.storage.read_lines(_metrics_name(rank), self.warn_once, fits)

    def last_report(self, rank: int, fits: Fits) -> dict[str, Any] | None:
        """Return a rank's last report; of damage at their end, or if they are few, only warn."""
        last = self.storage.last_line(_metrics_name(rank), fits)
        if last is None:
            newest = deque(self.reports(rank, fits), maxlen=1)
            last = newest[0] if newest else None
        return last

    def begin_logs(self, attempt: int) -> None:
        """Make room for the logs of an attempt."""
        self.storage.begin_logs(_logs_name(attempt))

    def log(self, attempt: int, rank: int) -> Log:
        """Open the log of a rank; raises OSError if that cannot be."""
        return self.storage.log(f"{_logs_name(attempt)}/{_rank_name(rank)}.log")

    def log_path(self, attempt: int, rank: int) -> Place:
        """Return where a rank's output is kept."""
        return self.path / LOGS / f"attempt-{attempt:03d}" / f"{_rank_name(rank)}.log"

    @property
    def working_directory(self) -> Place:
        """The workers' directory, if they do not work where the driver does."""
        return self.path / WORKING

    def warn_once(self, text: str) -> None:
        """Tell the user, unless that has been told already."""
        if text not in self._warned:
            self._warned.add(text)
            self.warn(visible(text))

    def write_run(self, description: Mapping[str, Any]) -> None:
        """Write run.json, whole or not at all."""
        text = seal(json.dumps(_sayable(description), indent=2).encode())
        self.storage.write(RUN, text + b"\n")

    def record(self, event: str, **details: Any) -> None:
        """Append a line to events.jsonl; a run does not fail because it cannot be written."""
        try:
            with contextlib.closing(self.storage.lines(EVENTS, None)) as file:
                file.append({"time": round(time.time(), 6), "event": event, **details})
        except StorageError as error:
            self.warn_once(f"dray stops recording the events of the run: {error}")

    # Reading.

    def read_run(self) -> dict[str, Any]:
        """Return what run.json says.

        Raises:
            NoRunError: There is none.
            StorageError: It cannot be read, or is damaged.
        """
        path = self.path / RUN
        try:
            return unseal(content_of(path))
        except StorageError:  # of a storage far away, in words
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoRunError(
                f"{self.path} is not a run's directory: it has no run.json. Give the path "
                "that fit() printed: <storage_path>/<name>"
            ) from error
        except OSError as error:
            raise StorageError.of(error, f"{path} cannot be read") from error
        except ValueError as error:
            raise self.damaged_run(error) from error

    def damaged_run(self, why: object) -> StorageError:
        """Return the error for a run.json that does not say what it should."""
        return StorageError(
            f"{self.path / RUN} is damaged ({why}); fit() under the name {self.name!r} writes it "
            "anew, and the checkpoints and metrics beside it are not affected"
        )

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of events.jsonl."""
        return list(self.storage.read_lines(EVENTS, self.warn_once, lambda record: True))

    def first_checkpoint(self) -> str | None:
        """Return the name of the first checkpoint that the run has ever had, if it had one."""
        of_firsts = (e for e in self.events() if e.get("event") == FIRST_CHECKPOINT)
        return next((event["checkpoint"] for event in of_firsts), None)

    def next_attempt(self) -> int:
        """Return the number that the next start of workers gets, which no earlier one had."""
        names = [*self.storage.names(LOGS), *self.storage.names(METRICS)]
        return max((int(m[1]) for name in names if (m := _OF_ATTEMPT.match(name))), default=-1) + 1

    def checkpoints(self) -> list[Committed]:
        """Return the committed checkpoints, oldest first; without a sound manifest, only warn."""
        found = []
        damaged = {path.name for path in self._damaged}
        names = [
            name
            for name in sorted(self.storage.names())
            if is_checkpoint_name(name) and name not in damaged
        ]
        for name, committed in zip(names, self.storage.manifests(names), strict=True):
            if isinstance(committed, StorageError):
                self.warn_once(f"{committed}. {name} is left out")
            elif committed is not None and committed.is_unknown:
                self.warn_once(
                    f"{self.path / name} is left out: another machine made it, or this one "
                    "before it was rebooted, without confirming that it is on the disk, so dray "
                    "cannot tell whether its files are complete; dray does not delete it"
                )
            elif committed is not None:
                found.append(committed)
            elif _NUMBERED.match(name) and self.storage.is_abandoned(name):
                self.warn_once(
                    f"{self.path / name} has no manifest (.dray.json), so it is not a checkpoint "
                    "of this run, but the rest of one that was being deleted, or yours; dray "
                    "neither uses nor deletes it"
                )
        return sorted(found, key=lambda c: (c.report, c.time))

    def sound_checkpoints(self) -> list[Committed]:
        """Return the checkpoints whose files are there, of the right size; of others, only warn."""
        sound, found = [], self.checkpoints()
        sizes = self._sizes() if found else {}
        for committed in found:
            name = committed.damaged_size(sizes.get(committed.path.name))
            if name is None:
                sound.append(committed)
            elif (committed.path / MANIFEST).exists():  # else it was deleted meanwhile
                self.warn_once(
                    f"{committed.path.name} is damaged ({name} has changed since it was "
                    "committed) and left out"
                )
        return sound

    def _sizes(self) -> dict[str, dict[str, int]]:
        """Return the files of all folders of a run far away, by one listing; none of one here."""
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for file, size in self.path.sizes().items() if isinstance(self.path, RemotePath) else ():
            folder, _, name = file.partition("/")
            found[folder][name] = size
        return found

    def first_damaged_file(self, committed: Committed) -> str | None:
        """Read a checkpoint; return the first file that is not as it was committed, or None."""
        damaged = committed.first_damaged_file()
        if damaged is None:
            self._verified.add(committed.path)
        return damaged

    def take_damage(self, committed: Committed) -> None:
        """Leave out a checkpoint from now on, whose files are not as they were committed."""
        self._damaged.add(committed.path)

    def is_verified(self, committed: Committed) -> bool:
        """Return whether this driver has made a checkpoint, or has read it and found it sound."""
        return committed.path in self._verified

    def next_checkpoint_name(self) -> str:
        """Return `checkpoint_` and a number that is higher than all there were at first."""
        if self._newest is None:
            numbers = [int(m[1]) for name in self.storage.names() if (m := _NUMBERED.match(name))]
            self._newest = max(numbers, default=-1)
        while True:
            self._newest += 1
            name = f"checkpoint_{self._newest:06d}"
            if not (self.path / name).exists():  # else it is the user's
                return name

    # The commit of a checkpoint: ranks stage files, the driver commits.

    def care(self, *, flush: bool, checksums: bool) -> Care:
        """Return the care that is taken of checkpoints here."""
        boot = None if isinstance(self.path, RemotePath) else host.boot_id()
        return Care(flush, checksums, boot)

    def destination(self, report: int, name: str | None) -> Place:
        """Return where a report's checkpoint is to lie, by the name that it was given, if any."""
        if name is None and self.storage.in_place:
            staging: Place = self.storage.staging(report)
            return staging
        return self.path / (name or self.next_checkpoint_name())

    def begin_staging(self, report: int, name: str | None = None) -> Place:
        """Make the place in which the files of a report's checkpoint are put together."""
        if name is None and self.storage.in_place:
            name = self.next_checkpoint_name()
        staging: Place = self.storage.begin_staging(report, name)
        return staging

    def commit(self, staged: Place, committed: Committed, *, flush: bool = True) -> None:
        """Make a checkpoint exist, whole, under its final name, where it may lie already."""
        flush = flush and not committed.is_provisional
        self.storage.commit(staged, committed, flush=flush)
        self._verified.add(committed.path)
        self._damaged.discard(committed.path)

    def describe_again(self, committed: Committed, *, flush: bool = True) -> None:
        """Write the manifest of a checkpoint anew, as more is known of it."""
        self.storage.describe(committed.path, committed, flush=flush)


def _rank_name(rank: int) -> str:
    return f"rank-{rank:05d}"


def _metrics_name(rank: int) -> str:
    return f"{METRICS}/{_rank_name(rank)}.jsonl"


def _logs_name(attempt: int) -> str:
    return f"{LOGS}/attempt-{attempt:03d}"


def _sayable(value: Any) -> Any:
    """Return a JSON-compatible value; what JSON cannot hold, such as a set, as Python shows it."""
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else repr(k): _sayable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(each) for each in value]
    return value if isinstance(value, str | int | float | None) else repr(value)
