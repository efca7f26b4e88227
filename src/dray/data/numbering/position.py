"""The position in an epoch: the rows of a global order that are seen, and each rank's next rows.

An epoch is the numbers 0 to N - 1, which an order maps to rows. Of the numbers that are not seen
yet, in order, rank r of W takes number r, r + W, r + 2W and so on. So the rows that all ranks
together take are the same for any W, and a count for each rank determines exactly the rows that
have been seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dray.data.numbering.order import Numbers


@dataclass(frozen=True)
class Seen:
    """The numbers of an epoch that are seen: all below a first one, and some beyond.

    Attributes:
        below: All numbers below are seen; this one is not.
        beyond: The others that are, in order.
    """

    below: int = 0
    beyond: Numbers = field(default_factory=lambda: np.empty(0, np.int64))

    def count(self) -> int:
        """Return how many are seen."""
        return self.below + len(self.beyond)

    def number(self, places: Numbers) -> Numbers:
        """Return the numbers at places among those that are not seen, counted from 0."""
        if not len(self.beyond):
            return places + self.below
        unseen_before = self.beyond - np.arange(len(self.beyond)) - self.below
        return places + self.below + np.searchsorted(unseen_before, places, side="right")

    def unseen(self, numbers: Numbers) -> Numbers:
        """Return those of some numbers that are not seen."""
        return numbers[(numbers >= self.below) & ~np.isin(numbers, self.beyond)]

    def after(self, taken: Sequence[int]) -> Seen:
        """Return what is seen once each rank has taken so many."""
        ranks, least = len(taken), min(taken)
        places = [
            np.arange(rank + ranks * least, rank + ranks * count, ranks)
            for rank, count in enumerate(taken)
        ]
        further = self.number(np.sort(np.concatenate(places)).astype(np.int64))
        below = int(self.number(np.array([ranks * least]))[0])
        beyond = np.union1d(self.beyond[self.beyond > below], further)
        run = int(np.argmax(np.append(beyond, -1) != below + np.arange(len(beyond) + 1)))
        return Seen(below + run, beyond[run:])

    def to_json(self) -> dict[str, object]:
        """Return this as JSON can hold it: numbers beyond as [first, last, step]."""
        return {"below": self.below, "beyond": _runs(self.beyond.tolist())}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Seen:
        """Return what `to_json` has made."""
        runs = [np.arange(first, last + 1, step) for first, last, step in data["beyond"]]
        beyond = np.sort(np.concatenate(runs)) if runs else np.empty(0, np.int64)
        return cls(int(data["below"]), beyond.astype(np.int64))


def _runs(numbers: list[int]) -> list[list[int]]:
    """Return numbers in order as [first, last, step], each run as long as it can be."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs:
            first, last, step = runs[-1]
            if first == last or number - last == step:
                runs[-1] = [first, number, number - last]
                continue
        runs.append([number, number, 1])
    return runs


@dataclass(frozen=True)
class Position:
    """The place of one rank in its iterations over a dataset.

    Attributes:
        epoch: The number of the iteration, from 0.
        taken: Rows that the rank has been given in it.
        seen: The part of the epoch that was seen when its workers started.
        rows: The number of rows of the dataset; None if it is not known.
    """

    epoch: int = 0
    taken: int = 0
    seen: Seen = field(default_factory=Seen)
    rows: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return this as JSON can hold it."""
        return {
            "epoch": self.epoch,
            "taken": self.taken,
            "seen": self.seen.to_json(),
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Position:
        """Return what `to_json` has made."""
        seen = Seen.from_json(data["seen"])
        return cls(int(data["epoch"]), int(data["taken"]), seen, data["rows"])


class Bookmark:
    """The place of one rank, as it moves through its iterations.

    Args:
        positions: The place of each rank when they stopped, however many there were; none is the
            beginning.
        rows: The number of rows; None if it is not known.

    Attributes:
        begun: Whether an epoch has begun, and is not over.
        resumes: Whether there were positions.
        late: Whether the program is given rows only when the next ones are taken, since what it
            reads through is ahead of it.
    """

    def __init__(self, positions: Sequence[Position], rows: int | None) -> None:
        self.position = resumed(positions) if positions else Position()
        self.rows = rows
        self.resumes = bool(positions)
        self.late = False
        self.begun = False
        self._held = 0

    def begin(self) -> Position:
        """Begin an epoch, or go on with the one that was interrupted; return where."""
        if self.begun:  # an earlier iteration was left before its end
            self.end()
        self.begun = True
        return self.position

    def take(self, rows: int) -> None:
        """Take note that rows were taken, so that the program is given them, or those before."""
        if self.late:
            rows, self._held = self._held, rows
        last = self.position
        self.position = Position(last.epoch, last.taken + rows, last.seen, self.rows)

    def end(self) -> None:
        """Take note that the epoch is over."""
        self._turn_to(self.position.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; the one that was interrupted goes on."""
        if self.begun or epoch != self.position.epoch:
            self._turn_to(epoch)

    def _turn_to(self, epoch: int) -> None:
        self.begun, self._held = False, 0
        self.position = Position(epoch, rows=self.rows)


def share(left: int, rank: int, ranks: int, *, equal: bool) -> int:
    """Return how many of the rows that are left a rank gets.

    Args:
        equal: Whether all get the same, so that fewer than `ranks` are left over.
    """
    return left // ranks if equal else len(range(rank, left, ranks))


def batch_sizes(rows: int, size: int, *, drop_last: bool) -> list[int]:
    """Return the sizes of the batches of some rows."""
    whole, rest = divmod(rows, size)
    return [size] * whole + [rest] * (rest > 0 and not drop_last)


def resumed(positions: Sequence[Position]) -> Position:
    """Return from where ranks go on, however many, given where each was.

    A rank that had begun a later epoch than others has taken its share of theirs; what it has seen
    of the later one is forgotten.
    """
    epoch = min(position.epoch for position in positions)
    behind = next(position for position in positions if position.epoch == epoch)
    seen, rows = behind.seen, behind.rows
    ranks = len(positions)
    if rows is None:  # of a stream: all have been at its end, or nearly
        most = max(position.taken for position in positions if position.epoch == epoch)
        whole = [most] * ranks
    else:
        whole = [share(rows - seen.count(), rank, ranks, equal=False) for rank in range(ranks)]
    taken = [
        position.taken if position.epoch == epoch else whole[rank]
        for rank, position in enumerate(positions)
    ]
    return Position(epoch, 0, seen.after(taken), rows)
