"""Discretizers: values replaced by the numbers of their bins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dray.checks import is_whole, plain
from dray.data.dataset import Dataset
from dray.data.forms.blocks import Array, Column, Value
from dray.data.preprocessors.preprocessor import ColumnPreprocessor
from dray.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CustomKBinsDiscretizer", "UniformKBinsDiscretizer"]

# The edges of bins, or the bins themselves.
Edges: TypeAlias = "Iterable[float] | pd.IntervalIndex"
# A categorical type whose categories replace bin numbers, or an integer type, which is ignored.
DTypes: TypeAlias = "Mapping[str, pd.CategoricalDtype | type[np.integer[Any]]]"


class _Discretizer(ColumnPreprocessor):
    """A preprocessor that puts numbers into bins, as `pandas.cut` does.

    Args:
        bins: The bins, for all columns or by column.
    """

    def __init__(
        self,
        columns: Sequence[str],
        bins: Value,
        *,
        right: bool = True,
        include_lowest: bool = False,
        duplicates: str = "raise",
        dtypes: DTypes | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        if isinstance(bins, Mapping) and not set(self.columns) <= set(bins):
            missing = next(name for name in self.columns if name not in bins)
            raise ConfigError(f"bins has no entry for column {missing!r}")
        if duplicates not in ("raise", "drop"):
            raise ConfigError(f"duplicates must be 'raise' or 'drop', not {duplicates!r}")
        self.bins, self.right, self.include_lowest = bins, right, include_lowest
        self.duplicates, self.dtypes = duplicates, dtypes
        for name in self.columns:
            self._check_bins(self._bins_of(name))

    def _check_bins(self, bins: Value) -> None:
        """Raise ConfigError if these are not valid bins of a column."""

    def _bins_of(self, name: str) -> Value:
        return self.bins[name] if isinstance(self.bins, Mapping) else self.bins

    def _edges(self, name: str) -> Edges:
        raise NotImplementedError

    def _column(self, name: str, column: Column) -> Column:
        values = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        edges: Any = self._edges(name)
        if hasattr(edges, "get_indexer"):  # a pandas IntervalIndex
            numbers, count = edges.get_indexer(values), len(edges)
        else:
            edges = self._distinct(name, np.asarray(list(edges), np.float64))
            numbers, count = self._numbers(values, edges), len(edges) - 1
        numbers = np.where(np.isnan(values) | (numbers < 0) | (numbers >= count), -1, numbers)
        made = pa.array(numbers, pa.int64(), mask=numbers < 0)
        categories = getattr((self.dtypes or {}).get(name), "categories", None)
        if categories is None:
            return made
        if len(categories) != count:
            raise ConfigError(
                f"column {name!r} has {count} bins, but its type has {len(categories)} categories"
            )
        return pa.DictionaryArray.from_arrays(made.cast(pa.int32()), pa.array(list(categories)))

    def _numbers(self, values: Array, edges: Array) -> Array:
        numbers = np.searchsorted(edges, values, side="left" if self.right else "right") - 1
        if self.include_lowest and self.right:
            numbers = np.where(values == edges[0], 0, numbers)
        return numbers

    def _distinct(self, name: str, edges: Array) -> Array:
        if np.any(np.diff(edges) < 0):
            raise ConfigError(f"the edges of bins must increase, but those of {name!r} are {edges}")
        distinct = np.unique(edges)
        if len(distinct) < len(edges) and self.duplicates == "raise":
            raise ConfigError(
                f"column {name!r} has the same edge of bins twice: duplicates='drop' removes it"
            )
        return distinct


class CustomKBinsDiscretizer(_Discretizer):
    """A preprocessor that replaces values by the numbers of given bins, from 0; null outside them.

    Args:
        columns: The columns of numbers.
        bins: The edges of the bins in ascending order, or a `pandas.IntervalIndex`; or a dict of
            these by column.
        right: Whether a bin includes its upper edge rather than its lower edge.
        include_lowest: Whether the first bin also includes its lower edge.
        duplicates: "raise" raises an error if edges are equal; "drop" removes duplicates.
        dtypes: A `pandas.CategoricalDtype` whose categories replace the numbers.
        output_columns: Names of the new columns; default: the names of `columns`.

    Raises:
        ConfigError: A column has no bins.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import CustomKBinsDiscretizer
        >>> CustomKBinsDiscretizer(["id"], [0, 1, 3]).transform(dray.data.range(4)).take_all()
        [{'id': None}, {'id': 0}, {'id': 1}, {'id': 1}]
    """

    _is_fittable = False

    def _edges(self, name: str) -> Edges:
        edges: Edges = self._bins_of(name)
        return edges


class UniformKBinsDiscretizer(_Discretizer):
    """A preprocessor that replaces values by the numbers of equally wide bins, from 0.

    It learns the bins from a dataset: they extend from the least value to the greatest.

    Args:
        columns: The columns of numbers.
        bins: The number of bins, or a dict of column -> number.
        right: Whether a bin includes its upper edge rather than its lower edge.
        include_lowest: Whether the first bin also includes its lower edge.
        duplicates: "raise" raises an error if edges are equal; "drop" removes duplicates.
        dtypes: A `pandas.CategoricalDtype` whose categories replace the numbers.
        output_columns: Names of the new columns; default: the names of `columns`.

    Raises:
        ConfigError: A column has no number of bins.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import UniformKBinsDiscretizer
        >>> UniformKBinsDiscretizer(["id"], 2).fit_transform(dray.data.range(4)).take_all()
        [{'id': 0}, {'id': 0}, {'id': 1}, {'id': 1}]
    """

    def _check_bins(self, bins: Value) -> None:
        if not is_whole(plain(bins), 1):
            raise ConfigError(f"bins must be a number, 1 or more, not {bins!r}")

    def _learned(self, ds: Dataset) -> dict[str, Value]:
        group = ds.groupby(None)
        least, most = group.min(self.columns).take(1), group.max(self.columns).take(1)
        ends = {name: value for row in (*least, *most) for name, value in row.items()}
        return {
            name: self._between(name, ends.get(f"min({name})"), ends.get(f"max({name})"))
            for name in self.columns
        }

    def _between(self, name: str, low: float | None, high: float | None) -> Array:
        """Return the edges of bins; an excluded outer edge is just beyond the values."""
        if low is None or high is None:
            raise ConfigError(f"column {name!r} has no values to learn bins from")
        low, high = float(low), float(high)  # decimals also become floats
        if not math.isfinite(low) or not math.isfinite(high):
            raise ConfigError(f"column {name!r} has infinite values, which no bin can hold")
        count = self._bins_of(name) + 1
        if low == high:
            return np.linspace(low - _beyond(low), high + _beyond(high), count)
        edges: Array = np.linspace(low, high, count)
        edges[0 if self.right else -1] += (high - low) * (-_MARGIN if self.right else _MARGIN)
        return edges

    def _edges(self, name: str) -> Edges:
        edges: Edges = self.stats_[name]
        return edges


# The fraction of the range by which bins extend beyond the values, as in pandas.
_MARGIN = 0.001


def _beyond(value: float) -> float:
    return _MARGIN * abs(value) or _MARGIN
