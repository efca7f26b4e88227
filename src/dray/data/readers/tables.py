"""The readers of files that hold tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dray.data.dataset import Dataset
from dray.data.readers.arguments import FileOrder, in_order, known_options
from dray.data.sources import files
from dray.data.sources.base import Filesystem
from dray.data.sources.combined import Shuffle
from dray.data.sources.finding import Paths, find_files
from dray.data.sources.partitions import Partitioning, PathPartitionFilter, labels_from

_HIVE = Partitioning("hive")
_OF_CSV = ("read_options", "parse_options", "convert_options")
_OF_JSON = ("read_options", "parse_options")
_PARQUET = (".parquet", ".pq")
CSV, TSV, JSON = (
    tuple(ending + packed for ending in endings for packed in ("", *files.PACKED))
    for endings in ((".csv",), (".tsv",), (".json", ".jsonl"))
)


def read_parquet(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    columns: Sequence[str] | None = None,
    override_num_blocks: int | None = None,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = _HIVE,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    schema: pa.Schema | None = None,
    allow_pickle: bool = False,
    **options: object,
) -> Dataset:
    """Return files of Parquet as a dataset; their ends are read now, the rest when it is used.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        columns: Those to read; default: all.
        override_num_blocks: Number of places to read from in turn, at most one for each row
            group; default: up to 12. Each rank reads from its share of them.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values; default: `kind=a`.
        include_paths: Whether to add a column `path` with the path of each row's file.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        schema: The columns and their types; default: those of all files, where a column that a
            file lacks is None, and has a type that holds the values of all files.
        allow_pickle: Whether to load values that were pickled, which may run any code.
        options: Other options of Ray Data; dray ignores them.

    Raises:
        ConfigError: There are no such files or columns, or one is pickled.
        StorageError: One cannot be read, or not together with the others.
    """
    known_options(read_parquet, options)
    found = find_files(
        paths, file_extensions or _PARQUET, filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)
    order = None if shuffle is None else Shuffle(shuffle)
    lanes, pickled = override_num_blocks, allow_pickle
    return Dataset(
        files.parquet_source(*found, columns, lanes, label, order, schema, allow_pickle=pickled)
    )


def read_csv(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    override_num_blocks: int | None = None,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = _HIVE,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    arrow_open_stream_args: Mapping[str, object] | None = None,
    **options: object,
) -> Dataset:
    """Return files of CSV as a dataset.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        override_num_blocks: Ignored; for compatibility with Ray.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values; default: `kind=a`.
        include_paths: Whether to add a column `path` with the path of each row's file.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory; default: all files.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        arrow_open_stream_args: Arguments of `pyarrow.fs.FileSystem.open_input_stream`, such as
            `{"compression": "gzip"}` if the file extensions do not show it.
        options: `read_options`, `parse_options` and `convert_options` of `pyarrow.csv`.
    """
    of_arrow = known_options(read_csv, options, _OF_CSV)
    found = find_files(
        paths, file_extensions or ("",), filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)
    opening = arrow_open_stream_args or {}
    return in_order(found, shuffle, files.csv_source, label, of_arrow, opening)


def read_json(
    paths: Paths,
    *,
    lines: bool = False,
    filesystem: Filesystem | None = None,
    override_num_blocks: int | None = None,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = _HIVE,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
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
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        override_num_blocks: Ignored; for compatibility with Ray.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values; default: `kind=a`.
        include_paths: Whether to add a column `path` with the path of each row's file.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        arrow_open_stream_args: Arguments of `pyarrow.fs.FileSystem.open_input_stream`, such as
            `{"compression": "gzip"}` if the file extensions do not show it.
        options: `read_options` and `parse_options` of `pyarrow.json`.
    """
    of_arrow = known_options(read_json, options, _OF_JSON)
    found = find_files(
        paths, file_extensions or JSON, filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)
    opening = arrow_open_stream_args or {}
    return in_order(found, shuffle, files.json_source, label, of_arrow, opening, lines)


def read_orc(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    **options: object,
) -> Dataset:
    """Return files of ORC as a dataset, which are read stripe by stripe.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values of columns.
        include_paths: Whether to add a column `path` with the path of each row's file.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        options: Other options of Ray Data; dray ignores them.
    """
    known_options(read_orc, options)
    found = find_files(
        paths, file_extensions or (".orc",), filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)
    return in_order(found, shuffle, files.orc_source, label)
