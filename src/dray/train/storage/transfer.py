"""Files on their way to a storage far away, and back: in parallel, in parts, in bounded memory."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dray.errors import StorageError
from dray.train.storage.checkpoint_files import (
    MANIFEST,
    MANIFEST_DRAFT,
    METADATA_DRAFT,
    stage,
)
from dray.train.storage.checksums import Fingerprint
from dray.train.storage.place import RemotePath, missing
from dray.train.storage.retry import persistently

# Requests at once; with parts of this size they hold 32 MiB.
_AT_ONCE = 4
_PART = 8 << 20
# Larger files are uploaded one after another, each in parts at once.
_LARGE = 2 * _PART


def upload(source: str, target: RemotePath, names: Iterable[str]) -> None:
    """Upload files of a local directory into a folder.

    Raises:
        StorageError: One cannot be read, or cannot be written there.
    """

    def put(name: str) -> None:
        _put(os.path.join(source, name), target / name, options)

    options = _part_options(target.filesystem)
    with StorageError.instead(f"the checkpoint {source} cannot be read"):
        sizes = {name: os.stat(os.path.join(source, name)).st_size for name in names}
    for folder in sorted({os.path.dirname(name) for name in sizes}):
        (target / folder if folder else target).make_folder()
    for name, size in sizes.items():
        if size >= _LARGE:
            put(name)
    with ThreadPoolExecutor(_AT_ONCE, "dray-uploads") as pool:
        list(pool.map(put, [name for name, size in sizes.items() if size < _LARGE]))


def _put(source: str, target: RemotePath, options: Mapping[str, int]) -> None:
    filesystem = target.filesystem
    try:
        persistently(
            f"{target} cannot be written",
            lambda: filesystem.put_file(source, target.path, **options),
        )
    except FileNotFoundError as error:
        if not os.path.exists(source):
            raise StorageError.of(error, f"{source} cannot be read") from error
        raise missing(target, error) from error


def _part_options(filesystem: Any) -> dict[str, int]:
    """Return what bounds the memory of an upload, as far as a file system can be told."""
    wanted = {"chunksize": _PART, "max_concurrency": _AT_ONCE}
    put = getattr(filesystem, "_put_file", filesystem.put_file)
    known = inspect.signature(put).parameters
    return {name: value for name, value in wanted.items() if name in known}


def download(source: RemotePath, target: Path, sizes: Mapping[str, int]) -> None:
    """Download files of a folder into a local directory.

    Args:
        source: The folder.
        target: The directory.
        sizes: The files and their sizes.

    Raises:
        StorageError: One cannot be read, or cannot be written here.
    """
    with ThreadPoolExecutor(_AT_ONCE, "dray-downloads") as pool:
        parts = []
        for name, size in sizes.items():
            with StorageError.instead(f"{target / name} cannot be written"):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                with open(target / name, "wb") as file:
                    file.truncate(size)
            for start in range(0, size, _PART):
                end = min(start + _PART, size)
                parts.append(pool.submit(_get_part, source / name, target / name, start, end))
        for part in parts:
            part.result()


def _get_part(source: RemotePath, target: Path, start: int, end: int) -> None:
    try:
        content = source.read_part(start, end)
    except FileNotFoundError as error:
        raise StorageError.of(error, f"{source} cannot be read") from error
    with StorageError.instead(f"{target} cannot be written"), open(target, "r+b") as file:
        file.seek(start)
        file.write(content)


def list_remote(place: RemotePath) -> list[str]:
    """Return the files below a folder, relative to it, sorted.

    Raises:
        StorageError: There are none, or they cannot be listed.
    """
    sizes = place.sizes()
    if not sizes:
        raise StorageError(f"the checkpoint {place} is not there, or has no files")
    ours = (MANIFEST, MANIFEST_DRAFT)
    return [n for n in sorted(sizes) if n not in ours and not n.startswith(METADATA_DRAFT)]


def look_at(place: RemotePath, names: Iterable[str]) -> dict[str, Fingerprint]:
    """Return the fingerprints of files far away, which takes their download.

    Raises:
        StorageError: One is not there, or cannot be read.
    """
    sizes, fingerprints = place.sizes(), dict[str, Fingerprint]()
    with tempfile.TemporaryDirectory(prefix="dray-checksums-") as directory:
        for name in names:
            if name not in sizes:
                raise StorageError(f"{place / name} is not there")
            download(place, Path(directory), {name: sizes[name]})
            fingerprints |= stage(directory, Path(directory), [name])
            os.unlink(Path(directory, name))
    return fingerprints
