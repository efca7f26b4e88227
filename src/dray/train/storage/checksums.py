"""Checksums of files, each with the name of its algorithm: `xxh3_64:2d06800538d394c2`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import xxhash

# A checksum that grows with what it is fed.
Digest: TypeAlias = "xxhash.xxh3_64"
# A file's size in bytes, and its checksum if one is kept.
Fingerprint = tuple[int, str | None]

# Bytes at a time, few enough to be in a core's cache when they are read again.
CHUNK = 1 << 18


def new_digest() -> Digest:
    """Return a digest that nothing was fed to."""
    import xxhash  # slow to import

    return xxhash.xxh3_64()


def named(digest: Digest) -> str:
    """Return a checksum as it is kept."""
    return f"xxh3_64:{digest.hexdigest()}"


def fingerprint(path: Path) -> Fingerprint:
    """Return the fingerprint of a file as it is now."""
    with open(path, "rb", buffering=0) as file:
        return digest_open(file.fileno())


def digest_open(descriptor: int) -> Fingerprint:
    """Return the fingerprint of an open file."""
    digest = new_digest()
    buffer = memoryview(bytearray(min(CHUNK, os.fstat(descriptor).st_size + 1)))
    size = 0
    while count := os.preadv(descriptor, [buffer], size):
        digest.update(buffer[:count])
        size += count
    return size, named(digest)


def matches(path: Path, known: Fingerprint) -> bool:
    """Return whether a file is as its fingerprint says; OSError if it cannot be read."""
    return known == (fingerprint(path) if known[1] else (os.stat(path).st_size, None))
