"""The readers of texts, arrays, images and binary files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dray.checks import require
from dray.data.dataset import Dataset
from dray.data.readers.arguments import FileOrder, in_order, known_options, rows_in_order
from dray.data.sources import files
from dray.data.sources.base import Filesystem
from dray.data.sources.finding import Paths, find_files
from dray.data.sources.images import open_image
from dray.data.sources.partitions import Partitioning, PathPartitionFilter, labels_from
from dray.errors import StorageError, describe, shown_url

_IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp")


def read_text(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    encoding: str = "utf-8",
    drop_empty_lines: bool = True,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    **options: object,
) -> Dataset:
    """Return text files as a dataset with the column `text` and a row for each line.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        encoding: The encoding of the files.
        drop_empty_lines: Whether to skip lines without text.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values of columns.
        include_paths: Whether to add a column `path` with the path of each row's file.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        options: Other options of Ray Data; dray ignores them.
    """
    known_options(read_text, options)
    found = find_files(
        paths, file_extensions or ("",), filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)
    return in_order(found, shuffle, files.text_source, label, encoding, drop_empty_lines)


def read_binary_files(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    include_paths: bool = False,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = None,
    ignore_missing_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    **options: object,
) -> Dataset:
    """Return files as a dataset with the column `bytes` and a row for each file.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        include_paths: Whether to add a column `path` with the path of each row's file.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values of columns.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        options: Other options of Ray Data; dray ignores them.
    """
    known_options(read_binary_files, options)
    found = find_files(
        paths, file_extensions or ("",), filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)

    def row(content: bytes, path: str) -> dict[str, object]:
        return {"bytes": content, **label(path)}

    return rows_in_order(found, shuffle, row)


def read_images(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = None,
    ignore_missing_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    **options: object,
) -> Dataset:
    """Return images as a dataset with the column `image` of arrays and a row for each file.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        size: The height and width to which images are resized.
        mode: The Pillow mode to which images are converted, such as "RGB".
        include_paths: Whether to add a column `path` with the path of each row's file.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values, such as
            `Partitioning("dir", base_dir, ["label"])`.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        options: Other options of Ray Data; dray ignores them.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    require("PIL", "pillow")
    known_options(read_images, options)
    found = find_files(
        paths, file_extensions or _IMAGES, filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)

    def row(content: bytes, path: str) -> dict[str, object]:
        from PIL import Image

        try:
            image = open_image(content)
        except Image.UnidentifiedImageError as error:
            raise StorageError(f"{shown_url(path)} is not an image that Pillow can read") from error
        except ValueError as error:
            raise StorageError(f"{shown_url(path)} cannot be read: {describe(error)}") from error
        image = image if mode is None else image.convert(mode)
        image = image if size is None else image.resize((size[1], size[0]))
        return {"image": np.asarray(image), **label(path)}

    return rows_in_order(found, shuffle, row)


def read_numpy(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    include_paths: bool = False,
    partition_filter: PathPartitionFilter | None = None,
    partitioning: Partitioning | None = None,
    ignore_missing_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    shuffle: FileOrder = None,
    allow_pickle: bool = False,
    **options: object,
) -> Dataset:
    """Return NumPy files (.npy) as a dataset with the column `data` and a row for each entry.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        include_paths: Whether to add a column `path` with the path of each row's file.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values of columns.
        ignore_missing_paths: Whether to skip missing paths.
        file_extensions: Extensions of the files to read in a directory.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        allow_pickle: Whether to load arrays of objects; this may run any code.
        options: Other options of Ray Data; dray ignores them.
    """
    known_options(read_numpy, options)
    found = find_files(
        paths, file_extensions or (".npy",), filesystem, partition_filter, ignore_missing_paths
    )
    label = labels_from(partitioning, include_paths)
    return in_order(found, shuffle, files.numpy_source, label, allow_pickle)
