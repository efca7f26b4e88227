"""The readers of files that contain tables."""

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
    """Return Parquet files as a dataset; their footers are read now, and rows when requested.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        columns: The columns to read; default: all.
        override_num_blocks: The number of lanes, places to read from in turn; at most one for each
            row group; default: up to 12. Each rank reads from its share of the lanes.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values; default: `kind=a`.
        include_paths: Whether to add a column `path` with the path of each row's file.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        schema: The columns and their types; default: the columns of all files, with types that hold
            the values of all files. A column that a file lacks is None.
        allow_pickle: Whether to load pickled values; this may run any code.
        options: Other options of Ray Data; dray ignores them.

    Raises:
        ConfigError: A file or column is missing, or a column is pickled.
        StorageError: A file cannot be read, or does not match the others.
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
    """Return CSV files as a dataset.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
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
    """Return JSON files as a dataset; a file has an object per line, or a list of objects.

    Arrow, which parses lines, does not limit the depth of nesting: 100,000 nested brackets crash
    the process.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
        lines: Whether each line is a row even if it is a list, whose values get their numbers as
            names, or an object with other types than the previous ones. If False, the beginning of
            a file determines its form.
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
    """Return ORC files as a dataset; they are read stripe by stripe.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
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
