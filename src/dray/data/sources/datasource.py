"""Custom sources as in Ray Data: read tasks, and files that a function of your own reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from dray.data.forms.accessor import BlockMetadata
from dray.data.forms.blocks import Batch, Table, to_table
from dray.data.sources.base import Filesystem
from dray.data.sources.combined import Shuffle
from dray.data.sources.finding import Paths, find_files, naming
from dray.data.sources.partitions import Partitioning, PathPartitionFilter, labelled, labels_from


class ReadTask:
    """A part of a source's rows that is read when the rows are requested.

    Args:
        read_fn: A function that returns or yields blocks: Arrow tables, DataFrames or dicts of
            columns.
        metadata: The facts about these blocks.
        schema: Ignored; for compatibility with Ray.
        per_task_row_limit: The maximum number of rows to read; None reads all.

    Attributes:
        read_fn: The argument `read_fn`; the other attributes are arguments as well.
    """

    def __init__(
        self,
        read_fn: Callable[[], Iterable[Batch]],
        metadata: BlockMetadata,
        schema: pa.Schema | None = None,
        per_task_row_limit: int | None = None,
    ) -> None:
        self.read_fn, self.metadata = read_fn, metadata
        self.schema, self.per_task_row_limit = schema, per_task_row_limit

    def __call__(self) -> Iterator[Batch]:
        """Yield the blocks of the task."""
        left = self.per_task_row_limit
        for block in self.read_fn():
            if left is None:
                yield block
                continue
            if left < 1:
                return
            table = to_table(block).slice(0, left)
            left -= table.num_rows
            yield table


class Datasource:
    """A source of rows of your own, for `dray.data.read_datasource`.

    Override `get_read_tasks`.

    Example:
        >>> import pyarrow
        >>> import dray.data
        >>> from dray.data import Datasource, ReadTask
        >>> from dray.data.block import BlockMetadata
        >>> class Squares(Datasource):
        ...     def get_read_tasks(self, parallelism, per_task_row_limit=None, data_context=None):
        ...         read = lambda: [pyarrow.table({"x": [0, 1, 4]})]
        ...         return [ReadTask(read, BlockMetadata(3, 24))]
        >>> dray.data.read_datasource(Squares()).sum("x")
        5
    """

    # The files that the rows are read from, if known.
    _files: Sequence[str] = ()

    def get_name(self) -> str:
        """Return the name in messages; default: the class name without `Datasource`."""
        return type(self).__name__.removesuffix("Datasource") or "Datasource"

    def estimate_inmemory_data_size(self) -> int | None:
        """Return the approximate size of all rows in memory, in bytes; None if unknown."""
        return None

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,
    ) -> list[ReadTask]:
        """Return the read tasks, which are read in sequence.

        Args:
            parallelism: The approximate number of tasks; the rows of each task must fit into
                memory.
            per_task_row_limit: Always None; for compatibility with Ray.
            data_context: Always None; for compatibility with Ray.
        """
        raise NotImplementedError(f"{type(self).__name__} has no get_read_tasks()")


class FileBasedDatasource(Datasource):
    """A source of files of your own format; override `_read_stream(file, path)`.

    `_read_stream` gets an open file at its beginning, and yields blocks of its rows.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the paths name.
        schema: Ignored; for compatibility with Ray.
        open_stream_args: Arguments of `pyarrow.fs.FileSystem.open_input_stream`.
        meta_provider: Ignored; for compatibility with Ray.
        partition_filter: Selects files by the values in their paths; see `PathPartitionFilter`.
        partitioning: The scheme by which directory names become values of columns.
        ignore_missing_paths: Whether to skip missing paths.
        shuffle: "files" or a FileShuffleConfig, to read files in a random order.
        include_paths: Whether to add a column `path` with the path of each row's file.
        file_extensions: Extensions of the files to read in a directory; default: `_FILE_EXTENSIONS`
            of the class.
    """

    _FILE_EXTENSIONS: ClassVar[Sequence[str] | None] = None

    def __init__(
        self,
        paths: Paths,
        *,
        filesystem: Filesystem | None = None,
        schema: object = None,
        open_stream_args: Mapping[str, object] | None = None,
        meta_provider: object = None,
        partition_filter: PathPartitionFilter | None = None,
        partitioning: Partitioning | None = None,
        ignore_missing_paths: bool = False,
        shuffle: object = None,
        include_paths: bool = False,
        file_extensions: Sequence[str] | None = None,
    ) -> None:
        endings = file_extensions or self._FILE_EXTENSIONS or ("",)
        self._files, self._filesystem = find_files(
            paths, endings, filesystem, partition_filter, ignore_missing_paths
        )
        if shuffle is not None:
            order = Shuffle(shuffle).order(len(self._files), 0)
            self._files = [self._files[number] for number in order]
        self._opening = dict(open_stream_args or {})
        self._label = labels_from(partitioning, include_paths)

    def _read_stream(self, file: pa.NativeFile, path: str) -> Iterator[Batch]:
        raise NotImplementedError(f"{type(self).__name__} has no _read_stream()")

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,
    ) -> list[ReadTask]:
        """Return one read task for each file."""
        return [
            ReadTask(
                functools.partial(self._blocks, path),
                BlockMetadata(None, None, input_files=[path]),
                per_task_row_limit=per_task_row_limit,
            )
            for path in self._files
        ]

    def _blocks(self, path: str) -> Iterator[Table]:
        labels = self._label(path)
        with naming(path), self._filesystem.open_input_stream(path, **self._opening) as file:
            for block in self._read_stream(file, path):
                yield labelled(to_table(block), labels)
