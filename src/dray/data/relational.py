"""Operations on all rows together: order, pairs, samples, values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dray.data.forms.batches import rebatched
from dray.data.forms.blocks import Block, Table, Value, concat
from dray.errors import ConfigError

_END = Block(pa.table({}))


def check_column(table: Table, names: Iterable[str]) -> None:
    """Raise ConfigError if a table lacks a column."""
    for name in names:
        if name not in table.column_names:
            raise ConfigError(
                f"there is no column {name!r}; the columns are {', '.join(table.column_names)}"
            )


def sorted_blocks(
    blocks: Iterable[Block], keys: Sequence[str], falls: Sequence[bool]
) -> Iterator[Block]:
    """Yield all rows in the order of columns."""
    tables = [block.table for block in blocks]
    if not tables:
        return
    table = concat(tables)
    check_column(table, keys)
    order = ["descending" if fall else "ascending" for fall in falls]
    pairs = list(zip(keys, order, strict=True))
    yield Block(table.take(pc.sort_indices(table, sort_keys=pairs)), "the sorted rows")


def zipped(datasets: Sequence[Iterator[Block]]) -> Iterator[Block]:
    """Yield rows with the columns of all datasets, which have as many rows.

    Raises:
        ConfigError: One has more rows than another.
    """
    first, *others = [rebatched(blocks, itertools.repeat(_ZIPPED_ROWS)) for blocks in datasets]
    for block in first:
        table = block.table
        for other in others:
            beside = next(other, _END).table
            if beside.num_rows != table.num_rows:
                raise ConfigError("datasets that are zipped must have as many rows as each other")
            for name in beside.column_names:
                table = table.append_column(_free_name(name, table), beside.column(name))
        yield Block(table, block.origin)
    if any(next(other, _END) is not _END for other in others):
        raise ConfigError("datasets that are zipped must have as many rows as each other")


_ZIPPED_ROWS = 4096


def _free_name(name: str, table: Table) -> str:
    taken, free, number = set(table.column_names), name, 0
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def sampled(blocks: Iterable[Block], fraction: float, seed: int) -> Iterator[Block]:
    """Yield each row with a probability."""
    drawn = np.random.default_rng(seed)
    for block in blocks:
        kept = drawn.random(block.table.num_rows) < fraction
        yield Block(block.table.filter(pa.array(kept)), block.origin)


def unique(blocks: Iterable[Block], column: str) -> list[Value]:
    """Return the values of a column, each once, in the order in which they come first."""
    found: dict[Value, None] = {}
    for block in blocks:
        check_column(block.table, [column])
        found.update(dict.fromkeys(pc.unique(block.table.column(column)).to_pylist()))
    return list(found)
