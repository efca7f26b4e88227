"""The makers of datasets from what is in memory, and from other libraries."""

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
    """Return Python values as a dataset: dicts are rows, all else is the column `item`.

    Args:
        items: The values.
        parallelism: Nothing; Ray's.
        override_num_blocks: Nothing; Ray's.
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
    """Return the numbers from 0 as a dataset with the column `id`.

    Args:
        n: The number of them.
        parallelism: Nothing; Ray's.
        concurrency: Nothing; Ray's.
        override_num_blocks: Nothing; Ray's.
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
    """Return arrays as a dataset with the column `data`, the n-th filled with n.

    Args:
        n: The number of them.
        shape: Their shape.
        parallelism: Nothing; Ray's.
        concurrency: Nothing; Ray's.
        override_num_blocks: Nothing; Ray's.
    """

    def filled(batch: Arrays) -> Arrays:
        ones: Array = np.ones((1, *shape), np.int64)
        return {DATA: batch[ID].reshape(-1, *[1] * len(shape)) * ones}

    return range(n).map_batches(filled)


def from_pandas(dfs: Frame | Sequence[Frame], override_num_blocks: int | None = None) -> Dataset:
    """Return a pandas.DataFrame, or several, as a dataset.

    Args:
        dfs: The DataFrame, or a list of them.
        override_num_blocks: Nothing; Ray's.
    """
    return _in_memory(dfs, "the DataFrame")


def from_polars(frames: polars.DataFrame | Sequence[polars.DataFrame]) -> Dataset:
    """Return a DataFrame of Polars, or several, as a dataset."""
    return _in_memory(frames, "the DataFrame")


def from_numpy(ndarrays: Array | Sequence[Array]) -> Dataset:
    """Return a NumPy array, or several, as a dataset with the column `data`, a row an entry."""
    arrays = ndarrays if isinstance(ndarrays, list | tuple) else [ndarrays]
    return _in_memory([{DATA: np.asarray(array)} for array in arrays], "array")


def from_arrow(
    tables: Table | Sequence[Table], *, override_num_blocks: int | None = None
) -> Dataset:
    """Return a pyarrow.Table, or several, as a dataset.

    Args:
        tables: The table, or a list of them.
        override_num_blocks: Nothing; Ray's.
    """
    return _in_memory(tables, "the table")


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


def _in_memory(given: Batch | Sequence[Batch], called: str) -> Dataset:
    """Return a table of any kind, or several, as a dataset."""
    parts = given if isinstance(given, list | tuple) else [given]
    tables = [to_table(part, called) for part in parts] or [pa.table({})]
    return Dataset(TableSource(concat(tables), called))


def from_huggingface(
    dataset: datasets.Dataset | datasets.IterableDataset,
    parallelism: int = -1,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Return a Dataset of Hugging Face as a dataset; what is on the disk is read from there.

    An IterableDataset is a stream: workers take its rows as they come.

    Args:
        dataset: The dataset.
        parallelism: Nothing; Ray's.
        concurrency: Nothing; Ray's.
        override_num_blocks: Nothing; Ray's.

    Raises:
        ConfigError: It is a dict of several datasets.
    """
    if isinstance(dataset, dict):
        names = ", ".join(map(repr, dataset))
        raise ConfigError(f"this is a dict of datasets: give one of {names}, as dataset['train']")
    if not hasattr(dataset, "__len__"):
        return Dataset(IterableSource(dataset, "the Hugging Face dataset"))
    return Dataset(HuggingFaceSource(dataset))


def from_torch(dataset: torch.utils.data.Dataset, local_read: bool = False) -> Dataset:
    """Return a torch Dataset as a dataset: dicts are rows, all else is the column `item`.

    Args:
        dataset: The dataset.
        local_read: Nothing; Ray's.
    """
    kind = RowsSource if is_indexed(dataset) else IterableSource
    return Dataset(kind(dataset, f"the {type(dataset).__name__}"))
