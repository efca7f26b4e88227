"""The run directory: its layout, and how a checkpoint is committed to it.

    run.json                     configs, versions, engine
    events.jsonl                 state changes and failures, with times
    metrics/rank-00000.jsonl     every report of that rank
    logs/attempt-000/rank-00000.log
    working_dir/                 where workers work, with RAY_CHDIR_TO_TRIAL_DIR=1
    checkpoint_000000/           files of all ranks, and the manifest .dray.json

A checkpoint is staged under another name in the same directory, its manifest is written last, and
then it is renamed. What has no manifest under its final name does not exist, so a kill at any
moment leaves either the whole checkpoint or none. What is to be deleted gets another name first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dray.errors import ConfigError, NoRunError, StorageError, join_names
from dray.train.storage.manifest import Committed, read_manifest, write_manifest
from dray.train.storage.paths import check_name
from dray.train.storage.sealed import LineFile, read_lines, seal, unseal

_RUN = "run.json"
_EVENTS = "events.jsonl"
_METRICS = "metrics"
_LOGS = "logs"
_WORKING = "working_dir"
_OWN = (_RUN, _EVENTS, _METRICS, _LOGS, _WORKING)
_STAGING = ".staging-"
_REPLACED = ".replaced-"
_DELETED = ".deleted-"
# Of 255: names of what is being replaced or deleted are longer.
_LONGEST_NAME = 200
_NUMBERED = re.compile(r"checkpoint_(\d+)$")


def _warn_user(text: str) -> None:
    warnings.warn(text, stacklevel=2)


class RunDirectory:
    """The directory of one run.

    Args:
        path: `<storage_path>/<name>`.

    Attributes:
        warn: Tells the user of damage, each once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warn: Callable[[str], object] = _warn_user
        self._lock: int | None = None
        self._warned: set[str] = set()
        self._verified: set[Path] = set()
        self._damaged: set[Path] = set()

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    def metrics_path(self, rank: int) -> Path:
        """Return where a rank's reports are kept."""
        return self.path / _METRICS / f"rank-{rank:05d}.jsonl"

    def log_path(self, attempt: int, rank: int) -> Path:
        """Return where a rank's output is kept."""
        return self.path / _LOGS / f"attempt-{attempt:03d}" / f"rank-{rank:05d}.log"

    @property
    def working_directory(self) -> Path:
        """The workers' directory, if they do not work where the driver does."""
        return self.path / _WORKING

    def warn_once(self, text: str) -> None:
        """Tell the user, unless that has been told already."""
        if text not in self._warned:
            self._warned.add(text)
            self.warn(text)

    # Opening and closing, by the driver.

    def open(self) -> None:
        """Make the directory if needed, and hold it against other drivers.

        Raises:
            StorageError: It cannot be written, or another driver is at this run.
        """
        try:
            (self.path / _METRICS).mkdir(parents=True, exist_ok=True)
            (self.path / _LOGS).mkdir(exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._take_lock(self._lock)
            self.recover()
        except BaseException:
            self.close()
            raise

    def _unwritable(self, error: OSError) -> StorageError:
        return StorageError.of(
            error,
            f"the run directory {self.path} cannot be written (set RunConfig(storage_path=...) to "
            "a directory that you may write)",
        )

    def _take_lock(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageError(
                f"another process is at the run {self.path} now; give this one another "
                "RunConfig(name=...), or wait for that one to end"
            ) from error
        except OSError as error:
            raise StorageError.of(error, f"{self.path / '.lock'} cannot be locked") from error
        try:
            os.truncate(lock, 0)
            os.write(lock, secrets.token_hex(16).encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def token(self) -> str | None:
        """Return what the driver that holds the directory has written, if it can be seen here."""
        try:
            return (self.path / ".lock").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None

    def close(self) -> None:
        """Let other drivers have the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def recover(self) -> None:
        """Clear away what killed workers, or a killed driver, had not committed or deleted.

        Raises:
            StorageError: The directory cannot be written.
        """
        with StorageError.instead(f"the run directory {self.path} cannot be tidied up"):
            for entry in list(self.path.iterdir()):
                if entry.name.startswith(_REPLACED):
                    original = self.path / entry.name.removeprefix(_REPLACED)
                    if not original.exists():
                        entry.rename(original)
                    else:
                        self._discard(entry)
                elif entry.name.startswith((_STAGING, _DELETED)):
                    self._discard(entry)

    def _discard(self, entry: Path) -> None:
        """Delete a directory, under a name by which a driver that is killed meanwhile is known."""
        doomed = entry
        if not entry.name.startswith(_DELETED):
            doomed = self.path / f"{_DELETED}{secrets.token_hex(4)}{entry.name}"
            entry.rename(doomed)
        try:
            shutil.rmtree(doomed)
        except OSError as error:  # it takes up room, and means nothing any more
            self.warn_once(f"{doomed} cannot be deleted ({error}); delete it yourself")

    def write_run(self, description: Mapping[str, Any]) -> None:
        """Write run.json, whole or not at all.

        Raises:
            StorageError: It cannot be written.
        """
        draft = self.path / ".run.json.draft"
        text = seal(json.dumps(_sayable(description), indent=2).encode())
        with StorageError.instead(f"{self.path / _RUN} cannot be written"):
            draft.write_bytes(text + b"\n")
            draft.replace(self.path / _RUN)

    def record(self, event: str, **details: Any) -> None:
        """Append a line to events.jsonl; a run does not fail because it cannot be written."""
        try:
            with contextlib.closing(LineFile(self.path / _EVENTS)) as file:
                file.append({"time": round(time.time(), 6), "event": event, **details})
        except StorageError as error:
            self.warn_once(f"what happens to the run is not recorded any more: {error}")

    # Reading.

    def read_run(self) -> dict[str, Any]:
        """Return what run.json says.

        Raises:
            NoRunError: There is none.
            StorageError: It cannot be read, or is damaged.
        """
        path = self.path / _RUN
        try:
            return unseal(path.read_bytes())
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
            f"{self.path / _RUN} is damaged ({why}); fit() under the name {self.name!r} writes it "
            "anew, and the checkpoints and metrics beside it are not concerned"
        )

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of events.jsonl."""
        return list(read_lines(self.path / _EVENTS, self.warn_once))

    def next_attempt(self) -> int:
        """Return the number that the next start of workers gets."""
        attempts = [int(m[1]) for e in self._names(_LOGS) if (m := re.match(r"attempt-(\d+)$", e))]
        return max(attempts, default=-1) + 1

    def _names(self, folder: str = "") -> list[str]:
        with StorageError.instead(f"the run directory {self.path} cannot be read"):
            return os.listdir(self.path / folder)

    def checkpoints(self) -> list[Committed]:
        """Return the committed checkpoints, oldest first; of what has no sound manifest, only warn.

        Raises:
            StorageError: The directory cannot be read.
        """
        found = []
        for name in sorted(self._names()):
            path = self.path / name
            if name.startswith(".") or name in _OWN or path in self._damaged:
                continue
            try:
                committed = read_manifest(path)
            except StorageError as error:
                self.warn_once(f"{error}. {name} is left out")
                continue
            if committed is not None:
                found.append(committed)
            elif _NUMBERED.match(name) and path.is_dir():
                self.warn_once(
                    f"{path} has no manifest (.dray.json), so it is no checkpoint of this run: the "
                    "rest of one that was being deleted, or yours; nothing uses it, and nothing "
                    "deletes it"
                )
        return sorted(found, key=lambda c: (c.report, c.time))

    def sound_checkpoints(self) -> list[Committed]:
        """Return the checkpoints whose files are there, of the right sizes; of others, only warn.

        Raises:
            StorageError: The directory cannot be read.
        """
        sound = []
        for committed in self.checkpoints():
            name = committed.damaged_size()
            if name is None:
                sound.append(committed)
            else:
                self.warn_once(
                    f"{committed.path.name} is damaged ({name} is not as it was committed) and "
                    "left out"
                )
        return sound

    def first_damaged_file(self, committed: Committed) -> str | None:
        """Read a checkpoint; return the first file that is not as it was committed, or None."""
        damaged = committed.first_damaged_file()
        if damaged is None:
            self._verified.add(committed.path)
        else:
            self._damaged.add(committed.path)
        return damaged

    def is_verified(self, committed: Committed) -> bool:
        """Return whether this driver has made a checkpoint, or has read it and found it sound."""
        return committed.path in self._verified

    def next_checkpoint_name(self) -> str:
        """Return `checkpoint_` and the first number that is higher than all there are."""
        numbers = [int(m[1]) for name in self._names() if (m := _NUMBERED.match(name))]
        return f"checkpoint_{max(numbers, default=-1) + 1:06d}"

    # The commit of a checkpoint: ranks stage files, the driver commits.

    def staging(self, report: int) -> Path:
        """Return where the files of a report's checkpoint are put together."""
        return self.path / f"{_STAGING}{report}"

    def begin_staging(self, report: int) -> Path:
        """Make the directory in which the files of a report's checkpoint are put together.

        Raises:
            StorageError: It cannot be made.
        """
        staging = self.staging(report)
        with StorageError.instead(
            f"the checkpoint of report {report} cannot be put into {staging}"
        ):
            staging.mkdir()
        return staging

    def abandon_staging(self, report: int) -> None:
        """Delete what was put together of a report's checkpoint.

        Raises:
            StorageError: It cannot be deleted.
        """
        with StorageError.instead(f"{self.staging(report)} cannot be deleted"):
            self._discard(self.staging(report))

    def commit(self, staged: Path, committed: Committed) -> None:
        """Make a checkpoint exist, whole, under its final name, where it may lie already.

        Raises:
            StorageError: It cannot be written.
        """
        path = committed.path
        replaced = self.path / f"{_REPLACED}{path.name}"
        with StorageError.instead(f"the checkpoint {path} cannot be committed"):
            staged.mkdir(exist_ok=True)
            write_manifest(staged, committed)
            if staged != path:
                if path.exists():
                    os.listdir(path)  # a file is somebody's, and is not replaced
                    path.rename(replaced)
                staged.rename(path)
            _sync_directory(self.path)
            self._verified.add(path)
            self._damaged.discard(path)
            if replaced.exists():
                self._discard(replaced)

    def delete(self, committed: Committed) -> None:
        """Delete a checkpoint, so that half of it never counts.

        Raises:
            StorageError: It cannot be deleted.
        """
        with StorageError.instead(f"the checkpoint {committed.path} cannot be deleted"):
            self._discard(committed.path)


def _sayable(value: Any) -> Any:
    """Return a JSON-compatible value; what JSON cannot hold, such as a set, as Python shows it."""
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else repr(k): _sayable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(each) for each in value]
    return value if isinstance(value, str | int | float | None) else repr(value)


def check_checkpoint_name(name: str) -> None:
    """Check that a name in a run's directory can be that of a checkpoint.

    Raises:
        ConfigError: It cannot.
    """
    check_name(name, "checkpoint_dir_name")
    if name in _OWN or name.startswith("."):
        raise ConfigError(
            f"checkpoint_dir_name must be another name than {name!r}: the run directory has "
            f"{join_names(_OWN)} of its own, and names that begin with a dot"
        )
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise ConfigError(
            f"checkpoint_dir_name must be a name of at most {_LONGEST_NAME} bytes, not {name!r}"
        )


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
