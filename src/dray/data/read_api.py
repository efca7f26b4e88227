"""The makers of datasets: from files, from what is in memory, from other libraries."""

from __future__ import annotations

import builtins
import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dray.checks import is_whole, plain, require
from dray.compat.arguments import check_arguments
from dray.core.objects import get
from dray.data.dataset import Dataset
from dray.data.forms.blocks import (
    DATA,
    ID,
    Array,
    Arrays,
    Block,
    Frame,
    Table,
    concat,
    rows_to_table,
    to_column,
    to_row,
    to_table,
)
from dray.data.sources import files
from dray.data.sources.base import (
    BlocksSource,
    Filesystem,
    HuggingFaceSource,
    IterableSource,
    RangeSource,
    RowsSource,
    TableSource,
)
from dray.data.sources.files import Paths
from dray.data.sources.partitions import Labels, Partitioning
from dray.engines.object_ref import ObjectRef
from dray.errors import ConfigError

if TYPE_CHECKING:
    import datasets
    import polars
    import pyarrow.dataset
    import torch

# Options of Ray Data for which dray has no use: they follow from the data or the machine.
_FOLLOWS = (
    *("parallelism", "ray_remote_args", "concurrency", "num_cpus", "num_gpus", "memory"),
    *("meta_provider", "shuffle"),
)
_HIVE = Partitioning("hive")


def read_parquet(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    columns: Sequence[str] | None = None,
    override_num_blocks: int | None = None,
    partitioning: Partitioning | None = _HIVE,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
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
        options: Options of Ray's that dray does not need.

    Raises:
        ConfigError: There are no such files or columns.
        StorageError: One cannot be read.
    """
    _check_options("read_parquet", options)
    found, on = files.find_files(paths, file_extensions or _PARQUET, filesystem)
    label = _labels(partitioning, include_paths)
    return Dataset(files.parquet_source(found, on, columns, override_num_blocks, label))


def read_csv(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    override_num_blocks: int | None = None,
    partitioning: Partitioning | None = _HIVE,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    **options: object,
) -> Dataset:
    """Return files of CSV as a dataset.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: Of Arrow or fsspec; default: what the paths say.
        override_num_blocks: Nothing; Ray's.
        partitioning: Names of directories that are values; default: such as `kind=a`.
        include_paths: Whether there is a column `path`.
        file_extensions: Endings of the files that count in a directory.
        options: `read_options`, `parse_options` and `convert_options` of `pyarrow.csv`.
    """
    found, on = files.find_files(paths, file_extensions or _CSV, filesystem)
    label = _labels(partitioning, include_paths)
    return Dataset(files.csv_source(found, on, _of_arrow("read_csv", options), label))


def read_json(
    paths: Paths,
    *,
    lines: bool = False,
    filesystem: Filesystem | None = None,
    override_num_blocks: int | None = None,
    partitioning: Partitioning | None = _HIVE,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    **options: object,
) -> Dataset:
    """Return files of JSON as a dataset: an object a line, or a list of objects.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        lines: Nothing; Ray's: what a file holds is seen by its beginning.
        filesystem: Of Arrow or fsspec; default: what the paths say.
        override_num_blocks: Nothing; Ray's.
        partitioning: Names of directories that are values; default: such as `kind=a`.
        include_paths: Whether there is a column `path`.
        file_extensions: Endings of the files that count in a directory.
        options: `read_options` and `parse_options` of `pyarrow.json`.
    """
    found, on = files.find_files(paths, file_extensions or _JSON, filesystem)
    label = _labels(partitioning, include_paths)
    return Dataset(files.json_source(found, on, _of_arrow("read_json", options), label))


def read_text(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    encoding: str = "utf-8",
    drop_empty_lines: bool = True,
    partitioning: Partitioning | None = None,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
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
        options: Options of Ray's that dray does not need.
    """
    _check_options("read_text", options)
    found, on = files.find_files(paths, file_extensions or ("",), filesystem)
    label = _labels(partitioning, include_paths)
    return Dataset(files.text_source(found, on, encoding, drop_empty_lines, label))


def read_binary_files(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    include_paths: bool = False,
    partitioning: Partitioning | None = None,
    file_extensions: Sequence[str] | None = None,
    **options: object,
) -> Dataset:
    """Return files as a dataset with the column `bytes`, a row a file.

    Args:
        paths: Files, directories, globs or URLs that fsspec knows.
        filesystem: Of Arrow or fsspec; default: the one that the paths name.
        include_paths: Whether there is a column `path`.
        partitioning: Names of directories that are values of columns.
        file_extensions: Endings of the files that count in a directory.
        options: Options of Ray's that dray does not need.
    """
    _check_options("read_binary_files", options)
    found, on = files.find_files(paths, file_extensions or ("",), filesystem)
    label = _labels(partitioning, include_paths)

    def row(content: bytes, path: str) -> dict[str, object]:
        return {"bytes": content, **label(path)}

    return Dataset(RowsSource(files.FileRows(found, on, row), f"{len(found)} files"))


def read_images(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
    partitioning: Partitioning | None = None,
    file_extensions: Sequence[str] | None = None,
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
        options: Options of Ray's that dray does not need.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    require("PIL", "pillow")
    _check_options("read_images", options)
    found, on = files.find_files(paths, file_extensions or _IMAGES, filesystem)
    label = _labels(partitioning, include_paths)

    def row(content: bytes, path: str) -> dict[str, object]:
        from PIL import Image

        image: Image.Image = Image.open(io.BytesIO(content))
        image = image if mode is None else image.convert(mode)
        image = image if size is None else image.resize((size[1], size[0]))
        return {"image": np.asarray(image), **label(path)}

    return Dataset(RowsSource(files.FileRows(found, on, row), f"{len(found)} images"))


def read_numpy(
    paths: Paths,
    *,
    filesystem: Filesystem | None = None,
    include_paths: bool = False,
    partitioning: Partitioning | None = None,
    file_extensions: Sequence[str] | None = None,
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
        allow_pickle: Whether to load arrays of objects, which may run any code.
        options: Options of Ray's that dray does not need.
    """
    _check_options("read_numpy", options)
    found, on = files.find_files(paths, file_extensions or (".npy",), filesystem)
    label = _labels(partitioning, include_paths)
    return Dataset(files.numpy_source(found, on, allow_pickle, label))


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
    _check_options("read_sql", options)

    def produce() -> Iterator[Block]:
        with contextlib.closing(connection_factory()) as connection:
            cursor = connection.cursor()
            cursor.execute(sql, *(() if sql_params is None else (sql_params,)))
            names = [column[0] for column in cursor.description]
            while rows := cursor.fetchmany(_SQL_ROWS):
                columns = zip(names, zip(*rows, strict=True), strict=True)
                yield Block(to_table(dict(columns)), "the query", own=True)

    return Dataset(BlocksSource(produce, "the query"))


_SQL_ROWS = 4096
_PARQUET = (".parquet", ".pq")
_CSV = (".csv", ".csv.gz", ".tsv", ".txt")
_JSON = (".json", ".jsonl", ".json.gz")
_IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp")


def _labels(partitioning: Partitioning | None, include_paths: bool) -> Callable[[str], Labels]:
    """Return a function that says which values a file has from its path."""

    def label(path: str) -> Labels:
        found = {} if partitioning is None else partitioning.labels(path)
        return {**found, **({"path": path} if include_paths else {})}

    return label


def _of_arrow(function: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return the options of Arrow's readers; Ray's own ones are as if they had been left out."""
    known = ("read_options", "parse_options", "convert_options")
    unknown = {name: options[name] for name in options if name not in (*known, *_FOLLOWS)}
    check_arguments(f"dray.data.{function}", unknown, known)
    return {name: options[name] for name in known if name in options}


def _check_options(function: str, options: Mapping[str, object]) -> None:
    unknown = {name: value for name, value in options.items() if name not in _FOLLOWS}
    if unknown:
        check_arguments(f"dray.data.{function}", unknown, ("filesystem", "columns"))


def from_items(
    items: Sequence[object], *, override_num_blocks: int | None = None, **_: object
) -> Dataset:
    """Return Python values as a dataset: dicts are rows, all else is the column `item`."""
    return Dataset(TableSource(rows_to_table([to_row(item) for item in items]), "the items"))


def range(n: int, *, override_num_blocks: int | None = None, **_: object) -> Dataset:
    """Return the numbers from 0 as a dataset with the column `id`."""
    if not is_whole(plain(n), 0):
        raise ConfigError(f"range takes a number of rows, 0 or more, not {n!r}")
    return Dataset(RangeSource(n, ID))


def range_tensor(n: int, *, shape: Sequence[int] = (1,), **_: object) -> Dataset:
    """Return arrays as a dataset with the column `data`, the n-th filled with n."""

    def filled(batch: Arrays) -> Arrays:
        ones: Array = np.ones((1, *shape), np.int64)
        return {DATA: batch[ID].reshape(-1, *[1] * len(shape)) * ones}

    return range(n).map_batches(filled)


def from_pandas(dfs: Frame | Sequence[Frame], **_: object) -> Dataset:
    """Return a pandas.DataFrame, or several, as a dataset."""
    frames = dfs if isinstance(dfs, list | tuple) else [dfs]
    return _in_memory([to_table(frame, "a DataFrame") for frame in frames], "the DataFrame")


def from_polars(frames: polars.DataFrame | Sequence[polars.DataFrame]) -> Dataset:
    """Return a DataFrame of Polars, or several, as a dataset."""
    listed = frames if isinstance(frames, list | tuple) else [frames]
    return _in_memory([_arrow_of_polars(frame) for frame in listed], "the DataFrame")


def _arrow_of_polars(frame: polars.DataFrame) -> Table:
    return (frame.collect() if hasattr(frame, "collect") else frame).to_arrow()


def from_numpy(ndarrays: Array | Sequence[Array], **_: object) -> Dataset:
    """Return a NumPy array, or several, as a dataset with the column `data`, a row an entry."""
    arrays = ndarrays if isinstance(ndarrays, list | tuple) else [ndarrays]
    return _in_memory([pa.table({DATA: to_column(np.asarray(array))}) for array in arrays], "array")


def from_arrow(tables: Table | Sequence[Table], **_: object) -> Dataset:
    """Return a pyarrow.Table, or several, as a dataset."""
    listed = tables if isinstance(tables, list | tuple) else [tables]
    return _in_memory([to_table(table, "a table") for table in listed], "the table")


def from_arrow_refs(tables: ObjectRef | Sequence[ObjectRef]) -> Dataset:
    """Return tables behind references, one or a list of them, as a dataset."""
    return from_arrow(get(tables))


def from_pandas_refs(dfs: ObjectRef | Sequence[ObjectRef]) -> Dataset:
    """Return frames behind references, one or a list of them, as a dataset."""
    return from_pandas(get(dfs))


def from_numpy_refs(ndarrays: ObjectRef | Sequence[ObjectRef]) -> Dataset:
    """Return arrays behind references, one or a list of them, as a dataset."""
    return from_numpy(get(ndarrays))


def from_arrow_dataset(dataset: pyarrow.dataset.Dataset) -> Dataset:
    """Return a dataset of `pyarrow.dataset` as a dataset; it is scanned when it is used."""

    def produce() -> Iterator[Block]:
        for batch in dataset.to_batches():
            yield Block(pa.Table.from_batches([batch]), "the Arrow dataset")

    return Dataset(BlocksSource(produce, "the Arrow dataset", dataset.schema))


def _in_memory(tables: builtins.list[Table], called: str) -> Dataset:
    return Dataset(TableSource(concat(tables), called))


def from_huggingface(dataset: datasets.Dataset | datasets.IterableDataset, **_: object) -> Dataset:
    """Return a Dataset of Hugging Face as a dataset; what is on the disk is read from there.

    An IterableDataset is a stream: workers take its rows as they come.
    """
    if not hasattr(dataset, "__len__"):
        return Dataset(IterableSource(dataset, "the Hugging Face dataset"))
    return Dataset(HuggingFaceSource(dataset))


def from_torch(dataset: torch.utils.data.Dataset, **_: object) -> Dataset:
    """Return a torch Dataset as a dataset: dicts are rows, all else is the column `item`."""
    return Dataset(RowsSource(dataset, f"the {type(dataset).__name__}"))


__all__ = [
    "from_arrow",
    "from_arrow_refs",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_numpy_refs",
    "from_pandas",
    "from_pandas_refs",
    "from_polars",
    "from_torch",
    "range",
    "range_tensor",
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_numpy",
    "read_parquet",
    "read_sql",
    "read_text",
]
