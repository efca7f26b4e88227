"""Values that depend on no column: random numbers, increasing numbers and unique strings."""

from __future__ import annotations

import os
import secrets
import threading
import uuid

import numpy as np
import pyarrow as pa
import xxhash

from dray.checks import seed_of
from dray.data.forms.blocks import Column, Table

# The lower bits count rows within a process; the bits above them identify the process.
_ROW_BITS = 33


class RandomNumbers:
    """Random numbers from 0 to below 1.

    Args:
        seed: The seed, used together with the rows of the block; None draws one.
        reseed: Whether each call returns other numbers.
    """

    def __init__(self, seed: int | None, reseed: bool) -> None:
        self._seed = None if seed is None else seed_of(seed)
        self._reseed, self._calls = reseed, 0

    def __call__(self, table: Table) -> Column:
        """Return a number for each row."""
        return pa.array(np.random.default_rng(self._of(table)).random(table.num_rows))

    def _of(self, table: Table) -> list[int] | None:
        """Return the seed of a table's numbers; None for random numbers."""
        if self._seed is None:
            return None
        content = xxhash.xxh3_64()
        for batch in table.to_batches():
            content.update(batch.serialize())
        self._calls += self._reseed
        return [self._seed, content.intdigest(), self._calls]


class RisingNumbers:
    """Integers that increase within a process and are unique for each row.

    The process that created this object has small numbers. In other processes, the upper bits hold
    a number of the process.
    """

    def __init__(self) -> None:
        self._home = _here().number

    def __call__(self, table: Table) -> Column:
        """Return a number for each row."""
        here = _here()
        begin = here.take(table.num_rows)
        above = 0 if here.number == self._home else here.number
        return pa.array(np.arange(begin, begin + table.num_rows) + (above << _ROW_BITS))


class _Process:
    """The rows of a process that have numbers.

    Attributes:
        number: A random number that identifies the process.
    """

    def __init__(self) -> None:
        self._lock, self._rows = threading.Lock(), 0
        self.number = 1 + secrets.randbelow((1 << 63 - _ROW_BITS) - 1)

    def take(self, rows: int) -> int:
        """Reserve `rows` consecutive numbers, and return the first."""
        with self._lock:
            self._rows += rows
            return self._rows - rows


_PROCESSES: dict[int, _Process] = {}


def _here() -> _Process:
    """Return the record of this process; a forked process gets a new one."""
    return _PROCESSES.get(os.getpid()) or _PROCESSES.setdefault(os.getpid(), _Process())


def uuids(table: Table) -> Column:
    """Return a unique string for each row."""
    return pa.array([str(uuid.uuid4()) for _ in range(table.num_rows)], pa.string())
