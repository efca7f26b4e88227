"""Operations on all rows together: sort, join, zip, mix, sample and unique."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dray.data.forms.bare import kept_rows
from dray.data.forms.batches import rebatched
from dray.data.forms.blocks import (
    Array,
    Block,
    Table,
    Value,
    column_to_numpy,
    column_to_values,
    concat,
    plain_values,
    taken,
    with_plain,
)
from dray.data.forms.lists import is_compound, marked, marked_names
from dray.data.forms.names import check_column, column_named, free_name
from dray.data.sources.base import BLOCK_BYTES, TableSource
from dray.errors import ConfigError, describe

_END = Block(pa.table({}))


def sorted_blocks(
    blocks: Iterable[Block], keys: Sequence[str], falls: Sequence[bool]
) -> Iterator[Block]:
    """Yield all rows, sorted by columns."""
    tables = [block.table for block in blocks]
    if not tables:
        return
    table = concat(tables)
    check_column(table, keys)
    order = ["descending" if fall else "ascending" for fall in falls]
    pairs = list(zip(keys, order, strict=True))
    by = with_plain(table.select(keys), keys)
    try:
        rows = column_to_numpy(pc.sort_indices(by, sort_keys=pairs)).astype(np.int64)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        kinds = ", ".join(f"{field.name!r}, which is {field.type}" for field in by.schema)
        raise ConfigError(f"rows cannot be sorted by {kinds}: {describe(error)}") from error
    source = TableSource(table.combine_chunks())
    step = source.block_rows()
    for begin in range(0, max(1, table.num_rows), step):
        yield Block(source.take(rows[begin : begin + step]), "the sorted rows")


def zipped(datasets: Sequence[Iterator[Block]]) -> Iterator[Block]:
    """Yield rows with the columns of all datasets, which must have equally many rows."""
    first, *others = [rebatched(blocks, itertools.repeat(_ZIPPED_ROWS)) for blocks in datasets]
    for block in first:
        table = block.table
        for other in others:
            beside = next(other, _END).table
            if beside.num_rows != table.num_rows:
                raise ConfigError("datasets that are zipped must have the same number of rows")
            for name in beside.column_names:
                field = beside.schema.field(name).with_name(free_name(name, table.column_names))
                table = table.append_column(field, beside.column(name))
        yield Block(table, block.origin)
    if any(next(other, _END) is not _END for other in others):
        raise ConfigError("datasets that are zipped must have the same number of rows")


_ZIPPED_ROWS = 4096


def sampled(
    blocks: Iterable[Block], fraction: float, seed: int, *, rest: bool = False
) -> Iterator[Block]:
    """Yield each row with the same probability.

    Args:
        rest: Whether to yield the other rows instead.
    """
    drawn = np.random.default_rng(seed)
    for block in blocks:
        kept = (drawn.random(block.table.num_rows) < fraction) != rest
        yield Block(kept_rows(block.table, kept), block.origin)


class MixStoppingCondition(enum.Enum):
    """The conditions that end a mix of datasets.

    Members:
        STOP_ON_SHORTEST: The mix ends when the first dataset has no more rows.
        STOP_ON_LONGEST_DROP: The mix ends when all datasets have no more rows; those without rows
            drop out.
    """

    STOP_ON_SHORTEST = "stop_on_shortest"
    STOP_ON_LONGEST_DROP = "stop_on_longest_drop"


def mixed(
    datasets: Sequence[Iterator[Block]], weights: Sequence[float], ends: MixStoppingCondition
) -> Iterator[Block]:
    """Yield rows of several datasets in turn, in proportion to their weights."""
    cursors = [_Cursor(blocks) for blocks in datasets]
    row_bytes = max(1.0, *(cursor.row_bytes() for cursor in cursors))
    window = max(1, min(_MIXED_ROWS, int(BLOCK_BYTES / row_bytes)))
    shares = np.array(weights, np.float64)
    due: Array = np.zeros(len(cursors))
    shortest = ends is MixStoppingCondition.STOP_ON_SHORTEST
    while shares.any():
        due += window * shares / shares.sum()
        wanted = np.floor(due + _ROUNDING).astype(np.int64)
        due -= wanted
        parts = [cursor.take(rows) for cursor, rows in zip(cursors, wanted.tolist(), strict=True)]
        rows = np.array([part.num_rows for part in parts])
        places = [(np.arange(n) + 0.5) / of for n, of in zip(rows, wanted, strict=True)]
        short = rows < wanted
        order = np.argsort(np.concatenate(places), kind="stable")
        if shortest and short.any():  # keep the rows before the first missing one
            end = ((rows[short] + 0.5) / wanted[short]).min()
            order = order[: sum(int((place < end).sum()) for place in places)]
        if len(order):
            table = concat([part for part in parts if part.num_rows], "rows that are mixed")
            yield Block(taken(table, order), "the mixed rows")
        shares[short], due[short] = 0, 0
        if shortest and short.any():
            return


_MIXED_ROWS = 4096
_ROUNDING = 1e-9  # because 0.1 + 0.1 + ... is slightly below 1


class _Cursor:
    """A reader that takes a given number of rows of a dataset at a time."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks, self._held, self._rows = blocks, pa.table({}), 0

    def _fill(self, rows: int) -> None:
        held = [self._held] if self._rows else []
        while self._rows < rows and (block := next(self._blocks, None)) is not None:
            held.append(block.table)
            self._rows += block.table.num_rows
        self._held = concat(held) if held else self._held

    def row_bytes(self) -> float:
        """Return the approximate number of bytes of a row in memory."""
        self._fill(1)
        return float(self._held.nbytes / max(1, self._rows))

    def take(self, rows: int) -> Table:
        """Return the next `rows` rows, or fewer at the end."""
        self._fill(rows)
        given = min(rows, self._rows)  # Arrow slices beyond the end of a table without columns
        part, self._held = self._held.slice(0, given), self._held.slice(given)
        self._rows -= given
        return part


def unique(blocks: Iterable[Block], column: str) -> list[Value]:
    """Return the distinct values of a column, in the order of their first rows."""
    found: dict[Hashable, Value] = {}
    for block in blocks:
        values = column_named(block.table, column)
        each = values if is_compound(values.type) else pc.unique(plain_values(values))
        for value in column_to_values(each):
            found.setdefault(hashable(value), value)
    return list(found.values())


def hashable(value: Value) -> Hashable:
    """Return a hashable object that is equal for equal values; NaN equals NaN."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list | tuple):
        return tuple(map(hashable, value))
    known: Hashable = math.nan if value != value else value
    return known


@dataclass(frozen=True)
class Join:
    """A join of two tables on keys, in the order of the first table, then of the second.

    Attributes:
        how: One of `JOINS`.
        suffixes: Suffixes for columns whose names exist in both tables, of the first and the
            second.

    Raises:
        ConfigError: `how` is unknown, or the tables have different numbers of keys.
    """

    how: str
    on: Sequence[str]
    right_on: Sequence[str]
    suffixes: tuple[str, str]

    def __post_init__(self) -> None:
        if self.how not in JOINS:
            raise ConfigError(f"join_type must be one of {', '.join(JOINS)}, not {self.how!r}")
        if len(self.on) != len(self.right_on) or not self.on:
            raise ConfigError(
                f"join takes the same number of keys of each dataset: {self.on}, {self.right_on}"
            )

    def of(self, left: Table, right: Table) -> Table:
        """Return the joined table.

        Raises:
            ConfigError: A key is missing or has another type, or two columns would have the same
                name.
        """
        numbers = self._numbers(left, right)
        found = {name: numbers.column(_KEY.format(n)) for n, name in enumerate(self._key_names())}
        arrays: list[str] = []
        sides = ((left, self.on, _LEFT, 0), (right, self.right_on, _RIGHT, 1))
        for table, keys, number, side in sides:
            if number not in numbers.column_names:
                continue
            other = sides[1 - side]
            for name in (name for name in table.column_names if name not in keys):
                shared = other[2] in numbers.column_names and name in other[0].column_names
                named = name + self.suffixes[side] if shared else name
                if named in found:
                    raise ConfigError(
                        f"both datasets have a column {name!r}: give left_suffix= or right_suffix="
                    )
                found[named] = table.column(name).take(numbers.column(number))
                if name in marked_names(table.schema):
                    arrays.append(named)
        return marked(pa.table(found), arrays)

    def _key_names(self) -> Sequence[str]:
        return self.right_on if self.how in ("right_semi", "right_anti") else self.on

    def _numbers(self, left: Table, right: Table) -> Table:
        """Return the keys and row numbers of each pair, because Arrow cannot join tensors."""
        keyed = []
        for table, on in ((left, self.on), (right, self.right_on)):
            check_column(table, on)
            names = [_KEY.format(n) for n in range(len(on))]
            keyed.append(with_plain(table.select(on), on).rename_columns(names))
        keys = keyed[0].column_names
        try:
            schema = pa.unify_schemas([k.schema for k in keyed], promote_options="permissive")
            sides = [
                table.cast(schema).append_column(number, pa.array(np.arange(table.num_rows)))
                for table, number in zip(keyed, (_LEFT, _RIGHT), strict=True)
            ]
            how = self.how.replace("_", " ")
            joined = sides[0].join(sides[1], keys, join_type=how, use_threads=False)
        except pa.ArrowException as error:
            raise ConfigError(f"the datasets cannot be joined: {describe(error)}") from error
        order = [(name, "ascending") for name in (_LEFT, _RIGHT) if name in joined.column_names]
        return joined.take(pc.sort_indices(joined, sort_keys=order))


JOINS = (
    *("inner", "left_outer", "right_outer", "full_outer"),
    *("left_semi", "right_semi", "left_anti", "right_anti"),
)
_KEY, _LEFT, _RIGHT = "key {}", "left", "right"
