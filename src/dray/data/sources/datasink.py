"""Custom sinks for rows, as in Ray Data: databases, services and files of any kind."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa

from dray.data.forms.accessor import BlockAccessor
from dray.data.forms.blocks import Block, Row, Table, concat, table_rows
from dray.data.sources.base import Filesystem
from dray.data.sources.filenames import FilenameProvider
from dray.data.sources.target import Place, SaveMode, Target

WriteReturnType = TypeVar("WriteReturnType")
# Bytes of rows for each write, unless the sink requests a number of rows.
_WRITE_BYTES = 128 << 20


@dataclass(frozen=True)
class TaskContext:
    """The facts about a write that `Datasink.write` receives.

    Attributes:
        task_idx: The number of the write, from 0.
        op_name: The name of the sink.
        kwargs: Ignored; for compatibility with Ray.
    """

    task_idx: int
    op_name: str = ""
    kwargs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class WriteResult(Generic[WriteReturnType]):
    """The result of all writes to a sink.

    Attributes:
        num_rows: The number of rows.
        size_bytes: The size of the rows in memory, in bytes.
        write_returns: The return values of `write`, one for each call.
    """

    num_rows: int
    size_bytes: int
    write_returns: list[WriteReturnType]


class Datasink(Generic[WriteReturnType]):
    """A sink of your own for `Dataset.write_datasink`; override `write`.

    Example:
        >>> import dray.data
        >>> class Printed(dray.data.Datasink):
        ...     def write(self, blocks, ctx):
        ...         for block in blocks:
        ...             print(block.to_pylist())
        >>> dray.data.range(2).write_datasink(Printed())
        [{'id': 0}, {'id': 1}]
    """

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Prepare for rows; dray calls this once, before the first write.

        Args:
            schema: The schema of the first rows; None if there are no rows.
        """

    def write(self, blocks: Iterable[Table], ctx: TaskContext) -> WriteReturnType:
        """Write some of the rows: 128 MiB, or at least `min_rows_per_write` rows.

        Args:
            blocks: Arrow tables.
            ctx: The number of this write and the name of the sink.

        Returns:
            A value for `on_write_complete`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no write()")

    def on_write_complete(self, write_result: WriteResult[WriteReturnType]) -> None:
        """Finish after all rows have been written; does nothing by default."""

    def on_write_failed(self, error: Exception) -> None:
        """Clean up after an error, which is raised afterwards; does nothing by default."""

    def get_name(self) -> str:
        """Return the name in messages; default: the class name without `Datasink`."""
        return type(self).__name__.lstrip("_").removesuffix("Datasink") or "Datasink"

    @property
    def supports_distributed_writes(self) -> bool:
        """Ignored, because this process writes all rows; for compatibility with Ray."""
        return True

    @property
    def min_rows_per_write(self) -> int | None:
        """The minimum number of rows of each `write`; None writes 128 MiB at a time."""
        return None


class _FileDatasink(Datasink[None]):
    """A sink that writes files of your own format to a directory.

    Args:
        path: The directory, or a URL that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that the path names.
        try_create_dir: Ignored; for compatibility with Ray.
        open_stream_args: Arguments of `pyarrow.fs.FileSystem.open_output_stream`.
        filename_provider: Names the files.
        dataset_uuid: The prefix of the file names, if there is no `filename_provider`.
        file_format: The extension of the file names, if there is no `filename_provider`.
        mode: The action if the directory has files, as for `write_parquet`.

    Attributes:
        path: The argument `path`.
    """

    _of_rows = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        try_create_dir: bool = True,
        open_stream_args: Mapping[str, object] | None = None,
        filename_provider: FilenameProvider | None = None,
        dataset_uuid: str | None = None,
        file_format: str | None = None,
        mode: SaveMode | str = SaveMode.APPEND,
    ) -> None:
        self.path, self._opening = os.fspath(path), dict(open_stream_args or {})
        names = filename_provider or FilenameProvider(dataset_uuid, file_format)
        self._target = Target(self.path, mode, filesystem, names)
        self._opened = contextlib.ExitStack()
        self._place: Place | None = None
        self._files = 0

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Open the directory."""
        self._files = 0
        self._place = self._opened.enter_context(self._target.opened())

    def write(self, blocks: Iterable[Table], ctx: TaskContext) -> None:
        """Write rows into files."""
        tables = [table for table in blocks if table.num_rows]
        if self._place is None or not tables:
            return
        for part in self._parts(tables):
            path = self._place.file(self._files, "", of_row=self._of_rows)
            self._files += 1
            with self._place.filesystem.open_output_stream(path, **self._opening) as file:
                self._write_part(part, file)

    def on_write_complete(self, write_result: WriteResult[None]) -> None:
        """Make all files visible in the directory."""
        self._opened.close()

    def on_write_failed(self, error: Exception) -> None:
        """Remove the new files."""
        self._opened.__exit__(type(error), error, error.__traceback__)

    def _parts(self, tables: Sequence[Table]) -> Iterator[Any]:
        """Yield the content of each file."""
        raise NotImplementedError

    def _write_part(self, part: Any, file: pa.NativeFile) -> None:
        raise NotImplementedError


class RowBasedFileDatasink(_FileDatasink):
    """A sink that writes a file for each row in your own format; override `write_row_to_file`.

    Example:
        >>> import tempfile
        >>> import dray.data
        >>> class Texts(dray.data.RowBasedFileDatasink):
        ...     def write_row_to_file(self, row, file):
        ...         file.write(row["item"].encode())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dray.data.from_items(["a", "b"]).write_datasink(Texts(folder, file_format="txt"))
        ...     dray.data.read_text(folder).take_all()
        [{'text': 'a'}, {'text': 'b'}]
    """

    _of_rows = True

    def write_row_to_file(self, row: Row, file: pa.NativeFile) -> None:
        """Write a row (a dict) to an open file."""
        raise NotImplementedError(f"{type(self).__name__} has no write_row_to_file()")

    def _parts(self, tables: Sequence[Table]) -> Iterator[Row]:
        return itertools.chain.from_iterable(map(table_rows, tables))

    def _write_part(self, part: Row, file: pa.NativeFile) -> None:
        self.write_row_to_file(part, file)


class BlockBasedFileDatasink(_FileDatasink):
    """A sink that writes files of many rows in your own format; override `write_block_to_file`.

    Args:
        path: The directory, or a URL that fsspec supports.
        min_rows_per_file: The minimum number of rows of a file, except the last; None writes 128
            MiB to each file.
        options: As for `RowBasedFileDatasink`: `filesystem`, `filename_provider`, `file_format`,
            `mode` and so on.

    Example:
        >>> import tempfile
        >>> import dray.data
        >>> class Tables(dray.data.BlockBasedFileDatasink):
        ...     def write_block_to_file(self, block, file):
        ...         file.write(block.to_pandas().to_csv(index=False).encode())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dray.data.range(3).write_datasink(Tables(folder, file_format="csv"))
        ...     dray.data.read_csv(folder).sum("id")
        3
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        min_rows_per_file: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
        self._least = min_rows_per_file

    @property
    def min_rows_per_write(self) -> int | None:
        """The minimum number of rows of a file."""
        return self._least

    def write_block_to_file(self, block: BlockAccessor, file: pa.NativeFile) -> None:
        """Write rows to an open file."""
        raise NotImplementedError(f"{type(self).__name__} has no write_block_to_file()")

    def _parts(self, tables: Sequence[Table]) -> Iterator[BlockAccessor]:
        yield BlockAccessor(concat(tables))

    def _write_part(self, part: BlockAccessor, file: pa.NativeFile) -> None:
        self.write_block_to_file(part, file)


def write_all(datasink: Datasink[Any], blocks: Iterator[Block]) -> None:
    """Write rows to a sink, and call its method for success or failure."""
    rows = size = 0
    least = datasink.min_rows_per_write

    def numbered() -> Iterator[tuple[int, Table]]:
        """Yield tables, each with the number of its write."""
        nonlocal rows, size
        number = begun_rows = begun_size = 0
        for block in itertools.chain(first, blocks):
            enough = (
                size - begun_size >= _WRITE_BYTES if least is None else rows - begun_rows >= least
            )
            if enough:
                number, begun_rows, begun_size = number + 1, rows, size
            rows, size = rows + block.table.num_rows, size + block.table.nbytes
            yield number, block.table

    try:
        first = list(itertools.islice(blocks, 1))
        datasink.on_write_start(first[0].table.schema if first else None)
        returned = [
            datasink.write(
                (table for _, table in of_write), TaskContext(number, datasink.get_name())
            )
            for number, of_write in itertools.groupby(numbered(), lambda each: each[0])
        ]
        datasink.on_write_complete(WriteResult(rows, size, returned))
    except BaseException as error:  # also for an interrupt, so that no incomplete file is left
        datasink.on_write_failed(error)  # type: ignore[arg-type]
        raise
