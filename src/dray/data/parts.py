"""The parts of a dataset: training and test rows, ranges of rows, and the shares of ranks."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa

from dray.checks import is_number, is_whole, plain, seed_of
from dray.data.forms.bare import kept_rows
from dray.data.forms.blocks import Array, Block, Table, Value, column_to_numpy
from dray.data.forms.names import column_named
from dray.data.iterator import DataIterator
from dray.data.operations import MapTables, UserFunction
from dray.data.pipeline import part_of
from dray.data.pools.options import check_options
from dray.data.relational import hashable, sampled
from dray.data.writers import Writers
from dray.errors import ConfigError

R = TypeVar("R", bound="Parts")


class Parts(Writers):
    """A pipeline that can be split into parts."""

    def train_test_split(
        self: R,
        test_size: float,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        stratify: str | None = None,
    ) -> tuple[R, R]:
        """Return the first rows for training and the last rows for a test.

        Args:
            test_size: The number of rows for the test, or a fraction of the rows if it is below 1.
            shuffle: Whether to shuffle the rows before the split.
            seed: The seed of the shuffle.
            stratify: A column whose values have the same proportions in both parts; the rows are
                then computed and stored as by `materialize`.
        """
        ready = self._ready_to_cut()
        rows = ready.count()
        size = plain(test_size)
        is_part = isinstance(size, float) and 0 < size < 1
        test = int(rows * size) if is_part else size
        if not is_whole(test, 0) or test > rows:
            raise ConfigError(f"test_size must be below 1, or at most {rows}, not {test_size!r}")
        whole = ready.shuffled(seed) if shuffle else ready
        if stratify is None:
            ends = _proportionate(rows, [1 - size]) if is_part else [rows - test]
            first, last = whole.split_at_indices(ends)
            return first, last
        made = whole.materialize()
        part = size if is_part else test / max(1, rows)
        last_ones = _last_of_each(made.blocks(), stratify, part)
        return made._kept(~last_ones), made._kept(last_ones)

    def streaming_train_test_split(
        self: R,
        test_size: float,
        *,
        split_type: Literal["random", "hash"] = "random",
        hash_column: str | None = None,
        seed: int | None = None,
        **workers: object,
    ) -> tuple[R, R]:
        """Return training rows and test rows, without counting or storing rows.

        If a dataset has other rows in each iteration, for example after a filter by `random()`, a
        row may be in both parts: call `materialize` first.

        Args:
            test_size: The approximate fraction of rows for the test, above 0 and below 1.
            split_type: "random" draws a random number for each row. "hash" uses the value of a
                column, so that rows with the same value are always in the same part, in any order
                and among any other rows.
            hash_column: The column for "hash".
            seed: The seed for "random"; None draws one.
            workers: Ignored; for compatibility with Ray.

        Raises:
            ConfigError: An argument is invalid, or does not fit the others.

        Example:
            >>> import dray.data
            >>> train, test = dray.data.range(1000).streaming_train_test_split(0.2, seed=1)
            >>> train.count() + test.count(), 150 < test.count() < 250
            (1000, True)
        """
        check_options(Parts.streaming_train_test_split, workers)
        size = plain(test_size)
        if not is_number(size) or not 0 < size < 1:
            raise ConfigError(f"test_size must be above 0 and below 1, not {test_size!r}")
        if split_type not in ("random", "hash"):
            raise ConfigError(f"split_type must be 'random' or 'hash', not {split_type!r}")
        if (split_type == "hash") == (hash_column is None):
            raise ConfigError("hash_column is only for split_type='hash'")
        if hash_column is None:
            chosen, most = seed_of(seed), 1 - size
            return (
                self.derived(lambda: sampled(self.blocks(), most, chosen), "rows to train with"),
                self.derived(lambda: sampled(self.blocks(), most, chosen, rest=True), "a test"),
            )
        if seed is not None:
            raise ConfigError("seed has no effect with split_type='hash'")
        return self._by_hash(hash_column, 1 - size), self._by_hash(hash_column, 1 - size, rest=True)

    def _by_hash(self: R, column: str, part: float, *, rest: bool = False) -> R:
        function = UserFunction(
            functools.partial(_hashed_below, column, part, rest),
            "streaming_train_test_split",
            called=f"streaming_train_test_split({column!r})",
        )
        return self._with(MapTables(function, keeps_rows=False))

    def _kept(self: R, kept: Array) -> R:
        rows = self.derived(lambda: _masked(self.blocks(), kept), "a part of the rows")
        return rows.materialize()

    def split(self: R, n: int, *, equal: bool = False, locality_hints: object = None) -> list[R]:
        """Return `n` parts of consecutive rows.

        Args:
            n: The number of parts.
            equal: Whether all parts have equally many rows; fewer than `n` rows are then left over.
            locality_hints: Ignored; for compatibility with Ray.
        """
        if not is_whole(plain(n), 1):
            raise ConfigError(f"split takes a number of parts, 1 or more, not {n!r}")
        ready = self._ready_to_cut()
        rows = ready.count()
        if equal:
            return ready.split_at_indices([rows // n * part for part in range(1, n + 1)])[:n]
        return ready.split_at_indices([rows * part // n for part in range(1, n)])

    def split_at_indices(self: R, indices: Sequence[int]) -> list[R]:
        """Return the rows before the first index, those before the second index, and so on."""
        counted = self._ready_to_cut()
        rows = counted.num_rows
        assert rows is not None
        ends = [0, *(min(int(index), rows) for index in indices), rows]
        if ends != sorted(ends):
            raise ConfigError(f"indices must rise, and be 0 or more, not {list(indices)}")
        return [
            type(self)(part_of(counted.source, begin, end), counted._operations)
            for begin, end in itertools.pairwise(ends)
        ]

    def split_proportionately(self: R, proportions: Sequence[float]) -> list[R]:
        """Return a part for each proportion of the rows, and the remaining rows as the last part.

        Each part has at least one row.

        Raises:
            ConfigError: A proportion is not above 0, their sum is not below 1, or there are fewer
                rows than parts.
        """
        ready = self._ready_to_cut()
        return ready.split_at_indices(_proportionate(ready.count(), proportions))

    def _ready_to_cut(self: R) -> R:
        """Return the same rows in order and numbered, after running functions once if needed."""
        ready = self.with_added_columns()
        known = ready._seed is None and ready._keeps_rows_surely()
        return ready.countable() if known else ready.materialize()

    def streaming_split(
        self, n: int, *, equal: bool = False, locality_hints: object = None
    ) -> list[DataIterator]:
        """Return `n` iterators, one for each share, divided as for the ranks of a training.

        Args:
            n: The number of shares.
            equal: Whether all shares have equally many rows.
            locality_hints: Ignored; for compatibility with Ray.
        """
        if not is_whole(plain(n), 1):
            raise ConfigError(f"streaming_split takes a number of shares, 1 or more, not {n!r}")
        ready = self if self.is_stream else self.countable()
        return [DataIterator(ready, rank, n, equal=equal) for rank in range(n)]


def _proportionate(rows: int, proportions: Sequence[float]) -> list[int]:
    """Return the row numbers at which to split; each part has at least one row.

    Raises:
        ConfigError: A proportion is not above 0, their sum is not below 1, or there are fewer
            rows than parts.
    """
    ends = list(itertools.accumulate(proportions))
    if not ends or ends[-1] >= 1 or min(proportions) <= 0:
        raise ConfigError(f"proportions must be above 0, and below 1 together: {proportions!r}")
    if rows <= len(ends):
        raise ConfigError(f"{rows} rows cannot be {len(ends) + 1} parts with a row each")
    indices, begin = [], 0
    for part, end in enumerate(ends):
        left = len(ends) - part  # number of the parts after this one
        begin = min(max(int(rows * end), begin + 1), rows - left)
        indices.append(begin)
    return indices


def _last_of_each(blocks: Iterable[Block], column: str, part: float) -> Array:
    """Return a mask of the last rows of each value of a column, a fraction `part` of them."""
    numbers: dict[Hashable, list[int]] = {}
    rows = 0
    for block in blocks:
        for row, value in enumerate(column_named(block.table, column).to_pylist(), rows):
            numbers.setdefault(hashable(value), []).append(row)
        rows += block.table.num_rows
    found: Array = np.zeros(rows, bool)
    for of_value in numbers.values():
        found[of_value[len(of_value) - int(len(of_value) * part) :]] = True
    return found


def _hashed_below(column: str, part: float, rest: bool, table: Table) -> Table:
    """Return the rows whose value of a column has a hash in the lower part, or the others."""
    limit = part * (1 << 64)

    def is_below(value: Value) -> bool:
        digest = hashlib.blake2b(str(value).encode(), digest_size=8).digest()  # as in Ray
        return int.from_bytes(digest, "big") < limit

    values = column_to_numpy(column_named(table, column)).tolist()
    return table.filter(pa.array([is_below(value) != rest for value in values], pa.bool_()))


def _masked(blocks: Iterable[Block], kept: Array) -> Iterator[Block]:
    """Yield the rows for which an array contains True."""
    begin = 0
    for block in blocks:
        end = begin + block.table.num_rows
        yield Block(kept_rows(block.table, kept[begin:end]), block.origin)
        begin = end
