"""The readers of files whose records are training samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dray.data.dataset import Dataset
from dray.data.readers.arguments import FileOrder, in_order, known_options
from dray.data.sources import archives, tf_records
from dray.data.sources.avro import avro_source
from dray.data.sources.base import Filesystem
from dray.data.sources.finding import Paths, find_files
from dray.data.sources.partitions import Partitioning, PathPartitionFilter, labels_from


def read_webdataset(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    decoder: archives.Coding = True,
    fileselect: archives.Names = None,
    filerename: Callable[[str], str] | Sequence[Callable[[str], str]] | None = None,
    suffixes: archives.Names = None,
    verbose_open: bool = False,
    expand_json: bool = False,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    arrow_open_stream_args: Mapping[str, object] | None = None,
    **options: object,
) -> Dataset:
    """Return WebDataset archives (tar) as a dataset: a row per sample, a column per file extension.

    Two columns are added: `__key__`, the name of the sample, and `__url__`, the path of its
    archive.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        decoder: True decodes files by their extensions: text (txt), integers (cls), objects (json),
            arrays (npy), images (jpg, png; "PIL" returns Pillow images) and MessagePack (mp). A
            function gets a sample (a dict of bytes) and returns a sample; a list applies several
            decoders; None keeps bytes.
        fileselect: Patterns of the names of files to read, or a function that selects them by name.
        filerename: A function from a file's name to a new name, or a list of such functions.
        suffixes: The extensions of files to read, such as `["txt", "jpg"]`, or a function.
        verbose_open: Ignored; for compatibility with Ray.
        expand_json: Whether the fields of the object in `json` become columns.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values of columns.
        include_paths: Whether to add a column `path` with the path of each row's file.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        arrow_open_stream_args: Arguments of `pyarrow.fs.FileSystem.open_input_stream`, such as
            `{"compression": "gzip"}` if the file extensions do not show it.
        options: Other options of Ray Data; dray ignores them.

    Raises:
        ConfigError: A file is pickled (pt, pkl); dray's decoders do not load pickles.
        StorageError: An archive cannot be read, or its files are not sorted by name.
    """
    known_options(read_webdataset, options)
    found = find_files(
        paths, file_extensions or ("",), filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)
    reading = archives.Reading(decoder, fileselect, filerename, suffixes, expand_json)
    return in_order(
        found, shuffle, archives.archive_source, label, reading, arrow_open_stream_args or {}
    )


def read_avro(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    arrow_open_stream_args: Mapping[str, object] | None = None,
    **options: object,
) -> Dataset:
    """Return Avro files as a dataset with a row for each record, read with fastavro.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values of columns.
        include_paths: Whether to add a column `path` with the path of each row's file.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        arrow_open_stream_args: Arguments of `pyarrow.fs.FileSystem.open_input_stream`, such as
            `{"compression": "gzip"}` if the file extensions do not show it.
        options: Other options of Ray Data; dray ignores them.

    Raises:
        MissingDependencyError: fastavro is not installed.
        StorageError: A file cannot be read.
    """
    known_options(read_avro, options)
    found = find_files(
        paths, file_extensions or (".avro",), filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)
    return in_order(found, shuffle, avro_source, label, arrow_open_stream_args or {})


def read_tfrecords(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    tf_schema: object = None,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    arrow_open_stream_args: Mapping[str, object] | None = None,
    **options: object,
) -> Dataset:
    """Return TFRecord files as a dataset with a row for each `tf.train.Example`.

    dray looks at the first 4096 records, or 8 MiB. A feature that has at most one value in each of
    them is a single value in all rows; other features are lists. Checksums are not verified.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        tf_schema: A `tensorflow_metadata.proto.v0.schema_pb2.Schema` with the features and their
            types; all features are then lists.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values of columns.
        include_paths: Whether to add a column `path` with the path of each row's file.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        arrow_open_stream_args: Arguments of `pyarrow.fs.FileSystem.open_input_stream`, such as
            `{"compression": "gzip"}` if the file extensions do not show it.
        options: Other options of Ray Data; dray ignores them.

    Raises:
        ConfigError: `tf_schema` is not such a schema.
        StorageError: A file cannot be read, contains other messages, or contradicts `tf_schema` or
            the first records.
    """
    known_options(read_tfrecords, options)
    found = find_files(
        paths, file_extensions or ("",), filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)
    schema = None if tf_schema is None else tf_records.kinds_of(tf_schema)
    reading = tf_records.Reading(*found, arrow_open_stream_args or {}, schema)
    return in_order(found, shuffle, tf_records.tf_records_source, label, reading)
