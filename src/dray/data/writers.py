"""The rows of a pipeline, written down: into files, databases and places of one's own."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dray.checks import is_whole, plain, require
from dray.compat.arguments import check_arguments
from dray.data.forms.blocks import in_columns, table_rows
from dray.data.forms.names import check_column
from dray.data.forms.pickles import PickledType
from dray.data.results import Results
from dray.data.sources.archives import Coding, to_archive
from dray.data.sources.base import Filesystem
from dray.data.sources.datasink import Datasink, write_all
from dray.data.sources.filenames import FilenameProvider
from dray.data.sources.target import SaveMode, Target, mode_of
from dray.data.sources.tf_records import to_tf_records
from dray.data.sources.writing import (
    to_csv,
    to_images,
    to_json,
    to_numpy,
    to_orc,
    to_parquet,
    write_files,
    write_partitions,
)
from dray.errors import ConfigError


class Writers(Results):
    """A pipeline whose rows can be written down."""

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        partition_cols: Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        filename_provider: FilenameProvider | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write the rows as files of Parquet into a directory, or a URL that fsspec knows.

        Args:
            path: The directory.
            partition_cols: Columns whose values become directories, such as `kind=a`.
            filesystem: Of Arrow or fsspec; default: what the path says.
            filename_provider: Names the files.
            mode: The way to go on if there is something: "append", "overwrite", "ignore" (write
                nothing), "create" or "error" (raise).
            options: `max_rows_per_file` or `num_rows_per_file`; `compression`,
                `compression_level`, `use_dictionary` and `row_group_size` of `pyarrow.parquet`.

        Raises:
            StorageError: They cannot be written, or something is there and is not to be.
        """
        names = ("compression", "compression_level", "use_dictionary", "row_group_size")
        rows, of_arrow = _of_writer("parquet", options, names)
        target = Target(os.fspath(path), mode, filesystem, filename_provider)
        if partition_cols:
            write_partitions(self.blocks(), target, list(partition_cols), rows, **of_arrow)
            return
        write_files(self.blocks(), target, "parquet", to_parquet(**of_arrow), rows)

    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        filename_provider: FilenameProvider | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write the rows as files of CSV into a directory; see `write_parquet`.

        Args:
            path: The directory.
            filesystem: Of Arrow or fsspec; default: what the path says.
            filename_provider: Names the files.
            mode: The way to go on if there is something.
            options: `num_rows_per_file`; `write_options` of `pyarrow.csv`.
        """
        rows, of_arrow = _of_writer("csv", options, ("write_options",))
        target = Target(os.fspath(path), mode, filesystem, filename_provider)
        write_files(self.blocks(), target, "csv", to_csv(**of_arrow), rows)

    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        filename_provider: FilenameProvider | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write the rows as files with a JSON object a line; see `write_csv`."""
        rows, _ = _of_writer("json", options)
        target = Target(os.fspath(path), mode, filesystem, filename_provider)
        write_files(self.blocks(), target, "json", to_json(), rows)

    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str,
        filesystem: Filesystem | None = None,
        filename_provider: FilenameProvider | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write a column as arrays in files of NumPy, one for a few MiB of rows.

        Args:
            path: The directory.
            column: The column.
            filesystem: Of Arrow or fsspec; default: what the path says.
            filename_provider: Names the files.
            mode: The way to go on if there is something.
            options: `num_rows_per_file`.
        """
        rows, _ = _of_writer("numpy", options)
        target = Target(os.fspath(path), mode, filesystem, filename_provider)
        blocks = self.only([column]).blocks()
        write_files(blocks, target, "npy", to_numpy(column), rows, joined=False)

    def write_images(
        self,
        path: str | os.PathLike[str],
        column: str,
        file_format: str = "png",
        *,
        filesystem: Filesystem | None = None,
        filename_provider: FilenameProvider | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write a column of images as files, one for each row.

        Args:
            path: The directory.
            column: The column, of arrays of pixels.
            file_format: A format of Pillow, and the ending of names.
            filesystem: Of Arrow or fsspec; default: what the path says.
            filename_provider: Names the files.
            mode: The way to go on if there is something.
            options: Options of Ray's that dray does not need.

        Raises:
            MissingDependencyError: Pillow is not installed.
        """
        require("PIL", "pillow")
        _of_writer("images", options)
        target = Target(os.fspath(path), mode, filesystem, filename_provider)
        blocks = self.only([column]).blocks()
        write_files(blocks, target, file_format, to_images(column, file_format), 1)

    def write_orc(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        filename_provider: FilenameProvider | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write the rows as files of ORC into a directory; see `write_parquet`.

        Args:
            path: The directory.
            filesystem: Of Arrow or fsspec; default: what the path says.
            filename_provider: Names the files.
            mode: The way to go on if there is something.
            options: `num_rows_per_file`; `compression`, `compression_block_size`,
                `compression_strategy` and `stripe_size` of `pyarrow.orc.ORCWriter`.
        """
        names = ("compression", "compression_block_size", "compression_strategy", "stripe_size")
        rows, of_arrow = _of_writer("orc", options, names)
        target = Target(os.fspath(path), mode, filesystem, filename_provider)
        write_files(self.blocks(), target, "orc", to_orc(**of_arrow), rows)

    def write_webdataset(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        filename_provider: FilenameProvider | None = None,
        encoder: Coding = True,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write the rows as samples into archives of WebDataset (tar) in a directory.

        A column becomes a file of each sample, with the column's name as its ending. The column
        `__key__` has the names of samples; without it they are random.

        Args:
            path: The directory.
            filesystem: Of Arrow or fsspec; default: what the path says.
            filename_provider: Names the files.
            encoder: True makes bytes of values by the names of columns, as `read_webdataset` reads
                them. A function takes a row and returns one of bytes and texts; a list has
                several of these; None takes values as they are.
            mode: The way to go on if there is something.
            options: `num_rows_per_file`.

        Raises:
            ConfigError: A value is neither bytes nor text, or a `__key__` is in two rows, empty, or
                has a dot in its name, at which the endings of its files would begin.
        """
        rows, _ = _of_writer("webdataset", options)
        target = Target(os.fspath(path), mode, filesystem, filename_provider)
        write_files(self.blocks(), target, "tar", to_archive(encoder), rows)

    def write_tfrecords(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        filename_provider: FilenameProvider | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
        **options: Any,
    ) -> None:
        """Write the rows as `tf.train.Example` into files of TFRecord in a directory.

        Checksums are calculated by Python, which takes a second for 5 to 10 MB.

        Args:
            path: The directory.
            filesystem: Of Arrow or fsspec; default: what the path says.
            filename_provider: Names the files.
            mode: The way to go on if there is something.
            options: `num_rows_per_file`.

        Raises:
            ConfigError: A column has other than numbers, texts, bytes or lists of these.
        """
        rows, _ = _of_writer("tfrecords", options)
        target = Target(os.fspath(path), mode, filesystem, filename_provider)
        write_files(self.blocks(), target, "tfrecords", to_tf_records(), rows)

    def write_sql(self, sql: str, connection_factory: Callable[[], Any], **options: object) -> None:
        """Insert the rows into a table of a database, all of them or none.

        Args:
            sql: The statement, with a parameter for each column, in the order of the first rows.
            connection_factory: Returns a connection as PEP 249 has it.
            options: Options of Ray's that dray does not need.

        Raises:
            ConfigError: Later rows have a column that the first ones have not.

        Example:
            >>> import sqlite3, tempfile
            >>> import dray.data
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     connect = lambda: sqlite3.connect(f"{folder}/rows.db")
            ...     _ = connect().execute("create table numbers (id)")
            ...     dray.data.range(3).write_sql("insert into numbers values (?)", connect)
            ...     dray.data.read_sql("select sum(id) from numbers", connect).take()
            [{'sum(id)': 3}]
        """
        _of_writer("sql", options)
        with contextlib.closing(connection_factory()) as connection:
            try:
                cursor = connection.cursor()
                names: dict[str, None] = {}
                for block in self.blocks():
                    names = names or dict.fromkeys(block.table.column_names)
                    check_column(names, block.table.column_names)
                    values = [tuple(map(row.get, names)) for row in table_rows(block.table)]
                    for begin in range(0, len(values), _SQL_ROWS):
                        cursor.executemany(sql, values[begin : begin + _SQL_ROWS])
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def write_delta(
        self,
        path: str | os.PathLike[str],
        *,
        mode: SaveMode | str = SaveMode.APPEND,
        partition_by: Sequence[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        schema_mode: str = "merge",
        name: str | None = None,
        description: str | None = None,
        **options: object,
    ) -> None:
        """Write the rows into a table of Delta Lake, all of them or none; deltalake writes it.

        Args:
            path: Its directory, or a URL that deltalake knows.
            mode: The way to go on if there is a table: "append", "overwrite", "ignore" (write
                nothing), "create" or "error" (raise).
            partition_by: Columns whose values become directories of a new table.
            storage_options: Credentials and the like, as `deltalake.write_deltalake` takes them.
            schema_mode: "merge" adds columns that the table lacks, "error" raises.
            name: Name of a new table.
            description: Description of a new table.
            options: Options of Ray's that dray does not need.

        Raises:
            ConfigError: A column has tensors or objects, which Delta Lake does not hold, or there
                is no such mode.
            MissingDependencyError: deltalake is not installed.
        """
        _of_writer("delta", options)
        require("deltalake", "deltalake")
        from deltalake import write_deltalake

        if schema_mode not in ("merge", "error"):
            raise ConfigError(f"schema_mode must be 'merge' or 'error', not {schema_mode!r}")
        how, merged = mode_of(mode), "merge" if schema_mode == "merge" else None
        write_deltalake(
            os.fspath(path),
            self._reader("Delta Lake", pa.BaseExtensionType),
            mode="error" if how is SaveMode.CREATE else how.value,
            partition_by=None if partition_by is None else list(partition_by),
            storage_options=storage_options,
            schema_mode="overwrite" if how is SaveMode.OVERWRITE else merged,
            name=name,
            description=description,
        )

    def write_lance(
        self,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | None = None,
        mode: SaveMode | str = SaveMode.CREATE,
        max_rows_per_file: int = 64 << 20,
        data_storage_version: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: object,
    ) -> None:
        """Write the rows into a dataset of Lance, all of them or none; pylance writes it.

        Args:
            path: Its directory, or a URL that pylance knows.
            schema: The columns and their types; default: as they are.
            mode: The way to go on if there is one: "create" (raise), "append" or "overwrite".
            max_rows_per_file: The most rows of a file.
            data_storage_version: The version of the format; default: pylance's.
            storage_options: Credentials and the like, as `lance.write_dataset` takes them.
            options: Options of Ray's that dray does not need.

        Raises:
            ConfigError: A column has objects, or there is no such mode.
            MissingDependencyError: pylance is not installed.
        """
        _of_writer("lance", options)
        how = mode_of(mode, (SaveMode.CREATE, SaveMode.APPEND, SaveMode.OVERWRITE))
        require("lance", "pylance")
        import lance

        lance.write_dataset(
            self._reader("Lance", PickledType, schema),
            os.fspath(path),
            mode=how.value,
            max_rows_per_file=max_rows_per_file,
            data_storage_version=data_storage_version,
            storage_options=storage_options,
        )

    def _reader(
        self, called: str, unknown: type[object], schema: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        """Return all rows as other libraries take them, with columns of the same types.

        Args:
            called: The format in messages.
            unknown: Class of types that it does not have.
        """
        ready = self.materialize()
        found = schema or ready.arrow_schema() or pa.schema([])
        for field in found:
            if isinstance(field.type, unknown):
                raise ConfigError(f"{called} cannot hold column {field.name!r}, of {field.type}")
        kinds = pa.schema([field.remove_metadata() for field in found])
        tables = (in_columns(block.table, found).cast(kinds) for block in ready.blocks())
        batches = itertools.chain.from_iterable(table.to_batches() for table in tables)
        return pa.RecordBatchReader.from_batches(kinds, batches)

    def write_datasink(self, datasink: Datasink[Any], **options: object) -> None:
        """Write the rows to a place of your own, in this process.

        Args:
            datasink: The place.
            options: Options of Ray's that dray does not need.

        Raises:
            ConfigError: It is none.
        """
        _of_writer("datasink", options)
        if not isinstance(datasink, Datasink):
            raise ConfigError(f"write_datasink takes a dray.data.Datasink, not {datasink!r}")
        write_all(datasink, iter(self.blocks()))


_SQL_ROWS = 128
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
