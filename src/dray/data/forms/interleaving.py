"""Interleaving of the rows of several tables; numbers are copied only once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dray.data.forms.blocks import Array, Table, concat, taken
from dray.data.forms.lists import is_number


def interleaved(tables: Sequence[Table]) -> Table:
    """Return the first row of each table, then the second of each, and so on.

    Args:
        tables: The tables; the first ones may have one row more than the others.
    """
    if len(tables) == 1:
        return tables[0]
    schema = tables[0].schema
    if any(not table.schema.equals(schema) for table in tables[1:]):
        return _in_turn(tables)
    columns = [[table.column(name) for table in tables] for name in schema.names]
    if any(not _is_plain(column) for column in columns):
        return _in_turn(tables)
    return pa.table([_copied(column) for column in columns], schema=schema)


def _is_plain(parts: Sequence[pa.ChunkedArray]) -> bool:
    """Return whether all parts of a column are numbers without nulls."""
    return is_number(parts[0].type) and not any(part.null_count for part in parts)


def _copied(parts: Sequence[pa.ChunkedArray]) -> pa.Array:
    kind, rows = parts[0].type, sum(len(part) for part in parts)
    dtype = np.dtype(kind.to_pandas_dtype())
    memory = pa.allocate_buffer(rows * dtype.itemsize)
    made: Array = np.frombuffer(memory, dtype)
    for first, part in enumerate(parts):
        place = first
        for chunk in part.chunks:
            end = place + len(chunk) * len(parts)
            made[place : end : len(parts)] = np.from_dlpack(chunk)
            place = end
    return pa.Array.from_buffers(kind, rows, [None, memory], null_count=0)


def _in_turn(tables: Sequence[Table]) -> Table:
    starts = np.cumsum([0, *(table.num_rows for table in tables)])
    places = np.arange(starts[-1])
    rows = starts[places % len(tables)] + places // len(tables)
    return taken(concat(tables), rows)
