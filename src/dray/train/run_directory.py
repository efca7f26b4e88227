"""A run is its directory; this file knows the layout and how a checkpoint is committed.

    run.json                     configs, versions, engine
    events.jsonl                 state changes and failures, with times
    metrics/rank-00000.jsonl     every report of that rank
    logs/attempt-000/rank-00000.log
    checkpoint_000000/           files of all ranks, and the manifest .dray.json

A checkpoint is staged under another name in the same directory, its manifest is written last, and
then it is renamed. What has no manifest under its final name does not exist, so a kill at any
moment leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dray.errors import ConfigError, StorageError, join_names
from dray.train.metrics import decode, encode_json

MANIFEST = ".dray.json"
RUN = "run.json"
_EVENTS = "events.jsonl"
_METRICS = "metrics"
_LOGS = "logs"
_OWN = (RUN, _EVENTS, _METRICS, _LOGS)
_CHUNK = 1 << 20
_STAGING = ".staging-"
_REPLACED = ".replaced-"

# A file's size in bytes and its CRC-32.
Fingerprint = tuple[int, int]


@dataclass(frozen=True)
class Committed:
    """A committed checkpoint, as its manifest tells it.

    Attributes:
        path: Its directory.
        report: The number of the report it came with, from 0.
        world_size: How many ranks made it.
        files: Path in the directory -> size and CRC-32.
        metrics: rank -> that rank's metrics in the same report, encoded.
        time: When it was committed, in seconds since 1970.
    """

    path: Path
    report: int
    world_size: int
    files: Mapping[str, Fingerprint]
    metrics: Mapping[int, dict[str, Any]]
    time: float = field(default=0.0, compare=False)

    def rank_zero_metrics(self) -> dict[str, Any]:
        """Returns the metrics of the lowest rank that reported any."""
        return decode(self.metrics[min(self.metrics)]) if self.metrics else {}

    def damage(self) -> str | None:
        """Reads every file; returns the name of the first that is not as committed, or None."""
        for name, (size, checksum) in self.files.items():
            try:
                if _fingerprint(self.path / name) != (size, checksum):
                    return name
            except OSError:
                return name
        return None


class RunDirectory:
    """The directory of one run.

    Args:
        path: `<storage_path>/<name>`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    def metrics_path(self, rank: int) -> Path:
        """Returns where a rank's reports are kept."""
        return self.path / _METRICS / f"rank-{rank:05d}.jsonl"

    def log_path(self, attempt: int, rank: int) -> Path:
        """Returns where a rank's output is kept."""
        return self.path / _LOGS / f"attempt-{attempt:03d}" / f"rank-{rank:05d}.log"

    # Opening and closing, by the driver.

    def open(self) -> None:
        """Makes the directory if needed, and holds it against other drivers.

        Raises:
            StorageError: It cannot be written, or another driver is at this run.
        """
        try:
            (self.path / _METRICS).mkdir(parents=True, exist_ok=True)
            (self.path / _LOGS).mkdir(exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"the run directory {self.path} cannot be written ({error}); set "
                "RunConfig(storage_path=...) to a directory that you may write"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise StorageError(
                f"another process is at the run {self.path} now; give this one another "
                "RunConfig(name=...), or wait for that one to end"
            ) from error
        os.truncate(self._lock, 0)
        os.write(self._lock, secrets.token_hex(16).encode())
        self.recover()

    def token(self) -> str | None:
        """Returns what the driver that holds the directory has written, if it can be seen here."""
        try:
            return (self.path / ".lock").read_text(encoding="ascii")
        except OSError:
            return None

    def close(self) -> None:
        """Lets other drivers have the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def recover(self) -> None:
        """Clears away what killed workers, or a killed driver, had not committed."""
        for entry in list(self.path.iterdir()):
            if entry.name.startswith(_REPLACED):
                original = self.path / entry.name.removeprefix(_REPLACED)
                if not original.exists():
                    entry.rename(original)
                else:
                    shutil.rmtree(entry)
            elif entry.name.startswith(_STAGING):
                shutil.rmtree(entry)

    def write_run(self, description: Mapping[str, Any]) -> None:
        """Writes run.json, whole or not at all."""
        draft = self.path / ".run.json.draft"
        draft.write_text(json.dumps(_sayable(description), indent=2) + "\n", encoding="utf-8")
        draft.replace(self.path / RUN)

    def record(self, event: str, **details: Any) -> None:
        """Appends a line to events.jsonl."""
        line = json.dumps({"time": round(time.time(), 6), "event": event, **details})
        with open(self.path / _EVENTS, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    # Reading.

    def events(self) -> list[dict[str, Any]]:
        """Returns the lines of events.jsonl."""
        return list(read_lines(self.path / _EVENTS))

    def next_attempt(self) -> int:
        """Returns the number that the next start of workers gets."""
        attempts = [int(m[1]) for e in self._names(_LOGS) if (m := re.match(r"attempt-(\d+)$", e))]
        return max(attempts, default=-1) + 1

    def _names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self.path / folder)
        except FileNotFoundError:
            return []

    def checkpoints(self) -> list[Committed]:
        """Returns the committed checkpoints, oldest first."""
        found = []
        for entry in os.scandir(self.path):
            if entry.is_dir() and not entry.name.startswith("."):
                committed = read_manifest(Path(entry.path))
                if committed is not None:
                    found.append(committed)
        return sorted(found, key=lambda c: (c.report, c.time))

    def next_checkpoint_name(self) -> str:
        """Returns `checkpoint_` and the first number that is higher than all there are."""
        numbers = [
            int(m[1]) for e in os.listdir(self.path) if (m := re.match(r"checkpoint_(\d+)$", e))
        ]
        return f"checkpoint_{max(numbers, default=-1) + 1:06d}"

    # The commit of a checkpoint: ranks stage files, the driver commits.

    def staging(self, report: int) -> Path:
        """Returns where the files of a report's checkpoint are put together."""
        return self.path / f"{_STAGING}{report}"

    def commit(self, staged: Path, committed: Committed) -> None:
        """Makes a staged checkpoint exist, whole, under its final name."""
        manifest = {
            "format": 1,
            "report": committed.report,
            "world_size": committed.world_size,
            "time": committed.time,
            "files": {name: list(fingerprint) for name, fingerprint in committed.files.items()},
            "ranks": {str(rank): record for rank, record in committed.metrics.items()},
        }
        staged.mkdir(exist_ok=True)
        with open(staged / MANIFEST, "w", encoding="utf-8") as file:
            file.write(encode_json(manifest))
            file.flush()
            os.fsync(file.fileno())
        replaced = self.path / f"{_REPLACED}{committed.path.name}"
        if committed.path.exists():
            committed.path.rename(replaced)
        staged.rename(committed.path)
        if replaced.exists():
            shutil.rmtree(replaced)
        _sync_directory(self.path)

    def delete(self, committed: Committed) -> None:
        """Deletes a checkpoint: its manifest first, so that half of it never counts."""
        (committed.path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(committed.path, ignore_errors=True)


def _sayable(value: Any) -> Any:
    """Returns a value as JSON can say it: what it cannot, such as a set, as Python shows it."""
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else repr(k): _sayable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(each) for each in value]
    return value if isinstance(value, str | int | float | None) else repr(value)


def local_path(path: object, what: str) -> Path:
    """Returns the absolute form of the path of a directory, which may be a file:// URL.

    Args:
        path: What the user gave.
        what: Its name, for the message.

    Raises:
        ConfigError: It is something else.
    """
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(given, str):
        raise ConfigError(f"{what} must be the path of a directory, not {path!r}")
    scheme = re.match(r"^([a-z][a-z0-9+.-]+)://", given)
    if scheme and scheme[1] != "file":
        raise ConfigError(
            f"{what}={given!r}: {scheme[1]}:// storage is not supported yet; use a local "
            "or network-mounted directory"
        )
    return Path(os.path.abspath(os.path.expanduser(given.removeprefix("file://"))))


def check_name(name: object, what: str) -> None:
    """Checks that a name can be that of a directory.

    Raises:
        ConfigError: It cannot.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0]+", name) or name in (".", ".."):
        raise ConfigError(f"{what} must be the name of one directory, not {name!r}")


def check_checkpoint_name(name: str) -> None:
    """Checks that a name in a run's directory can be that of a checkpoint.

    Raises:
        ConfigError: It cannot.
    """
    check_name(name, "checkpoint_dir_name")
    if name in _OWN or name.startswith("."):
        raise ConfigError(
            f"checkpoint_dir_name must be another name than {name!r}: the run directory has "
            f"{join_names(_OWN)} of its own, and names that begin with a dot"
        )


def check_directory(path: str) -> None:
    """Checks that a checkpoint's directory is there.

    Raises:
        StorageError: It is not.
    """
    if os.path.isfile(path):
        raise StorageError(
            f"the checkpoint {path} is a file, not a directory; save it in a directory of its own, "
            "and give that"
        )
    if not os.path.isdir(path):
        raise StorageError(
            f"the checkpoint {path} is not there; CheckpointConfig(num_to_keep=...) "
            "deletes old ones, and a temporary directory ends with its `with` block"
        )


def read_manifest(path: Path) -> Committed | None:
    """Returns what a checkpoint's manifest says, or None if there is no manifest to trust."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        return Committed(
            path=path,
            report=manifest["report"],
            world_size=manifest["world_size"],
            files={name: (size, crc) for name, (size, crc) in manifest["files"].items()},
            metrics={int(rank): record for rank, record in manifest["ranks"].items()},
            time=manifest["time"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_lines(path: Path) -> Iterable[dict[str, Any]]:
    """Yields the records of a JSON-lines file; a last line cut short by a kill is left out."""
    if not path.exists():
        return
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def list_files(directory: str) -> list[str]:
    """Returns the files below a directory, relative to it, sorted.

    Raises:
        StorageError: There is no such directory.
    """
    check_directory(directory)
    found = []
    for folder, _, names in os.walk(directory, followlinks=True):
        found += [os.path.relpath(os.path.join(folder, name), directory) for name in names]
    return sorted(name for name in found if name != MANIFEST)


def stage(source: str, staging: Path, names: Iterable[str]) -> dict[str, Fingerprint]:
    """Copies files into the staging directory; returns their fingerprints.

    Raises:
        StorageError: A file cannot be copied.
    """
    fingerprints = {}
    for name in names:
        target = staging / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fingerprints[name] = _copy(os.path.join(source, name), target)
        except OSError as error:
            raise StorageError(f"{name} cannot be copied into {staging}: {error}") from error
    return fingerprints


def _copy(source: str, target: Path) -> Fingerprint:
    size = checksum = 0
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while chunk := reader.read(_CHUNK):
            writer.write(chunk)
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
    shutil.copymode(source, target)
    return size, checksum


def _fingerprint(path: Path) -> Fingerprint:
    size = checksum = 0
    with open(path, "rb") as reader:
        while chunk := reader.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
    return size, checksum


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
