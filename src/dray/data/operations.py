"""The operations of a dataset: users' functions on rows and batches, and column selection."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa

from dray.data.forms.bare import kept_rows
from dray.data.forms.batches import rebatched
from dray.data.forms.blocks import (
    Batch,
    Block,
    Row,
    Table,
    Value,
    only_column,
    put_column,
    rows_to_table,
    table_rows,
    to_batch,
    to_column,
    to_table,
)
from dray.data.forms.memory import handed_over, writable
from dray.errors import ConfigError, DataFunctionError, describe, mixed_with

T = TypeVar("T")


class Operation:
    """A step of a dataset, which turns blocks into blocks.

    Attributes:
        keeps_rows: Whether each row becomes one row; None if that depends on the function.
    """

    keeps_rows: bool | None = True

    @property
    def called_here(self) -> UserFunction | None:
        """The user's function that this operation calls in this process, if any."""
        return None

    def __str__(self) -> str:
        function = self.called_here
        return type(self).__name__ if function is None else function.name

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the resulting blocks."""
        raise NotImplementedError


@dataclass(frozen=True)
class OnTables(Operation):
    """An operation from a table to a table of equally many rows: it selects or changes columns.

    Attributes:
        called: The name of the operation, as `explain` prints it.
        own: Whether an owned block stays owned, because the new table uses no other memory.
    """

    function: Callable[[Table], Table]
    called: str
    own: bool = False

    def __str__(self) -> str:
        return self.called

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            yield block._replace(table=self.function(block.table), own=self.own and block.own)


@dataclass(frozen=True)
class UserFunction:
    """A user's function, or a class whose instances are called, with its arguments.

    Attributes:
        method: The method that received the function, such as "map_batches".
        arguments: Positional arguments after the batch or row.
        keywords: Keyword arguments.
        called: The name in messages; default: the name of the function.
    """

    function: Callable[..., Value]
    method: str
    arguments: Sequence[object] | None = None
    keywords: Mapping[str, object] | None = None
    constructor: Sequence[object] | None = None
    constructor_keywords: Mapping[str, object] | None = None
    called: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"{self.method} needs a function, not {self.function!r}")
        given = self.constructor or self.constructor_keywords
        if given and not inspect.isclass(self.function):
            raise ConfigError(
                f"{self.name} is not a class, so fn_constructor_args= and fn_constructor_kwargs= "
                "have no effect; pass a function's arguments as fn_args= and fn_kwargs="
            )

    def made(self) -> Callable[[object], Value]:
        """Return the callable for one batch or row; a class is instantiated here."""
        call: Value = self.function
        if inspect.isclass(call):
            call = call(*(self.constructor or ()), **(self.constructor_keywords or {}))
        arguments, keywords = self.arguments or (), self.keywords or {}
        if not arguments and not keywords:
            made: Callable[[object], Value] = call
            return made
        return lambda value: call(value, *arguments, **keywords)

    @property
    def name(self) -> str:
        """The name of the function in messages."""
        own = getattr(self.function, "__name__", type(self.function).__name__)
        return self.called or f"{self.method}({own})"

    def failed(self, error: Exception, origin: str, advice: str = "") -> Exception:
        """Return an error that names the failed rows and is also of the raised error's type.

        Args:
            origin: The rows of the block, or the row.
            advice: Text that explains how to avoid the error.
        """
        text = f"{self.name} failed on {origin or 'a block'}: {describe(error)}{advice}"
        plain = DataFunctionError(text)
        return mixed_with(plain, error, lambda kind: kind(text))


@dataclass(frozen=True)
class FunctionOperation(Operation):
    """An operation that calls a user's function.

    Attributes:
        function: The function; it may be called in other processes.
    """

    function: UserFunction

    @property
    def called_here(self) -> UserFunction | None:
        return self.function

    def _by_row(
        self, blocks: Iterable[Block], made: Callable[[Value], T]
    ) -> Iterator[tuple[Block, list[T]]]:
        """Yield each block with the function's results for its rows, converted by `made`."""
        call = self.function.made()
        for block in blocks:
            found: list[T] = []
            for nth, row in enumerate(table_rows(block.table)):
                try:
                    found.append(made(call(row)))
                except Exception as error:
                    raise self.function.failed(error, block.row(nth)) from error
            yield block, found


_ON_WRITING = " (zero_copy_batch=False gives the function arrays that it may write to)"


@dataclass(frozen=True)
class MapBatches(FunctionOperation):
    """An operation that calls a function with batches; it returns or yields batches.

    Attributes:
        batch_size: Number of rows of a batch; None keeps blocks as they are.
        copied: Whether the function gets arrays that it may write to.
    """

    batch_size: int | None
    batch_format: str
    copied: bool
    keeps_rows: bool | None = field(default=None, init=False)

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        call = self.function.made()
        if self.batch_size is not None:
            blocks = rebatched(blocks, itertools.repeat(self.batch_size))
        for block in blocks:
            if block.table.num_rows:  # as in Ray, the function does not get empty batches
                yield from self._made(call, block)

    def _made(self, call: Callable[[object], Value], block: Block) -> Iterator[Block]:
        try:
            returned = [call(self._batch(block.table))]
            several = _one_by_one(returned[0]) if inspect.isgenerator(returned[0]) else [returned]
            for results in several:
                batch, own = handed_over(results)
                table = to_table(batch, f"what {self.function.name} returns")
                yield Block(table, block.origin, own)
        except Exception as error:
            wrote = not self.copied and isinstance(error, ValueError) and "read-only" in str(error)
            advice = _ON_WRITING if wrote else ""
            raise self.function.failed(error, block.origin, advice) from error

    def _batch(self, table: Table) -> Batch:
        batch = to_batch(table, self.batch_format)
        return writable(batch) if self.copied else batch


def _one_by_one(values: Iterator[T]) -> Iterator[list[T]]:
    """Yield a list for each value."""
    return iter(lambda: list(itertools.islice(values, 1)), [])


@dataclass(frozen=True)
class AddColumn(FunctionOperation):
    """An operation that adds or replaces a column, with a function's values for batches."""

    column: str
    batch_format: str

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        call = self.function.made()
        for block in blocks:
            yield block._replace(table=self._added(call, block), own=False)

    def _added(self, call: Callable[[object], Value], block: Block) -> Table:
        table = block.table
        try:
            given = [only_column(call(to_batch(table, self.batch_format)))]
            if np.isscalar(given[0]):
                values = to_column(given * table.num_rows)
            else:
                made, _ = handed_over([{self.column: given.pop()}])
                values = to_column(made[self.column])
            return put_column(table, self.column, values)
        except Exception as error:
            raise self.function.failed(error, block.origin) from error


@dataclass(frozen=True)
class MapRows(FunctionOperation):
    """An operation that calls a function with each row and gets one row."""

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block, made in self._by_row(blocks, self._rows):
            if rows := list(itertools.chain.from_iterable(made)):
                first = block.first if self.keeps_rows else None
                yield Block(rows_to_table(rows), block.origin, own=True, first=first)

    def _rows(self, returned: Value) -> list[Row]:
        """Return the rows that the function returned for one row."""
        return [self._row(returned)]

    def _row(self, value: Value) -> Row:
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{self.function.name} must return a row, a dict of columns, not a "
                f"{type(value).__name__}"
            )
        return dict(value)


@dataclass(frozen=True)
class FlatMapRows(MapRows):
    """An operation that calls a function with each row and gets any number of rows."""

    keeps_rows: bool | None = field(default=False, init=False)

    def _rows(self, returned: Value) -> list[Row]:
        return [self._row(each) for each in returned]


@dataclass(frozen=True)
class FilterRows(FunctionOperation):
    """An operation that keeps the rows for which a function returns true."""

    keeps_rows: bool | None = field(default=False, init=False)

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block, kept in self._by_row(blocks, bool):
            yield Block(kept_rows(block.table, kept), block.origin)


@dataclass(frozen=True)
class MapTables(FunctionOperation):
    """An operation that calls a function with each table and gets a table.

    Attributes:
        keeps_rows: Whether both tables have equally many rows.
    """

    keeps_rows: bool | None = True

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        call = self.function.made()
        for block in blocks:
            try:
                table = call(block.table)
            except Exception as error:
                raise self.function.failed(error, block.origin) from error
            first = block.first if self.keeps_rows else None
            yield Block(table, block.origin, first=first)


@dataclass(frozen=True)
class Checked(Operation):
    """Another operation that must keep the number of rows, because ranks share rows by number."""

    operation: Operation

    @property
    def called_here(self) -> UserFunction | None:
        return self.operation.called_here

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        given = made = 0
        last = Block(pa.table({}))

        def counted() -> Iterator[Block]:
            nonlocal given, last
            for last in blocks:
                given += last.table.num_rows
                yield last

        for block in self.operation.apply(counted()):
            made += block.table.num_rows
            yield block
        if made != given:
            inner = getattr(self.operation, "operation", self.operation)
            name = getattr(getattr(inner, "function", None), "name", "an operation")
            raise ConfigError(
                f"{name} has made {made} rows of {given}, but ranks share a dataset's rows by "
                "their numbers: call materialize() on the dataset before you give it to a "
                "trainer, or use flat_map"
            )
