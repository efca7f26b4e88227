"""Functions that make datasets from memory and from other libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dray.checks import is_whole, plain
from dray.core.objects import get
from dray.data.dataset import Dataset
from dray.data.forms.blocks import (
    DATA,
    ID,
    Array,
    Arrays,
    Batch,
    Block,
    Frame,
    Table,
    concat,
    rows_to_table,
    to_row,
    to_table,
)
from dray.data.sources.base import (
    BlocksSource,
    HuggingFaceSource,
    IterableSource,
    RangeSource,
    RowsSource,
    TableSource,
    is_indexed,
)
from dray.engines.object_ref import ObjectRef
from dray.errors import ArgumentTypeError, ConfigError

if TYPE_CHECKING:
    import datasets
    import polars
    import pyarrow.dataset
    import torch


def from_items(
    items: Sequence[object], *, parallelism: int = -1, override_num_blocks: int | None = None
) -> Dataset:
    """Return Python values as a dataset: dicts are rows, other values form the column `item`.

    Args:
        items: The values.
        parallelism: Ignored; for compatibility with Ray.
        override_num_blocks: Ignored; for compatibility with Ray.
    """
    if not isinstance(items, Iterable):
        raise ArgumentTypeError(f"from_items takes a list of values, not {items!r}")
    return Dataset(TableSource(rows_to_table([to_row(item) for item in items]), "the items"))


def range(
    n: int,
    *,
    parallelism: int = -1,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Return the numbers from 0 to n - 1 as a dataset with the column `id`.

    Args:
        n: The number of rows.
        parallelism: Ignored; for compatibility with Ray.
        concurrency: Ignored; for compatibility with Ray.
        override_num_blocks: Ignored; for compatibility with Ray.
    """
    if not is_whole(plain(n), 0):
        raise ConfigError(f"range takes a number of rows, 0 or more, not {n!r}")
    return Dataset(RangeSource(n, ID))


def range_tensor(
    n: int,
    *,
    shape: Sequence[int] = (1,),
    parallelism: int = -1,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Return arrays as a dataset with the column `data`; row i is filled with the number i.

    Args:
        n: The number of rows.
        shape: The shape of each array.
        parallelism: Ignored; for compatibility with Ray.
        concurrency: Ignored; for compatibility with Ray.
        override_num_blocks: Ignored; for compatibility with Ray.
    """

    def filled(batch: Arrays) -> Arrays:
        ones: Array = np.ones((1, *shape), np.int64)
        return {DATA: batch[ID].reshape(-1, *[1] * len(shape)) * ones}

    return range(n).map_batches(filled)


def from_pandas(dfs: Frame | Sequence[Frame], override_num_blocks: int | None = None) -> Dataset:
    """Return one or several pandas DataFrames as a dataset.

    Args:
        dfs: The DataFrame, or a list of DataFrames.
        override_num_blocks: Ignored; for compatibility with Ray.
    """
    return _in_memory(dfs, "the DataFrame")


def from_polars(frames: polars.DataFrame | Sequence[polars.DataFrame]) -> Dataset:
    """Return one or several Polars DataFrames as a dataset."""
    return _in_memory(frames, "the DataFrame")


def from_numpy(ndarrays: Array | Sequence[Array]) -> Dataset:
    """Return one or several NumPy arrays as a dataset: each entry is a row of the column `data`."""
    arrays = ndarrays if isinstance(ndarrays, list | tuple) else [ndarrays]
    return _in_memory([{DATA: np.asarray(array)} for array in arrays], "array")


def from_arrow(
    tables: Table | Sequence[Table], *, override_num_blocks: int | None = None
) -> Dataset:
    """Return one or several Arrow tables as a dataset.

    Args:
        tables: The table, or a list of tables.
        override_num_blocks: Ignored; for compatibility with Ray.
    """
    return _in_memory(tables, "the table")


def from_arrow_refs(tables: ObjectRef | Sequence[ObjectRef]) -> Dataset:
    """Return the tables of one or several object references as a dataset."""
    return from_arrow(get(tables))


def from_pandas_refs(dfs: ObjectRef | Sequence[ObjectRef]) -> Dataset:
    """Return the DataFrames of one or several object references as a dataset."""
    return from_pandas(get(dfs))


def from_numpy_refs(ndarrays: ObjectRef | Sequence[ObjectRef]) -> Dataset:
    """Return the arrays of one or several object references as a dataset."""
    return from_numpy(get(ndarrays))


def from_arrow_dataset(dataset: pyarrow.dataset.Dataset) -> Dataset:
    """Return a `pyarrow.dataset` as a dataset; it is scanned whenever rows are requested."""

    def produce() -> Iterator[Block]:
        for batch in dataset.to_batches():
            yield Block(pa.Table.from_batches([batch]), "the Arrow dataset")

    return Dataset(BlocksSource(produce, "the Arrow dataset", dataset.schema))


def _in_memory(given: Batch | Sequence[Batch], called: str) -> Dataset:
    """Return one or several tables of any kind as a dataset."""
    parts = given if isinstance(given, list | tuple) else [given]
    tables = [to_table(part, called) for part in parts] or [pa.table({})]
    return Dataset(TableSource(concat(tables), called))


def from_huggingface(
    dataset: datasets.Dataset | datasets.IterableDataset,
    parallelism: int = -1,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Return a Hugging Face Dataset as a dataset; data on disk are read from there.

    An IterableDataset is a stream: each worker reads all of it and keeps its own rows.

    Args:
        dataset: The Hugging Face dataset.
        parallelism: Ignored; for compatibility with Ray.
        concurrency: Ignored; for compatibility with Ray.
        override_num_blocks: Ignored; for compatibility with Ray.

    Raises:
        ConfigError: `dataset` is a dict of several datasets.
    """
    if isinstance(dataset, dict):
        names = ", ".join(map(repr, dataset))
        raise ConfigError(f"this is a dict of datasets: pass one of {names}, as dataset['train']")
    if not hasattr(dataset, "__len__"):
        return Dataset(IterableSource(dataset, "the Hugging Face dataset"))
    return Dataset(HuggingFaceSource(dataset))


def from_torch(dataset: torch.utils.data.Dataset, local_read: bool = False) -> Dataset:
    """Return a torch Dataset as a dataset: dicts are rows, other values form the column `item`.

    Args:
        dataset: The torch dataset.
        local_read: Ignored; for compatibility with Ray.
    """
    kind = RowsSource if is_indexed(dataset) else IterableSource
    return Dataset(kind(dataset, f"the {type(dataset).__name__}"))
