"""Remote checkpoints as directories of this node, downloaded once and verified.

A directory of the user in the system's temporary directory keeps them, under names made from their
contents. A process that reads one holds its lock shared. A process that downloads another one
deletes those that no process reads. Beside them are the directories in which processes write
checkpoints that are to be uploaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dray.errors import StorageError
from dray.train.storage.checkpoint_files import MANIFEST, without_own
from dray.train.storage.manifest import Committed, parse_manifest
from dray.train.storage.place import RemotePath
from dray.train.storage.remote.transfer import download, sizes_of


def fetch(place: RemotePath, target: Path) -> None:
    """Download the files of a checkpoint, and compare them with its manifest, if it has one.

    Raises:
        StorageError: It is not there, is damaged, or cannot be read or written.
    """
    sizes = sizes_of(place)
    of_files = {name: sizes[name] for name in without_own(sizes)}
    _fetch(place, target, of_files, _manifest(place))


def _fetch(
    place: RemotePath, target: Path, sizes: dict[str, int], committed: Committed | None
) -> None:
    lost = None if committed is None else committed.damaged_size(sizes)
    if lost is not None:
        raise _damaged(place, lost)
    known = {} if committed is None else committed.files
    checked = {name for name, (_, checksum) in known.items() if checksum}
    for name, found in download(place, target, sizes, checked):
        if name in known and found != known[name]:
            raise _damaged(place, name)


def _manifest(place: RemotePath) -> Committed | None:
    try:
        return parse_manifest(place, (place / MANIFEST).read_bytes())
    except FileNotFoundError:
        return None


def _damaged(place: RemotePath, name: str) -> StorageError:
    error = StorageError(
        f"the checkpoint {place} is damaged: {name} has changed since it was committed. Use "
        "another one of Result.best_checkpoints; fit() under the name of its run resumes from "
        "the one before"
    )
    error.damaged = str(place), name
    return error


@contextlib.contextmanager
def downloaded(place: RemotePath) -> Iterator[Path]:
    """Give a checkpoint as a directory of this node, to read only.

    Raises:
        StorageError: It is not there, is damaged, or cannot be read or written.
    """
    sizes, committed = sizes_of(place), _manifest(place)
    if committed is None:  # nothing would tell whether a copy of it is still the same
        with tempfile.TemporaryDirectory(prefix="dray-checkpoint-") as alone:
            _fetch(place, Path(alone), sizes, None)
            yield Path(alone)
        return
    known = [str(place), sorted(sizes.items()), sorted(committed.files.items())]
    key = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]
    cache = _cache()
    target = cache / key
    copy = dataclasses.replace(committed, path=target)

    def is_whole() -> bool:  # the system may delete old files of a temporary directory
        return target.exists() and copy.damaged_size() is None

    def fill() -> None:
        _delete_unheld(lock for lock in cache.glob("*.lock") if lock.stem != key)
        partial = cache / f"{key}.partial"
        for rest in (partial, target):
            shutil.rmtree(rest, ignore_errors=True)
        try:
            partial.mkdir()
            _fetch(place, partial, sizes, committed)
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    with StorageError.instead(f"checkpoints cannot be downloaded into {cache}"):
        lock = _hold(target, is_whole, fill)
    try:
        yield target
    finally:
        os.close(lock)


def _hold(target: Path, is_whole: Callable[[], bool], fill: Callable[[], None]) -> int:
    """Return a shared lock on a directory that is whole, made by `fill` if need be.

    A process that waits for another one holds no lock that the other may wait for: a rank that
    reads a checkpoint may be awaited by a rank that wants to read it.
    """
    while True:
        lock = _locked(target.with_suffix(".lock"), fcntl.LOCK_SH)
        if is_whole():
            return lock
        os.close(lock)
        filling = _locked(target.with_name("filling"), fcntl.LOCK_EX)
        try:
            if not is_whole():
                fill()
        finally:
            os.close(filling)


def own_directory() -> tuple[Path, Callable[[], None]]:
    """Make a directory for this process; of killed ones, who makes the next one deletes it.

    Returns:
        The directory, and what deletes it, unless forks of the process may use it still.

    Raises:
        StorageError: It cannot be made.
    """
    cache = _cache()
    _delete_unheld(cache.glob("own-*.lock"))
    own = cache / f"own-{os.urandom(8).hex()}"
    lock = _locked(own.with_suffix(".lock"), fcntl.LOCK_EX)
    own.mkdir()

    def delete() -> None:
        os.close(lock)
        _delete_unheld([own.with_suffix(".lock")])

    return own, delete


def _cache() -> Path:
    """Return the directory of this user's downloads, which nobody else may write.

    Raises:
        StorageError: It cannot be made, or is somebody else's.
    """
    path = Path(tempfile.gettempdir()) / f"dray-checkpoints-{os.getuid()}"
    with StorageError.instead(f"{path} cannot be made"):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StorageError(
            f"{path} is not a directory that only this user can write, so dray does not download "
            "checkpoints to it; delete it, or set TMPDIR"
        )
    return path


def _locked(path: Path, kind: int) -> int:
    """Return a lock that is held, on the file that has this name now."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, kind)
            if _is_at(lock, path):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _is_at(lock: int, path: Path) -> bool:
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return False
    held = os.fstat(lock)
    return (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino)


def _delete_unheld(locks: Iterable[Path]) -> None:
    """Delete the directories of those locks that nobody holds."""
    for path in locks:
        try:
            lock = _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        try:
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            shutil.rmtree(path.with_suffix(".partial"), ignore_errors=True)
            path.unlink()
        finally:
            os.close(lock)
