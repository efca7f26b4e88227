"""The files of a checkpoint: their list, and their way into the staging directory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dray.errors import StorageError
from dray.train.storage.checksums import Fingerprint, digest_open
from dray.train.storage.copies import Care, copy_file
from dray.train.storage.paths import check_directory

# The manifest of a committed checkpoint; not one of its files.
MANIFEST = ".dray.json"
MANIFEST_DRAFT = ".dray.draft"
# Metadata that users write at any time, before and after the checkpoint is committed.
METADATA = ".metadata.json"
METADATA_DRAFT = ".metadata.draft"

# More than there are cores: they wait for the disk, which is flushed faster by many at a time.
_THREADS = 8
# Of many items a thread takes so many at a time: to hand one over costs more than a small file.
_CHUNK = 32
# A file of so many bytes is worth a thread to flush it while it is read.
_LARGE = 16 << 20
# Errors of fsync where directories have none, as those that a virtual machine shares with its host.
_NO_FLUSH = {errno.EINVAL, errno.EOPNOTSUPP}
_OTHER_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a broken symbolic link",
}

T = TypeVar("T")
R = TypeVar("R")


def list_files(directory: str) -> list[str]:
    """Return the files below a directory, relative to it, sorted; links count as what they mean.

    Raises:
        StorageError: There is no such directory, or something in it cannot be copied.
    """
    check_directory(directory)
    with StorageError.instead(f"the checkpoint {directory} cannot be read"):
        found = sorted(_walk(directory, "", ()))
    return without_own(found)


def without_own(names: Iterable[str]) -> list[str]:
    """Return the names of files that are not dray's own."""
    own = (MANIFEST, MANIFEST_DRAFT)
    return [name for name in names if name not in own and not name.startswith(METADATA_DRAFT)]


def _walk(top: str, below: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the files in a directory, given the identities of those that it lies in."""
    here = os.stat(os.path.join(top, below))
    identity = (here.st_dev, here.st_ino)
    if identity in above:
        raise StorageError(
            f"the checkpoint {top} cannot be kept: {below} is a link to a directory that "
            "contains it; remove it"
        )
    with os.scandir(os.path.join(top, below)) as entries:
        for entry in entries:
            name = os.path.join(below, entry.name)
            if entry.is_dir():
                yield from _walk(top, name, (*above, identity))
            elif entry.is_file():
                yield name
            else:
                kind = stat.S_IFMT(entry.stat(follow_symlinks=not _is_dangling(entry)).st_mode)
                raise StorageError(
                    f"the checkpoint {top} cannot be kept: {name} is "
                    f"{_OTHER_KINDS.get(kind, 'not a file')}, which cannot be copied; remove it"
                )


def _is_dangling(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)


def stage(
    source: str,
    staging: Path,
    names: Sequence[str],
    care: Care = Care(),  # noqa: B008 (it cannot be changed)
    *,
    move: bool = False,
) -> dict[str, Fingerprint]:
    """Bring files into the staging directory, unless they lie there; return their fingerprints.

    Directories without any come along.

    If the care taken of them is deferred, `secure` is to follow, which adds checksums of those that
    were not copied.

    Args:
        names: Their names in either.
        move: Whether `source` is dray's own, so that they need not be copied.

    Raises:
        StorageError: A file cannot be copied or read.
    """
    if not names:  # nobody waits for this rank: the checkpoint may be there already
        return {}
    with StorageError.instead(f"the checkpoint {source} cannot be read"):
        lie_there = staging.exists() and os.path.samefile(source, staging)
        movable = _movable(source, names) if move and not lie_there else set()
    if not lie_there:
        with StorageError.instead(f"no directory can be made in {staging}"):
            for folder in {os.path.dirname(name) for name in names}.union(_empty_folders(source)):
                (staging / folder).mkdir(parents=True, exist_ok=True)

    def bring(name: str) -> Fingerprint:
        origin, target = os.path.join(source, name), os.path.join(staging, name)
        with StorageError.instead(f"{origin} cannot be copied into {staging}"):
            if not lie_there and name not in movable:
                return copy_file(origin, target, care)
            if not lie_there:
                os.rename(origin, target)
            return os.stat(target).st_size, None

    ordered = sorted(names, key=movable.__contains__)  # links are read before what they mean goes
    copies = len(names) - len(movable)
    found = [*in_threads(bring, ordered[:copies]), *in_threads(bring, ordered[copies:])]
    brought = dict(zip(ordered, found, strict=True))
    return brought if care.is_deferred else secure(staging, brought, care)


def _empty_folders(top: str) -> Iterator[str]:
    for folder, folders, files in os.walk(top, followlinks=True):
        if not folders and not files:
            yield os.path.relpath(folder, top)


def secure(directory: Path, files: Mapping[str, Fingerprint], care: Care) -> dict[str, Fingerprint]:
    """See files onto the disk, and calculate the checksums that they lack; return fingerprints.

    A file that is not as it was staged, or not there, keeps the fingerprint that tells so.

    Raises:
        StorageError: The disk does not take them.
    """

    def see(name: str) -> Fingerprint:
        with StorageError.instead(f"{directory / name} cannot be flushed to the disk"):
            found = _secure_file(directory / name, files[name], care)
        return found if found[0] == files[name][0] else files[name]

    found = in_threads(see, list(files))
    if care.flush and files:
        with StorageError.instead(f"{directory} cannot be flushed to the disk"):
            in_threads(sync_directory, _folders(directory, files))
    return dict(zip(files, found, strict=True))


def has_lone_files(top: str, names: Collection[str]) -> bool:
    """Return whether all files of a directory lie there alone, so that it can be kept as it is.

    Raises:
        StorageError: The directory cannot be read.
    """
    with StorageError.instead(f"the checkpoint {top} cannot be read"):
        return len(_movable(top, names)) == len(names)


def _movable(top: str, names: Iterable[str]) -> set[str]:
    """Return the files of a directory that lie there alone: neither links, nor linked elsewhere."""
    real = os.path.realpath(top)
    own: dict[str, bool] = {}
    movable = set()
    for name in names:
        folder = os.path.dirname(name)
        if folder not in own:
            meant = os.path.realpath(os.path.join(top, folder))
            own[folder] = meant == os.path.normpath(os.path.join(real, folder))
        known = os.lstat(os.path.join(top, name))
        if own[folder] and known.st_nlink == 1 and stat.S_ISREG(known.st_mode):
            movable.add(name)
    return movable


def _secure_file(path: Path, known: Fingerprint, care: Care) -> Fingerprint:
    bare = care.checksums and known[1] is None
    try:
        with open(path, "rb", buffering=0) as file:
            descriptor = file.fileno()
            if not care.flush or not bare or known[0] < _LARGE:
                if care.flush:
                    os.fsync(descriptor)
                return digest_open(descriptor) if bare else known
            with ThreadPoolExecutor(
                1, "dray-files"
            ) as beside:  # the disk is busy, and so is a core
                flushed = beside.submit(os.fsync, descriptor)
                found = digest_open(descriptor)
                flushed.result()
            return found
    except FileNotFoundError:  # somebody has deleted the checkpoint
        return known


def _folders(top: Path, names: Iterable[str]) -> list[Path]:
    """Return a directory and those below it that hold the names."""
    found = {top}
    for folder in {os.path.dirname(name) for name in names}:
        path = top / folder
        while path not in found:
            found.add(path)
            path = path.parent
    return sorted(found)


def in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return what a function returns of each, called from several threads, to have disks busy."""
    if len(items) < 2:
        return [function(each) for each in items]
    size = min(_CHUNK, len(items) // (4 * _THREADS) or 1)
    chunks = [items[at : at + size] for at in range(0, len(items), size)]
    with ThreadPoolExecutor(min(_THREADS, len(items)), "dray-files") as threads:
        parts = threads.map(lambda chunk: [function(each) for each in chunk], chunks)
        return [result for part in parts for result in part]


def sync_directory(path: Path) -> None:
    """See the names in a directory onto the disk, unless somebody has deleted it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FLUSH:
            raise
    finally:
        os.close(descriptor)
