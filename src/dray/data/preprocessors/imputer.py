"""The imputer, which fills in missing values."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dray.data.dataset import Dataset
from dray.data.forms.blocks import Column, Table, Value, put_column
from dray.data.forms.names import column_named
from dray.data.preprocessors.preprocessor import ColumnPreprocessor
from dray.errors import ConfigError

_STRATEGIES = ("mean", "most_frequent", "constant")


class SimpleImputer(ColumnPreprocessor):
    """A preprocessor that fills in a value for null and NaN.

    Args:
        columns: The columns.
        strategy: "mean", "most_frequent" or "constant".
        fill_value: The value for "constant".
        output_columns: Names of the filled columns; default: the names of `columns`.

    Raises:
        ConfigError: The strategy is unknown, or `fill_value` is missing for "constant".

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import SimpleImputer
        >>> rows = dray.data.from_items([{"x": 1.0}, {"x": None}, {"x": 3.0}])
        >>> SimpleImputer(["x"]).fit_transform(rows).take_all()
        [{'x': 1.0}, {'x': 2.0}, {'x': 3.0}]
    """

    def __init__(
        self,
        columns: Sequence[str],
        strategy: str = "mean",
        fill_value: Value = None,
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        if strategy not in _STRATEGIES:
            raise ConfigError(f"strategy must be one of {', '.join(_STRATEGIES)}, not {strategy!r}")
        if strategy == "constant" and fill_value is None:
            raise ConfigError("strategy='constant' needs a fill_value")
        super().__init__(columns, output_columns)
        self.strategy, self.fill_value = strategy, fill_value
        self._is_fittable = strategy != "constant"

    def _learned(self, ds: Dataset) -> dict[str, Value]:
        known = ds.on_tables(self._without_nan)
        return {f"{self.strategy}({name})": self._value(known, name) for name in self.columns}

    def _without_nan(self, table: Table) -> Table:
        for name in self.columns:
            column = column_named(table, name)
            missing = pc.is_null(column, nan_is_null=True)
            table = put_column(table, name, pc.if_else(missing, None, column))
        return table

    def _value(self, ds: Dataset, name: str) -> Value:
        if self.strategy == "mean":
            return ds.mean(name)
        counts = ds.groupby(name).count().take_all()
        known = [row for row in counts if row[name] is not None]
        return max(known, key=lambda row: row["count()"])[name] if known else None

    def _column(self, name: str, column: Column) -> Column:
        key = f"{self.strategy}({name})"
        value = self.stats_[key] if self._is_fittable else self.fill_value
        if isinstance(value, float) and pa.types.is_integer(column.type):
            column = column.cast(pa.float64(), safe=False)
        return pc.if_else(pc.is_null(column, nan_is_null=True), value, column)
