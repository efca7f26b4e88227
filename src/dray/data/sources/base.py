"""Sources of rows: tables in memory and in files, rows by number, and streams."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.fs

from dray.data.forms.blocks import (
    Block,
    RowNumbers,
    Table,
    in_columns,
    rows_to_table,
    taken,
    to_row,
)
from dray.data.forms.chunks import Chunks
from dray.data.forms.pickles import with_pickles
from dray.errors import StorageError

if TYPE_CHECKING:
    import datasets

# An Arrow filesystem; one of fsspec is wrapped.
Filesystem: TypeAlias = pa.fs.FileSystem

# The maximum size of a block, in bytes and in rows.
BLOCK_BYTES = 8 << 20
BLOCK_ROWS = 1 << 16
# Numbers of lanes with many divisors, so that the share of each rank consists of whole lanes.
LANES = (12, 8, 6, 4, 3, 2, 1)


class Source:
    """A source of rows.

    Attributes:
        rows: The number of rows; None if it is unknown until all rows have been read.
        indexed: Whether `take` reads single rows as fast as rows in order.
        is_stream: Whether the source may have no end, or may be too large to store.
        has_shuffled_parts: Whether epochs may read the parts in different orders.
        lanes: The number of ranges that are best read side by side.
        row_bytes: The approximate size of a row in memory; 0 if unknown.
        name: The name of the rows in messages.
        files: The paths of the files that the rows are read from, if known.
    """

    rows: int | None = None
    indexed = False
    is_stream = False
    has_shuffled_parts = False
    lanes = 1
    row_bytes = 0.0
    name = "the data"
    files: Sequence[str] = ()

    def open(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Yield the rows from `start` to before `stop`, in order.

        Args:
            start: The first row; 0 if the number of rows is unknown.
            stop: The row after the last one; None for the end.
        """
        raise NotImplementedError

    def of_epoch(self, epoch: int) -> Source:
        """Return the source as an epoch reads it, if epochs have different orders."""
        return self

    def leaves(self) -> list[Source]:
        """Return the parts that epochs may reorder, or only this source if there are none."""
        return [self]

    def rebuilt(self, leaves: Iterator[Source]) -> Source:
        """Return the same combination of other sources, one for each leaf."""
        return next(leaves)

    def take(self, rows: RowNumbers) -> Table:
        """Return a copy of rows by number; only indexed sources implement this."""
        raise NotImplementedError

    def schema(self) -> pa.Schema | None:
        """Return the Arrow schema if it is known without reading rows, else None."""
        return None

    def block_rows(self) -> int:
        """Return the number of rows of a block."""
        return max(1, min(BLOCK_ROWS, int(BLOCK_BYTES / max(self.row_bytes, 1.0))))

    def origin(self, start: int, stop: int) -> str:
        """Return the name of a range of rows in messages."""
        return f"rows {start} to {stop - 1} of {self.name}"


class _InPieces(Source):
    """A source whose rows are numbered and read one piece at a time."""

    rows: int
    indexed = True

    def open(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        end = self.rows if stop is None else stop
        step = self.block_rows()
        for begin in range(start, end, step):
            last = min(begin + step, end)
            yield Block(self._piece(begin, last), self.origin(begin, last), first=begin)

    def _piece(self, start: int, stop: int) -> Table:
        """Return a range of rows, which may share memory with the source."""
        return self.take(np.arange(start, stop))


class TableSource(_InPieces):
    """A table in memory."""

    def __init__(self, table: Table, called: str = "the table") -> None:
        self.table = table.combine_chunks() if _has_many_chunks(table) else table
        self._chunks = Chunks(self.table)
        self.name = called
        self.rows = table.num_rows
        self.row_bytes = table.nbytes / max(1, table.num_rows)

    def _piece(self, start: int, stop: int) -> Table:
        return self.table.slice(start, stop - start)

    def take(self, rows: RowNumbers) -> Table:
        return self._chunks.take(rows)

    def schema(self) -> pa.Schema | None:
        return self.table.schema

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle: only this slice, as Arrow would pickle the whole table."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write_table(self.table)
        sent = (sink.getvalue().to_pybytes(), self.table.schema)
        return {**vars(self), "table": sent, "_chunks": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        sent, schema = state["table"]
        table = with_pickles(pa.ipc.open_stream(sent).read_all(), schema)
        vars(self).update(state, table=table)
        self._chunks = Chunks(self.table)


def _has_many_chunks(table: Table) -> bool:
    """Return whether finding single rows of a table is slow."""
    return any(table.column(name).num_chunks > 64 for name in table.column_names)


class IterableSource(Source):
    """The rows of an iterable, such as a torch IterableDataset."""

    is_stream = True

    def __init__(self, items: Iterable[object], called: str) -> None:
        self._items, self.name = items, called

    def of_epoch(self, epoch: int) -> Source:
        """Set the epoch of the iterable, which may shuffle by it like Hugging Face's datasets."""
        set_epoch = getattr(self._items, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        return self

    def open(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        begin = start
        items = itertools.islice(iter(self._items), start, stop)
        while rows := [to_row(item) for item in itertools.islice(items, _ROWS_AT_ONCE)]:
            origin = self.origin(begin, begin + len(rows))
            yield Block(rows_to_table(rows), origin, own=True, first=begin)
            begin += len(rows)


class RangeSource(_InPieces):
    """The numbers from 0 to before `rows`."""

    row_bytes = 8.0
    name = "the range"

    def __init__(self, rows: int, column: str) -> None:
        self.rows, self._column = rows, column

    def take(self, rows: RowNumbers) -> Table:
        return pa.table({self._column: pa.array(np.asarray(rows, np.int64))})

    def schema(self) -> pa.Schema | None:
        return pa.schema([(self._column, pa.int64())])


class ArrowFileSource(_InPieces):
    """A memory-mapped Arrow file; rows are read from disk when they are used.

    Args:
        columns: The columns and types that the rows must have.
        owner: An object that deletes the file when nothing refers to it any more.
    """

    def __init__(
        self, path: str, schema: pa.Schema, columns: pa.Schema, called: str, owner: object
    ) -> None:
        self._path, self._schema, self.name = path, schema, called
        self._columns = in_columns(schema.empty_table(), columns).schema
        self._owner = owner
        self._open_chunks: Chunks | None = None
        table = self._mapped().table
        self.rows = table.num_rows
        self.row_bytes = table.nbytes / max(1, table.num_rows)

    def _mapped(self) -> Chunks:
        if self._open_chunks is None:
            if not os.path.exists(self._path):
                raise StorageError(
                    f"{self.name} was written to {self._path} by the program, but this node does "
                    "not see that path: set TMPDIR in the program to a directory that all nodes "
                    "share"
                )
            with pa.memory_map(self._path) as file:
                table = pa.ipc.open_file(file).read_all()
            self._open_chunks = Chunks(with_pickles(table, self._schema))
        return self._open_chunks

    def _piece(self, start: int, stop: int) -> Table:
        return in_columns(self._mapped().table.slice(start, stop - start), self._columns)

    def take(self, rows: RowNumbers) -> Table:
        return in_columns(self._mapped().take(rows), self._columns)

    def schema(self) -> pa.Schema | None:
        return self._columns

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_open_chunks": None, "_owner": None}


class Indexed(Protocol):
    """An object that returns rows by number, such as a torch Dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


def is_indexed(items: object) -> bool:
    """Return whether an object returns rows by number; torch's IterableDatasets do not."""
    streams = any(kind.__name__ == "IterableDataset" for kind in type(items).__mro__)
    return hasattr(items, "__getitem__") and hasattr(items, "__len__") and not streams


class RowsSource(_InPieces):
    """The rows of an indexed object, such as a torch Dataset."""

    def __init__(self, items: Indexed, called: str, files: Sequence[str] = ()) -> None:
        self._items, self.name, self.files = items, called, files
        self.rows = len(items)

    def open(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        return super().open(start, len(self._items) if stop is None else stop)  # it may have grown

    def take(self, rows: RowNumbers) -> Table:
        return rows_to_table([to_row(self._items[int(row)]) for row in rows])

    def block_rows(self) -> int:
        return _ROWS_AT_ONCE


_ROWS_AT_ONCE = 256


class HuggingFaceSource(_InPieces):
    """A Hugging Face Dataset, read through its Arrow table."""

    name = "the Hugging Face dataset"

    def __init__(self, dataset: datasets.Dataset) -> None:
        self._dataset = dataset.with_format("arrow")
        self.rows = len(dataset)
        self.row_bytes = dataset.data.nbytes / max(1, len(dataset.data))

    def _piece(self, start: int, stop: int) -> Table:
        return self._dataset[start:stop]

    def take(self, rows: RowNumbers) -> Table:
        found = self._dataset[np.asarray(rows).tolist()]  # shares memory with the dataset
        alone = any(column.num_chunks == 1 for column in found.columns)
        return taken(found, np.arange(found.num_rows)) if alone else found.combine_chunks()

    def schema(self) -> pa.Schema | None:
        return self._dataset.features.arrow_schema


class BlocksSource(Source):
    """Rows that a function yields on each call; their number is unknown."""

    def __init__(
        self,
        produce: Callable[[], Iterable[Block]],
        called: str,
        schema: pa.Schema | None = None,
        files: Sequence[str] = (),
    ) -> None:
        self._produce, self.name, self._schema = produce, called, schema
        self.files = files

    def open(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        assert start == 0
        assert stop is None
        yield from self._produce()

    def schema(self) -> pa.Schema | None:
        return self._schema
