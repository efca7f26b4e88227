"""A directory as the storage of a run.

A checkpoint is staged under another name in the same directory. Its manifest is written last, and
then it is renamed. A directory that is to be deleted gets another name first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from dray.errors import StorageError
from dray.train.storage.base import Storage
from dray.train.storage.checkpoint_files import stage, sync_directory
from dray.train.storage.checksums import Fingerprint
from dray.train.storage.copies import Care
from dray.train.storage.manifest import Committed, read_manifest, write_manifest
from dray.train.storage.openers import regular, unlinked
from dray.train.storage.paths import check_not_planted
from dray.train.storage.sealed import Fits, LineFile, last_record, read_lines

STAGING = ".staging-"
_REPLACED = ".replaced-"
_DELETED = ".deleted-"
# A file of so many bytes is read within 0.2 s, checksums and all.
_SHORT = 4 << 20
# Of a line that is read from the end of a longer one.
_LONGEST_LINE = 64 << 10
# Errors of flock where a file system has no locks, as Lustre and NFS may be mounted.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


class LocalStorage(Storage[Path]):
    """A directory that holds one run."""

    in_place = False

    def __init__(self, path: Path, warn_once: Callable[[str], object]) -> None:
        super().__init__(path, warn_once)
        self._lock: int | None = None
        self._pid = os.getpid()

    def open(self) -> None:
        unwritable = (
            f"the run directory {self.path} cannot be written (set RunConfig(storage_path=...) to "
            "a directory that you may write)"
        )
        with StorageError.instead(unwritable):
            self.path.mkdir(parents=True, exist_ok=True)
            check_not_planted(self.path)
            (self.path / "metrics").mkdir(exist_ok=True)
            (self.path / "logs").mkdir(exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(self.path / ".lock", flags, 0o600)
        try:
            self._take_lock(self._lock)
            with StorageError.instead(unwritable):
                os.truncate(self._lock, 0)
                os.write(self._lock, os.urandom(16).hex().encode())
            self.recover()
        except BaseException:
            self.close()
            raise

    def _take_lock(self, lock: int) -> None:
        with StorageError.instead(f"{self.path / '.lock'} cannot be locked"):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StorageError(
                    f"another fit() uses the run {self.path} now, here or on another machine; "
                    "give this one another RunConfig(name=...), or wait for that one to end"
                ) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                self._warn_once(
                    f"the file system of {self.path} has no locks ({error.strerror}): nothing "
                    "keeps another fit() from this run at the same time"
                )

    def token(self) -> str | None:
        lock = self.path / ".lock"
        with StorageError.instead(f"{lock} cannot be read"):
            try:
                return lock.read_text(encoding="ascii", errors="replace")
            except (FileNotFoundError, NotADirectoryError):
                return None

    def close(self) -> None:
        if self._lock is not None:
            if os.getpid() == self._pid:  # the lock is that of all forks which have the file
                with contextlib.suppress(OSError):
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def recover(self) -> None:
        with StorageError.instead(f"the run directory {self.path} cannot be tidied up"):
            for entry in list(self.path.iterdir()):
                if entry.name.startswith(_REPLACED):
                    original = self.path / entry.name.removeprefix(_REPLACED)
                    if not original.exists():
                        entry.rename(original)
                    else:
                        self._discard(entry)
                elif entry.name.startswith((STAGING, _DELETED)):
                    self._discard(entry)

    def _discard(self, entry: Path) -> None:
        """Delete a directory, under a name by which a driver that is killed meanwhile is known."""
        doomed = entry
        if not entry.name.startswith(_DELETED):
            doomed = self.path / f"{_DELETED}{os.urandom(4).hex()}{entry.name}"
            entry.rename(doomed)
        try:
            shutil.rmtree(doomed)
        except OSError as error:  # it takes up room, and means nothing any more
            self._warn_once(f"{doomed} cannot be deleted ({error}); delete it yourself")

    def names(self, folder: str = "") -> list[str]:
        with StorageError.instead(f"the run directory {self.path} cannot be read"):
            return os.listdir(self.path / folder)

    def write(self, name: str, text: bytes) -> None:
        draft = self.path / f".{name}.draft"
        with StorageError.instead(f"{self.path / name} cannot be written"):
            with open(draft, "wb", opener=unlinked) as file:
                file.write(text)
            draft.replace(self.path / name)

    def begin_logs(self, folder: str) -> None:
        logs = self.path / folder
        with StorageError.instead(f"the logs in {logs} cannot be written"):
            logs.mkdir(parents=True, exist_ok=True)

    def log(self, name: str) -> IO[bytes]:
        return open(self.path / name, "ab", buffering=0, opener=unlinked)

    def lines(self, name: str, generation: int | None) -> LineFile:
        return LineFile(self.path / name)

    def read_lines(
        self, name: str, warn: Callable[[str], object], fits: Fits
    ) -> Iterator[dict[str, Any]]:
        return read_lines(self.path / name, warn, fits)

    def last_line(self, name: str, fits: Fits) -> dict[str, Any] | None:
        path = self.path / name
        with StorageError.instead(f"{path} cannot be read"):
            if not path.exists() or path.stat().st_size <= _SHORT:
                return None
            with open(path, "rb", opener=regular) as file:
                file.seek(-_LONGEST_LINE, os.SEEK_END)
                return last_record(file.read(), fits)

    # The commit of a checkpoint: ranks stage files, the driver commits.

    def staging(self, report: int) -> Path:
        return self.path / f"{STAGING}{report}"

    def begin_staging(self, report: int, name: str | None) -> Path:
        staging = self.staging(report)
        with StorageError.instead(
            f"the checkpoint of report {report} cannot be put into {staging}"
        ):
            staging.mkdir()
        return staging

    def stage(
        self, source: str, staging: Path, names: Sequence[str], care: Care
    ) -> dict[str, Fingerprint]:
        # They are moved out of another staging directory of this run, and copied from elsewhere.
        own = os.path.dirname(source) == str(self.path)
        move = own and os.path.basename(source).startswith(STAGING)
        return stage(source, staging, names, care, move=move)

    def abandon_staging(self, report: int) -> None:
        with StorageError.instead(f"{self.staging(report)} cannot be deleted"):
            self._discard(self.staging(report))

    def commit(self, staged: Path, committed: Committed, *, flush: bool) -> None:
        path = self.path / committed.path.name
        replaced = self.path / f"{_REPLACED}{path.name}"
        with StorageError.instead(f"the checkpoint {path} cannot be committed"):
            staged.mkdir(exist_ok=True)
            write_manifest(staged, committed, flush=flush)
            if flush:
                sync_directory(staged)
            if staged != path:
                if path.exists():
                    os.listdir(path)  # a file is somebody's, and is not replaced
                    path.rename(replaced)
                staged.rename(path)
            if flush:
                sync_directory(self.path)
            if replaced.exists():
                self._discard(replaced)

    def manifests(self, names: Sequence[str]) -> Iterator[Committed | StorageError | None]:
        for name in names:
            try:
                yield read_manifest(self.path / name)
            except StorageError as error:
                yield error

    def is_abandoned(self, name: str) -> bool:
        return (self.path / name).is_dir()

    def discard(self, path: Path) -> None:
        with StorageError.instead(f"the checkpoint {path} cannot be deleted"):
            self._discard(path)
