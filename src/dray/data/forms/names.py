"""Columns by their names, and the message where there are none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from dray.data.forms.blocks import Table
from dray.errors import ConfigError


def check_column(table: Table | Mapping[str, object], names: Iterable[str]) -> None:
    """Raise ConfigError if a table, or a dict of columns, lacks a column."""
    there = table if isinstance(table, Mapping) else table.column_names
    for name in names:
        if name not in there:
            raise ConfigError(f"there is no column {name!r}; the columns are {', '.join(there)}")


def column_named(table: Table, name: str) -> pa.ChunkedArray:
    """Return a column, or raise ConfigError if there is none of its name."""
    check_column(table, [name])
    return table.column(name)
