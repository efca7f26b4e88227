"""The summary of a dataset: statistics of each column, as its type has them."""

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

# Makes the aggregates of a column that are to be known, given its name.
Choice: TypeAlias = Callable[[str], Sequence[AggregateFn]]


@dataclass(frozen=True)
class DatasetSummary:
    """Statistics of a dataset's columns; `Dataset.summary` makes it.

    Attributes:
        dataset_schema: The schema of the dataset, of Arrow.
        columns: The columns that it is about.
        statistics: Statistics by their names, of each column that has them.
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
        """Return a DataFrame with the statistics of a column, as `statistic` and `value`.

        Raises:
            ConfigError: It is about no such column.
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
    """Return the aggregates that are to be known of a dataset.

    Args:
        columns: The columns; None is all.
        own: Choices by types of columns, in place of the usual ones.

    Raises:
        ConfigError: A column is not there, or nothing is to be known.
    """
    check_column(schema.empty_table(), columns or ())
    choices = {kind.to_arrow_dtype(): choice for kind, choice in (own or {}).items()}
    wanted: list[AggregateFn] = []
    for name in schema.names if columns is None else columns:
        kind = schema.field(name).type
        wanted += choices.get(kind, _usual(kind))(name)
    if not wanted:
        raise ConfigError("summary has no column to tell of")
    return wanted


def summarized(
    schema: pa.Schema, aggregates: Sequence[AggregateFn], values: Sequence[Value]
) -> DatasetSummary:
    """Return the summary that aggregates make; lists among their values become several."""
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
