"""The results of a pipeline as programs take them: rows, batches, tables, tensors, files."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from dray.checks import is_whole, plain, require
from dray.compat.arguments import check_arguments
from dray.core.objects import put
from dray.data.forms.blocks import Batch, Frame, Row, Table, check_format, concat, to_batch
from dray.data.iterator import DataIterator
from dray.data.pipeline import Pipeline, first_rows, written_down
from dray.data.sources.base import Filesystem, TableSource
from dray.data.sources.target import SaveMode, Target
from dray.data.sources.writing import (
    to_csv,
    to_images,
    to_json,
    to_numpy,
    to_parquet,
    write_files,
    write_partitions,
)
from dray.engines.object_ref import ObjectRef
from dray.errors import ArgumentTypeError, ConfigError

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
        tables = [block.table for block in first_rows(self.blocks(), batch_size)]
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
            fetch_if_missing: Nothing; Ray's: what must be read to know them is read.
        """
        schema = self.arrow_schema()
        return None if schema is None else list(schema.names)

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
        return type(self)(written_down(self.blocks(), self.source.name, schema))

    def to_pandas(self, limit: int | None = None) -> Frame:
        """Return all rows as a pandas.DataFrame.

        Args:
            limit: The most that there may be.

        Raises:
            ConfigError: There are more.
        """
        table = self.to_arrow()
        if limit is not None and table.num_rows > limit:
            raise ConfigError(f"the dataset has {table.num_rows} rows, more than {limit}")
        return to_batch(table, "pandas")

    def to_arrow(self) -> Table:
        """Return all rows as a pyarrow.Table."""
        tables = [block.table for block in self.blocks()]
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

    def stats(self) -> str:
        """Return what is known of the rows without reading them."""
        rows = "an unknown number of" if self.source.rows is None else self.source.rows
        return f"{rows} rows of {self.source.name}, {len(self._operations)} operations"

    # Files.

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        partition_cols: Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write the rows as files of Parquet into a directory, or a URL that fsspec knows.

        Args:
            path: The directory.
            partition_cols: Columns whose values become directories, such as `kind=a`.
            filesystem: Of Arrow or fsspec; default: what the path says.
            mode: The way to go on if there is something: "append", "overwrite", "ignore" (write
                nothing), "create" or "error" (raise).
            options: `max_rows_per_file` or `num_rows_per_file`; `compression`,
                `compression_level`, `use_dictionary` and `row_group_size` of `pyarrow.parquet`.

        Raises:
            StorageError: They cannot be written, or something is there and is not to be.
        """
        names = ("compression", "compression_level", "use_dictionary", "row_group_size")
        rows, of_arrow = _of_writer("parquet", options, names)
        target = Target(os.fspath(path), mode, filesystem)
        if partition_cols:
            write_partitions(self.blocks(), target, list(partition_cols), rows, **of_arrow)
            return
        write_files(self.blocks(), target, "parquet", to_parquet(**of_arrow), rows)

    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write the rows as files of CSV into a directory; see `write_parquet`.

        Args:
            path: The directory.
            filesystem: Of Arrow or fsspec; default: what the path says.
            mode: The way to go on if there is something.
            options: `num_rows_per_file`; `write_options` of `pyarrow.csv`.
        """
        rows, of_arrow = _of_writer("csv", options, ("write_options",))
        target = Target(os.fspath(path), mode, filesystem)
        write_files(self.blocks(), target, "csv", to_csv(**of_arrow), rows)

    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write the rows as files with a JSON object a line; see `write_csv`."""
        rows, _ = _of_writer("json", options)
        target = Target(os.fspath(path), mode, filesystem)
        write_files(self.blocks(), target, "json", to_json(), rows)

    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str,
        filesystem: Filesystem | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write a column as arrays in files of NumPy, one for a few MiB of rows.

        Args:
            path: The directory.
            column: The column.
            filesystem: Of Arrow or fsspec; default: what the path says.
            mode: The way to go on if there is something.
            options: `num_rows_per_file`.
        """
        rows, _ = _of_writer("numpy", options)
        target = Target(os.fspath(path), mode, filesystem)
        blocks = self.only([column]).blocks()
        write_files(blocks, target, "npy", to_numpy(column), rows, joined=False)

    def write_images(
        self,
        path: str | os.PathLike[str],
        column: str,
        file_format: str = "png",
        *,
        filesystem: Filesystem | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write a column of images as files, one for each row.

        Args:
            path: The directory.
            column: The column, of arrays of pixels.
            file_format: A format of Pillow, and the ending of names.
            filesystem: Of Arrow or fsspec; default: what the path says.
            mode: The way to go on if there is something.
            options: Options of Ray's that dray does not need.

        Raises:
            MissingDependencyError: Pillow is not installed.
        """
        require("PIL", "pillow")
        _of_writer("images", options)
        target = Target(os.fspath(path), mode, filesystem)
        blocks = self.only([column]).blocks()
        write_files(blocks, target, file_format, to_images(column, file_format), 1)


# Options of Ray's writers for which dray has no use: they follow from the data or the machine.
_UNUSED = (
    *("concurrency", "ray_remote_args", "try_create_dir", "min_rows_per_file"),
    "min_bytes_per_file",
)
_ROWS = ("max_rows_per_file", "num_rows_per_file")


def _of_writer(
    kind: str, options: Mapping[str, object], names: Sequence[str] = ()
) -> tuple[int | None, dict[str, Any]]:
    """Return the rows of a file, if that is said, and the options that Arrow gets."""
    known = (*_ROWS, *names)
    unknown = {name: options[name] for name in options if name not in (*_UNUSED, *known)}
    check_arguments(f"Dataset.write_{kind}", unknown, ("path", "mode", "filesystem", *known))
    rows = next((options[name] for name in _ROWS if options.get(name) is not None), None)
    if rows is not None and not is_whole(plain(rows), 1):
        raise ConfigError(f"a file has a number of rows, 1 or more, not {rows!r}")
    chosen = {name: options[name] for name in names if name in options}
    return (None if rows is None else int(plain(rows))), chosen
