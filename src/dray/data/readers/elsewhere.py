"""The readers of what is not in files: databases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dray.data.dataset import Dataset
from dray.data.forms.blocks import Block, to_table
from dray.data.readers.wanted import known_options
from dray.data.sources.base import BlocksSource

_SQL_ROWS = 4096


def read_sql(
    sql: str,
    connection_factory: Callable[[], Any],
    *,
    sql_params: Sequence[object] | Mapping[str, object] | None = None,
    **options: object,
) -> Dataset:
    """Return the rows of a query as a dataset; it is asked each time that rows are needed.

    Args:
        sql: The query.
        connection_factory: Returns a connection as PEP 249 has it, such as `sqlite3.connect(...)`.
        sql_params: Values of the query.
        options: Options of Ray's that dray does not need.

    Example:
        >>> import sqlite3
        >>> import dray.data
        >>> dray.data.read_sql("select 1 as x", lambda: sqlite3.connect(":memory:")).take()
        [{'x': 1}]
    """
    known_options(read_sql, options)

    def produce() -> Iterator[Block]:
        with contextlib.closing(connection_factory()) as connection:
            cursor = connection.cursor()
            cursor.execute(sql, *(() if sql_params is None else (sql_params,)))
            names = [column[0] for column in cursor.description]
            while rows := cursor.fetchmany(_SQL_ROWS):
                columns = zip(names, zip(*rows, strict=True), strict=True)
                yield Block(to_table(dict(columns)), "the query", own=True)

    return Dataset(BlocksSource(produce, "the query"))
