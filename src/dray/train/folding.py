"""Cuts workers' output into lines, and folds lines that repeat. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


class Lines:
    """Cuts a stream of bytes into lines of text."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Yields the lines that are whole now.

        A progress bar that goes back with a carriage return counts as one line: its last state.
        """
        *whole, self._rest = (self._rest + data).split(b"\n")
        yield from (_text(line) for line in whole)

    def rest(self) -> Iterator[str]:
        """Yields what is left when the stream ends."""
        rest, self._rest = self._rest, b""
        if rest:
            yield _text(rest)


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", errors="replace")


@dataclass
class _Seen:
    stream: str
    at: float
    ranks: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Shown:
    """A line to show.

    Attributes:
        rank: Who wrote it; for a folded line, whoever repeated it first.
        stream: "stdout" or "stderr".
        text: The line.
        repeated: How often it came again within the window, on `ranks`.
        ranks: The ranks that repeated it.
    """

    rank: int
    stream: str
    text: str
    repeated: int = 0
    ranks: tuple[int, ...] = ()


class Folder:
    """Shows a line once, and how often it came again when that is known.

    Args:
        window_s: A line that comes again within this time, from any rank, is a repetition.
    """

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._seen: dict[str, _Seen] = {}

    def feed(self, rank: int, stream: str, text: str, now: float) -> Iterator[Shown]:
        """Takes a line; yields what to show now.

        Args:
            rank: Who wrote it.
            stream: "stdout" or "stderr".
            text: The line.
            now: The time, in seconds.
        """
        yield from self._expire(now)
        seen = self._seen.get(text)
        if text.strip() and seen is not None:
            seen.ranks.append(rank)
            return
        if text.strip():
            self._seen[text] = _Seen(stream, now)
        yield Shown(rank, stream, text)

    def flush(self) -> Iterator[Shown]:
        """Yields what was held back."""
        yield from self._expire(float("inf"))

    def _expire(self, now: float) -> Iterator[Shown]:
        for text, seen in list(self._seen.items()):
            if now - seen.at < self._window_s:
                return  # in the order of their first coming
            del self._seen[text]
            if seen.ranks:
                ranks = tuple(sorted(set(seen.ranks)))
                yield Shown(seen.ranks[0], seen.stream, text, len(seen.ranks), ranks)
