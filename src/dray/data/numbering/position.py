"""The position in an epoch: the seen rows of a global order, and the next rows of each rank.

An epoch is the numbers 0 to N - 1, which an order maps to rows. Of the unseen numbers, in order,
rank r of W takes number r, r + W, r + 2W and so on. All ranks together therefore take the same rows
for any W, and a count for each rank determines exactly which rows have been seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dray.data.numbering.order import Numbers


@dataclass(frozen=True)
class Seen:
    """The seen numbers of an epoch: all below a first unseen one, and some beyond it.

    Attributes:
        below: The first unseen number; all numbers below it are seen.
        beyond: The seen numbers beyond it, in order.
    """

    below: int = 0
    beyond: Numbers = field(default_factory=lambda: np.empty(0, np.int64))

    def count(self) -> int:
        """Return the number of seen numbers."""
        return self.below + len(self.beyond)

    def number(self, places: Numbers) -> Numbers:
        """Return the unseen numbers at these places among all unseen ones, counted from 0."""
        if not len(self.beyond):
            return places + self.below
        unseen_before = self.beyond - np.arange(len(self.beyond)) - self.below
        return places + self.below + np.searchsorted(unseen_before, places, side="right")

    def unseen(self, numbers: Numbers) -> Numbers:
        """Return the numbers of an array that are unseen."""
        return numbers[(numbers >= self.below) & ~np.isin(numbers, self.beyond)]

    def after(self, taken: Sequence[int]) -> Seen:
        """Return the seen numbers after each rank has taken this many rows."""
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
        """Return the seen numbers for JSON; those beyond are ranges [first, last, step]."""
        return {"below": self.below, "beyond": _runs(self.beyond.tolist())}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Seen:
        """Return the seen numbers from the value of `to_json`."""
        runs = [np.arange(first, last + 1, step) for first, last, step in data["beyond"]]
        beyond = np.sort(np.concatenate(runs)) if runs else np.empty(0, np.int64)
        return cls(int(data["below"]), beyond.astype(np.int64))


def _runs(numbers: list[int]) -> list[list[int]]:
    """Return sorted numbers as ranges [first, last, step], each as long as possible."""
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
    """The position of one rank in its iterations over a dataset.

    Attributes:
        epoch: The number of the iteration, from 0.
        taken: The number of rows that the rank has received in this epoch.
        seen: The part of the epoch that was seen when the rank's workers started.
        rows: The number of rows of the dataset; None if unknown.
    """

    epoch: int = 0
    taken: int = 0
    seen: Seen = field(default_factory=Seen)
    rows: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the position for JSON."""
        return {
            "epoch": self.epoch,
            "taken": self.taken,
            "seen": self.seen.to_json(),
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Position:
        """Return the position from the value of `to_json`."""
        seen = Seen.from_json(data["seen"])
        return cls(int(data["epoch"]), int(data["taken"]), seen, data["rows"])


class Bookmark:
    """The position of one rank, which moves with its iterations.

    Args:
        positions: The position of each rank at the checkpoint, for any number of ranks; empty at
            the beginning.
        rows: The number of rows; None if unknown.

    Attributes:
        begun: Whether an epoch has begun and not ended.
        resumes: Whether `positions` is not empty.
        late: Whether to count rows only when the next ones are taken, because the reader is one
            step ahead of the program.
    """

    def __init__(self, positions: Sequence[Position], rows: int | None) -> None:
        self.position = resumed(positions) if positions else Position()
        self.rows = rows
        self.resumes = bool(positions)
        self.late = False
        self.begun = False
        self._held = 0

    def begin(self) -> Position:
        """Begin an epoch, or continue the interrupted one; return the position."""
        if self.begun:  # the program left an earlier iteration before its end
            self.end()
        self.begun = True
        return self.position

    def take(self, rows: int) -> None:
        """Count rows that were taken, or the previous ones if the bookmark is `late`."""
        if self.late:
            rows, self._held = self._held, rows
        last = self.position
        self.position = Position(last.epoch, last.taken + rows, last.seen, self.rows)

    def end(self) -> None:
        """Move to the next epoch."""
        self._turn_to(self.position.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch; if it is the interrupted one, it continues."""
        if self.begun or epoch != self.position.epoch:
            self._turn_to(epoch)

    def _turn_to(self, epoch: int) -> None:
        self.begun, self._held = False, 0
        self.position = Position(epoch, rows=self.rows)


def share(left: int, rank: int, ranks: int, *, equal: bool) -> int:
    """Return the number of rows that a rank gets of the remaining rows.

    Args:
        equal: Whether all ranks get equally many; fewer than `ranks` rows are then left over.
    """
    return left // ranks if equal else len(range(rank, left, ranks))


def batch_sizes(rows: int, size: int, *, drop_last: bool) -> list[int]:
    """Return the sizes of the batches of `rows` rows."""
    whole, rest = divmod(rows, size)
    return [size] * whole + [rest] * (rest > 0 and not drop_last)


def resumed(positions: Sequence[Position]) -> Position:
    """Return the position from which any number of ranks continue, given the position of each rank.

    If a rank had begun a later epoch than others, it has taken its whole share of their epoch. The
    rows that it has seen in the later epoch are forgotten, so they are repeated.
    """
    epoch = min(position.epoch for position in positions)
    behind = next(position for position in positions if position.epoch == epoch)
    seen, rows = behind.seen, behind.rows
    ranks = len(positions)
    if rows is None:  # a stream: every rank was at or near its end
        most = max(position.taken for position in positions if position.epoch == epoch)
        whole = [most] * ranks
    else:
        whole = [share(rows - seen.count(), rank, ranks, equal=False) for rank in range(ranks)]
    taken = [
        position.taken if position.epoch == epoch else whole[rank]
        for rank, position in enumerate(positions)
    ]
    return Position(epoch, 0, seen.after(taken), rows)
