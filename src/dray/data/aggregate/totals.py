"""Groups of a dataset, aggregates of all rows, and the summary of all columns."""

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
        """Return the rows grouped by the values of some columns; None makes a single group.

        Args:
            key: The columns.
            num_partitions: Ignored; for compatibility with Ray.
        """
        return GroupedData(self, named_columns([] if key is None else key, "groupby"))

    def unique(self, column: str, ignore_nulls: bool = False) -> list[Value]:
        """Return the distinct values of a column, with None for null unless nulls are ignored."""
        found = relational.unique(self.only([column]).blocks(), column)
        return [value for value in found if value is not None] if ignore_nulls else found

    def aggregate(self, *aggs: AggregateFn) -> Row | None:
        """Return aggregates of all rows as a dict by name, for example of `aggregate(Max("x"))`.

        If there are no rows, return None.
        """
        row = self.groupby(None).aggregate(*aggs).take(1)
        return row[0] if row else None

    def summary(
        self,
        columns: str | Sequence[str] | None = None,
        override_dtype_agg_mapping: Mapping[DataType, summary.Choice] | None = None,
    ) -> summary.DatasetSummary:
        """Return statistics of the columns; all rows are stored for this, as by `materialize`.

        - Numbers: count, mean, minimum, maximum, standard deviation, median, and the percentages of
          missing values and of zeros.
        - Times: count, minimum, maximum, and the percentage of missing values.
        - Other types: count, the percentage of missing values, and the ten most frequent values.

        Args:
            columns: The columns; None selects all columns.
            override_dtype_agg_mapping: A dict of column type -> function from a column's name to
                its aggregates, such as `{DataType.int64(): lambda name: [Max(name)]}`.

        Raises:
            ConfigError: A column is missing, or there are no rows.

        Example:
            >>> import dray.data
            >>> summary = dray.data.range(3).summary()
            >>> summary.statistics["mean"], summary.statistics["max"]
            ({'id': 1.0}, {'id': 2})
        """
        made = self.materialize()  # the first rows may lack columns and types of later ones
        schema = made.arrow_schema()
        if schema is None:
            raise ConfigError("summary has nothing to describe: there are no rows")
        names = None if columns is None else named_columns(columns, "summary")
        wanted = summary.chosen(schema, names, override_dtype_agg_mapping)
        row = made.aggregate(*wanted)
        if row is None:
            raise ConfigError("summary has nothing to describe: there are no rows")
        return summary.summarized(schema, wanted, list(row.values()))

    def _aggregated(self, how: str, on: str | Sequence[str] | None, **options: object) -> Value:
        row = getattr(self.groupby(None), how)(on, **options).take(1)
        if not row:
            return None
        return next(iter(row[0].values())) if isinstance(on, str) or len(row[0]) == 1 else row[0]

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Value:
        """Return the sum of a column, or a dict of sums for several; None if there is no value.

        Args:
            on: The columns; None selects all numeric columns.
            ignore_nulls: Whether to skip nulls; if False, one null makes the result None.
        """
        return self._aggregated("sum", on, ignore_nulls=ignore_nulls)

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Value:
        """Return the least value of a column, or a dict of them for several; see `sum`."""
        return self._aggregated("min", on, ignore_nulls=ignore_nulls)

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Value:
        """Return the greatest value of a column, or a dict of them for several; see `sum`."""
        return self._aggregated("max", on, ignore_nulls=ignore_nulls)

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Value:
        """Return the mean of a column, or a dict of them for several; see `sum`."""
        return self._aggregated("mean", on, ignore_nulls=ignore_nulls)

    def std(
        self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True
    ) -> Value:
        """Return the standard deviation of a column, or a dict of them for several; see `sum`."""
        return self._aggregated("std", on, ddof=ddof, ignore_nulls=ignore_nulls)
