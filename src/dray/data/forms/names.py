"""Columns by name: errors for missing columns, and names that are not taken."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping

import pyarrow as pa

from dray.data.forms.blocks import Table
from dray.errors import ConfigError


def check_column(table: Table | Mapping[str, object], names: Iterable[str]) -> None:
    """Raise ConfigError if a table, or a dict of columns, lacks one of these columns."""
    there = table if isinstance(table, Mapping) else table.column_names
    for name in names:
        if name not in there:
            raise ConfigError(f"there is no column {name!r}; the columns are {', '.join(there)}")


def column_named(table: Table, name: str) -> pa.ChunkedArray:
    """Return a column; raise ConfigError if it does not exist."""
    check_column(table, [name])
    return table.column(name)


def free_name(name: str, taken: Container[str], first: int = 1) -> str:
    """Return the name, or the name with the first free number from `first` on as a suffix."""
    numbered = (f"{name}_{number}" for number in itertools.count(first))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)


def free_names(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Return names that are neither taken nor equal to each other: the second one ends in `_2`."""
    found, there = [], set(taken)
    for name in names:
        found.append(free_name(name, there, 2))
        there.add(found[-1])
    return found
