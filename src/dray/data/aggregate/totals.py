"""The groups of a dataset, aggregates of all rows, and their summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from dray.data import relational
from dray.data.aggregate import summary
from dray.data.aggregate.base import AggregateFn
from dray.data.datatype import DataType
from dray.data.forms.blocks import Row, Value
from dray.data.grouped import GroupedData, named_columns
from dray.data.parts import Parts
from dray.errors import ConfigError

T = TypeVar("T", bound="Totals")


class Totals(Parts):
    """A pipeline whose rows can be aggregated."""

    def groupby(
        self: T, key: str | Sequence[str] | None, num_partitions: int | None = None
    ) -> GroupedData[T]:
        """Return the rows by the values of some columns, to be aggregated; None is one group.

        Args:
            key: The columns.
            num_partitions: Nothing; Ray's, into how many parts it cuts the rows.
        """
        return GroupedData(self, named_columns([] if key is None else key, "groupby"))

    def unique(self, column: str, ignore_nulls: bool = False) -> list[Value]:
        """Return the values of a column, each once; null as well, unless it is left out."""
        found = relational.unique(self.only([column]).blocks(), column)
        return [value for value in found if value is not None] if ignore_nulls else found

    def aggregate(self, *aggs: AggregateFn) -> Row | None:
        """Return aggregates of all rows by their names, such as `aggregate(Max("x"))`.

        None if there are no rows.
        """
        row = self.groupby(None).aggregate(*aggs).take(1)
        return row[0] if row else None

    def summary(
        self,
        columns: str | Sequence[str] | None = None,
        override_dtype_agg_mapping: Mapping[DataType, summary.Choice] | None = None,
    ) -> summary.DatasetSummary:
        """Return statistics of the columns; all rows are kept for it, as by `materialize`.

        Of numbers their count, mean, least, greatest, standard deviation, median, and the
        percentages of missing values and zeros; of times the ends and the percentage; of all else
        the percentage and the ten most frequent values.

        Args:
            columns: The columns; None is all.
            override_dtype_agg_mapping: Functions that make other aggregates of a column's name, by
                the type of columns, such as `{DataType.int64(): lambda name: [Max(name)]}`.

        Raises:
            ConfigError: A column is not there, or there are no rows.

        Example:
            >>> import dray.data
            >>> summary = dray.data.range(3).summary()
            >>> summary.statistics["mean"], summary.statistics["max"]
            ({'id': 1.0}, {'id': 2})
        """
        made = self.materialize()  # as the first rows do not tell the types of all
        schema = made.arrow_schema()
        if schema is None:
            raise ConfigError("summary has nothing to tell of: there are no rows")
        names = None if columns is None else named_columns(columns, "summary")
        wanted = summary.chosen(schema, names, override_dtype_agg_mapping)
        row = made.aggregate(*wanted)
        if row is None:
            raise ConfigError("summary has nothing to tell of: there are no rows")
        return summary.summarized(schema, wanted, list(row.values()))

    def _aggregated(self, how: str, on: str | Sequence[str] | None, **options: object) -> Value:
        row = getattr(self.groupby(None), how)(on, **options).take(1)
        if not row:
            return None
        return next(iter(row[0].values())) if isinstance(on, str) or len(row[0]) == 1 else row[0]

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Value:
        """Return the sum of a column, or of several as a dict; None without any value.

        Args:
            on: The columns; None selects all numeric columns.
            ignore_nulls: Whether to skip nulls; if False, one null makes the result None.
        """
        return self._aggregated("sum", on, ignore_nulls=ignore_nulls)

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Value:
        """Return the least value of a column, or of several as a dict; see `sum`."""
        return self._aggregated("min", on, ignore_nulls=ignore_nulls)

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Value:
        """Return the greatest value of a column, or of several as a dict; see `sum`."""
        return self._aggregated("max", on, ignore_nulls=ignore_nulls)

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Value:
        """Return the mean of a column, or of several as a dict; see `sum`."""
        return self._aggregated("mean", on, ignore_nulls=ignore_nulls)

    def std(
        self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True
    ) -> Value:
        """Return the standard deviation of a column, or of several as a dict; see `sum`."""
        return self._aggregated("std", on, ddof=ddof, ignore_nulls=ignore_nulls)
