"""The order of an epoch, shuffled or not, which maps numbers to rows for any number of workers.

If rows can be read one by one, they are in their own order or in a random one. Files are divided
into lanes, which are ranges of rows of equal length, and an epoch takes a row of each lane in turn.
A rank whose share is every W-th row then reads a few lanes from end to end, and no rank reads the
rows of another rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# Numbers of an epoch, of rows, or of lanes; and 64-bit values for hashing.
Numbers: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.uint64]

_ROUNDS = 4


@dataclass(frozen=True)
class Order:
    """The order of one epoch.

    Attributes:
        lanes: The number of lanes into which the rows are divided.
        shuffled: Whether all rows are in a random order; there must be a single lane then.
        window: Number of consecutive rows that are shuffled among themselves; no shuffle if below
            2.
        seed: The seed of random orders; the epoch changes them too.
        epoch: The number of the epoch, from 0.
    """

    rows: int
    lanes: int = 1
    shuffled: bool = False
    window: int = 0
    seed: int = 0
    epoch: int = 0

    def lane_of(self, numbers: Numbers) -> Numbers:
        """Return the lane of each number of the epoch."""
        return numbers % self.lanes

    def period(self, numbers: Numbers) -> int | None:
        """Return the number of entries after which the lanes of equally spaced numbers repeat.

        Return None if the numbers are not equally spaced.
        """
        if len(numbers) < 2:
            return len(numbers)
        step = int(numbers[1] - numbers[0])
        if (np.diff(numbers) != step).any():
            return None
        return min(len(numbers), self.lanes // math.gcd(self.lanes, step))

    def start(self, lane: int) -> int:
        """Return the number of the first row of a lane."""
        return lane * (self.rows // self.lanes) + min(lane, self.rows % self.lanes)

    def row_in_lane(self, lane: int, numbers: Numbers) -> Numbers:
        """Return the row of each number, counted from the first row of the lane."""
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
        """Number of consecutive rows of a lane that are shuffled among themselves."""
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
    """Return the new place of each place in a random order of the numbers below its size.

    The order is a Feistel network over the next power of four of each size, repeated until the
    result is below the size. It therefore needs no memory, and each result is independent of the
    others.

    Args:
        places: Places, from 0.
        sizes: The size of the order for each place.
        keys: The key of the order: one for all places, or one for each.
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
