"""The kinds of data that a trainer accepts as a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow.csv

from dray.data import from_memory
from dray.data.dataset import Dataset
from dray.data.readers import tables
from dray.data.sources.base import IterableSource, RowsSource, is_indexed
from dray.errors import ConfigError


def dataset_of(value: Any, name: str) -> Dataset:
    """Return data of any supported kind as a dataset.

    Args:
        value: A dataset of dray, Hugging Face or torch, an Arrow table, a pandas or Polars
            DataFrame, a list, or the path of files.
    """
    if isinstance(value, Dataset):
        return value
    if callable(value) and type(value).__name__ == "function":  # Ray accepts functions as well
        return dataset_of(value(), name)
    if isinstance(value, str | os.PathLike):
        return _of_path(os.fspath(value))
    made = _of_library(value)
    if made is not None:
        return made
    if isinstance(value, list | tuple):
        return from_memory.from_items(value)
    if isinstance(value, Mapping):
        raise ConfigError(
            f"datasets[{name!r}] is a {type(value).__name__}: give its columns as "
            "pyarrow.table(...) or a DataFrame, or one of the datasets in it"
        )
    if is_indexed(value):
        return Dataset(RowsSource(value, f"datasets[{name!r}]"))
    if hasattr(value, "__iter__"):
        return Dataset(IterableSource(value, f"datasets[{name!r}]"))
    raise ConfigError(
        f"datasets[{name!r}] is a {type(value).__name__}, from which dray cannot read rows: pass "
        "a dray.data.Dataset, a Hugging Face or torch dataset, a table, a DataFrame, a list, or "
        "a path of Parquet, CSV or JSON"
    )


def _of_path(path: str) -> Dataset:
    ending = path.lower()
    if ending.endswith(tables.CSV):
        return tables.read_csv(path)
    if ending.endswith(tables.TSV):
        return tables.read_csv(path, parse_options=pyarrow.csv.ParseOptions(delimiter="\t"))
    if ending.endswith(tables.JSON):
        return tables.read_json(path)
    return tables.read_parquet(path)


def _of_library(value: Any) -> Dataset | None:
    """Return a table or dataset of a known library as a dataset; None for other objects."""
    library, kind = type(value).__module__.partition(".")[0], type(value).__name__
    if library == "pandas" and kind == "DataFrame":
        return from_memory.from_pandas(value)
    if library == "polars" and kind in ("DataFrame", "LazyFrame"):
        return from_memory.from_polars(value)
    if library == "pyarrow" and kind in ("Table", "RecordBatch"):
        return from_memory.from_arrow(value)
    if library == "pyarrow" and hasattr(value, "to_batches"):
        return from_memory.from_arrow_dataset(value)
    if library == "datasets" and kind in ("Dataset", "IterableDataset"):
        return from_memory.from_huggingface(value)
    if library == "numpy":
        return from_memory.from_numpy(value)
    return None
