"""Copies of files, with checksums; they share blocks if the file system supports that."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dray import host
from dray.train.storage.checksums import CHUNK, Digest, Fingerprint, digest_open, named, new_digest

# Linux's FICLONE, the ioctl that lets a file share the blocks of another.
_CLONE = 0x40049409
# Its flag of fallocate by which a file is as long as before.
_KEEP_SIZE = 1
_ZEROS = memoryview(bytes(CHUNK))
# Errors of copy_file_range where it cannot: of two file systems, of old kernels, of special files.
_NOT_BY_KERNEL = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM}
# Errors of fchmod where a file system has no permissions (FAT, SMB, Windows' disks in WSL).
_NO_PERMISSIONS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}


@dataclass(frozen=True)
class Care:
    """The care taken of a checkpoint's files.

    Attributes:
        flush: Whether they are seen onto the disk.
        checksums: Whether a checksum of each is kept.
        boot: The machine, as `host.boot_id` has it, on which that may be done after the commit.
    """

    flush: bool = True
    checksums: bool = True
    boot: str | None = None

    @property
    def is_deferred(self) -> bool:
        """True if it may be taken after the commit here."""
        return self.boot is not None and self.boot == host.boot_id()

    def is_due(self, files: Mapping[str, Fingerprint]) -> bool:
        """Return whether anything is left to be done of files that are staged."""
        bare = self.checksums and any(checksum is None for _, checksum in files.values())
        return self.is_deferred and bool(files) and (self.flush or bare)


def copy_file(
    source: str | os.PathLike[str], target: str | os.PathLike[str], care: Care
) -> Fingerprint:
    """Copy a file with its permissions; return the fingerprint of the copy.

    Others may open it only once it is whole, and nobody runs it with the rights of its owner.
    """
    with (
        open(source, "rb", buffering=0) as reader,
        open(target, "w+b", buffering=0, opener=_private) as writer,
    ):
        origin, copy = reader.fileno(), writer.fileno()
        known = os.fstat(origin)
        if known.st_size and _clone(origin, copy):
            found = digest_open(copy) if care.checksums else (os.fstat(copy).st_size, None)
        else:
            digest = new_digest() if care.checksums else None
            found = _Copy(origin, copy, known.st_size, digest).run()
        try:
            os.fchmod(copy, known.st_mode & 0o777)
        except OSError as error:
            if error.errno not in _NO_PERMISSIONS:
                raise
    return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _clone(origin: int, copy: int) -> bool:
    """Have a file share the blocks of another, until one of them is written to."""
    try:
        fcntl.ioctl(copy, _CLONE, origin)
    except OSError:  # the file system cannot; what else is wrong, the copy will say
        return False
    return True


def _reserve(copy: int, start: int, size: int) -> None:
    """Have the blocks of what is to be written laid out, which takes less than one by one."""
    reserve = _fallocate()
    if reserve is not None and size > CHUNK:
        reserve(copy, _KEEP_SIZE, start, size)  # what is wrong, the writing will say


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return glibc's, if it is there: Python's writes into each block where a system has none."""
    import ctypes  # slow to import

    found = getattr(ctypes.CDLL(None), "fallocate64", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found


class _Copy:
    """A copy from one open file to another, in which what is sparse stays so.

    Args:
        origin: The one.
        copy: The other, which is empty.
        digest: Fed with the copy; None is none.
    """

    def __init__(self, origin: int, copy: int, size: int, digest: Digest | None) -> None:
        self._origin = origin
        self._copy = copy
        self._size = size
        self._digest = digest
        # What is read for its checksum is in the core's cache to be written. Files that say they
        # are empty, and are not, are the system's (/proc), which must be read.
        by_kernel = hasattr(os, "copy_file_range") and digest is None
        self._by_kernel = by_kernel and size > 0
        self._buffer = memoryview(bytearray(min(CHUNK, size) or CHUNK))

    def run(self) -> Fingerprint:
        """Copy all."""
        offset = 0
        for start, end in self._pieces():
            self._skip(start - offset)
            offset = start
            if self._size:
                _reserve(self._copy, start, end - start)
            while offset < end and (count := self._move(offset, min(end - offset, CHUNK))):
                offset += count
        if offset < self._size:
            self._skip(self._size - offset)
            offset = self._size
            os.ftruncate(self._copy, offset)
        return offset, None if self._digest is None else named(self._digest)

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the parts of the origin that are no holes."""
        if not self._size:
            yield 0, sys.maxsize
        end = 0
        while end < self._size:
            try:
                start = os.lseek(self._origin, end, os.SEEK_DATA)
                end = os.lseek(self._origin, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # the rest is one hole
                    return
                start, end = end, self._size  # the file system does not tell
            yield start, min(end, self._size)

    def _skip(self, count: int) -> None:
        """Take note of a hole."""
        while self._digest is not None and count > 0:
            self._digest.update(_ZEROS[:count])
            count -= len(_ZEROS)

    def _move(self, offset: int, most: int) -> int:
        """Copy some bytes; return how many, 0 at the end of the origin."""
        count = self._move_by_kernel(offset, most) if self._by_kernel else None
        if count is None:
            count = os.preadv(self._origin, [self._buffer[:most]], offset)
            written = 0
            while written < count:
                written += os.pwrite(self._copy, self._buffer[written:count], offset + written)
        if self._digest is not None:
            self._digest.update(self._buffer[:count])
        return count

    def _move_by_kernel(self, offset: int, most: int) -> int | None:
        """Do so without reading; None if the kernel cannot."""
        try:
            return os.copy_file_range(self._origin, self._copy, most, offset, offset)
        except OSError as error:
            if error.errno not in _NOT_BY_KERNEL:
                raise
            self._by_kernel = False
            return None
