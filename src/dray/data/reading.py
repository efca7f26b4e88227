"""The reader of one rank's share: the rows of its numbers of an epoch, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dray.data.blocks import Block, concat
from dray.data.order import Order
from dray.data.sources import Source


def read_numbers(source: Source, order: Order, chunks: Iterator[Any]) -> Iterator[Block]:
    """Yield the rows of numbers of an epoch.

    Args:
        source: It has as many rows as the order.
        order: The order, which says what row a number is.
        chunks: The numbers, rising, a block at a time.
    """
    if source.indexed and order.lanes == 1:
        for numbers in chunks:
            yield _taken(source, order, numbers)
        return
    lanes: dict[int, Lane] = {}
    for numbers in chunks:
        yield _from_lanes(source, order, lanes, numbers)


def _taken(source: Source, order: Order, numbers: Any) -> Block:
    rows = order.row_in_lane(0, numbers)
    origin = source.origin(int(rows.min()), int(rows.max()) + 1)
    return Block(source.take(rows), origin)


def _from_lanes(source: Source, order: Order, lanes: dict[int, Lane], numbers: Any) -> Block:
    of_lane = order.lane_of(numbers)
    tables, places, origins = [], [], []
    for lane in np.unique(of_lane).tolist():
        chosen = np.flatnonzero(of_lane == lane)
        if lane not in lanes:
            lanes[lane] = Lane(source, order, lane)
        block = lanes[lane].take(numbers[chosen])
        tables.append(block.table)
        places.append(chosen)
        origins.append(block.origin)
    origin = origins[0] if len(origins) == 1 else f"{'; '.join(origins[:3])}; ..."
    if len(tables) == 1:
        return Block(tables[0], origin)
    return Block(concat(tables).take(pa.array(np.argsort(np.concatenate(places)))), origin)


class Lane:
    """A range of rows that is read from its first to its last, with a few held back.

    Args:
        source: The source of rows.
        order: The order, which says what rows the lane has.
        lane: Its number.
    """

    def __init__(self, source: Source, order: Order, lane: int) -> None:
        self._source, self._order, self._lane = source, order, lane
        self._start, self._stop = order.start(lane), order.start(lane + 1)
        self._window = max(1, order.lane_window)
        self._blocks: Iterator[Block] | None = None
        self._held: list[Block] = []
        self._low = self._high = 0  # rows of the lane that are held: from, to before

    def take(self, numbers: Any) -> Block:
        """Return the rows of numbers of the lane; those of earlier windows are given up."""
        windows = numbers // self._order.lanes // self._window
        rows = self._order.row_in_lane(self._lane, numbers)
        self._hold(int(windows[0]) * self._window, int(rows.max()) + 1)
        table = concat([block.table for block in self._held])
        first, number = int(rows[0]) - self._low, len(rows)
        if self._window == 1 and rows[-1] - rows[0] == number - 1:
            return Block(table.slice(first, number), self._held[0].origin)
        return Block(table.take(pa.array(rows - self._low)), self._held[0].origin)

    def _hold(self, low: int, high: int) -> None:
        """Have the rows of a range in memory, and none before them."""
        if self._blocks is None:
            self._blocks = self._source.open(self._start + low, self._stop)
            self._low = self._high = low
        while self._high < high:
            block = next(self._blocks)
            self._held.append(block)
            self._high += block.table.num_rows
        while self._held and self._low + self._held[0].table.num_rows <= low:
            self._low += self._held.pop(0).table.num_rows
