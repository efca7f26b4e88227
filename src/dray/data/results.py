"""The results of a pipeline as programs take them: rows, batches, tables, tensors, files."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from dray.core.objects import put
from dray.data.forms.blocks import Batch, Frame, Row, Table, check_format, concat, to_batch
from dray.data.iterator import DataIterator
from dray.data.pipeline import Pipeline, first_rows, written_down
from dray.data.sources.base import TableSource
from dray.engines.object_ref import ObjectRef
from dray.errors import ArgumentTypeError, ConfigError, DataFunctionError

R = TypeVar("R", bound="Results")


class Results(Pipeline):
    """A pipeline whose rows a program can take."""

    def __bool__(self) -> bool:
        """Return True: Python asks for the number of rows otherwise."""
        return True

    def __iter__(self) -> Iterator[Row]:
        raise ArgumentTypeError(
            "a dataset is not iterated over itself: call its iter_rows() or iter_batches()"
        )

    # Rows.

    def iterator(self) -> DataIterator:
        """Return an iterator over all rows; each iteration is an epoch."""
        return DataIterator(self, in_order=True)

    def iter_rows(self) -> Iterable[Row]:
        """Return rows as dicts."""
        return self.iterator().iter_rows()

    def iter_batches(self, **options: Any) -> Iterable[Batch]:
        """Return batches; see `DataIterator.iter_batches`."""
        return self.iterator().iter_batches(**options)

    def iter_torch_batches(self, **options: Any) -> Iterable[Batch]:
        """Return batches of tensors; see `DataIterator.iter_torch_batches`."""
        return self.iterator().iter_torch_batches(**options)

    def iter_jax_batches(self, **options: Any) -> Iterable[Batch]:
        """Return batches of arrays of JAX; see `DataIterator.iter_jax_batches`."""
        return self.iterator().iter_jax_batches(**options)

    def iter_tf_batches(self, **options: Any) -> Iterable[Batch]:
        """Return batches of tensors of TensorFlow; see `DataIterator.iter_tf_batches`."""
        return self.iterator().iter_tf_batches(**options)

    def take(self, limit: int = 20) -> list[Row]:
        """Return the first rows."""
        return list(itertools.islice(self.rows(), max(0, limit)))

    def take_all(self, limit: int | None = None) -> list[Row]:
        """Return all rows.

        Args:
            limit: The most that there may be.

        Raises:
            ConfigError: There are more.
        """
        rows = list(itertools.islice(self.rows(), None if limit is None else limit + 1))
        if limit is not None and len(rows) > limit:
            raise ConfigError(f"the dataset has more than {limit} rows")
        return rows

    def take_batch(self, batch_size: int = 20, *, batch_format: str | None = "default") -> Batch:
        """Return the first rows as a batch."""
        first = (block.table for block in first_rows(self.blocks(), batch_size))
        tables = [table for table in first if table.num_rows]
        if not tables:
            raise ConfigError("the dataset has no rows")
        return to_batch(concat(tables), check_format(batch_format))

    def show(self, limit: int = 20) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)

    def count(self) -> int:
        """Return how many rows there are; they are read if nothing else tells."""
        ready = self if self._made_countable is None else self._made_countable
        if ready.source.rows is not None and ready._keeps_rows_surely():
            return int(ready.source.rows)
        return sum(block.table.num_rows for block in self.blocks())

    def columns(self, fetch_if_missing: bool = True) -> list[str] | None:
        """Return the names of the columns.

        Args:
            fetch_if_missing: Whether rows are read if need be; else it is None then.
        """
        schema = self.schema(fetch_if_missing)
        return None if schema is None else schema.names

    def size_bytes(self) -> int:
        """Return about how many bytes the rows take in memory."""
        if self.source.rows is not None and self.source.row_bytes and not self._operations:
            return int(self.source.rows * self.source.row_bytes)
        return sum(block.table.nbytes for block in self.blocks())

    def materialize(self: R) -> R:
        """Return a dataset of the same rows that is in memory, or in a file if it is large."""
        ready = isinstance(self.source, TableSource) and not self._operations
        if ready and self._seed is None:
            return self
        schema = functools.partial(self.arrow_schema, read_on=False)
        made = written_down(self.blocks(), self.source.name, schema)
        made.files = self.source.files
        return type(self)(made)

    def to_pandas(self, limit: int | None = None) -> Frame:
        """Return all rows as a pandas.DataFrame.

        Args:
            limit: The most that there may be.

        Raises:
            ConfigError: There are more.
        """
        tables = [block.table for block in self.blocks()]
        rows = sum(table.num_rows for table in tables)
        if limit is not None and rows > limit:
            raise ConfigError(f"the dataset has {rows} rows, more than {limit}")
        try:
            return to_batch(self._table_of(tables), "pandas")
        except DataFunctionError:  # no type of Arrow holds all values, and pandas has objects
            import pandas as pd

            return pd.concat([to_batch(table, "pandas") for table in tables], ignore_index=True)

    def to_arrow(self) -> Table:
        """Return all rows as a pyarrow.Table."""
        return self._table_of([block.table for block in self.blocks()])

    def _table_of(self, tables: Sequence[Table]) -> Table:
        schema = None if tables else self.arrow_schema(read_on=False)
        return concat(tables) if tables else (schema or pa.schema([])).empty_table()

    def to_arrow_refs(self) -> list[ObjectRef]:
        """Return references to all rows, as tables of a few MiB."""
        return [put(block.table) for block in self.blocks()]

    def to_pandas_refs(self) -> list[ObjectRef]:
        """Return references to all rows, as frames of a few MiB."""
        return [put(to_batch(block.table, "pandas")) for block in self.blocks()]

    def to_numpy_refs(self, *, column: str | None = None) -> list[ObjectRef]:
        """Return references to all rows, as arrays: of one column, or a dict of all."""
        batches = (to_batch(block.table, "numpy") for block in self.blocks())
        return [put(batch if column is None else batch[column]) for batch in batches]

    def to_torch(self, **options: Any) -> Any:
        """Return a torch IterableDataset of batches; see `DataIterator.to_torch`."""
        return self.iterator().to_torch(**options)

    def to_tf(self, *columns: Any, **options: Any) -> Any:
        """Return a `tf.data.Dataset` of features and labels; see `DataIterator.to_tf`."""
        return self.iterator().to_tf(*columns, **options)

    def num_blocks(self) -> int:
        """Return in how many lanes the rows are read by several ranks."""
        return self.source.lanes

    def input_files(self) -> list[str]:
        """Return the paths of the files that the rows come from, each once; none if of no files."""
        return list(dict.fromkeys(self.source.files))

    def explain(self) -> None:
        """Print the operations, the last one first, and the source of the rows at the end.

        What needs all rows (`sort`, `groupby`, `join`) is a source itself.
        """
        steps = [str(operation) for operation in self._operations]
        if self._seed is not None:
            steps.insert(0, f"random_shuffle(seed={self._seed})")
        for depth, step in enumerate([*reversed(steps), self.source.name]):
            print(f"{'   ' * (depth - 1)}+- {step}" if depth else step)

    def stats(self) -> str:
        """Return what is known of the rows without reading them."""
        rows = "an unknown number of" if self.source.rows is None else self.source.rows
        return f"{rows} rows of {self.source.name}, {len(self._operations)} operations"
