"""The pipeline of a dataset: its source, its operations, and the order of its rows."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from dray.checks import seed_of
from dray.data.forms.blocks import Block, Row, Table, table_rows
from dray.data.forms.names import check_column
from dray.data.numbering.order import Order
from dray.data.numbering.reading import read_numbers
from dray.data.operations import AddColumn, Checked, Operation
from dray.data.pools.advice import advised
from dray.data.sources.base import BlocksSource, Source, TableSource
from dray.data.sources.combined import SliceSource
from dray.data.sources.parquet import ParquetSource
from dray.data.sources.schemas import schema_of_all
from dray.data.sources.staging import shippable, stage
from dray.errors import ConfigError

P = TypeVar("P", bound="Pipeline")

Steps = Callable[[Iterator[Block]], Iterator[Block]]
# Numbers of rows read to see whether operations change their number, and to find the columns.
_PROBED_ROWS, _ROWS_OF_SCHEMA = 4, 256


class Schema:
    """The names and types of a dataset's columns.

    Attributes:
        base_schema: The Arrow schema.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.base_schema = schema

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.base_schema.names)

    @property
    def types(self) -> list[pa.DataType]:
        """The Arrow types of the columns."""
        return list(self.base_schema.types)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and other.base_schema.equals(self.base_schema)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        width = max([6, *map(len, self.names)])
        lines = [f"{'Column':<{width}}  Type", f"{'------':<{width}}  ----"]
        columns = zip(self.names, self.types, strict=True)
        return "\n".join([*lines, *(f"{name:<{width}}  {kind}" for name, kind in columns)])


class Pipeline:
    """Rows from a source, the operations on them, and their order.

    Args:
        seed: The seed of a random order of all rows; None keeps their order.
    """

    def __init__(
        self, source: Source, operations: Sequence[Operation] = (), seed: int | None = None
    ) -> None:
        self.source = source
        self._operations = tuple(operations)
        self._seed = seed
        self._made_countable: Any = None
        self._name: str | None = None

    @property
    def name(self) -> str | None:
        """The name that the program has set; None if it has set none."""
        return self._name

    def set_name(self, name: str | None) -> None:
        """Set the name that is shown for this dataset and for datasets made from it, as by `map`.

        Args:
            name: The name; None removes it.
        """
        self._name = name

    def _with(self: P, operation: Operation) -> P:
        made = type(self)(self.source, (*self._operations, operation), self._seed)
        made.set_name(self._name)
        return made

    def derived(
        self: P, produce: Callable[[], Iterable[Block]], called: str, *others: Pipeline
    ) -> P:
        """Return a dataset whose rows are produced from this one's when they are requested.

        Args:
            others: Further datasets that the rows are produced from.
        """
        sources = [self.source, *(other.source for other in others)]
        files = [file for source in sources for file in source.files]
        return type(self)(BlocksSource(produce, called, files=files))

    def shuffled(self: P, seed: int | None) -> P:
        """Return the same rows in a random order with this seed; None draws one."""
        ready = self.with_added_columns()
        return type(self)(ready.source, ready._operations, seed_of(seed))

    def with_added_columns(self: P) -> P:
        """Return the same rows, with `add_column` applied before rows are moved or left out.

        The function of `add_column` gets batches, so its result may depend on neighboring rows.
        """
        adds = [isinstance(getattr(o, "operation", o), AddColumn) for o in self._operations]
        last = max((number for number, added in enumerate(adds, 1) if added), default=0)
        if not last:
            return self
        before = type(self)(self.source, self._operations[:last], self._seed)
        made = BlocksSource(before.blocks, self.source.name, files=self.source.files)
        return type(self)(made, self._operations[last:])

    # Access to all rows in this process.

    def blocks(self, epoch: int = 0) -> Iterator[Block]:
        """Yield all rows, in the order of an epoch."""
        if self._seed is None:
            return self._applied(self.source.of_epoch(epoch).open())
        countable = self.countable()
        rows = countable.num_rows
        assert rows is not None
        step = countable.source.block_rows()
        chunks = (np.arange(begin, min(begin + step, rows)) for begin in range(0, rows, step))
        read = read_numbers(countable.source, countable.order(epoch), chunks)
        return countable._applied(read)

    def only(self: P, names: Sequence[str]) -> P:
        """Return the same rows for a reader that needs only these columns."""
        source = self.source
        if not isinstance(source, ParquetSource) or self._operations:
            return self
        if not set(names) <= set(source.schema().names):
            return self
        return type(self)(source.select(names), (), self._seed)

    def rows(self) -> Iterator[Row]:
        """Yield all rows as dicts."""
        for block in self.blocks():
            yield from table_rows(block.table)

    def _applied(self, blocks: Iterator[Block]) -> Iterator[Block]:
        return applied(self._operations, blocks)

    def arrow_schema(self, *, read_on: bool = True) -> pa.Schema | None:
        """Return the schema of the rows; None if there are no rows to infer it from.

        If the schema is not known, the first rows are read and go through the operations.

        Args:
            read_on: Whether to read 256 rows instead of 4, and to read on until an operation yields
                a row.
        """
        known = self.known_schema()
        if known is not None:
            return known
        first = self._first_rows(_ROWS_OF_SCHEMA if read_on else _PROBED_ROWS)
        probed = [block.table for block in self._applied(first)]
        if read_on and not any(table.num_rows for table in probed):
            made = (block.table for block in self._applied(self.source.open()))
            probed = next(([table] for table in made if table.num_rows), probed)
        schemas = [table.schema.remove_metadata() for table in probed]
        return schema_of_all(schemas) or next(iter(schemas), None)

    def known_schema(self) -> pa.Schema | None:
        """Return the schema if it is known without reading rows, else None."""
        return None if self._operations else self.source.schema()

    def schema(self, fetch_if_missing: bool = True) -> Schema | None:
        """Return the names and types of the columns; None if there are no rows to infer them from.

        If no file defines the schema, dray infers it from the first 256 rows, or from the first
        rows that pass the operations. Later rows may have more columns or wider types;
        `materialize().schema()` covers all rows.

        Args:
            fetch_if_missing: Whether to read rows if needed; if False, the result is then None.
        """
        schema = self.arrow_schema() if fetch_if_missing else self.known_schema()
        return None if schema is None else Schema(schema)

    def _first_rows(self, rows: int = _PROBED_ROWS) -> Iterator[Block]:
        if self.source.rows is not None:
            return self.source.open(0, min(rows, self.source.rows))
        return first_rows(self.source.open(), rows)

    # Access to rows by number, as ranks share them.

    @property
    def num_rows(self) -> int | None:
        """The number of rows of a pipeline that is countable."""
        return self.source.rows

    def order(self, epoch: int = 0, window: int = 0, seed: int = 0) -> Order:
        """Return the order of an epoch; the pipeline must be countable.

        Args:
            window: Number of consecutive rows that are shuffled among themselves.
            seed: The seed of that shuffle.
        """
        rows = self.source.rows
        assert rows is not None
        if self._seed is not None:
            return Order(rows, shuffled=True, seed=self._seed, epoch=epoch)
        return Order(rows, lanes=self.source.lanes, window=window, seed=seed, epoch=epoch)

    def apply(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Yield the results of the operations for rows that are read by number."""
        return applied(map(Checked, self._operations), blocks)

    @property
    def is_shuffled(self) -> bool:
        """Return whether all rows are in a random order."""
        return self._seed is not None

    @property
    def is_stream(self) -> bool:
        """Return whether rows are only read in order, because the source may have no end."""
        return self.source.is_stream and self._seed is None

    @property
    def is_countable(self) -> bool:
        """Return whether the number of each row is known without reading rows."""
        wanted = self._seed is not None and not self.source.indexed
        return self.source.rows is not None and not wanted and not self._last_change

    def stream_operations(self) -> tuple[Steps, Steps]:
        """Return the operations on all rows of a stream, and those on the rows of one rank."""
        before = self._last_change
        first, last = self._operations[:before], self._operations[before:]
        return functools.partial(applied, first), functools.partial(applied, last)

    def countable(self: P) -> P:
        """Return a dataset of the same rows, in which each row has a number.

        This runs the operations up to the last one that changes the number of rows, and stores the
        result. Rows are also stored if their number is unknown, or if they are shuffled and cannot
        be read one by one. Later operations still run whenever rows are read.
        """
        if self.is_countable:
            return self
        if self._made_countable is None:
            self._made_countable = self._staged()
        made: P = self._made_countable
        return made

    def _staged(self: P) -> P:
        before, source = self._last_change, self.source
        first, last = self._operations[:before], self._operations[before:]
        leaves, rows = source.leaves(), []

        def blocks() -> Iterator[Block]:
            for leaf in leaves:
                rows.append(0)
                for block in applied(first, leaf.open()):
                    rows[-1] += block.table.num_rows
                    yield block

        staged = stage(blocks(), source.name, source.schema())
        if len(leaves) > 1:  # epochs reorder these parts
            ends, shared = itertools.accumulate(rows), shippable(staged)
            parts = (SliceSource(shared, e - n, e) for n, e in zip(rows, ends, strict=True))
            staged = source.rebuilt(parts)
        staged.files = source.files
        return type(self)(staged, last, self._seed)

    @functools.cached_property
    def _last_change(self) -> int:
        """Number of operations up to the last one that changes the number of rows."""
        keeps = [operation.keeps_rows for operation in self._operations]
        last = max((n for n, kept in enumerate(keeps, 1) if kept is False), default=0)
        unsure = max((n for n, kept in enumerate(keeps, 1) if kept is None), default=0)
        return unsure if unsure > last and self._probed_change(last) else last

    def _probed_change(self: P, after: int) -> bool:
        """Return whether the operations after the first `after` ones change the number of rows."""
        if after:  # the rows before are unknown, and all rows will be stored anyway
            return True
        given = sum(block.table.num_rows for block in self._first_rows())
        made = sum(block.table.num_rows for block in self._applied(self._first_rows()))
        return bool(made != given)

    def _keeps_rows_surely(self) -> bool:
        return all(operation.keeps_rows for operation in self._operations)

    def to_ship(self: P) -> P:
        """Return a dataset that can be sent to many workers: a stream, or a countable one."""
        ready = self if self.is_stream else self.countable()
        shipped = type(self)(shippable(ready.source), ready._operations, ready._seed)
        if not self.is_stream:
            shipped._last_change = 0  # else every rank would call users' functions again
        return shipped


def applied(operations: Iterable[Operation], blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield the results of operations in sequence; closing this generator closes all of them."""
    with contextlib.ExitStack() as begun:
        for operation in operations:
            function = operation.called_here
            blocks = advised(operation, function, blocks) if function else operation.apply(blocks)
            if isinstance(blocks, Generator):  # an error's traceback would keep it alive
                begun.callback(blocks.close)
        yield from blocks


def written_down(
    blocks: Iterable[Block], called: str, schema: Callable[[], pa.Schema | None]
) -> Source:
    """Store rows, and return a source that finds each by its number.

    Args:
        schema: Returns the schema; called only if there are no rows, because it runs operations
            again.
    """
    made = stage(blocks, called)
    return made if made.rows or made.schema() else stage((), called, schema())


def first_rows(blocks: Iterator[Block], rows: int) -> Iterator[Block]:
    """Yield the first `rows` rows, in blocks."""
    left = rows
    if left < 1:
        return
    for block in blocks:
        yield Block(block.table.slice(0, left), block.origin)
        left -= block.table.num_rows
        if left < 1:
            return


def part_of(source: Source, start: int, stop: int) -> Source:
    """Return the rows from `start` to before `stop` as a source."""
    if isinstance(source, TableSource):
        part = TableSource(source.table.slice(start, stop - start), source.name)
        part.files = source.files
        return part
    return SliceSource(source, start, stop)


def selected(names: Sequence[str], table: Table) -> Table:
    """Return some columns of a table."""
    check_column(table, names)
    return table.select(names)


def dropped(names: Sequence[str], table: Table) -> Table:
    """Return a table without some columns."""
    check_column(table, names)
    left_out = set(names)
    return table.select([name for name in table.column_names if name not in left_out])


def renamed(names: dict[str, str] | list[str], table: Table) -> Table:
    """Return a table with other column names."""
    if isinstance(names, dict):
        check_column(table, names)
        names = [names.get(name, name) for name in table.column_names]
    if len(names) != table.num_columns:
        raise ConfigError(f"there are {table.num_columns} columns, but {len(names)} new names")
    check_distinct("rename_columns", names)
    return table.rename_columns(names)


def check_distinct(method: str, names: Sequence[str]) -> None:
    """Raise ConfigError if a method would give two columns the same name."""
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise ConfigError(f"{method} gives several columns the name {', '.join(twice)}")
