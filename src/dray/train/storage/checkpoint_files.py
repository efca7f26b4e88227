"""The files of a checkpoint: which there are, and their copies and checksums."""

from __future__ import annotations

import os
import shutil
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from dray.errors import StorageError
from dray.train.storage.paths import check_directory

# The manifest of a committed checkpoint; not one of its files.
MANIFEST = ".dray.json"
MANIFEST_DRAFT = ".dray.draft"
# Metadata that users write at any time, before and after the checkpoint is committed.
METADATA = ".metadata.json"
METADATA_DRAFT = ".metadata.draft"

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
_OTHER_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link to nothing",
}

# A file's size in bytes and its CRC-32.
Fingerprint = tuple[int, int]


def list_files(directory: str) -> list[str]:
    """Return the files below a directory, relative to it, sorted; links count as what they mean.

    Raises:
        StorageError: There is no such directory, or something in it cannot be copied.
    """
    check_directory(directory)
    with StorageError.instead(f"the checkpoint {directory} cannot be read"):
        found = sorted(_walk(directory, "", ()))
    ours = (MANIFEST, MANIFEST_DRAFT)
    return [n for n in found if n not in ours and not n.startswith(METADATA_DRAFT)]


def _walk(top: str, below: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the files in a directory, given the identities of those that it lies in."""
    here = os.stat(os.path.join(top, below))
    identity = (here.st_dev, here.st_ino)
    if identity in above:
        raise StorageError(
            f"the checkpoint {top} cannot be kept: {below} is a link to a directory that it lies "
            "in; remove it"
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


def stage(source: str, staging: Path, names: Iterable[str]) -> dict[str, Fingerprint]:
    """Copy files into the staging directory, unless they lie there; return their fingerprints.

    Raises:
        StorageError: A file cannot be copied or read.
    """
    with StorageError.instead(f"the checkpoint {source} cannot be read"):
        if staging.exists() and os.path.samefile(source, staging):
            return {name: fingerprint(staging / name) for name in names}
    fingerprints = {}
    for name in names:
        target = staging / name
        with StorageError.instead(f"{os.path.join(source, name)} cannot be copied into {staging}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            fingerprints[name] = _copy(os.path.join(source, name), target)
    return fingerprints


def _copy(source: str, target: Path) -> Fingerprint:
    size = checksum = 0
    hole = False
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while chunk := reader.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
            hole = chunk == _ZEROS
            if hole:
                writer.seek(size)  # what is sparse stays so
            else:
                writer.write(chunk)
        if hole:
            writer.truncate(size)
    shutil.copymode(source, target)
    return size, checksum


def fingerprint(path: Path) -> Fingerprint:
    """Return the fingerprint of a file as it is now."""
    size = checksum = 0
    with open(path, "rb") as reader:
        while chunk := reader.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
    return size, checksum
