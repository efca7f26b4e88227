"""Writers of rows to the files of a directory."""

from __future__ import annotations

import datetime as dt
import functools
import io
import itertools
import json
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from dray.data.forms.batches import rebatched
from dray.data.forms.blocks import Block, Table, Value, column_to_numpy, table_rows, with_plain
from dray.data.forms.names import check_column, column_named
from dray.data.forms.ray_tensors import in_schema, without_pickles
from dray.data.sources.target import Target
from dray.errors import ConfigError

_FILE_ROWS = 1 << 20
_MOST_PARTITIONS = (1 << 31) - 1  # Arrow's limit


@dataclass(frozen=True)
class Writer:
    """A file format.

    Attributes:
        write: Writes tables, at least one, to an open file.
        one_schema: Whether all rows of a file must have the same columns and types.
        prepare: Converts a table to the table that the file contains.
        of_row: Whether a file contains one row.
    """

    write: Callable[[Iterator[Table], pa.NativeFile], object]
    one_schema: bool = False
    prepare: Callable[[Table], Table] = lambda table: table
    of_row: bool = False


def write_files(
    blocks: Iterable[Block],
    target: Target,
    ending: str,
    write: Writer,
    rows: int | None,
    *,
    joined: bool = True,
) -> None:
    """Write rows to the files of a directory.

    Args:
        rows: The number of rows of each file; None writes at most a million.
        joined: Whether a file contains many blocks.

    Raises:
        StorageError: The rows cannot be written.
    """
    most = rows or (_FILE_ROWS if joined else 1)
    cut = blocks if rows is None else rebatched(blocks, itertools.repeat(rows))
    tables = (write.prepare(block.table) for block in cut if block.table.num_rows)
    with target.opened() as place:
        if place is None:
            return
        for number, _, of_file in in_files(tables, most, one_schema=write.one_schema):
            name = place.file(number, ending, of_row=write.of_row)
            with place.filesystem.open_output_stream(name) as file:
                write.write(of_file, file)


def in_files(
    tables: Iterable[Table], most: int = sys.maxsize, *, one_schema: bool = True
) -> Iterator[tuple[int, pa.Schema, Iterator[Table]]]:
    """Yield the number of each file, the columns of its first table, and its tables.

    Args:
        most: The number of rows after which a file is full.
        one_schema: Whether all rows of a file must have the same columns and types.
    """
    numbered = _numbered(tables, most, one_schema=one_schema)
    for number, of_file in itertools.groupby(numbered, operator.itemgetter(0)):
        own = (table for _, table in of_file)
        begun = next(own)
        yield number, begun.schema, itertools.chain([begun], own)


def _numbered(
    tables: Iterable[Table], most: int, *, one_schema: bool
) -> Iterator[tuple[int, Table]]:
    number, rows = -1, most
    schema: pa.Schema | None = None
    for table in tables:
        fitting = _fitted(table, schema) if one_schema and schema is not None else table
        if fitting is None or rows >= most:
            number, rows, schema, fitting = number + 1, 0, table.schema, table
        rows += table.num_rows
        yield number, fitting


def _fitted(table: Table, schema: pa.Schema) -> Table | None:
    """Return a table with the columns of a file; None if that would change its values."""
    if table.schema.equals(schema):
        return table
    try:
        widest = pa.unify_schemas([schema, table.schema], promote_options="permissive")
        return in_schema(table, schema).cast(schema) if widest.equals(schema) else None
    except pa.ArrowException:  # Arrow reports this way that the values do not fit
        return None


def write_partitions(
    blocks: Iterable[Block],
    target: Target,
    columns: Sequence[str],
    rows: int | None = None,
    **options: Any,
) -> None:
    """Write rows as Parquet to directories that are named after values, such as `kind=a`.

    Args:
        target: The directory above these directories.
        columns: The columns of the values; the files do not contain them.
        options: Options of `pyarrow.dataset.ParquetFileFormat().make_write_options`, and
            `row_group_size`.

    Raises:
        ConfigError: A column is missing.
        StorageError: The rows cannot be written.
    """
    from pyarrow import dataset as arrow

    tables = (without_pickles(block.table) for block in blocks if block.table.num_rows)
    most = rows or _FILE_ROWS
    of_group = min(options.pop("row_group_size", None) or most, most)
    with target.opened() as place:
        if place is None:
            return
        for number, schema, run in in_files(tables):
            check_column(schema.empty_table(), columns)
            with_plain(schema.empty_table(), columns)  # an error if Arrow cannot group by a type
            batches = itertools.chain.from_iterable(table.to_batches() for table in run)
            arrow.write_dataset(
                pa.RecordBatchReader.from_batches(schema, batches),
                place.directory,
                filesystem=place.filesystem,
                format="parquet",
                file_options=arrow.ParquetFileFormat().make_write_options(**options),
                partitioning=list(columns),
                partitioning_flavor="hive",
                basename_template=place.template(number, "parquet"),
                file_visitor=lambda file: place.names.add(os.path.basename(file.path)),
                existing_data_behavior="overwrite_or_ignore",
                max_partitions=_MOST_PARTITIONS,
                max_rows_per_file=most,
                max_rows_per_group=of_group,
            )


def to_parquet(row_group_size: int | None = None, **options: Any) -> Writer:
    """Return a Parquet writer with options of `pyarrow.parquet.ParquetWriter`.

    Args:
        row_group_size: The maximum number of rows of a row group; None leaves it to pyarrow.
    """

    import pyarrow.parquet as pq

    writer = _of_arrow(functools.partial(pq.ParquetWriter, **options), row_group_size)
    return replace(writer, prepare=without_pickles)


def to_csv(**options: Any) -> Writer:
    """Return a CSV writer with options of `pyarrow.csv.CSVWriter`."""
    import pyarrow.csv as csv

    return replace(_of_arrow(functools.partial(csv.CSVWriter, **options)), prepare=_flat)


def to_orc(**options: Any) -> Writer:
    """Return an ORC writer with options of `pyarrow.orc.ORCWriter`."""
    from pyarrow import orc

    def write(tables: Iterator[Table], file: pa.NativeFile) -> None:
        with orc.ORCWriter(file, **options) as writer:
            for table in tables:
                writer.write(table)

    return Writer(write, one_schema=True, prepare=_for_orc)


def _for_orc(table: Table) -> Table:
    """Return a table with columns that ORC supports."""
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if not _is_of_orc(kind):
            raise ConfigError(
                f"ORC cannot hold column {name!r}, which is {kind}: drop it (drop_columns), or "
                "call write_parquet()"
            )
    return table


@functools.cache
def _is_of_orc(kind: pa.DataType) -> bool:
    from pyarrow import orc

    if isinstance(kind, pa.BaseExtensionType):
        return False
    try:
        orc.write_table(pa.schema([("x", kind)]).empty_table(), io.BytesIO())
    except pa.ArrowNotImplementedError:  # Arrow reports this way that ORC lacks the type
        return False
    return True


def _flat(table: Table) -> Table:
    """Return a table with columns that CSV supports."""
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
            raise ConfigError(
                f"CSV cannot hold column {name!r}, which is {kind}: drop it (drop_columns), or "
                "call write_parquet() or write_json()"
            )
    return table


def _of_arrow(open_writer: Callable[..., Any], at_once: int | None = None) -> Writer:
    """Return a writer that uses one of Arrow's writers and passes it `at_once` rows at a time."""

    def write(tables: Iterator[Table], file: pa.NativeFile) -> None:
        begun = next(tables)
        with open_writer(file, begun.schema) as writer:
            for table in itertools.chain([begun], tables):
                writer.write_table(table, at_once)

    return Writer(write, one_schema=True)


def to_json() -> Writer:
    """Return a JSON writer, with one object per line."""

    def write(tables: Iterator[Table], file: pa.NativeFile) -> None:
        for table in tables:
            file.write("".join(f"{as_json(row)}\n" for row in table_rows(table)).encode())

    return Writer(write)


def as_json(row: Value) -> str:
    """Return a row, or a part of one, as JSON."""
    try:
        return _JSON.encode(row)
    except ValueError:  # only for rows with NaN, which JSON lacks
        text = json.dumps(row, default=_plain)
        return _JSON.encode(json.loads(text, parse_constant=lambda _: None))


def _plain(value: Value) -> Value:
    """Return a JSON value for a value that JSON lacks, as in Ray Data."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"JSON can hold bytes only if they are text in UTF-8, and {value[:20]!r} is not: "
                "convert it to text first, for example with base64, or call write_parquet()"
            ) from error
    if isinstance(value, dt.datetime):
        since = value.replace(tzinfo=value.tzinfo or dt.timezone.utc) - _EPOCH
        return since // _MILLISECOND
    if isinstance(value, dt.timedelta):
        return value // _MILLISECOND
    return list(value) if isinstance(value, set | frozenset) else str(value)


_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_plain)
_EPOCH, _MILLISECOND = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc), dt.timedelta(milliseconds=1)


def to_numpy(column: str) -> Writer:
    """Return a writer of a column as an array in a NumPy file; it holds all tables in memory."""

    def write(tables: Iterator[Table], file: pa.NativeFile) -> None:
        arrays = [column_to_numpy(column_named(table, column)) for table in tables]
        np.save(file, np.concatenate(arrays), allow_pickle=False)

    return Writer(write)


def to_images(column: str, file_format: str) -> Writer:
    """Return a writer of an image, the first row of a column, with Pillow."""

    def write(tables: Iterator[Table], file: pa.NativeFile) -> None:
        from PIL import Image

        pixels = column_to_numpy(column_named(next(tables), column))[0]
        made = io.BytesIO()  # some formats seek back in their files
        Image.fromarray(pixels).save(made, file_format)
        file.write(made.getvalue())

    return Writer(write, of_row=True)
