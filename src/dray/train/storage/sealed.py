"""JSON on the disk that shows damage: objects that end in a checksum of the text before it.

    {"report":3,"attempt":0,"metrics":{"loss":0.5},"crc32":2774098461}

Any tool reads it as plain JSON. A file of such objects, one on each line, survives kills and full
disks: a line that was cut short is left out, and text that is appended later begins a line of its
own.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dray.errors import StorageError
from dray.train.storage.metrics_codec import json_bytes
from dray.train.storage.openers import regular

# Returns whether a record is such as a file of lines should hold.
Fits = Callable[[dict[str, Any]], bool]

_MARK = b',"crc32":'

# Seconds between looks whether an open file is still there: each costs a system call.
_LOOK_S = 1.0


def seal(text: bytes) -> bytes:
    """Return a JSON object, which may not be empty, with the checksum of itself as a last member.

    Args:
        text: The object, from its first brace to its last.
    """
    body = text[:-1]
    return b'%b,"crc32":%d}' % (body, zlib.crc32(body))


def sealed_body(text: bytes) -> bytes | None:
    """Return a JSON object up to its checksum; None if that is missing or does not fit."""
    body, _, checksum = text.rpartition(_MARK)
    number = checksum.rstrip()[:-1]
    return body if number.isdigit() and zlib.crc32(body) == int(number) else None


def unseal(text: bytes) -> dict[str, Any]:
    """Return a JSON object, without its checksum.

    Raises:
        ValueError: It is no JSON object, or is not as `seal` has made it.
    """
    if sealed_body(text) is None:
        raise ValueError("its checksum is missing or does not fit")
    try:
        content = json.loads(text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    del content["crc32"]
    return content


class LineFile:
    """A file of sealed lines, open for records to be added: each whole, or not at all.

    Raises:
        StorageError: It cannot be opened, or a line not be written: nothing of that one stays.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with StorageError.instead(f"{path} cannot be written"):
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags, 0o644)
            size = os.fstat(self._fd).st_size
            # A kill, or a full disk, has cut the last line short: the next one begins anew.
            self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        self._look_again = 0.0

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line."""
        self.append_text(json_bytes(record))

    def append_text(self, text: bytes) -> None:
        """Add a line, given as a JSON object, for who writes many; raises as `append` does."""
        now = time.monotonic()
        if now >= self._look_again:
            self._look()
            self._look_again = now + _LOOK_S
        body = text[:-1]
        line = b'%b,"crc32":%d}\n' % (body, zlib.crc32(body))  # as `seal`, which costs more
        if self._torn:
            line = b"\n" + line
        written = 0
        try:
            written = os.write(self._fd, line)
            while written < len(line):  # a full disk takes a part, and refuses the rest
                written += os.write(self._fd, line[written:])
        except OSError as error:
            if written:
                self._take_back(written)
            raise StorageError.of(error, f"{self._path} cannot be written") from error
        self._torn = False

    def _look(self) -> None:
        """Look whether the file is still there: the system writes into a deleted one for ever."""
        if os.fstat(self._fd).st_nlink == 0:
            raise StorageError(f"{self._path} was deleted while it was being written")

    def _take_back(self, count: int) -> None:
        try:
            os.ftruncate(self._fd, os.lseek(self._fd, 0, os.SEEK_CUR) - count)
        except OSError:
            self._torn = True

    def close(self) -> None:
        """Free the file."""
        with StorageError.instead(f"{self._path} cannot be written"):  # told only now, by NFS
            os.close(self._fd)


def read_lines(
    path: Path, warn: Callable[[str], object], fits: Fits = lambda record: True
) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of lines; of those that are damaged or cut short, only warn.

    Args:
        path: The file; one that is missing has no lines.
        warn: Tells the user, once.
        fits: Whether a record is such as the file should hold.

    Raises:
        StorageError: The file cannot be read.
    """
    with StorageError.instead(f"{path} cannot be read"):
        if path.exists():
            with open(path, "rb", opener=regular) as file:
                yield from records(path, file, warn, fits)


def last_record(text: bytes, fits: Fits) -> dict[str, Any] | None:
    """Return the record of the last line, or None if it is not whole and sound.

    Args:
        text: End of a file of lines.
        fits: Whether a record is such as the file should hold.
    """
    if not text.endswith(b"\n"):
        return None
    try:
        record = unseal(text[:-1].rpartition(b"\n")[2])
    except ValueError:
        return None
    return record if fits(record) else None


def records(
    source: object,
    lines: Iterable[bytes],
    warn: Callable[[str], object],
    fits: Fits = lambda record: True,
) -> Iterator[dict[str, Any]]:
    """Yield the records of lines; of those that are damaged or cut short, only warn.

    Args:
        source: Name of their source, for the warning.
        warn: Tells the user, once.
        fits: Whether a record is such as the source should hold.
    """
    broken: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line or line.isspace():
            continue
        try:
            record = unseal(line)
        except ValueError:
            broken.append(number)
            continue
        if fits(record):
            yield record
        else:
            broken.append(number)
    if broken:
        warn(f"{source}: {_named(broken)} damaged or cut short, and left out")


def _named(lines: list[int]) -> str:
    if len(lines) == 1:
        return f"line {lines[0]} is"
    named = ", ".join(map(str, lines[:5]))
    return f"{len(lines)} lines ({named}{', ...' if len(lines) > 5 else ''}) are"
