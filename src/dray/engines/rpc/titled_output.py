r"""Titles within the output of a worker: the name of the task that has written each line.

A worker runs one task after another, often before the driver learns of it, and the output of the
tasks uses pipes of its own. So the title is sent with the text: the name of a task comes before its
first output, and an empty title ends it. A title is a control sequence (`ESC ] dray;NAME BEL`) of a
kind that terminals skip. Output that bypasses Python's streams has no title.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BEGIN, _END = b"\x1b]dray;", b"\x07"
_TITLE = re.compile(re.escape(_BEGIN) + rb"([^\x07\n]*)" + _END)
_CONTROL = re.compile(r"[\x00-\x1f]")
_LONGEST_TITLE = 1 << 10
# Bytes of a line without an end that are kept: what is longer is given as several.
_LONGEST_LINE = 1 << 20


class _Bytes(io.BufferedWriter):
    """The bytes of a stream; it takes note of whether there have been any."""

    is_written = False

    def write(self, data: Buffer, /) -> int:
        self.is_written = True
        return super().write(data)


class TitledStream(io.TextIOWrapper):
    """A stream for `sys.stdout` or `sys.stderr` that shows every line at once.

    Args:
        fd: The descriptor, which stays open.

    Attributes:
        title: The title of what is written from now on; "" is none.
    """

    def __init__(self, fd: int) -> None:
        self._bytes = _Bytes(io.FileIO(fd, "w", closefd=False))
        super().__init__(self._bytes, encoding="utf-8", errors="replace", line_buffering=True)
        self._inode = os.fstat(fd).st_ino
        self.title = ""
        self._told = ""

    @property
    def is_written(self) -> bool:
        """True if anything was written since the last end of a title, also to its buffer."""
        return self._bytes.is_written

    def end_title(self) -> None:
        """Show what has been written, and have the rest be under no title."""
        self.title = ""
        if self._told:
            self._tell()
        self.flush()
        self._bytes.is_written = False

    def close(self) -> None:
        """Show what has been written; what runs here later writes as well."""
        self.flush()

    def write(self, text: str, /) -> int:
        """Write text, and before it the title if that has changed."""
        self._bytes.is_written = True
        if self.title != self._told:
            self._tell()
        return super().write(text)

    def _tell(self) -> None:
        if os.fstat(self.fileno()).st_ino == self._inode:  # not where a program has led it to
            title = _CONTROL.sub(" ", self.title)[:_LONGEST_TITLE]
            super().write(f"{_BEGIN.decode()}{title}{_END.decode()}")
            self._told = self.title


class TitledOutput:
    """The output of a process, with titles: its streams as they are now, if they are such."""

    def __init__(self) -> None:
        self._before = sys.stdout, sys.stderr
        self._streams = [it for it in self._before if isinstance(it, TitledStream)]

    def begin(self, title: str) -> None:
        """Have what is printed be under a title."""
        for stream in self._streams:
            stream.title = title

    def end(self) -> None:
        """Show what has been printed, and have the rest be under no title."""
        for stream in self._streams:
            if not stream.is_written:
                stream.title = ""
                continue
            with contextlib.suppress(ValueError, OSError):  # the program has closed it
                stream.end_title()
        if sys.stdout is not self._before[0] or sys.stderr is not self._before[1]:
            for other in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # it is None, or whatever the program made it
                    other.flush()


class TitledLines:
    """The lines of a stream with titles, from its bytes. No I/O."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._title = ""
        self._held = b""  # what may be the beginning of a title

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the lines that are complete, each with its title; "" is none.

        Args:
            data: The next piece; an empty one is the end.
        """
        if data:
            data, self._held = _without_beginning(self._held + data)
            texts = _TITLE.split(data)  # each second one is a title
            yield from self._take(texts[0])
            for title, text in zip(texts[1::2], texts[2::2], strict=True):
                yield from self._end()
                self._title = title.decode(errors="replace")
                yield from self._take(text)
        else:
            yield from self._take(self._held)
            yield from self._end()

    def _take(self, text: bytes) -> Iterator[tuple[str, bytes]]:
        first, *more = text.split(b"\n")
        self._line += first
        for following in more:
            yield self._title, bytes(self._line)
            self._line[:] = following
        if b"\r" in text:
            self._line[:] = _last_rows(self._line)
        if len(self._line) > _LONGEST_LINE:
            yield from self._end()

    def _end(self) -> Iterator[tuple[str, bytes]]:
        if self._line:
            yield self._title, bytes(self._line)
            self._line.clear()


def _without_beginning(data: bytes) -> tuple[bytes, bytes]:
    """Return data without what may be the beginning of a title at its end, and that."""
    start = data.rfind(_BEGIN[:1])
    last = data[start:]
    begins = start >= 0 and last[: len(_BEGIN)] == _BEGIN[: len(last)] and _END not in last
    if not begins or b"\n" in last or len(last) > 4 * _LONGEST_TITLE + len(_BEGIN):
        return data, b""
    return data[:start], last


def _last_rows(line: bytearray) -> bytearray:
    """Return what a line is as it was drawn last, and what of the next drawing has come."""
    drawn, back, drawing = line.rpartition(b"\r")
    return drawn.rstrip(b"\r").rpartition(b"\r")[2] + back + drawing
