"""Parquet files as a source, decoded a piece of a row group at a time."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs

from dray.data.forms.blocks import Block, Table
from dray.data.forms.ray_tensors import in_schema
from dray.data.sources.base import BLOCK_ROWS, LANES, Filesystem, Source
from dray.errors import StorageError, describe, shown_url

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# The fraction of rows that may be decoded in vain, if lanes begin in the middle of row groups.
_IN_VAIN = 0.15
# The bytes of a lane that are decoded at once, and the bytes of a column that are read at once.
_PIECE_BYTES = 4 << 20
# The number of parts of the first pieces, so that the first batch does not wait for a whole piece.
_FIRST_PARTS = 8
_READ_BYTES = 256 << 10


class RowGroup(NamedTuple):
    """A row group of a Parquet file: its number in the file, and its rows among all rows."""

    file: int
    number: int
    start: int
    stop: int


class ParquetSource(Source):
    """Parquet files, read row group by row group; the number of rows of each is known.

    Args:
        lanes: The number of ranges to read side by side; None chooses one.
    """

    def __init__(
        self,
        files: Sequence[str],
        filesystem: Filesystem,
        ends: Sequence[pq.FileMetaData],
        schema: pa.Schema,
        lanes: int | None = None,
    ) -> None:
        self.files, self.filesystem, self._schema = list(files), filesystem, schema
        self.name = files[0] if len(files) == 1 else f"{len(files)} files of Parquet"
        self._groups: list[RowGroup] = []
        self._starts: list[int] = []  # the first row of each file
        row = size = 0
        for file, end in enumerate(ends):
            self._starts.append(row)
            for number in range(end.num_row_groups):
                group = end.row_group(number)
                self._groups.append(RowGroup(file, number, row, row + group.num_rows))
                row += group.num_rows
                size += group.total_byte_size
        self.rows = row
        self.row_bytes = size / max(1, row)
        self.lanes = lanes or next(number for number in LANES if self._suits(number))

    def _suits(self, lanes: int) -> bool:
        """Return whether, with this many lanes, few rows are decoded for another lane in vain."""
        if lanes == 1 or lanes > len(self._groups):
            return lanes == 1
        assert self.rows is not None
        ends = np.array([group.stop for group in self._groups])
        starts = np.array([group.start for group in self._groups])
        firsts = np.array([self.rows * lane // lanes for lane in range(lanes)])
        in_vain = firsts - starts[np.searchsorted(ends, firsts, side="right")]
        return bool(in_vain.sum() <= _IN_VAIN * self.rows)

    def open(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Yield rows, decoding a piece of a row group at a time."""
        assert self.rows is not None
        end = self.rows if stop is None else stop
        groups = (group for group in self._groups if group.stop > start and group.start < end)
        parts = _FIRST_PARTS
        for file, of_file in itertools.groupby(groups, lambda group: group.file):
            chosen = list(of_file)
            row = chosen[0].start
            for batch in self._batches(file, [group.number for group in chosen], parts):
                parts = 1
                low, high = max(start - row, 0), min(end - row, batch.num_rows)
                if low < high:
                    table = pa.Table.from_batches([batch.slice(low, high - low)])
                    yield Block(
                        self._fitted(table, file),
                        self._origin(file, row + low, row + high),
                        own=True,
                        first=row + low - self._starts[file],
                    )
                row += batch.num_rows
                if row >= end:
                    return

    def _batches(self, file: int, groups: list[int], parts: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row groups of a file; the first group's pieces are smaller."""
        import pyarrow.parquet as pq

        piece = max(1, min(BLOCK_ROWS, int(_PIECE_BYTES / max(self.row_bytes, 1.0))))
        options = {"columns": self._schema.names, "use_threads": pa.cpu_count() > 1}
        path = self.files[file]
        if isinstance(self.filesystem, pa.fs.LocalFileSystem):
            # By default, Arrow would read ahead everything that is requested of the file.
            buffer = self._buffer_bytes()
            with pq.ParquetFile(path, buffer_size=buffer, pre_buffer=False) as local:
                first, rest = groups[:1], groups[1:]
                yield from local.iter_batches(-(-piece // parts), row_groups=first, **options)
                if rest:
                    yield from local.iter_batches(piece, row_groups=rest, **options)
            return
        for group in groups:  # read remote files ahead, one row group at a time
            with pq.ParquetFile(path, filesystem=self.filesystem, pre_buffer=True) as remote:
                yield from remote.iter_batches(piece, row_groups=[group], **options)

    def _fitted(self, table: Table, file: int) -> Table:
        try:
            return in_schema(table, self._schema)
        except pa.ArrowInvalid as error:
            raise StorageError(
                f"{shown_url(self.files[file])} has values that do not fit the column's type in "
                f"the other files or in schema=: {describe(error)}"
            ) from error

    def _buffer_bytes(self) -> int:
        """Return the bytes of a column to read at once; 0 reads all of its bytes in a row group."""
        largest = max((group.stop - group.start for group in self._groups), default=0)
        return _READ_BYTES if largest * self.row_bytes > _PIECE_BYTES * 2 else 0

    def _origin(self, file: int, start: int, stop: int) -> str:
        first = self._starts[file]
        return f"rows {start - first} to {stop - first - 1} of {shown_url(self.files[file])}"

    def schema(self) -> pa.Schema:
        return self._schema

    def select(self, names: Sequence[str]) -> ParquetSource:
        """Return the same files restricted to some columns."""
        chosen = copy.copy(self)
        fields = [self._schema.field(name) for name in names]
        chosen._schema = pa.schema(fields)
        chosen.row_bytes = self.row_bytes * len(fields) / max(1, len(self._schema))
        return chosen
