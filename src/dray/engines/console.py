"""This process's standard output and error, as lines of workers are shown there.

They may be closed, full, missing, a terminal that is gone, of an encoding that lacks a character,
or an object of the user's own: what shows lines is never ended by that.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from typing import Any

_logger = logging.getLogger(__name__)


class Outlet(io.TextIOBase):
    """A text file whose writes never raise; what cannot be written is dropped, and said once.

    Args:
        name: "stdout" or "stderr"; what `sys` calls by this name when something is written.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._said = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream(), "encoding", None) or "utf-8"

    def _stream(self) -> Any:
        return getattr(sys, self._name)

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        with contextlib.suppress(Exception):  # it is None, closed, or has no such method
            return bool(self._stream().isatty())
        return False

    def write(self, text: str) -> int:
        """Write text, with replacements for what the stream's encoding lacks."""
        stream = self._stream()
        if stream is not None:
            try:
                try:
                    stream.write(text)
                except UnicodeEncodeError:
                    encoding = getattr(stream, "encoding", None) or "ascii"
                    stream.write(text.encode(encoding, "replace").decode(encoding))
            except Exception as error:  # noqa: BLE001 (the stream may be of the user's making)
                self._drop(error)
        return len(text)

    def flush(self) -> None:
        """Show what has been written."""
        flush = getattr(self._stream(), "flush", None)
        if flush is not None:
            try:
                flush()
            except Exception as error:  # noqa: BLE001 (as above)
                self._drop(error)

    def line(self, text: str) -> None:
        self.write(text + "\n")
        self.flush()

    def _drop(self, error: Exception) -> None:
        said, self._said = self._said, True
        # Who closes a pipe, as `head` does, has read enough.
        level = logging.DEBUG if said or isinstance(error, BrokenPipeError) else logging.WARNING
        with contextlib.suppress(Exception):  # it goes to standard error, which may be as bad
            _logger.log(level, "lines are not shown, %s cannot be written: %r", self._name, error)


class Outlets:
    """Both streams."""

    def __init__(self) -> None:
        self._outlets = {name: Outlet(name) for name in ("stdout", "stderr")}

    def line(self, stream: str, text: str) -> None:
        """Show one line on the stream of this name."""
        self._outlets[stream].line(text)


def fill_standard_descriptors() -> None:
    """Open /dev/null in place of standard streams that are closed (`program >&-`).

    Or sockets would get their numbers, and what anybody prints there would go to those.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
