"""Line de-duplication: one line in place of equal lines of several ranks. No I/O, no clock."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dray.errors import join_names


@dataclass
class _Seen:
    stream: str
    at: float
    ranks: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Shown:
    """A line to show.

    Attributes:
        rank: Rank that wrote it; for a folded line, the first rank that repeated it.
        stream: "stdout" or "stderr".
        repeated: Number of repetitions within the window, on `ranks`.
        ranks: The ranks that repeated it.
    """

    rank: int
    stream: str
    text: str
    repeated: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """The line with its rank, and how often it came again."""
        again = ""
        if self.repeated:
            across = "" if self.ranks == (self.rank,) else f" across {describe_ranks(self.ranks)}"
            again = f" [repeated {self.repeated}x{across}]"
        return f"(rank {self.rank}) {self.text}{again}"


def describe_ranks(ranks: Sequence[int]) -> str:
    """Return ranks, given in order, in a few words: "rank 3", "ranks 0, 2 and 5-7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]
    return f"rank{'s' if len(ranks) > 1 else ''} {join_names(parts)}"


class LineDeduplicator:
    """Shows a line once, and how often it came again when that is known.

    Args:
        window_s: A line that comes again within this time, from any rank, is a repetition; with
            0 every line is shown.

    Attributes:
        due: The time to call `expire`, as nobody need feed another line.
    """

    def __init__(self, window_s: float = 5.0) -> None:
        self.due = math.inf
        self._window_s = window_s
        self._seen: OrderedDict[str, _Seen] = OrderedDict()  # in the order of their first coming

    def feed(self, rank: int, stream: str, text: str, now: float) -> Iterator[Shown]:
        """Take a line; yield what to show now."""
        yield from self.expire(now)
        seen = self._seen.get(text)
        if text.strip() and seen is not None:
            seen.ranks.append(rank)
            self.due = min(self.due, seen.at + self._window_s)
            return
        if text.strip():
            self._seen[text] = _Seen(stream, now)
        yield Shown(rank, stream, text)

    def flush(self) -> Iterator[Shown]:
        """Yield what was held back."""
        yield from self.expire(math.inf)

    def expire(self, now: float) -> Iterator[Shown]:
        """Yield the repetitions of lines whose window is over."""
        while self._seen:
            text, seen = next(iter(self._seen.items()))
            if now < seen.at + self._window_s:
                break
            del self._seen[text]
            if seen.ranks:
                ranks = tuple(sorted(set(seen.ranks)))
                yield Shown(seen.ranks[0], seen.stream, text, len(seen.ranks), ranks)
        if self.due <= now:
            held = (seen.at + self._window_s for seen in self._seen.values() if seen.ranks)
            self.due = next(held, math.inf)
