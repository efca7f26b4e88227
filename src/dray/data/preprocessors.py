"""Preprocessors of columns: what they learn from one dataset, they do to others and to batches."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dray.answers import answer_for
from dray.checks import require

require("numpy", "dray[data]")
require("pyarrow", "dray[data]")

import numpy as np  # noqa: E402 (what is above says how to install it)
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402

from dray.data.blocks import (  # noqa: E402
    Batch,
    Table,
    column_to_numpy,
    to_batch,
    to_column,
    to_table,
)
from dray.data.dataset import Dataset  # noqa: E402
from dray.data.relational import check_column  # noqa: E402
from dray.errors import ConfigError  # noqa: E402

__all__ = [
    "Chain",
    "Concatenator",
    "LabelEncoder",
    "MinMaxScaler",
    "OneHotEncoder",
    "Preprocessor",
    "StandardScaler",
]

P = TypeVar("P", bound="Preprocessor")


class Preprocessor:
    """A change of columns that is perhaps learned from a dataset.

    Attributes:
        stats_: Values that it has learned, by name.
    """

    stats_: dict[str, Any]

    def fit(self: P, ds: Dataset) -> P:
        """Learn from a dataset; return this."""
        self.stats_ = self._learned(ds)
        return self

    def fit_transform(self, ds: Dataset) -> Dataset:
        """Learn from a dataset, and return it changed."""
        return self.fit(ds).transform(ds)

    def transform(self, ds: Dataset) -> Dataset:
        """Return a dataset, changed.

        Raises:
            ConfigError: `fit` has not been called.
        """
        self._check_fitted()
        return ds.on_tables(self._changed)

    def transform_batch(self, data: Batch) -> Batch:
        """Return a batch, changed: a DataFrame of pandas, or a dict of arrays.

        Raises:
            ConfigError: `fit` has not been called.
        """
        self._check_fitted()
        form = "numpy" if isinstance(data, Mapping) else "pandas"
        return to_batch(self._changed(to_table(data)), form)

    def serialize(self) -> bytes:
        """Return this as bytes."""
        return pickle.dumps(self)

    @staticmethod
    def deserialize(serialized: bytes) -> Preprocessor:
        """Return what `serialize` has made; as with all pickles, from whom you trust."""
        made = pickle.loads(serialized)
        if not isinstance(made, Preprocessor):
            raise ConfigError(f"these bytes are no preprocessor, but a {type(made).__name__}")
        return made

    def _check_fitted(self) -> None:
        if self._needs_fit and not hasattr(self, "stats_"):
            raise ConfigError(
                f"call fit(dataset) of the {type(self).__name__} first, or fit_transform(dataset)"
            )

    _needs_fit = True

    def _learned(self, ds: Dataset) -> dict[str, Any]:
        return {}

    def _changed(self, table: Table) -> Table:
        raise NotImplementedError


def _with_column(table: Table, name: str, values: Any) -> Table:
    """Return a table with a column added, or put in the place of its namesake."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, values)
    return table.append_column(name, values)


def _outputs(columns: Sequence[str], output_columns: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return pairs of columns: one to read, and the one to write."""
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ConfigError(f"columns must be a list of names, not {columns!r}")
    outputs = list(columns if output_columns is None else output_columns)
    if len(outputs) != len(columns):
        raise ConfigError(f"{len(columns)} columns cannot become {len(outputs)} output_columns")
    return list(zip(columns, outputs, strict=True))


class _Scaler(Preprocessor):
    """A preprocessor that moves and scales numbers."""

    def __init__(self, columns: Sequence[str], output_columns: Sequence[str] | None = None) -> None:
        self._pairs = _outputs(columns, output_columns)

    def _changed(self, table: Table) -> Table:
        check_column(table, [name for name, _ in self._pairs])
        for name, output in self._pairs:
            middle, width = self._scale(name)
            values = pc.cast(table.column(name), pa.float64())
            scaled = pc.divide(pc.subtract(values, middle), width or 1.0)
            table = _with_column(table, output, scaled)
        return table

    def _scale(self, name: str) -> tuple[float, float]:
        raise NotImplementedError


class StandardScaler(_Scaler):
    """Makes numbers have a mean of 0 and a standard deviation of 1.

    Args:
        columns: The columns.
        output_columns: Names of the scaled ones; default: their own.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import StandardScaler
        >>> StandardScaler(["id"]).fit_transform(dray.data.range(2)).take_all()
        [{'id': -1.0}, {'id': 1.0}]
    """

    def _learned(self, ds: Dataset) -> dict[str, Any]:
        names = [name for name, _ in self._pairs]
        mean = ds.groupby(None).mean(names).take(1)[0]
        deviation = ds.groupby(None).std(names, ddof=0).take(1)[0]
        return {**mean, **deviation}

    def _scale(self, name: str) -> tuple[float, float]:
        return self.stats_[f"mean({name})"], self.stats_[f"std({name})"]


class MinMaxScaler(_Scaler):
    """Makes numbers go from 0 to 1.

    Args:
        columns: The columns.
        output_columns: Names of the scaled ones; default: their own.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import MinMaxScaler
        >>> MinMaxScaler(["id"]).fit_transform(dray.data.range(3)).take_all()
        [{'id': 0.0}, {'id': 0.5}, {'id': 1.0}]
    """

    def _learned(self, ds: Dataset) -> dict[str, Any]:
        names = [name for name, _ in self._pairs]
        group = ds.groupby(None)
        return {**group.min(names).take(1)[0], **group.max(names).take(1)[0]}

    def _scale(self, name: str) -> tuple[float, float]:
        least = self.stats_[f"min({name})"]
        return least, self.stats_[f"max({name})"] - least


class OneHotEncoder(Preprocessor):
    """Makes a vector of each value, with a 1 in the place of its category.

    Args:
        columns: The columns.
        max_categories: The most categories of a column; the most frequent ones are kept.
        output_columns: Names of the vectors; default: those of the columns.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import OneHotEncoder
        >>> colours = dray.data.from_items([{"colour": "red"}, {"colour": "blue"}])
        >>> OneHotEncoder(["colour"]).fit_transform(colours).take(1)[0]["colour"].tolist()
        [0, 1]
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        max_categories: Mapping[str, int] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        self._pairs = _outputs(columns, output_columns)
        self._most = dict(max_categories or {})

    def _learned(self, ds: Dataset) -> dict[str, Any]:
        return {f"unique_values({name})": self._categories(ds, name) for name, _ in self._pairs}

    def _categories(self, ds: Dataset, name: str) -> dict[Any, int]:
        counted = ds.groupby(name).count().take_all()
        values = [row[name] for row in counted if row[name] is not None]
        most = self._most.get(name)
        if most is not None:
            counts = {row[name]: row["count()"] for row in counted}
            values = sorted(values, key=lambda value: -counts[value])[:most]
        return {value: index for index, value in enumerate(values)}

    def _changed(self, table: Table) -> Table:
        check_column(table, [name for name, _ in self._pairs])
        for name, output in self._pairs:
            places = self.stats_[f"unique_values({name})"]
            found = _places(table.column(name), places)
            vectors = (found[:, None] == np.arange(len(places))).astype(np.uint8)
            table = _with_column(table, output, to_column(vectors))
        return table


def _places(column: Any, places: Mapping[Any, int]) -> Any:
    """Return the place of each value of a column; -1 where it has none."""
    return np.array([places.get(value, -1) for value in column.to_pylist()], np.int64)


class LabelEncoder(Preprocessor):
    """Makes numbers from 0 of the values of a column.

    Args:
        label_column: The column.
        output_column: Name of the numbers; default: that of the column.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import LabelEncoder
        >>> rows = dray.data.from_items([{"kind": "b"}, {"kind": "a"}])
        >>> LabelEncoder("kind").fit_transform(rows).take_all()
        [{'kind': 1}, {'kind': 0}]
    """

    def __init__(self, label_column: str, *, output_column: str | None = None) -> None:
        [(self._column, self._output)] = _outputs([label_column], output_column and [output_column])

    def _learned(self, ds: Dataset) -> dict[str, Any]:
        values = sorted(value for value in ds.unique(self._column) if value is not None)
        places = {value: index for index, value in enumerate(values)}
        return {f"unique_values({self._column})": places}

    def _changed(self, table: Table) -> Table:
        check_column(table, [self._column])
        places = self.stats_[f"unique_values({self._column})"]
        found = _places(table.column(self._column), places)
        if (found < 0).any():
            row = table.column(self._column)[int(np.argmin(found))]
            raise ConfigError(
                f"the column {self._column!r} has the value {row.as_py()!r}, which was not there "
                "when the LabelEncoder was fitted"
            )
        return _with_column(table, self._output, to_column(found))

    def inverse_transform(self, ds: Dataset) -> Dataset:
        """Return a dataset with the values that the numbers were made of."""
        self._check_fitted()
        values = list(self.stats_[f"unique_values({self._column})"])

        def restored(table: Table) -> Table:
            numbers = column_to_numpy(table.column(self._output))
            return _with_column(table, self._column, pa.array([values[each] for each in numbers]))

        return ds.on_tables(restored)


class Concatenator(Preprocessor):
    """Puts columns of numbers together, as one column of vectors.

    Args:
        columns: The columns; they are dropped.
        output_column_name: Name of the vectors.
        dtype: Their type, as NumPy has it; default: the one that holds all.
        raise_if_missing: Whether a column that is not there is an error; else it is left out.
        flatten: Whether columns of vectors are put together as well; they always are.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import Concatenator
        >>> rows = dray.data.from_items([{"a": 1.0, "b": 2.0, "y": 0}])
        >>> Concatenator(["a", "b"], "x").transform(rows).take_batch(1)["x"].tolist()
        [[1.0, 2.0]]
    """

    _needs_fit = False

    def __init__(
        self,
        columns: Sequence[str],
        output_column_name: str = "concat_out",
        dtype: Any = None,
        raise_if_missing: bool = False,
        flatten: bool = False,
    ) -> None:
        self._columns = [name for name, _ in _outputs(columns, None)]
        self._output, self._dtype = output_column_name, dtype
        self._strict = raise_if_missing

    def _changed(self, table: Table) -> Table:
        if self._strict:
            check_column(table, self._columns)
        names = [name for name in self._columns if name in table.column_names]
        arrays = [column_to_numpy(table.column(name)) for name in names]
        parts = [array.reshape(len(array), -1) for array in arrays]
        vectors = np.concatenate(parts, axis=1) if parts else np.empty((table.num_rows, 0))
        if self._dtype is not None:
            vectors = vectors.astype(self._dtype)
        return _with_column(table.drop_columns(names), self._output, to_column(vectors))


class Chain(Preprocessor):
    """Several preprocessors, one after another.

    Args:
        preprocessors: Each learns from what those before it make.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import Chain, Concatenator, MinMaxScaler
        >>> chain = Chain(MinMaxScaler(["id"]), Concatenator(["id"], "x"))
        >>> chain.fit_transform(dray.data.range(2)).take_batch(2)["x"].tolist()
        [[0.0], [1.0]]
    """

    def __init__(self, *preprocessors: Preprocessor) -> None:
        self.preprocessors = preprocessors

    def _learned(self, ds: Dataset) -> dict[str, Any]:
        for each in self.preprocessors:
            ds = each.fit_transform(ds)
        return {}

    def _check_fitted(self) -> None:
        for each in self.preprocessors:
            each._check_fitted()

    def _changed(self, table: Table) -> Table:
        for each in self.preprocessors:
            table = each._changed(table)
        return table


answer_for(__name__)
