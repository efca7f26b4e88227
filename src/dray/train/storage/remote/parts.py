"""Growing files on a storage whose files cannot grow, kept as numbered parts.

    metrics/rank-00000.000002-000000.jsonl     a writer's first part
    metrics/rank-00000.000002-000001.jsonl     its second one, begun when the first was large enough

The last part is rewritten as a whole every few seconds if it has grown, so that a reader finds only
whole lines. No two writers have the same number, so no writer overwrites another's parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from dray.errors import StorageError
from dray.train.storage.metrics_codec import json_bytes
from dray.train.storage.place import RemotePath
from dray.train.storage.sealed import seal

_EVERY_S = 2.0
_PART = 128 << 10
_MOST_UNWRITTEN = 64 << 20
_AT_ONCE = 8


def part_name(name: str, writer: int, number: int) -> str:
    """Return the name of a part of a file."""
    stem, dot, kind = name.rpartition(".")
    return f"{stem}.{writer:06d}-{number:06d}{dot}{kind}"


def is_part(part: str, name: str) -> bool:
    """Return whether a name is that of a part of a file."""
    stem, _, kind = name.rpartition(".")
    return part.startswith(f"{stem}.") and part.endswith(f".{kind}")


@dataclass
class _Growing:
    name: str
    writer: int
    number: int = 0
    text: bytearray = field(default_factory=bytearray)
    written: int = 0


class Parts:
    """The growing files of one process.

    Args:
        failed: Is told of what cannot be written, besides who adds to that file next.
    """

    def __init__(self, place: RemotePath, failed: Callable[[str], object]) -> None:
        self._place = place
        self._failed = failed
        self._files: dict[tuple[str, int], _Growing] = {}
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._error: StorageError | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self, name: str, writer: int) -> None:
        """Begin a file, empty, so that readers see that there is one.

        Raises:
            StorageError: It cannot be written.
        """
        self.add(name, writer, b"")
        (self._place / part_name(name, writer, 0)).write_bytes(b"")

    def add(self, name: str, writer: int, data: bytes) -> None:
        """Add to a file; it is written soon.

        Raises:
            StorageError: Earlier additions cannot be written.
        """
        with self._changed:
            error, self._error = self._error, None
            if error is not None:
                raise error.with_traceback(None)
            file = self._files.setdefault((name, writer), _Growing(name, writer))
            file.text += data
            self._changed.notify_all()
            if self._thread is None and data:
                self._thread = threading.Thread(target=self._run, name="dray-parts", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Write what is not written yet.

        Raises:
            StorageError: It cannot be written.
        """
        with self._writing:
            with self._changed:
                grown = self._grown()
            if len(grown) == 1:
                self._write(grown[0])
            elif grown:
                with ThreadPoolExecutor(_AT_ONCE, "dray-parts") as pool:
                    list(pool.map(self._write, grown))

    def _write(self, file: _Growing) -> None:
        with self._changed:
            text = bytes(file.text)
        (self._place / part_name(file.name, file.writer, file.number)).write_bytes(text)
        with self._changed:
            file.written = len(text)
            if file.written >= _PART:
                del file.text[: file.written]
                file.written, file.number = 0, file.number + 1

    def close(self) -> None:
        """Write what is not written yet, and end.

        Raises:
            StorageError: It cannot be written.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _grown(self) -> list[_Growing]:
        return [file for file in self._files.values() if len(file.text) > file.written]

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._grown())
                if self._changed.wait_for(lambda: self._closed, _EVERY_S):
                    return
            try:
                self.flush()
            except StorageError as error:
                self._take_error(error)

    def _take_error(self, error: StorageError) -> None:
        self._failed(str(error))
        with self._changed:
            unwritten = sum(len(file.text) - file.written for file in self._files.values())
            if unwritten > _MOST_UNWRITTEN:
                self._error = error


class PartedLog:
    """A log in parts.

    Args:
        writer: The number of this writer of it.
    """

    def __init__(self, parts: Parts, name: str, writer: int) -> None:
        self._parts = parts
        self._name = name
        self._writer = writer

    def write(self, data: bytes | memoryview) -> int:
        """Add bytes; return how many were taken: all.

        Raises:
            StorageError: Earlier ones cannot be written.
        """
        self._parts.add(self._name, self._writer, bytes(data))
        return len(data)

    def close(self) -> None:
        """Do nothing: what is added is written soon, or when the storage is flushed or closed."""


class PartedLines(PartedLog):
    """A file of sealed lines in parts."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line; raises as `write` does."""
        self.append_text(json_bytes(record))

    def append_text(self, text: bytes) -> None:
        """Add a line, given as a JSON object; raises as `write` does."""
        self.write(seal(text) + b"\n")
