"""The results of a pipeline: rows, batches, tables, tensors and references."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from dray.core.objects import put
from dray.data.forms.blocks import Batch, Frame, Row, Table, check_format, concat, to_batch
from dray.data.iterator import DataIterator
from dray.data.pipeline import Pipeline, first_rows, written_down
from dray.data.sources.base import TableSource
from dray.engines.object_ref import ObjectRef
from dray.errors import ArgumentTypeError, ConfigError, DataFunctionError

P = ParamSpec("P")
R = TypeVar("R", bound="Results")
T = TypeVar("T")


def of_iterator(
    method: Callable[Concatenate[DataIterator, P], T],
) -> Callable[Concatenate[Results, P], T]:
    """Return a method of datasets that calls this one of their iterator, with its arguments."""

    def call(dataset: Results, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(dataset.iterator(), *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


class Results(Pipeline):
    """A pipeline whose rows a program can read."""

    def __bool__(self) -> bool:
        """Return True; otherwise Python would ask for the number of rows."""
        return True

    def __iter__(self) -> Iterator[Row]:
        raise ArgumentTypeError(
            "a dataset itself is not iterable: call its iter_rows() or iter_batches()"
        )

    # Rows.

    def iterator(self) -> DataIterator:
        """Return an iterator over all rows; each iteration is an epoch."""
        return DataIterator(self, in_order=True)

    def iter_rows(self) -> Iterable[Row]:
        """Return the rows as dicts."""
        return self.iterator().iter_rows()

    iter_batches = of_iterator(DataIterator.iter_batches)
    """Return an iterable of batches; see `DataIterator.iter_batches`."""

    iter_torch_batches = of_iterator(DataIterator.iter_torch_batches)
    """Return an iterable of tensor batches; see `DataIterator.iter_torch_batches`."""

    iter_jax_batches = of_iterator(DataIterator.iter_jax_batches)
    """Return an iterable of batches of JAX arrays; see `DataIterator.iter_jax_batches`."""

    def iter_tf_batches(self, **options: Any) -> Iterable[Batch]:
        """Return an iterable of TensorFlow batches; see `DataIterator.iter_tf_batches`."""
        return self.iterator().iter_tf_batches(**options)

    def take(self, limit: int = 20) -> list[Row]:
        """Return the first `limit` rows as dicts."""
        return list(itertools.islice(self.rows(), max(0, limit)))

    def take_all(self, limit: int | None = None) -> list[Row]:
        """Return all rows as dicts.

        Args:
            limit: The maximum number of rows; None is no limit.

        Raises:
            ConfigError: There are more rows.
        """
        rows = list(itertools.islice(self.rows(), None if limit is None else limit + 1))
        if limit is not None and len(rows) > limit:
            raise ConfigError(f"the dataset has more than {limit} rows")
        return rows

    def take_batch(self, batch_size: int = 20, *, batch_format: str | None = "default") -> Batch:
        """Return the first `batch_size` rows as a batch."""
        first = (block.table for block in first_rows(self.blocks(), batch_size))
        tables = [table for table in first if table.num_rows]
        if not tables:
            raise ConfigError("the dataset has no rows")
        return to_batch(concat(tables), check_format(batch_format))

    def show(self, limit: int = 20) -> None:
        """Print the first `limit` rows."""
        for row in self.take(limit):
            print(row)

    def count(self) -> int:
        """Return the number of rows; dray reads them if the number is not known."""
        ready = self if self._made_countable is None else self._made_countable
        if ready.source.rows is not None and ready._keeps_rows_surely():
            return int(ready.source.rows)
        return sum(block.table.num_rows for block in self.blocks())

    def columns(self, fetch_if_missing: bool = True) -> list[str] | None:
        """Return the names of the columns.

        Args:
            fetch_if_missing: Whether to read rows if needed; if False, the result is then None.
        """
        schema = self.schema(fetch_if_missing)
        return None if schema is None else schema.names

    def size_bytes(self) -> int:
        """Return the approximate size of the rows in memory, in bytes."""
        if self.source.rows is not None and self.source.row_bytes and not self._operations:
            return int(self.source.rows * self.source.row_bytes)
        return sum(block.table.nbytes for block in self.blocks())

    def materialize(self: R) -> R:
        """Return a dataset with the same rows in memory, or in a file if it is large."""
        ready = isinstance(self.source, TableSource) and not self._operations
        if ready and self._seed is None:
            return self
        schema = functools.partial(self.arrow_schema, read_on=False)
        made = written_down(self.blocks(), self.source.name, schema)
        made.files = self.source.files
        return type(self)(made)

    def to_pandas(self, limit: int | None = None) -> Frame:
        """Return all rows as a pandas DataFrame.

        Args:
            limit: The maximum number of rows; None is no limit.

        Raises:
            ConfigError: There are more rows.
        """
        tables = [block.table for block in self.blocks()]
        rows = sum(table.num_rows for table in tables)
        if limit is not None and rows > limit:
            raise ConfigError(f"the dataset has {rows} rows, more than {limit}")
        try:
            return to_batch(self._table_of(tables), "pandas")
        except DataFunctionError:  # no Arrow type holds all values, but pandas has objects
            import pandas as pd

            return pd.concat([to_batch(table, "pandas") for table in tables], ignore_index=True)

    def to_arrow(self) -> Table:
        """Return all rows as an Arrow table."""
        return self._table_of([block.table for block in self.blocks()])

    def _table_of(self, tables: Sequence[Table]) -> Table:
        schema = None if tables else self.arrow_schema(read_on=False)
        return concat(tables) if tables else (schema or pa.schema([])).empty_table()

    def to_arrow_refs(self) -> list[ObjectRef]:
        """Return references to all rows, as Arrow tables of a few MiB."""
        return [put(block.table) for block in self.blocks()]

    def to_pandas_refs(self) -> list[ObjectRef]:
        """Return references to all rows, as pandas DataFrames of a few MiB."""
        return [put(to_batch(block.table, "pandas")) for block in self.blocks()]

    def to_numpy_refs(self, *, column: str | None = None) -> list[ObjectRef]:
        """Return references to all rows, as arrays of one column or dicts of all columns."""
        batches = (to_batch(block.table, "numpy") for block in self.blocks())
        return [put(batch if column is None else batch[column]) for batch in batches]

    def to_torch(self, **options: Any) -> Any:
        """Return a torch IterableDataset of batches; see `DataIterator.to_torch`."""
        return self.iterator().to_torch(**options)

    def to_tf(self, *columns: Any, **options: Any) -> Any:
        """Return a `tf.data.Dataset` of features and labels; see `DataIterator.to_tf`."""
        return self.iterator().to_tf(*columns, **options)

    def num_blocks(self) -> int:
        """Return the number of lanes in which several ranks read the rows."""
        return self.source.lanes

    def input_files(self) -> list[str]:
        """Return the paths of the files that the rows are read from, without duplicates."""
        return list(dict.fromkeys(self.source.files))

    def explain(self) -> None:
        """Print the operations, the last one first, followed by the source of the rows.

        An operation that needs all rows (`sort`, `groupby`, `join`) is shown as a source.
        """
        steps = [str(operation) for operation in self._operations]
        if self._seed is not None:
            steps.insert(0, f"random_shuffle(seed={self._seed})")
        for depth, step in enumerate([*reversed(steps), self.source.name]):
            print(f"{'   ' * (depth - 1)}+- {step}" if depth else step)

    def stats(self) -> str:
        """Return a summary of the dataset without reading rows."""
        rows = "an unknown number of" if self.source.rows is None else self.source.rows
        return f"{rows} rows of {self.source.name}, {len(self._operations)} operations"
