"""Memory that the processes of a session share: one file without a name, and the use of its parts.

The file is anonymous, so the kernel frees it when the last process of the session has ended, for
whatever reason. It holds large objects, which readers see without a copy.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from dray import host
from dray.engines.rpc.serialization import Buffer
from dray.errors import ObjectStoreFullError
from dray.interrupts import final

_PAGE = mmap.PAGESIZE
# Memory that was used before is three times as fast to write as fresh memory; so much is kept.
_WARM_BYTES = 256 << 20
# From this size on several threads write.
_PARALLEL_BYTES = 8 << 20
_MOST_WRITERS = 4
# So often a place is written as a file before it is worth a map.
_FILE_WRITES = 2
_MOST_PLACES = 1000
_PUNCH = 0x1 | 0x2  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)


def round_up(size: int) -> int:
    """Return a size in whole pages."""
    return -(-size // _PAGE) * _PAGE


class Allocator:
    """An allocator of `size` bytes. Pure bookkeeping: best fit, neighbours are joined.

    To find, cut or join a part takes a logarithmic number of looks at others.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        # The free parts, none beside another one: by their start, by their end, and by length.
        self._lengths: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._shortest: list[tuple[int, int]] = []  # length and start
        self._put(0, size)

    def take(self, length: int) -> int | None:
        """Return the start of a free part, which is now used; None if none is large enough."""
        index = bisect.bisect_left(self._shortest, (length, 0))
        if index == len(self._shortest):
            return None
        have, start = self._shortest[index]
        self._pop(start)
        if have > length:
            self._put(start + length, have - length)
        self.used += length
        return start

    def free(self, start: int, length: int) -> None:
        self.used -= length
        if start + length in self._lengths:
            length += self._pop(start + length)
        if start in self._starts:
            start = self._starts[start]
            length += self._pop(start)
        self._put(start, length)

    def _put(self, start: int, length: int) -> None:
        self._lengths[start] = length
        self._starts[start + length] = start
        bisect.insort(self._shortest, (length, start))

    def _pop(self, start: int) -> int:
        """Take a part off the free ones; return its length."""
        length = self._lengths.pop(start)
        del self._starts[start + length]
        del self._shortest[bisect.bisect_left(self._shortest, (length, start))]
        return length


class Arena:
    """The shared file, as one process uses it.

    Args:
        fd: The file; owned by this object.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self._warm = 0
        self._map: mmap.mmap | None = None  # of all of it, which views for reading share
        self._address = 0
        self._mapping = threading.RLock()
        self._out: memoryview | None = None
        self._writes: dict[tuple[int, int], int] = {}

    @classmethod
    def create(cls, size: int) -> Arena:
        """Make a new one; it takes memory only where it is written."""
        size = round_up(size)
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("dray-objects", os.MFD_CLOEXEC)
        else:
            fd = _unnamed_file()
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            os.close(fd)
            raise ObjectStoreFullError(
                f"the object store cannot have {size / 1e6:,.0f} MB: {error.strerror} (`ulimit "
                "-f` limits it like a file; dray.init(object_store_memory=...) can ask for less)"
            ) from error
        return cls(fd)

    def write(self, offset: int, parts: Sequence[Buffer]) -> None:
        """Write parts one after another, each beginning at a whole page.

        Where memory is fresh, writing it as a file is seven times as fast as through a map. Where
        this process has a map of the pages already it is half as fast; so a place that is written
        again and again is written through a map.
        """
        place = (offset, sum(len(memoryview(part).cast("B")) for part in parts))
        if len(self._writes) > _MOST_PLACES:
            self._writes.clear()
        self._writes[place] = times = self._writes.get(place, 0) + 1
        for part in parts:
            view = memoryview(part).cast("B")
            if times > _FILE_WRITES and len(view) >= _PARALLEL_BYTES and (out := self._writable()):
                out[offset : offset + len(view)] = view
            elif len(view) >= _PARALLEL_BYTES:
                _write_in_parallel(self.fd, view, offset)
            else:
                _write(self.fd, view, offset)
            offset += round_up(len(view))

    def _writable(self) -> memoryview | None:
        if self._out is None:
            with contextlib.suppress(OSError):  # no room for a map: it is written as a file
                self._out = memoryview(mmap.mmap(self.fd, self.size))
        return self._out

    def view(
        self, offset: int, length: int, on_end: Callable[[], object], *, writable: bool = False
    ) -> Any:
        """Return a part as it is, without a copy; nobody else sees what is written to it.

        Args:
            offset: Its first byte, that of a page.
            on_end: Called when nobody has the view any more.
            writable: Whether it is to be written to, which takes a map of its own.

        Raises:
            OSError: This process has no room for a map of the file.
        """
        if writable:
            part: Any = self._private(offset, length)
        else:
            if self._map is None:
                self._share_map()
            part = (ctypes.c_char * length).from_address(self._address + offset)
        _watch(part, on_end)
        return part

    def _share_map(self) -> None:
        with self._mapping:
            if self._map is not None:
                return
            whole = self._private(0, self.size)
            address = ctypes.addressof(ctypes.c_char.from_buffer(whole))
            if self._map is None:  # else a finaliser has made one meanwhile
                self._address = address
                self._map = whole  # last: from here on other threads use its address

    def _private(self, offset: int, length: int) -> mmap.mmap:
        flags, prot = mmap.MAP_PRIVATE | _NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(self.fd, length, flags=flags, prot=prot, offset=offset)

    def freed(self, offset: int, length: int) -> None:
        """Give memory back that nobody uses, unless little is kept for the next object."""
        if self._warm + length <= _WARM_BYTES:
            self._warm += length
        else:
            punch(self.fd, offset, length)

    def taken(self, length: int) -> None:
        """Take note that memory is used again."""
        self._warm = max(0, self._warm - length)

    def close(self) -> None:
        """Close the file; views that are still used stay good."""
        os.close(self.fd)


def _write(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


def _write_in_parallel(fd: int, view: memoryview, offset: int) -> None:
    """Write with several threads: one core alone does not use all of the memory's speed."""
    count = min(_MOST_WRITERS, host.cpu_count())
    share = round_up(-(-len(view) // count))
    pieces = [(start, view[start : start + share]) for start in range(0, len(view), share)]
    try:
        from concurrent.futures import ThreadPoolExecutor  # refused once the main thread has ended

        with ThreadPoolExecutor(len(pieces)) as pool:
            written = [pool.submit(_write, fd, piece, offset + start) for start, piece in pieces]
    except RuntimeError:  # no thread can be started: this one writes
        _write(fd, view, offset)
        return
    for future in written:
        future.result()


_watched: dict[int, Any] = {}


def _watch(part: Any, on_end: Callable[[], object]) -> None:
    """Call back when an object is gone."""

    @final
    def ended(reference: Any) -> None:
        _watched.pop(id(reference), None)
        on_end()

    reference = weakref.ref(part, ended)
    _watched[id(reference)] = reference


def _unnamed_file() -> int:
    import tempfile  # slow to import, and workers need none

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SpillFile:
    """The spill file for objects when the memory is full: without a name, on the disk."""

    def __init__(self, fd: int | None = None) -> None:
        self.trouble: OSError | None = None  # there is no such file, which matters when it is used
        if fd is None:
            try:
                fd = _unnamed_file()
            except OSError as error:
                self.trouble = error
                fd = os.open(os.devnull, os.O_RDWR)  # workers are given it
        self.fd = fd
        self._allocator = Allocator(1 << 50)

    @property
    def used(self) -> int:
        return self._allocator.used

    def write(self, offset: int, parts: Sequence[Buffer]) -> None:
        for part in parts:
            view = memoryview(part).cast("B")
            _write(self.fd, view, offset)
            offset += round_up(len(view))

    def take(self, length: int) -> int:
        """Return the start of a free part.

        Raises:
            OSError: There is no file.
        """
        if self.trouble is not None:
            raise type(self.trouble)(*self.trouble.args)
        offset = self._allocator.take(length)
        assert offset is not None
        return offset

    def free(self, offset: int, length: int) -> None:
        """Give a part back, and its blocks to the disk."""
        self._allocator.free(offset, length)
        punch(self.fd, offset, length)

    def copy_from(self, source: int, offset: int, target: int, length: int) -> None:
        """Copy a part of another file to a place here."""
        while length:
            data = os.pread(source, min(length, 8 << 20), offset)
            _write(self.fd, memoryview(data), target)
            offset, target, length = offset + len(data), target + len(data), length - len(data)

    def close(self) -> None:
        os.close(self.fd)


def punch(fd: int, offset: int, length: int) -> None:
    """Give the memory or block of a part of a file back (Linux)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.fallocate(fd, _PUNCH, ctypes.c_long(offset), ctypes.c_long(length))


def read_at(fd: int, offset: int, length: int) -> bytearray:
    """Read a part of a file."""
    data = bytearray(length)
    view = memoryview(data)
    done = 0
    while done < length:
        count = os.preadv(fd, [view[done:]], offset + done)
        if not count:
            raise OSError("the file ends too early")
        done += count
    return data
