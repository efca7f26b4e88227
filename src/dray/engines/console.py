"""This process's standard output and error, as destinations of the lines of workers.

A stream may be closed, full, missing, a terminal that is gone, of an encoding that lacks a
character, or an object of the user's own. None of these ends the code that shows lines. A stream
that nobody reads, as behind a pager, does not block it either, because the thread that shows lines
also reads from the workers. That thread writes only as much as there is room for. The rest is left
to a second thread, which ends once it has caught up.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

# For how long a reader may take nothing before lines wait for it elsewhere.
_PATIENCE_S = 1.0
# Bytes of text that wait for a reader; the lines after that are counted, and dropped.
_MOST_HELD = 1 << 25

_logger = logging.getLogger(__name__)


class Outlet(io.TextIOBase):
    """A text file whose writes never raise; what cannot be written is dropped, and said once.

    Nor do they take long: where nobody reads, the text is written later.

    Args:
        name: "stdout" or "stderr"; what `sys` calls by this name when something is written.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._said = False
        self.begin()

    def begin(self) -> None:
        """Hold nothing: whatever a fork has of it, its parent shows."""
        self._lock = threading.Lock()
        self._held: deque[str] = deque()
        self._held_bytes = self._lost = 0
        self._writer: threading.Thread | None = None

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
        """Show text, with replacements for what the stream's encoding lacks."""
        late = self._writer is not None
        if self.isatty():  # which may have less room than a piece needs, and then takes long
            self._hold(text)
            if not late:
                self.finish(_PATIENCE_S)
            return len(text)
        pieces = _pieces(text)
        for piece in pieces:
            if self._writer is None and self._has_room():
                self._put(piece)
            else:
                self._hold(piece + "".join(pieces))  # which is all that is left
        return len(text)

    def _hold(self, text: str) -> None:
        """Keep text for later, if there is not too much of it."""
        with self._lock:
            if self._writer is None:
                writer = threading.Thread(target=self._catch_up, name="dray-output", daemon=True)
                try:
                    writer.start()
                except RuntimeError:  # there are too many, or Python ends
                    self._put(text)
                    return
                self._writer = writer
            size = sys.getsizeof(text)
            if self._held_bytes + size <= _MOST_HELD and not self._lost:
                self._held.append(text)
                self._held_bytes += size
            else:
                self._lost += max(1, text.count("\n"))

    def _catch_up(self) -> None:
        """Write what is held, as there is room for it."""
        while text := self._next_held():
            for piece in _pieces(text):
                while not self._has_room():
                    pass  # it is asked anew each time, for the stream may be another one by now
                self._put(piece)

    def _next_held(self) -> str:
        """Return the text that has waited for longest; "" if there is none any more."""
        with self._lock:
            if self._held:
                text = self._held.popleft()
                self._held_bytes -= sys.getsizeof(text)
                return text
            lost, self._lost = self._lost, 0
            if lost:
                return f"... {lost} more lines were dropped, because nobody read {self._name}\n"
            self._writer = None
            return ""

    def finish(self, seconds: float | None = None) -> None:
        """Wait until all that is held is shown, or time is up."""
        writer = self._writer
        if writer is not None:
            writer.join(seconds)

    def _has_room(self) -> bool:
        """Wait for room for a piece; return whether there is.

        A stream without a file has room, and so has one of another kind than Python's own: the
        descriptor that a notebook's names, for example, is not where its text goes.
        """
        stream = self._stream()
        if not isinstance(stream, io.TextIOWrapper):
            return True
        try:
            return bool(select.select([], [stream], [], _PATIENCE_S)[1])
        except Exception:  # noqa: BLE001 (it is None, closed, or of the user's making)
            return True

    def _put(self, text: str) -> None:
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
            self._flush()

    def close(self) -> None:
        """Leave the stream as it is: it is the program's, and may be gone as Python ends."""

    def flush(self) -> None:
        """Show what the program has written to the stream, unless nobody reads it."""
        if self._writer is None:
            self._flush()

    def _flush(self) -> None:
        flush = getattr(self._stream(), "flush", None)
        if flush is not None:
            try:
                flush()
            except Exception as error:  # noqa: BLE001 (as above)
                self._drop(error)

    def _drop(self, error: Exception) -> None:
        said, self._said = self._said, True
        # Who closes a pipe, as `head` does, has read enough.
        level = logging.DEBUG if said or isinstance(error, BrokenPipeError) else logging.WARNING
        with contextlib.suppress(Exception):  # it goes to standard error, which may be as bad
            _logger.log(
                level,
                "dray stops showing lines, because %s cannot be written: %r",
                self._name,
                error,
            )


def _pieces(text: str) -> Iterator[str]:
    """Yield text in pieces that a pipe takes at once, or waits with."""
    most = select.PIPE_BUF if text.isascii() else select.PIPE_BUF // 4
    start = 0
    while start < len(text):
        end = start + most
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end


OUTLETS = {name: Outlet(name) for name in ("stdout", "stderr")}


def show_lines(stream: str, lines: Iterable[str]) -> None:
    """Show lines on the stream of this name."""
    OUTLETS[stream].write("\n".join(lines) + "\n")


def _begin_fork() -> None:
    for outlet in OUTLETS.values():
        outlet.begin()


@atexit.register
def _finish() -> None:
    """Wait until whoever reads has read it all, as Python itself does in the end, or for Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        for outlet in OUTLETS.values():
            outlet.finish()


os.register_at_fork(after_in_child=_begin_fork)


def fill_standard_descriptors() -> None:
    """Open /dev/null in place of standard streams that are closed (`program >&-`).

    Or sockets would get their numbers, and what anybody prints there would go to those.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
