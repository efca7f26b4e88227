"""The output of a pipeline's rows to files, databases and custom sinks."""

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
    """A pipeline whose rows can be written."""

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
        """Write the rows as Parquet files into a directory, or to a URL that fsspec supports.

        Args:
            path: The directory.
            partition_cols: Columns whose values become directories, such as `kind=a`.
            filesystem: A filesystem of Arrow or fsspec; default: the one that the path names.
            filename_provider: Names the files.
            mode: The action if the directory has files: "append", "overwrite", "ignore" (write
                nothing), "create" or "error" (both raise).
            options: `max_rows_per_file` or `num_rows_per_file`; `compression`,
                `compression_level`, `use_dictionary` and `row_group_size` of `pyarrow.parquet`.

        Raises:
            StorageError: Writing failed, or `mode` forbids it because the directory has files.
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
        """Write the rows as CSV files into a directory; see `write_parquet`.

        Args:
            path: The directory.
            filesystem: A filesystem of Arrow or fsspec; default: the one that the path names.
            filename_provider: Names the files.
            mode: The action if the directory has files; see `write_parquet`.
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
        """Write the rows as files of JSON lines, one object per row; see `write_csv`."""
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
        """Write a column as NumPy files, each with an array of a few MiB of rows.

        Args:
            path: The directory.
            column: The column.
            filesystem: A filesystem of Arrow or fsspec; default: the one that the path names.
            filename_provider: Names the files.
            mode: The action if the directory has files; see `write_parquet`.
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
            column: The column, with arrays of pixels.
            file_format: A format of Pillow, and the extension of the file names.
            filesystem: A filesystem of Arrow or fsspec; default: the one that the path names.
            filename_provider: Names the files.
            mode: The action if the directory has files; see `write_parquet`.
            options: Other options of Ray Data; dray ignores them.

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
        """Write the rows as ORC files into a directory; see `write_parquet`.

        Args:
            path: The directory.
            filesystem: A filesystem of Arrow or fsspec; default: the one that the path names.
            filename_provider: Names the files.
            mode: The action if the directory has files; see `write_parquet`.
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
        """Write the rows as samples into WebDataset archives (tar) in a directory.

        Each column becomes a file of each sample, with the column's name as its extension. The
        column `__key__` contains the names of the samples; without it they are random.

        Args:
            path: The directory.
            filesystem: A filesystem of Arrow or fsspec; default: the one that the path names.
            filename_provider: Names the files.
            encoder: True converts values to bytes by the names of columns, so that
                `read_webdataset` reads them back. A function takes a row and returns one with bytes
                and strings; a list applies several encoders; None writes values as they are.
            mode: The action if the directory has files; see `write_parquet`.
            options: `num_rows_per_file`.

        Raises:
            ConfigError: A value is neither bytes nor a string, or a `__key__` is in two rows, is
                empty, or has a dot in its name, where the extensions of its files would begin.
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
        """Write the rows as `tf.train.Example` records into TFRecord files in a directory.

        Without google-crc32c, Python computes the checksums, which takes a second for 5 to 10 MB.

        Args:
            path: The directory.
            filesystem: A filesystem of Arrow or fsspec; default: the one that the path names.
            filename_provider: Names the files.
            mode: The action if the directory has files; see `write_parquet`.
            options: `num_rows_per_file`.

        Raises:
            ConfigError: A column contains values other than numbers, strings, bytes or lists of
                these.
        """
        rows, _ = _of_writer("tfrecords", options)
        target = Target(os.fspath(path), mode, filesystem, filename_provider)
        write_files(self.blocks(), target, "tfrecords", to_tf_records(), rows)

    def write_sql(self, sql: str, connection_factory: Callable[[], Any], **options: object) -> None:
        """Insert the rows into a database table, all of them or none.

        Args:
            sql: The statement, with a parameter for each column, in the column order of the first
                rows.
            connection_factory: Returns a connection as defined by PEP 249.
            options: Other options of Ray Data; dray ignores them.

        Raises:
            ConfigError: Later rows have a column that the first rows lack.

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
        """Write the rows into a Delta Lake table with deltalake, all of them or none.

        Args:
            path: The directory of the table, or a URL that deltalake supports.
            mode: The action if the table exists: "append", "overwrite", "ignore" (write nothing),
                "create" or "error" (both raise).
            partition_by: Columns whose values become directories of a new table.
            storage_options: Credentials and other options, as for `deltalake.write_deltalake`.
            schema_mode: "merge" adds columns that the table lacks; "error" raises.
            name: The name of a new table.
            description: The description of a new table.
            options: Other options of Ray Data; dray ignores them.

        Raises:
            ConfigError: A column contains tensors or objects, which Delta Lake cannot store, or
                `mode` is unknown.
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
        """Write the rows into a Lance dataset with pylance, all of them or none.

        Args:
            path: The directory of the dataset, or a URL that pylance supports.
            schema: The columns and their types; default: those of the rows.
            mode: The action if the dataset exists: "create" (raise), "append" or "overwrite".
            max_rows_per_file: The maximum number of rows of a file.
            data_storage_version: The version of the format; default: pylance's.
            storage_options: Credentials and other options, as for `lance.write_dataset`.
            options: Other options of Ray Data; dray ignores them.

        Raises:
            ConfigError: A column contains objects, or `mode` is unknown.
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
        """Return all rows as an Arrow reader for other libraries, with fixed column types.

        Args:
            called: The name of the format in messages.
            unknown: The class of types that the format does not support.
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
        """Write the rows to a sink of your own, in this process.

        Args:
            datasink: The sink.
            options: Other options of Ray Data; dray ignores them.

        Raises:
            ConfigError: `datasink` is not a Datasink.
        """
        _of_writer("datasink", options)
        if not isinstance(datasink, Datasink):
            raise ConfigError(f"write_datasink takes a dray.data.Datasink, not {datasink!r}")
        write_all(datasink, iter(self.blocks()))


_SQL_ROWS = 128
# Options of Ray's writers that dray ignores, because the data or the machine determines them.
_UNUSED = (
    *("concurrency", "ray_remote_args", "try_create_dir", "min_rows_per_file"),
    "min_bytes_per_file",
)
_ROWS = ("max_rows_per_file", "num_rows_per_file")


def _of_writer(
    kind: str, options: Mapping[str, object], names: Sequence[str] = ()
) -> tuple[int | None, dict[str, Any]]:
    """Return the number of rows of a file, if given, and the options for Arrow."""
    known = (*_ROWS, *names)
    unknown = {name: options[name] for name in options if name not in (*_UNUSED, *known)}
    check_arguments(f"Dataset.write_{kind}", unknown, ("path", "mode", "filesystem", *known))
    rows = next((options[name] for name in _ROWS if options.get(name) is not None), None)
    if rows is not None and not is_whole(plain(rows), 1):
        raise ConfigError(f"the number of rows in a file must be 1 or more, not {rows!r}")
    chosen = {name: options[name] for name in names if name in options}
    return (None if rows is None else int(plain(rows))), chosen
