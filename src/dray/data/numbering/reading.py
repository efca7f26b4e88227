"""The reader of one rank's share: rows by their numbers in an epoch, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dray.data.forms.batches import joined
from dray.data.forms.blocks import Block, concat, taken
from dray.data.forms.interleaving import interleaved
from dray.data.numbering.order import Numbers, Order
from dray.data.sources.base import Source


def read_numbers(source: Source, order: Order, chunks: Iterator[Numbers]) -> Iterator[Block]:
    """Yield the rows for numbers of an epoch.

    Args:
        source: The source, with the same number of rows as the order.
        order: The order, which maps numbers to rows.
        chunks: Ascending numbers, a block at a time.
    """
    if source.indexed and order.lanes == 1:
        for numbers in chunks:
            yield _taken(source, order, numbers)
        return
    lanes: dict[int, Lane] = {}
    for numbers in chunks:
        yield _from_lanes(source, order, lanes, numbers)


def _taken(source: Source, order: Order, numbers: Numbers) -> Block:
    rows = order.row_in_lane(0, numbers)
    origin = source.origin(int(rows.min()), int(rows.max()) + 1)
    return Block(source.take(rows), origin, own=True)


def _from_lanes(source: Source, order: Order, lanes: dict[int, Lane], numbers: Numbers) -> Block:
    period = order.period(numbers)
    if period is not None:
        blocks = [_of_lane(source, order, lanes, numbers[n::period]) for n in range(period)]
        own = len(blocks) > 1 or blocks[0].own
        return Block(interleaved([block.table for block in blocks]), _origin(blocks), own)
    of_lane = order.lane_of(numbers)
    chosen = [np.flatnonzero(of_lane == lane) for lane in np.unique(of_lane)]
    blocks = [_of_lane(source, order, lanes, numbers[places]) for places in chosen]
    table = concat([block.table for block in blocks])
    rows = np.argsort(np.concatenate(chosen))
    return Block(taken(table, rows), _origin(blocks), own=True)


def _of_lane(source: Source, order: Order, lanes: dict[int, Lane], numbers: Numbers) -> Block:
    lane = int(order.lane_of(numbers[0]))
    if lane not in lanes:
        lanes[lane] = Lane(source, order, lane)
    return lanes[lane].take(numbers)


def _origin(blocks: Sequence[Block]) -> str:
    if len(blocks) == 1:
        return blocks[0].origin
    return f"{'; '.join(block.origin for block in blocks[:3])}; ..."


class Lane:
    """A range of rows that is read from beginning to end; it holds a few rows back."""

    def __init__(self, source: Source, order: Order, lane: int) -> None:
        self._source, self._order, self._lane = source, order, lane
        self._start, self._stop = order.start(lane), order.start(lane + 1)
        self._window = max(1, order.lane_window)
        self._blocks: Iterator[Block] | None = None
        self._held: list[Block] = []
        self._low = self._high = 0  # the range of the lane's rows in memory

    def take(self, numbers: Numbers) -> Block:
        """Return the rows for numbers of the lane; rows of earlier windows are dropped."""
        first, last = (int(number) // self._order.lanes for number in (numbers[0], numbers[-1]))
        if self._window == 1 and last - first == len(numbers) - 1:
            self._hold(first, last + 1)
            held = joined(self._held)
            return held._replace(table=held.table.slice(first - self._low, len(numbers)))
        rows = self._order.row_in_lane(self._lane, numbers)
        self._hold(first // self._window * self._window, int(rows.max()) + 1)
        held = joined(self._held)
        return Block(taken(held.table, rows - self._low), held.origin, own=True)

    def _hold(self, low: int, high: int) -> None:
        """Read the rows of a range into memory, and drop the rows before it."""
        if self._blocks is None:
            self._blocks = self._source.open(self._start + low, self._stop)
            self._low = self._high = low
        while self._high < high:
            block = next(self._blocks)
            self._held.append(block)
            self._high += block.table.num_rows
        while self._held and self._low + self._held[0].table.num_rows <= low:
            self._low += self._held.pop(0).table.num_rows
