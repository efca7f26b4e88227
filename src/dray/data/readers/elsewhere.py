"""The readers of databases and of custom sources."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dray.data.dataset import Dataset
from dray.data.forms.blocks import Batch, Block, to_table
from dray.data.operations import UserFunction
from dray.data.pipeline import check_distinct
from dray.data.readers.arguments import known_options
from dray.data.sources.base import BlocksSource
from dray.data.sources.datasource import Datasource
from dray.errors import ConfigError

_SQL_ROWS = 4096
# Bytes of a part of a source, and the number of parts if its size is unknown.
_PART_BYTES, _PARTS = 64 << 20, 12


def read_sql(
    sql: str,
    connection_factory: Callable[[], Any],
    *,
    sql_params: Sequence[object] | Mapping[str, object] | None = None,
    **options: object,
) -> Dataset:
    """Return the rows of a query as a dataset; the query runs whenever rows are requested.

    Args:
        sql: The query.
        connection_factory: Returns a connection as defined by PEP 249, such as
            `sqlite3.connect(...)`.
        sql_params: The parameters of the query.
        options: Other options of Ray Data; dray ignores them.

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
            check_distinct("read_sql", names)
            while rows := cursor.fetchmany(_SQL_ROWS):
                columns = zip(names, zip(*rows, strict=True), strict=True)
                yield Block(to_table(dict(columns)), "the query", own=True)

    return Dataset(BlocksSource(produce, "the query"))


def read_datasource(
    datasource: Datasource,
    *,
    parallelism: int = -1,
    override_num_blocks: int | None = None,
    **options: object,
) -> Dataset:
    """Return a source of your own as a dataset; it is read whenever rows are requested.

    Args:
        datasource: The source.
        parallelism: The number of read tasks to request; -1 requests one for each 64 MiB, or 12 if
            the size is unknown.
        override_num_blocks: The same; it overrides `parallelism`.
        options: Other options of Ray Data; dray ignores them.
    """
    known_options(read_datasource, options)
    if not isinstance(datasource, Datasource):
        raise ConfigError(f"read_datasource takes a dray.data.Datasource, not {datasource!r}")
    asked = parallelism if override_num_blocks is None else override_num_blocks
    name = datasource.get_name()

    def produce() -> Iterator[Block]:
        size = datasource.estimate_inmemory_data_size()
        parts = _PARTS if size is None else max(1, -(-size // _PART_BYTES))
        for number, task in enumerate(datasource.get_read_tasks(asked if asked > 0 else parts)):
            yield from _read(task, f"read task {number} of {name}")

    return Dataset(BlocksSource(produce, name, files=datasource._files))


def _read(task: Callable[[], Iterable[Batch]], called: str) -> Iterator[Block]:
    """Yield the blocks of a read task; an error names the task."""
    function = UserFunction(task, "read_datasource", called=called)
    blocks: Iterator[Batch] | None = None
    while True:
        try:
            blocks = iter(task()) if blocks is None else blocks
            block = next(blocks, None)
            if block is None:
                return
            table = to_table(block, f"what {called} returns")
        except Exception as error:
            raise function.failed(error, "its rows") from error
        yield Block(table, called)
