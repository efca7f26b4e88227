"""The reading of a file of sealed lines while another process adds to it."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path

from dray.errors import StorageError
from dray.train.storage.openers import regular
from dray.train.storage.sealed import sealed_body

# Bytes that are read at once: of what was added, and to find one line.
_CHUNK, _PROBE = 64 << 10, 4 << 10

# Errors of a file that was deleted, or whose directory was.
_GONE = (FileNotFoundError, NotADirectoryError)


class LineFollower:
    """Reads the lines that are added to a file from now on, as they come.

    Of a line it tells the body, as `sealed_body` returns it. The file is not kept open: a driver
    may follow more of them than it may have open.

    Raises:
        StorageError: The file cannot be read. One that was deleted has no more lines: who writes
            it finds out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._failing:
            self._begin = self._position = path.stat().st_size if path.exists() else 0

    def lines(self, mark: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the bodies of sound lines that are whole by now, with how many each stands for.

        The last of many that are read at once stands for all of these, which saves most of the
        work (damaged ones are counted as well). Only where one of them has a mark each is yielded
        for itself.

        Args:
            mark: The mark; a line at which the caller stops comes again.
        """
        with self._failing, contextlib.suppress(*_GONE), self._open() as file:
            fd, size = file.fileno(), _CHUNK
            while chunk := os.pread(fd, size, self._position):
                end = chunk.rfind(b"\n")
                lines = chunk[:end].split(b"\n") if end >= 0 else []
                if mark in chunk:
                    for line in lines:
                        if (body := sealed_body(line)) is not None:
                            yield body, 1
                        self._position += len(line) + 1
                else:
                    newest = _first_sound(reversed(lines))
                    if newest is not None:
                        yield newest, len(lines)
                    self._position += end + 1
                if len(chunk) < size:
                    return
                size = _CHUNK if lines else 2 * size

    def find(self, number: int, number_of: Callable[[bytes], int]) -> bytes | None:
        """Return the body of the sound line with a number, of those that were read, if it is there.

        Args:
            number_of: Returns the number of a body, which is higher than that of the line before.
        """
        found = None
        with self._failing, contextlib.suppress(*_GONE), self._open() as file:

            def number_from(offset: int) -> int:
                line = self._first_from(file.fileno(), offset)
                return number if line is None else number_of(line)  # past it, if there is none

            read = range(self._begin, self._position)
            at = self._begin + bisect_left(read, number, key=number_from)
            found = self._first_from(file.fileno(), at)
        return found if found is not None and number_of(found) == number else None

    def _first_from(self, fd: int, offset: int) -> bytes | None:
        """Return the body of the first sound line from an offset on, of those that were read."""
        start = max(self._begin, offset - 1)  # in the line before, or at its end
        size = _PROBE
        while True:
            text = os.pread(fd, min(size, self._position - start), start)
            line = _first_sound(text.split(b"\n")[offset - start : -1])
            if line is not None or len(text) < size:
                return line
            size *= 4

    def _open(self) -> FileIO:
        return open(self._path, "rb", buffering=0, opener=regular)

    @property
    def _failing(self) -> contextlib.AbstractContextManager[None]:
        return StorageError.instead(f"{self._path} cannot be read")


def _first_sound(lines: Iterable[bytes]) -> bytes | None:
    return next((body for body in map(sealed_body, lines) if body is not None), None)
