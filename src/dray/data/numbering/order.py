"""The order of an epoch, shuffled or not: from numbers to rows, the same for any number of workers.

Rows that can be read one by one keep their own order, or are in a random one. Files are cut into
lanes, which are ranges of rows of equal length, and an epoch takes a row of each lane in turn. A
rank whose share is every W-th row then reads a few lanes from end to end, and no rank reads the
rows of another rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# Numbers of an epoch, of rows, or of lanes; and bits that are mixed.
Numbers: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.uint64]

_ROUNDS = 4


@dataclass(frozen=True)
class Order:
    """The order of one epoch.

    Attributes:
        lanes: The number of ranges that they are cut into.
        shuffled: Whether all rows are in a random order, which takes a single lane.
        window: Number of rows that follow each other, in a random order; below 2 none are.
        seed: Decides random orders, together with the epoch.
        epoch: The iteration, from 0.
    """

    rows: int
    lanes: int = 1
    shuffled: bool = False
    window: int = 0
    seed: int = 0
    epoch: int = 0

    def lane_of(self, numbers: Numbers) -> Numbers:
        """Return the lanes of numbers of the epoch."""
        return numbers % self.lanes

    def period(self, numbers: Numbers) -> int | None:
        """Return after how many of some numbers the lane of the first comes again.

        None stands for numbers that are not equally far from each other.
        """
        if len(numbers) < 2:
            return len(numbers)
        step = int(numbers[1] - numbers[0])
        if (np.diff(numbers) != step).any():
            return None
        return min(len(numbers), self.lanes // math.gcd(self.lanes, step))

    def start(self, lane: int) -> int:
        """Return the first row of a lane."""
        return lane * (self.rows // self.lanes) + min(lane, self.rows % self.lanes)

    def row_in_lane(self, lane: int, numbers: Numbers) -> Numbers:
        """Return which row of the lane each of its numbers is, counted from the lane's first."""
        places = numbers // self.lanes
        if self.shuffled:
            return _permuted(places, np.full(len(places), self.rows), self._key(0, 0))
        size = self.lane_window
        if size < 2:
            return places
        length = self.start(lane + 1) - self.start(lane)
        windows = places // size
        sizes = np.minimum(size, length - windows * size)
        return windows * size + _permuted(places - windows * size, sizes, self._key(lane, windows))

    @property
    def lane_window(self) -> int:
        """Number of rows of a lane, that follow each other, in a random order."""
        return -(-self.window // self.lanes)

    def _key(self, lane: int, windows: Numbers | int) -> Bits:
        mixed = np.random.SeedSequence((self.seed, self.epoch, lane)).generate_state(1, np.uint64)
        return mixed[0] ^ _mix(np.asarray(windows, np.uint64))


def _mix(values: Bits) -> Bits:
    """Return 64-bit numbers that look random (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _permuted(places: Numbers, sizes: Numbers, keys: Bits) -> Numbers:
    """Return where each place goes in a random order of the numbers below its size.

    A Feistel network over the next power of four of each size, walked until a number below it
    comes, so that no order needs to be held in memory, nor depends on what else is asked for.

    Args:
        places: Numbers from 0.
        sizes: The size of each one's order.
        keys: The key of the order: one for all, or one each.
    """
    values, most = np.asarray(places, np.uint64), np.asarray(sizes, np.uint64)
    keys = np.broadcast_to(keys, values.shape)
    bits = np.frexp((most - np.uint64(1)).astype(np.float64))[1]
    half = np.maximum(1, (bits + 1) // 2).astype(np.uint64)
    values = _feistel(values, keys, half)
    outside = values >= most
    while outside.any():
        values[outside] = _feistel(values[outside], keys[outside], half[outside])
        outside = values >= most
    return values.astype(np.int64)


def _feistel(values: Bits, keys: Bits, half: Bits) -> Bits:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for turn in range(_ROUNDS):
        with np.errstate(over="ignore"):
            mixed = _mix(right + keys + np.uint64(turn + 1) * np.uint64(0x9E3779B97F4A7C15))
        left, right = right, left ^ (mixed & mask)
    return (left << half) | right
