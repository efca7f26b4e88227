"""The makers of datasets from files and databases."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from dray.checks import require
from dray.compat.arguments import check_arguments, parameter_names
from dray.data.dataset import Dataset
from dray.data.forms.blocks import Block, Row, to_table
from dray.data.sources import files
from dray.data.sources.base import BlocksSource, Filesystem, RowsSource, Source
from dray.data.sources.combined import FileShuffleConfig, Shuffle, UnionSource
from dray.data.sources.files import Paths
from dray.data.sources.partitions import PATH, Labels, Partitioning
from dray.errors import StorageError, describe, shown_url

# Options of Ray Data for which dray has no use: they follow from the data or the machine.
_FOLLOWS = (
    *("parallelism", "ray_remote_args", "concurrency", "num_cpus", "num_gpus", "memory"),
    *("meta_provider", "override_num_blocks"),
)
_HIVE = Partitioning("hive")
FileOrder: TypeAlias = FileShuffleConfig | Literal["files"] | None


def read_parquet(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    columns: Sequence[str] | None = None,
    override_num_blocks: int | None = None,
    partitioning: Partitioning | None = _HIVE,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    schema: pa.Schema | None = None,
    allow_pickle: bool = False,
    **options: object,
) -> Dataset:
    """Return files of Parquet as a dataset; their ends are read now, the rest when it is used.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: Of Arrow or fsspec; default: what the paths say.
        columns: Those to read; default: all.
        override_num_blocks: Number of places to read from in turn, at most one for each row
            group; default: up to 12. Each rank reads from its share of them.
        partitioning: Names of directories that are values; default: such as `kind=a`.
        include_paths: Whether there is a column `path`.
        file_extensions: Endings of the files that count in a directory.
        shuffle: "files" or a FileShuffleConfig, for another order of files in each epoch.
        schema: The columns and their types; default: those of all files, where a column that a
            file lacks is None, and has a type that holds the values of all files.
        allow_pickle: Whether to load values that were pickled, which may run any code.
        options: Options of Ray's that dray does not need.

    Raises:
        ConfigError: There are no such files or columns, or one is pickled.
        StorageError: One cannot be read, or not together with the others.
    """
    _known_options(read_parquet, options)
    found, on = files.find_files(paths, file_extensions or _PARQUET, filesystem)
    label = _labels(partitioning, include_paths)
    order = None if shuffle is None else Shuffle(shuffle)
    lanes = override_num_blocks
    source = files.parquet_source(
        found, on, columns, lanes, label, order, schema, allow_pickle=allow_pickle
    )
    return Dataset(source)


def read_csv(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    override_num_blocks: int | None = None,
    partitioning: Partitioning | None = _HIVE,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    arrow_open_stream_args: Mapping[str, object] | None = None,
    **options: object,
) -> Dataset:
    """Return files of CSV as a dataset.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: Of Arrow or fsspec; default: what the paths say.
        override_num_blocks: Nothing; Ray's.
        partitioning: Names of directories that are values; default: such as `kind=a`.
        include_paths: Whether there is a column `path`.
        file_extensions: Endings of the files that count in a directory; default: all files.
        shuffle: "files" or a FileShuffleConfig, for another order of files in each epoch.
        arrow_open_stream_args: Such as `{"compression": "gzip"}`, where endings do not say it; as
            for `pyarrow.fs.FileSystem.open_input_stream`.
        options: `read_options`, `parse_options` and `convert_options` of `pyarrow.csv`.
    """
    of_arrow = _known_options(read_csv, options, _OF_CSV)
    found, on = files.find_files(paths, file_extensions or ("",), filesystem)
    label = _labels(partitioning, include_paths)
    opening = arrow_open_stream_args or {}
    return _in_order(files.csv_source, found, shuffle, on, of_arrow, label, opening)


def read_json(
    paths: Paths,
    *,
    lines: bool = False,
    filesystem: Filesystem | None = None,
    override_num_blocks: int | None = None,
    partitioning: Partitioning | None = _HIVE,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    arrow_open_stream_args: Mapping[str, object] | None = None,
    **options: object,
) -> Dataset:
    """Return files of JSON as a dataset: an object a line, or a list of objects.

    Arrow, which reads lines, has no limit of how deep they are nested: 100,000 brackets in one
    another end the process.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        lines: Whether each line is a row, whatever it is: a list, whose values have their numbers
            for names, or an object with values of other types than those before. Else a file's
            beginning says what it holds.
        filesystem: Of Arrow or fsspec; default: what the paths say.
        override_num_blocks: Nothing; Ray's.
        partitioning: Names of directories that are values; default: such as `kind=a`.
        include_paths: Whether there is a column `path`.
        file_extensions: Endings of the files that count in a directory.
        shuffle: "files" or a FileShuffleConfig, for another order of files in each epoch.
        arrow_open_stream_args: Such as `{"compression": "gzip"}`, where endings do not say it; as
            for `pyarrow.fs.FileSystem.open_input_stream`.
        options: `read_options` and `parse_options` of `pyarrow.json`.
    """
    of_arrow = _known_options(read_json, options, _OF_JSON)
    found, on = files.find_files(paths, file_extensions or JSON, filesystem)
    label = _labels(partitioning, include_paths)
    opening = arrow_open_stream_args or {}
    return _in_order(files.json_source, found, shuffle, on, of_arrow, label, opening, lines)


def read_text(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    encoding: str = "utf-8",
    drop_empty_lines: bool = True,
    partitioning: Partitioning | None = None,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    **options: object,
) -> Dataset:
    """Return files of text as a dataset, with the column `text` and a row a line.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: Of Arrow or fsspec; default: the one that the paths name.
        encoding: Their encoding.
        drop_empty_lines: Whether lines without text are left out.
        partitioning: Names of directories that are values of columns.
        include_paths: Whether there is a column `path`.
        file_extensions: Endings of the files that count in a directory.
        shuffle: "files" or a FileShuffleConfig, for another order of files in each epoch.
        options: Options of Ray's that dray does not need.
    """
    _known_options(read_text, options)
    found, on = files.find_files(paths, file_extensions or ("",), filesystem)
    label = _labels(partitioning, include_paths)
    return _in_order(files.text_source, found, shuffle, on, encoding, drop_empty_lines, label)


def read_binary_files(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    include_paths: bool = False,
    partitioning: Partitioning | None = None,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    **options: object,
) -> Dataset:
    """Return files as a dataset with the column `bytes`, a row a file.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: Of Arrow or fsspec; default: the one that the paths name.
        include_paths: Whether there is a column `path`.
        partitioning: Names of directories that are values of columns.
        file_extensions: Endings of the files that count in a directory.
        shuffle: "files" or a FileShuffleConfig, for another order of files in each epoch.
        options: Options of Ray's that dray does not need.
    """
    _known_options(read_binary_files, options)
    found, on = files.find_files(paths, file_extensions or ("",), filesystem)
    label = _labels(partitioning, include_paths)

    def row(content: bytes, path: str) -> dict[str, object]:
        return {"bytes": content, **label(path)}

    return _rows_in_order(found, on, row, shuffle)


def read_images(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
    partitioning: Partitioning | None = None,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    **options: object,
) -> Dataset:
    """Return images as a dataset with the column `image` of arrays, a row a file.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: Of Arrow or fsspec; default: the one that the paths name.
        size: Height and width that images are brought to.
        mode: Mode of Pillow, such as "RGB", that images are brought to.
        include_paths: Whether there is a column `path`.
        partitioning: Names of directories that are values of columns, such as
            `Partitioning("dir", base_dir, ["label"])`.
        file_extensions: Endings of the files that count in a directory.
        shuffle: "files" or a FileShuffleConfig, for another order of files in each epoch.
        options: Options of Ray's that dray does not need.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    require("PIL", "pillow")
    _known_options(read_images, options)
    found, on = files.find_files(paths, file_extensions or _IMAGES, filesystem)
    label = _labels(partitioning, include_paths)

    def row(content: bytes, path: str) -> dict[str, object]:
        from PIL import Image

        try:
            image: Image.Image = Image.open(io.BytesIO(content))
        except Image.UnidentifiedImageError as error:
            raise StorageError(f"{shown_url(path)} is no image that Pillow can read") from error
        except Image.DecompressionBombError as error:
            raise StorageError(f"{shown_url(path)} cannot be read: {describe(error)}") from error
        image = image if mode is None else image.convert(mode)
        image = image if size is None else image.resize((size[1], size[0]))
        return {"image": np.asarray(image), **label(path)}

    return _rows_in_order(found, on, row, shuffle)


def read_numpy(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    include_paths: bool = False,
    partitioning: Partitioning | None = None,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    allow_pickle: bool = False,
    **options: object,
) -> Dataset:
    """Return files of NumPy (.npy) as a dataset with the column `data`, a row an entry.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: Of Arrow or fsspec; default: the one that the paths name.
        include_paths: Whether there is a column `path`.
        partitioning: Names of directories that are values of columns.
        file_extensions: Endings of the files that count in a directory.
        shuffle: "files" or a FileShuffleConfig, for another order of files in each epoch.
        allow_pickle: Whether to load arrays of objects, which may run any code.
        options: Options of Ray's that dray does not need.
    """
    _known_options(read_numpy, options)
    found, on = files.find_files(paths, file_extensions or (".npy",), filesystem)
    label = _labels(partitioning, include_paths)
    return _in_order(files.numpy_source, found, shuffle, on, allow_pickle, label)


def read_sql(
    sql: str,
    connection_factory: Callable[[], Any],
    *,
    sql_params: Sequence[object] | Mapping[str, object] | None = None,
    **options: object,
) -> Dataset:
    """Return the rows of a query as a dataset; it is asked each time that rows are needed.

    Args:
        sql: The query.
        connection_factory: Returns a connection as PEP 249 has it, such as `sqlite3.connect(...)`.
        sql_params: Values of the query.
        options: Options of Ray's that dray does not need.

    Example:
        >>> import sqlite3
        >>> import dray.data
        >>> dray.data.read_sql("select 1 as x", lambda: sqlite3.connect(":memory:")).take()
        [{'x': 1}]
    """
    _known_options(read_sql, options)

    def produce() -> Iterator[Block]:
        with contextlib.closing(connection_factory()) as connection:
            cursor = connection.cursor()
            cursor.execute(sql, *(() if sql_params is None else (sql_params,)))
            names = [column[0] for column in cursor.description]
            while rows := cursor.fetchmany(_SQL_ROWS):
                columns = zip(names, zip(*rows, strict=True), strict=True)
                yield Block(to_table(dict(columns)), "the query", own=True)

    return Dataset(BlocksSource(produce, "the query"))


_OF_CSV = ("read_options", "parse_options", "convert_options")
_OF_JSON = ("read_options", "parse_options")
_SQL_ROWS = 4096
_PARQUET = (".parquet", ".pq")
CSV, TSV, JSON = (
    tuple(ending + packed for ending in endings for packed in ("", *files.PACKED))
    for endings in ((".csv",), (".tsv",), (".json", ".jsonl"))
)
_IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp")


def _in_order(
    source: Callable[..., Source], found: Sequence[str], shuffle: FileOrder, *how: object
) -> Dataset:
    """Return files as a dataset: in their order, or in one that epochs decide."""
    if shuffle is None:
        return Dataset(source(found, *how))
    return Dataset(UnionSource([source([name], *how) for name in found], Shuffle(shuffle)))


def _rows_in_order(
    found: list[str], on: Filesystem, row: Callable[[bytes, str], Row], shuffle: FileOrder
) -> Dataset:
    """Return files that are rows themselves as a dataset."""
    seed = None
    if shuffle is not None:
        order = Shuffle(shuffle)
        if order.by_epoch:
            seed = order.seed
        else:
            found = [found[number] for number in order.order(len(found), 0)]
    return Dataset(RowsSource(files.FileRows(found, on, row), f"{len(found)} files"), seed=seed)


def _labels(partitioning: Partitioning | None, include_paths: bool) -> Callable[[str], Labels]:
    """Return a function that says which values a file has from its path."""

    def label(path: str) -> Labels:
        found = {} if partitioning is None else partitioning.labels(path)
        return {**found, **({PATH: path} if include_paths else {})}

    return label


def _known_options(
    function: Callable[..., Dataset], options: Mapping[str, object], known: Sequence[str] = ()
) -> dict[str, object]:
    """Return the options that a function has; Ray's own ones are as if they had been left out.

    Raises:
        AbsentArgumentError: A function has neither parameters nor a use for one.
    """
    unknown = {name: options[name] for name in options if name not in (*known, *_FOLLOWS)}
    if unknown:
        taken = (*parameter_names(function), *known)
        check_arguments(f"dray.data.{function.__name__}", unknown, taken)
    return {name: options[name] for name in known if name in options}
