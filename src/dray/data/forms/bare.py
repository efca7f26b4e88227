"""Rows without columns; Arrow loses some of them when it joins or filters tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_STAND_IN = "row"


def bare_rows(count: int) -> pa.Table:
    """Return a table of rows without columns."""
    return pa.table({_STAND_IN: pa.nulls(count)}).drop_columns([_STAND_IN])


def joined_bare(tables: Sequence[pa.Table]) -> Sequence[pa.Table]:
    """Return tables that Arrow can join without losing rows.

    Rows without columns get a column of the other tables. If no table has a column, all rows are
    returned as one table.
    """
    if all(table.num_columns or not table.num_rows for table in tables):
        return tables
    name = next((name for table in tables for name in table.column_names), None)
    if name is None:
        return [bare_rows(sum(table.num_rows for table in tables))]
    nulls = [None if t.num_columns else pa.table({name: pa.nulls(t.num_rows)}) for t in tables]
    return [table if made is None else made for table, made in zip(tables, nulls, strict=True)]


def kept_rows(table: pa.Table, kept: Sequence[bool] | npt.NDArray[Any]) -> pa.Table:
    """Return the rows for which `kept` contains True."""
    if table.num_columns:
        return table.filter(pa.array(kept, pa.bool_()))
    return bare_rows(int(np.count_nonzero(kept)))
