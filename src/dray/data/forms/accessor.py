"""Blocks as in Ray Data's API: an accessor for their rows, and metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from dray.compat.attributes import attach_getattr
from dray.data.forms.blocks import (
    Array,
    Arrays,
    Batch,
    Frame,
    Row,
    Table,
    check_format,
    table_rows,
    to_batch,
    to_table,
)

__all__ = ["Block", "BlockAccessor", "BlockMetadata"]

Block: TypeAlias = Table


@dataclass(frozen=True)
class BlockMetadata:
    """Metadata of the rows of a `ReadTask`; dray only uses the files.

    Attributes:
        num_rows: The number of rows; None if unknown.
        size_bytes: The size of the rows in memory, in bytes; None if unknown.
        exec_stats: Ignored; for compatibility with Ray.
        input_files: The files that the rows are read from.
    """

    num_rows: int | None
    size_bytes: int | None
    exec_stats: object = None
    input_files: Sequence[str] | None = None


class BlockAccessor:
    """The rows of a block in several forms; create it with `BlockAccessor.for_block(block)`.

    Args:
        table: The rows.

    Example:
        >>> import pyarrow
        >>> from dray.data.block import BlockAccessor
        >>> BlockAccessor.for_block(pyarrow.table({"x": [1, 2]})).num_rows()
        2
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    @staticmethod
    def for_block(block: Batch) -> BlockAccessor:
        """Return the accessor of an Arrow table, a DataFrame or a dict of columns."""
        return BlockAccessor(to_table(block))

    def num_rows(self) -> int:
        """Return the number of rows."""
        return int(self._table.num_rows)

    def size_bytes(self) -> int:
        """Return the size of the rows in memory, in bytes."""
        return int(self._table.nbytes)

    def schema(self) -> pa.Schema:
        """Return the names and types of the columns."""
        return self._table.schema

    def iter_rows(self, public_row_format: bool = True) -> Iterator[Row]:
        """Yield the rows as dicts.

        Args:
            public_row_format: Ignored; for compatibility with Ray.
        """
        return table_rows(self._table)

    def to_arrow(self) -> Table:
        """Return the rows as an Arrow table."""
        return self._table

    to_block = to_default = to_arrow

    def to_pandas(self) -> Frame:
        """Return the rows as a pandas DataFrame."""
        return to_batch(self._table, "pandas")

    def to_numpy(self, columns: str | Sequence[str] | None = None) -> Array | Arrays:
        """Return one column as an array, or several or all columns as a dict of arrays."""
        if isinstance(columns, str):
            array: Array = to_batch(self._table.select([columns]), "numpy")[columns]
            return array
        chosen = self._table if columns is None else self._table.select(list(columns))
        arrays: Arrays = to_batch(chosen, "numpy")
        return arrays

    def to_batch_format(self, batch_format: str | None) -> Batch:
        """Return the rows in a batch format, such as "pandas"."""
        return to_batch(self._table, check_format(batch_format))

    def slice(self, start: int, end: int, copy: bool = False) -> Table:
        """Return the rows from `start` to before `end` as a table.

        Args:
            start: The first row.
            end: The row after the last one.
            copy: Ignored, because tables are immutable; for compatibility with Ray.
        """
        return self._table.slice(start, end - start)


attach_getattr(__name__)
