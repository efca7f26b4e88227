"""Scalers: numbers shifted, and divided by a measure of their spread."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dray.data.aggregate import AbsMax, Mean, Quantile, Std
from dray.data.dataset import Dataset
from dray.data.forms.blocks import Column, Row, Value
from dray.data.preprocessors.preprocessor import ColumnPreprocessor
from dray.errors import ConfigError


class _Scaler(ColumnPreprocessor):
    """A preprocessor that shifts and scales numbers."""

    def _column(self, name: str, column: Column) -> Column:
        middle, width = self._scale(name)
        return pc.divide(
            pc.subtract(pc.cast(column, pa.float64(), safe=False), middle), width or 1.0
        )

    def _learned(self, ds: Dataset) -> dict[str, Value]:
        learned = self._asked(ds)
        if not learned and self.columns:
            raise ConfigError(f"{type(self).__name__} has nothing to learn from: there are no rows")
        return learned or {}

    def _asked(self, ds: Dataset) -> Row | None:
        """Return the values to learn; None if there are no rows."""
        raise NotImplementedError

    def _scale(self, name: str) -> tuple[float | None, float | None]:
        """Return the numbers to subtract and to divide by; None for a column without values."""
        raise NotImplementedError


def _distance(low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None else high - low


class StandardScaler(_Scaler):
    """A scaler to a mean of 0 and a standard deviation of 1.

    Args:
        columns: The columns.
        output_columns: Names of the scaled columns; default: the names of `columns`.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import StandardScaler
        >>> StandardScaler(["id"]).fit_transform(dray.data.range(2)).take_all()
        [{'id': -1.0}, {'id': 1.0}]
    """

    def _asked(self, ds: Dataset) -> Row | None:
        names = self.columns
        return ds.aggregate(*map(Mean, names), *(Std(name, ddof=0) for name in names))

    def _scale(self, name: str) -> tuple[float | None, float | None]:
        return self.stats_[f"mean({name})"], self.stats_[f"std({name})"]


class MinMaxScaler(_Scaler):
    """A scaler to the range from 0 to 1.

    Args:
        columns: The columns.
        output_columns: Names of the scaled columns; default: the names of `columns`.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import MinMaxScaler
        >>> MinMaxScaler(["id"]).fit_transform(dray.data.range(3)).take_all()
        [{'id': 0.0}, {'id': 0.5}, {'id': 1.0}]
    """

    def _asked(self, ds: Dataset) -> Row | None:
        names = self.columns
        group = ds.groupby(None)
        ends = [*group.min(names).take(1), *group.max(names).take(1)]
        return {name: value for row in ends for name, value in row.items()}

    def _scale(self, name: str) -> tuple[float | None, float | None]:
        least = self.stats_[f"min({name})"]
        return least, _distance(least, self.stats_[f"max({name})"])


class MaxAbsScaler(_Scaler):
    """A scaler that divides by the greatest absolute value, to the range from -1 to 1.

    Args:
        columns: The columns.
        output_columns: Names of the scaled columns; default: the names of `columns`.
    """

    def _asked(self, ds: Dataset) -> Row | None:
        return ds.aggregate(*(AbsMax(name) for name in self.columns))

    def _scale(self, name: str) -> tuple[float | None, float | None]:
        return 0.0, self.stats_[f"abs_max({name})"]


class RobustScaler(_Scaler):
    """A scaler to a median of 0 and a distance of 1 between two quantiles.

    Args:
        columns: The columns.
        quantile_range: The fractions of the two quantiles, from 0 to 1.
        output_columns: Names of the scaled columns; default: the names of `columns`.
        quantile_precision: Ignored, because quantiles are exact; for compatibility with Ray.
    """

    def __init__(
        self,
        columns: Sequence[str],
        quantile_range: tuple[float, float] = (0.25, 0.75),
        output_columns: Sequence[str] | None = None,
        quantile_precision: int = 800,
    ) -> None:
        super().__init__(columns, output_columns)
        self.quantile_range = quantile_range

    def _asked(self, ds: Dataset) -> Row | None:
        low, high = self.quantile_range
        parts = {"low_quantile": low, "median": 0.5, "high_quantile": high}
        asked = [
            Quantile(name, q=part, alias_name=f"{what}({name})")
            for name in self.columns
            for what, part in parts.items()
        ]
        return ds.aggregate(*asked)

    def _scale(self, name: str) -> tuple[float | None, float | None]:
        low, high = self.stats_[f"low_quantile({name})"], self.stats_[f"high_quantile({name})"]
        return self.stats_[f"median({name})"], _distance(low, high)
