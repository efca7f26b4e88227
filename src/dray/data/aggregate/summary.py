"""The summary of a dataset: statistics of each column, depending on its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import pyarrow as pa

from dray.checks import require
from dray.compat.attributes import attach_getattr
from dray.data.aggregate.base import AggregateFn
from dray.data.aggregate.counts import (
    ApproximateQuantile,
    ApproximateTopK,
    MissingValuePercentage,
    ZeroPercentage,
)
from dray.data.aggregate.of_columns import Count, Max, Mean, Min, Std
from dray.data.datatype import DataType
from dray.data.forms.blocks import Frame, Value
from dray.data.forms.lists import is_number
from dray.data.forms.names import check_column
from dray.errors import ConfigError

__all__ = ["DatasetSummary"]

# Returns the aggregates of a column, given its name.
Choice: TypeAlias = Callable[[str], Sequence[AggregateFn]]


@dataclass(frozen=True)
class DatasetSummary:
    """Statistics of a dataset's columns, returned by `Dataset.summary`.

    Attributes:
        dataset_schema: The Arrow schema of the dataset.
        columns: The columns with statistics.
        statistics: The name of each statistic -> column -> value.
    """

    STATISTIC_COLUMN: ClassVar[str] = "statistic"

    dataset_schema: pa.Schema
    columns: list[str]
    statistics: Mapping[str, Mapping[str, Value]]

    def to_pandas(self) -> Frame:
        """Return a DataFrame with a row for each statistic, and a column for each column.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return self._frame({name: name for name in sorted(self.columns)}, sorted(self.statistics))

    def get_column_stats(self, column: str) -> Frame:
        """Return a DataFrame with a column's statistics, in the columns `statistic` and `value`.

        Raises:
            ConfigError: The summary does not include the column.
            MissingDependencyError: pandas is not installed.
        """
        check_column(dict.fromkeys(self.columns), [column])
        return self._frame({"value": column}, sorted(self.statistics))

    def _frame(self, columns: Mapping[str, str], names: Sequence[str]) -> Frame:
        require("pandas", "dray[pandas]")
        import pandas as pd

        values = {
            new: [self.statistics[name].get(column) for name in names]
            for new, column in columns.items()
        }
        return pd.DataFrame({self.STATISTIC_COLUMN: list(names), **values})


def chosen(
    schema: pa.Schema, columns: Sequence[str] | None, own: Mapping[DataType, Choice] | None
) -> list[AggregateFn]:
    """Return the aggregates for the summary of a dataset.

    Args:
        columns: The columns; None selects all columns.
        own: Functions by column type that replace the default aggregates.

    Raises:
        ConfigError: A column is missing, or there is no aggregate to compute.
    """
    check_column(schema.empty_table(), columns or ())
    choices = {kind.to_arrow_dtype(): choice for kind, choice in (own or {}).items()}
    wanted: list[AggregateFn] = []
    for name in schema.names if columns is None else columns:
        kind = schema.field(name).type
        wanted += choices.get(kind, _usual(kind))(name)
    if not wanted:
        raise ConfigError("summary has no column to describe")
    return wanted


def summarized(
    schema: pa.Schema, aggregates: Sequence[AggregateFn], values: Sequence[Value]
) -> DatasetSummary:
    """Return the summary for the values of aggregates; a list becomes several statistics."""
    statistics: dict[str, dict[str, Value]] = {}
    columns: dict[str, None] = {}
    for each, value in zip(aggregates, values, strict=True):
        column = each.get_target_column()
        if column is None:
            continue
        columns[column] = None
        listed = isinstance(value, list)
        for number, one in enumerate(value if listed else [value]):
            name = f"{each.get_agg_name()}[{number}]" if listed else each.get_agg_name()
            statistics.setdefault(name, {})[column] = one
    return DatasetSummary(schema, list(columns), statistics)


def _usual(kind: pa.DataType) -> Choice:
    if pa.types.is_null(kind):
        return lambda name: [Count(name)]
    if is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return lambda name: [
            *(Count(name), Mean(name), Min(name), Max(name), Std(name, ddof=0)),
            ApproximateQuantile(name, [0.5]),
            *(MissingValuePercentage(name), ZeroPercentage(name)),
        ]
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return lambda name: [Count(name), Min(name), Max(name), MissingValuePercentage(name)]
    return lambda name: [Count(name), MissingValuePercentage(name), ApproximateTopK(name, 10)]


attach_getattr(__name__)
