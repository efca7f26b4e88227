"""Transfer of files to and from a remote storage: in parallel, in parts, in bounded memory."""

from __future__ import annotations

import inspect
import itertools
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dray.errors import StorageError
from dray.train.storage.checkpoint_files import stage, without_own
from dray.train.storage.checksums import Fingerprint, named, new_digest
from dray.train.storage.copies import Care
from dray.train.storage.paths import is_file_name
from dray.train.storage.place import RemotePath, missing
from dray.train.storage.remote.clients import AT_ONCE, IN_FLIGHT, PART, clients, takes_parts
from dray.train.storage.remote.multipart import upload_in_parts
from dray.train.storage.remote.retry import persistently


def upload(
    source: str, target: RemotePath, names: Iterable[str], *, checksums: bool = False
) -> dict[str, Fingerprint]:
    """Upload files of a local directory into a folder; return their fingerprints.

    Raises:
        StorageError: One cannot be read, or cannot be written there.
    """
    with StorageError.instead(f"the checkpoint {source} cannot be read"):
        sizes = {name: os.stat(os.path.join(source, name)).st_size for name in names}
    if takes_parts(target.filesystem):
        return upload_in_parts(source, target, sizes, checksums=checksums)
    target.make_folders(sizes)
    # Each file in turn, its parts at once, if they are larger than that; else the files at once.
    large = [name for name, size in sizes.items() if size > PART]
    options = _part_options(target.filesystem)
    for name in large:
        _put(os.path.join(source, name), target / name, options)

    def put(name: str) -> None:
        _put(os.path.join(source, name), target / name, options)

    small = [name for name in sizes if name not in large]
    largest = max((sizes[name] for name in small), default=0)
    at_once = min(AT_ONCE, IN_FLIGHT // max(largest, 1))
    with ThreadPoolExecutor(at_once, "dray-uploads") as pool:
        list(pool.map(put, small))
    care = Care(flush=False, checksums=checksums)
    return stage(source, Path(source), list(sizes), care)


def _put(source: str, target: RemotePath, options: Mapping[str, int]) -> None:
    filesystem = target.filesystem
    try:
        persistently(
            f"{target} cannot be written",
            lambda: filesystem.put_file(source, target.path, **options),
            bulk=True,
        )
    except FileNotFoundError as error:
        if not os.path.exists(source):
            raise StorageError.of(error, f"{source} cannot be read") from error
        raise missing(target, error) from error


def _part_options(filesystem: Any) -> dict[str, int]:
    """Return what bounds the memory of an upload, as far as a file system can be told."""
    wanted = {"chunksize": PART, "max_concurrency": IN_FLIGHT // PART}
    put = getattr(filesystem, "_put_file", filesystem.put_file)
    known = inspect.signature(put).parameters
    return {name: value for name, value in wanted.items() if name in known}


def download(
    source: RemotePath, target: Path, sizes: Mapping[str, int], checked: Collection[str]
) -> Iterator[tuple[str, Fingerprint]]:
    """Download files of a folder into a local directory; yield the fingerprint of each.

    Args:
        checked: Those whose checksum is wanted.

    Raises:
        StorageError: One cannot be read, or cannot be written here.
    """
    for name, parts in itertools.groupby(_content(source, sizes), key=lambda part: part[0]):
        with StorageError.instead(f"{target / name} cannot be written"):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with open(target / name, "wb") as file:
                yield name, _look_at_parts((part for _, part in parts), name in checked, file)


def _look_at_parts(parts: Iterator[bytes], checked: bool, copy: Any = None) -> Fingerprint:
    """Return the fingerprint of a file by its parts; write them to a copy if there is one."""
    digest, size = new_digest() if checked else None, 0
    for part in parts:
        if digest is not None:
            digest.update(part)
        if copy is not None:
            copy.write(part)
        size += len(part)
    return size, None if digest is None else named(digest)


def _content(source: RemotePath, sizes: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the content of files of a folder, part by part, while the next ones are fetched."""
    ways = itertools.cycle(clients(source.filesystem, sum(sizes.values())))
    begun: deque[tuple[str, int, Future[bytes]]] = deque()
    held = 0
    pool = ThreadPoolExecutor(AT_ONCE, "dray-downloads")
    try:
        for name, start, end in _parts(sizes):
            while begun and (held + end - start > IN_FLIGHT or len(begun) >= AT_ONCE):
                earlier, size, content = begun.popleft()
                yield earlier, content.result()
                held -= size
            content = pool.submit(_get, source / name, next(ways), start, end)
            begun.append((name, end - start, content))
            held += end - start
        while begun:
            earlier, _, content = begun.popleft()
            yield earlier, content.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _parts(sizes: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    for name, size in sizes.items():
        for start in range(0, max(size, 1), PART):
            yield name, start, min(start + PART, size)


def _get(file: RemotePath, way: Any, start: int, end: int) -> bytes:
    if start == end:  # S3 refuses to give nothing of an empty file
        return b""
    try:
        return file.read_part(start, end, way)
    except FileNotFoundError as error:
        raise StorageError.of(error, f"{file} cannot be read") from error


def sizes_of(place: RemotePath) -> dict[str, int]:
    """Return the size of each file of a checkpoint, in bytes.

    Raises:
        StorageError: There are none, or they cannot be listed, or are no files of a directory.
    """
    sizes = place.sizes()
    if not sizes:
        raise StorageError(f"the checkpoint {place} is not there, or has no files")
    odd = next((name for name in sizes if not is_file_name(name)), None)
    if odd is not None:
        raise StorageError(
            f"the checkpoint {place} holds an object {odd!r}, whose name cannot be that of a "
            "file in a directory; another program may have put it there: delete it"
        )
    return sizes


def list_remote(place: RemotePath) -> list[str]:
    """Return the files below a folder, relative to it, sorted.

    Raises:
        StorageError: There are none, or they cannot be listed.
    """
    return without_own(sorted(sizes_of(place)))


def look_at(place: RemotePath, names: Iterable[str]) -> dict[str, Fingerprint]:
    """Return the fingerprints of files far away, all of which is read.

    Raises:
        StorageError: One is not there, or cannot be read.
    """
    there = place.sizes()
    missing_here = [name for name in names if name not in there]
    if missing_here:
        raise StorageError(f"{place / missing_here[0]} is not there")
    content = _content(place, {name: there[name] for name in names})
    return {
        name: _look_at_parts((part for _, part in parts), True)
        for name, parts in itertools.groupby(content, key=lambda part: part[0])
    }
