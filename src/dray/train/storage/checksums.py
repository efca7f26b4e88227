"""Checksums of files, each with the name of its algorithm: `xxh3_64:2d06800538d394c2`."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Protocol

# A file's size in bytes, and its checksum if one is kept.
Fingerprint = tuple[int, str | None]

# Bytes at a time, few enough to be in a core's cache when they are read again.
CHUNK = 1 << 18
NEW = "xxh3_64"
# Of checkpoints that earlier versions have written.
OLD = "crc32"


class Digest(Protocol):
    """A checksum that grows with what it is fed."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Feed it."""

    def hexdigest(self) -> str:
        """Return the checksum of what it was fed."""


class _Crc32:
    """CRC-32, as a digest."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def new_digest(algorithm: str = NEW) -> Digest:
    """Return a digest by the name of its algorithm.

    Raises:
        ValueError: No such algorithm is known.
    """
    if algorithm == OLD:
        return _Crc32()
    if algorithm == NEW:
        import xxhash

        return xxhash.xxh3_64()
    raise ValueError(f"checksums of the kind {algorithm!r} are not known")


def named(digest: Digest, algorithm: str = NEW) -> str:
    """Return a checksum as it is kept."""
    return f"{algorithm}:{digest.hexdigest()}"


def fingerprint(path: Path, algorithm: str | None = NEW) -> Fingerprint:
    """Return the fingerprint of a file as it is now; without an algorithm, its size alone."""
    if algorithm is None:
        return os.stat(path).st_size, None
    with open(path, "rb", buffering=0) as file:
        return digest_open(file.fileno(), algorithm)


def digest_open(descriptor: int, algorithm: str = NEW) -> Fingerprint:
    """Return the fingerprint of an open file."""
    digest = new_digest(algorithm)
    buffer = memoryview(bytearray(min(CHUNK, os.fstat(descriptor).st_size + 1)))
    size = 0
    while count := os.preadv(descriptor, [buffer], size):
        digest.update(buffer[:count])
        size += count
    return size, named(digest, algorithm)


def matches(path: Path, known: Fingerprint) -> bool:
    """Return whether a file is as its fingerprint says; OSError if it cannot be read."""
    size, checksum = known
    algorithm = None if checksum is None else checksum.partition(":")[0]
    return fingerprint(path, algorithm) == (size, checksum)
