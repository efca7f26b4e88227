"""Sources for the rows in files of each format."""

from __future__ import annotations

import codecs
import functools
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.fs

from dray.data.forms.blocks import (
    DATA,
    Array,
    Block,
    Row,
    Table,
    refuse_doubled,
    rows_to_table,
    to_column,
    to_row,
)
from dray.data.forms.ray_tensors import with_tensors
from dray.data.sources.base import BLOCK_BYTES, BlocksSource, Filesystem, Source
from dray.data.sources.combined import Shuffle, UnionSource
from dray.data.sources.finding import naming
from dray.data.sources.parquet import ParquetSource
from dray.data.sources.partitions import LabelledSource, Labels, labelled
from dray.data.sources.schemas import unified
from dray.errors import ConfigError, shown_url

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_READERS = 16
# Extensions of compressed text files -> Arrow's names of the compression.
PACKED = {".gz": "gzip", ".bz2": "bz2", ".br": "brotli", ".lz4": "lz4", ".zst": "zstd"}
# Text files up to this size are read whole, so that the type of a column fits all of its values.
_WHOLE_BYTES = 256 << 20
_TEXT_BLOCK_BYTES = 16 << 20
_MOST_BLOCK_BYTES = (1 << 31) - 1  # Arrow's limit

_NUMPY = b"\x93NUMPY"  # the first bytes of a .npy file

# Opens a file at its beginning.
Opened = Callable[[], pa.NativeFile]

# Parquet.


def parquet_source(
    files: Sequence[str],
    filesystem: Filesystem,
    columns: Sequence[str] | None,
    lanes: int | None,
    label: Callable[[str], Labels],
    shuffle: Shuffle | None = None,
    schema: pa.Schema | None = None,
    *,
    allow_pickle: bool = False,
) -> Source:
    """Return Parquet files as a source; the footers of all files are read at once.

    Args:
        lanes: The number of ranges to read side by side; None chooses one.
        label: Returns the values that all rows of a file get from its path.
        shuffle: The order of the files in each epoch; None keeps their order.
        schema: The columns and types of all files; None uses those of the files.

    Raises:
        NoSuchFileError: A file is missing.
        StorageError: A file cannot be read, or does not match the others.
        ConfigError: A column is missing or pickled.
    """
    import pyarrow.parquet as pq

    def read_end(path: str) -> pq.FileMetaData:
        with naming(path, "is not a Parquet file"):
            return pq.read_metadata(path, filesystem=filesystem)

    with ThreadPoolExecutor(min(_READERS, len(files)), "dray-parquet") as readers:
        ends = list(readers.map(read_end, files))
    labels = [dict(label(path)) for path in files]
    if schema is None:
        whole = unified(files, ends, columns, allow_pickle=allow_pickle)
    else:
        whole = with_tensors(schema)
    if not any(labels) and shuffle is None:
        source = ParquetSource(files, filesystem, ends, whole, lanes)
        return _with_columns(source, files[0], columns, {})
    sources = []
    for path, end, of_path in zip(files, ends, labels, strict=True):
        own = _without_labels(whole, end, of_path)
        source = ParquetSource([path], filesystem, [end], own)
        sources.append(_with_columns(source, path, columns, of_path))
    return UnionSource(sources, shuffle)


def _without_labels(schema: pa.Schema, end: pq.FileMetaData, labels: Labels) -> pa.Schema:
    """Return the schema of a file without the columns whose values come from the path."""
    if labels.keys().isdisjoint(schema.names):
        return schema
    own = end.schema.names
    return pa.schema([each for each in schema if each.name in own or each.name not in labels])


def _with_columns(
    source: ParquetSource, path: str, columns: Sequence[str] | None, labels: Labels
) -> Source:
    """Return a source with some columns, which come from the files or from their paths."""
    names = source.schema().names
    if columns is not None:
        missing = sorted(set(columns) - {*names, *labels})
        if missing:
            raise ConfigError(f"{shown_url(path)} has no column {missing[0]!r}; there are {names}")
        source = source.select([name for name in columns if name in names])
        labels = {name: value for name, value in labels.items() if name in columns}
    return LabelledSource(source, labels) if labels else source


# CSV and JSON.


def csv_source(
    files: Sequence[str],
    filesystem: Filesystem,
    label: Callable[[str], Labels],
    options: Mapping[str, object],
    opening: Mapping[str, object],
) -> BlocksSource:
    """Return CSV files as a source."""
    import pyarrow.csv as csv

    def read_part(opened: Opened) -> Iterator[pa.RecordBatch]:
        read_options = csv.ReadOptions(block_size=_TEXT_BLOCK_BYTES)
        with opened() as file:
            yield from csv.open_csv(file, **{"read_options": read_options, **options})

    def read_whole(file: pa.NativeFile) -> Table:
        return csv.read_csv(file, **options)

    return _text_source(files, filesystem, read_whole, read_part, label, opening)


def json_source(
    files: Sequence[str],
    filesystem: Filesystem,
    label: Callable[[str], Labels],
    options: Mapping[str, object],
    opening: Mapping[str, object],
    lines: bool = False,
) -> BlocksSource:
    """Return JSON files as a source; a file has an object per line, or a list of objects.

    Args:
        lines: Whether each line is a row even if it is a list or has other types.
    """
    import pyarrow.json as pa_json

    given = options.get("read_options")

    def of_size(block_bytes: int) -> dict[str, object]:
        threads = getattr(given, "use_threads", True)
        read_options = pa_json.ReadOptions(use_threads=threads, block_size=block_bytes)
        return {**options, "read_options": read_options}

    def read_part(opened: Opened) -> Iterator[pa.RecordBatch]:
        block_bytes, done = getattr(given, "block_size", _TEXT_BLOCK_BYTES), 0
        while True:
            row = 0
            try:
                with opened() as file:
                    for batch in pa_json.open_json(file, **of_size(block_bytes)):
                        new = batch.slice(max(0, done - row))
                        row += batch.num_rows
                        if new.num_rows:
                            done = row
                            yield new
                return
            except pa.ArrowInvalid as error:
                if not _is_long_line(error) or block_bytes > _MOST_BLOCK_BYTES // 2:
                    raise
            block_bytes *= 2  # and start again, because a stream cannot go back

    def read_whole(file: pa.NativeFile) -> Table:
        text = file.read().removeprefix(codecs.BOM_UTF8)
        begun = re.search(rb"\S", text)
        if begun is None:
            return pa.table({})
        if begun[0] != b"{" and lines:
            return _line_by_line(text)
        if begun[0] == b"[":
            return rows_to_table([to_row(value) for value in json.loads(text)])
        try:
            return pa_json.read_json(pa.BufferReader(text), **options)
        except pa.ArrowInvalid as error:
            if not _is_long_line(error):
                if lines:
                    return _line_by_line(text)
                raise
        whole = of_size(min(len(text), _MOST_BLOCK_BYTES))
        return pa_json.read_json(pa.BufferReader(text), **whole)

    return _text_source(files, filesystem, read_whole, read_part, label, opening)


def _line_by_line(text: bytes) -> Table:
    """Return a row for each line; as in Ray, list items get their numbers as names."""

    def row(value: object) -> Row:
        if isinstance(value, dict):
            return value
        values = value if isinstance(value, list) else [value]
        return {str(number): each for number, each in enumerate(values)}

    return rows_to_table([row(json.loads(line)) for line in text.splitlines() if line.strip()])


def orc_source(
    files: Sequence[str], filesystem: Filesystem, label: Callable[[str], Labels]
) -> BlocksSource:
    """Return ORC files as a source that is read stripe by stripe."""
    from pyarrow import orc

    def parts(path: str) -> Iterator[Table]:
        with naming(path), filesystem.open_input_file(path) as file:
            whole = orc.ORCFile(file)
            for stripe in range(whole.nstripes):
                yield pa.Table.from_batches([whole.read_stripe(stripe)])

    return by_file(files, parts, label)


def _is_long_line(error: pa.ArrowInvalid) -> bool:
    """Return whether an error of Arrow reports that an object is larger than a block."""
    return "straddl" in str(error)


def _text_source(
    files: Sequence[str],
    filesystem: Filesystem,
    read_whole: Callable[[pa.NativeFile], Table],
    read_part: Callable[[Opened], Iterator[pa.RecordBatch]],
    label: Callable[[str], Labels],
    opening: Mapping[str, object] = MappingProxyType({}),
) -> BlocksSource:
    def parts(path: str) -> Iterator[Table]:
        with naming(path):
            size = filesystem.get_file_info(path).size
            packed = {"compression": PACKED.get(os.path.splitext(path)[1].lower())}
            opened = functools.partial(filesystem.open_input_stream, path, **{**packed, **opening})
            if size is None or size > _WHOLE_BYTES:
                for batch in read_part(opened):
                    yield pa.Table.from_batches([batch])
                return
            with opened() as file:
                table = read_whole(file)
            if table.num_columns or table.num_rows:
                yield table

    return by_file(files, parts, label)


def by_file(
    files: Sequence[str], parts: Callable[[str], Iterator[Table]], label: Callable[[str], Labels]
) -> BlocksSource:
    """Return a source of the tables in files, with the values from the files' paths."""

    def produce() -> Iterator[Block]:
        for path in files:
            row, labels = 0, label(path)
            for table in parts(path):
                refuse_doubled(table.column_names, shown_url(path))
                table = labelled(table, labels)
                origin = f"rows {row} to {row + table.num_rows - 1} of {shown_url(path)}"
                yield Block(table, origin, first=row)
                row += table.num_rows

    called = shown_url(files[0]) if len(files) == 1 else f"{len(files)} files"
    return BlocksSource(produce, called, files=files)


# Files that are one row each.


@dataclass(frozen=True)
class FileRows:
    """An indexed sequence of files that are one row each.

    Args:
        decode: A function from a file's bytes and path to a row.
    """

    files: Sequence[str]
    filesystem: Filesystem
    decode: Callable[[bytes, str], dict[str, object]]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, object]:
        path = self.files[index]
        with naming(path):
            with self.filesystem.open_input_stream(path) as file:
                content = file.read()
            return self.decode(content, path)


def text_source(
    files: Sequence[str],
    filesystem: Filesystem,
    label: Callable[[str], Labels],
    encoding: str,
    drop_empty_lines: bool,
) -> BlocksSource:
    """Return text files as a source with a row for each line."""

    def column(texts: Iterable[str]) -> pa.Array:
        lines = (line for text in texts for line in text.splitlines())
        kept = (line for line in lines if line.strip() or not drop_empty_lines)
        return pa.array(list(kept), pa.string())

    def read_whole(file: pa.NativeFile) -> Table:
        return pa.table({"text": column([file.read().decode(encoding)])})

    def read_part(opened: Opened) -> Iterator[pa.RecordBatch]:
        with opened() as file, io.TextIOWrapper(file, encoding) as whole:
            while texts := list(itertools.islice(whole, 4096)):
                yield pa.record_batch({"text": column(texts)})

    return _text_source(files, filesystem, read_whole, read_part, label)


def numpy_source(
    files: Sequence[str], filesystem: Filesystem, label: Callable[[str], Labels], allow_pickle: bool
) -> BlocksSource:
    """Return NumPy files as a source with a row for each entry of the arrays."""
    archive = next((path for path in files if path.endswith(".npz")), None)
    if archive is not None:
        raise ConfigError(
            f"{shown_url(archive)} holds several arrays, but read_numpy() reads .npy files, with "
            "one array each: pass numpy.load() of it to from_numpy(), or save its arrays with "
            "numpy.save()"
        )
    local = isinstance(filesystem, pa.fs.LocalFileSystem)

    def loaded(path: str) -> Array:
        with naming(path), filesystem.open_input_file(path) as file:
            if file.read(len(_NUMPY)) != _NUMPY:
                raise ValueError("it is not an .npy file")
            try:
                if local and not allow_pickle:
                    return np.atleast_1d(np.load(path, mmap_mode="r"))
                file.seek(0)
                content = io.BytesIO(file.read())
                return np.atleast_1d(np.load(content, allow_pickle=allow_pickle))
            except ValueError as error:
                if "object" in str(error).lower():
                    raise ValueError("arrays of objects need allow_pickle=True") from error
                raise

    def parts(path: str) -> Iterator[Table]:
        array = loaded(path)
        step = max(1, BLOCK_BYTES * len(array) // max(1, array.nbytes))
        for row in range(0, len(array), step):
            yield pa.table({DATA: to_column(array[row : row + step])})

    return by_file(files, parts, label)
