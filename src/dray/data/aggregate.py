"""Aggregates to ask of groups by their classes: `rows.groupby("kind").aggregate(Mean("x"))`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from dray.checks import require
from dray.compat.arguments import checked_arguments
from dray.compat.attributes import attach_getattr

require("numpy", "dray[data]")
require("pyarrow", "dray[data]")

import numpy as np  # noqa: E402 (what is above says how to install it)
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402

from dray.data.forms.blocks import Column, Table, Value  # noqa: E402
from dray.data.relational import check_column  # noqa: E402
from dray.errors import ConfigError  # noqa: E402

__all__ = [
    "AbsMax",
    "AggregateFn",
    "AsList",
    "Count",
    "CountDistinct",
    "Max",
    "Mean",
    "Min",
    "Quantile",
    "Std",
    "Sum",
    "Unique",
]

# A column, Arrow's name of a function, and its options.
Asked: TypeAlias = tuple[str, str, pc.FunctionOptions | None]

_ALL_ROWS = "_all rows"


@checked_arguments("AggregateFn")
class AggregateFn:
    """One value for each group; use the classes below.

    Args:
        on: The column.
        ignore_nulls: Whether rows without a value are left out; else one makes the result null.
        alias_name: Name of the result; default: such as `mean(x)`.

    Attributes:
        on: The column; None for a number of rows.
        name: Name of the result.
    """

    # Arrow's name of the function, and the name that results have.
    _how = ""
    _called = ""

    def __init__(
        self, on: str | None, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        self.on = on
        self.name = alias_name or f"{self._called or self._how}({on or ''})"
        self._skip_nulls = ignore_nulls

    def asked(self, column: str) -> list[Asked]:
        """Return what Arrow is asked for, of a column."""
        return [(column, self._how, pc.ScalarAggregateOptions(skip_nulls=self._skip_nulls))]

    def prepared(self, values: Column) -> Column:
        """Return what is aggregated in place of the column's values."""
        return values

    def finished(self, found: Column, *beside: Column) -> Column:
        """Return the results, made of what Arrow returns."""
        return found


class Count(AggregateFn):
    """The number of rows, or of those that have a value if nulls are to be left out."""

    _how = "count"

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def asked(self, column: str) -> list[Asked]:
        """Return what Arrow is asked for, of a column."""
        return [(column, "count", pc.CountOptions("only_valid" if self._skip_nulls else "all"))]


class CountDistinct(Count):
    """The number of values that differ."""

    _called = "count_distinct"

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def asked(self, column: str) -> list[Asked]:
        """Return what Arrow is asked for, of a column."""
        return [(column, "count_distinct", super().asked(column)[0][2])]


class Sum(AggregateFn):
    """The sum."""

    _how = "sum"


class Min(AggregateFn):
    """The least value."""

    _how = "min"


class Max(AggregateFn):
    """The greatest value."""

    _how = "max"


class AbsMax(Max):
    """The greatest value without its sign."""

    _called = "abs_max"

    def prepared(self, values: Column) -> Column:
        """Return what is aggregated in place of the column's values."""
        return pc.abs(values)


class Mean(AggregateFn):
    """The mean."""

    _how = "mean"


class Std(AggregateFn):
    """The standard deviation; NaN of values that are no more than `ddof`.

    Args:
        on: The column.
        ddof: The number that is taken from the number of rows.
        ignore_nulls: Whether rows without a value are left out.
        alias_name: Name of the result.
    """

    _how, _called = "stddev", "std"

    def __init__(
        self, on: str, ddof: int = 1, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self._ddof = ddof

    def prepared(self, values: Column) -> Column:
        """Return what is aggregated in place of the column's values."""
        return values.cast(pa.float64()) if pa.types.is_null(values.type) else values

    def asked(self, column: str) -> list[Asked]:
        """Return what Arrow is asked for, of a column."""
        options = pc.VarianceOptions(ddof=self._ddof, skip_nulls=self._skip_nulls)
        known = pc.ScalarAggregateOptions(skip_nulls=self._skip_nulls)
        return [(column, self._how, options), (column, "mean", known)]

    def finished(self, found: Column, *beside: Column) -> Column:
        """Return the results, made of what Arrow returns: NaN of too few values, null of none."""
        too_few = pc.and_(pc.is_null(found), pc.is_valid(beside[0]))
        return pc.if_else(too_few, math.nan, found)


class AsList(AggregateFn):
    """All values."""

    _how = "list"

    def asked(self, column: str) -> list[Asked]:
        """Return what Arrow is asked for, of a column."""
        return [(column, self._how, None)]

    def finished(self, found: Column, *beside: Column) -> Column:
        """Return the results, made of what Arrow returns."""
        if not self._skip_nulls:
            return found
        kept = [[value for value in values if value is not None] for values in found.to_pylist()]
        return pa.array(kept, found.type)


@checked_arguments("Unique")
class Unique(AsList):
    """The values, each once."""

    _how, _called = "distinct", "unique"

    def __init__(self, on: str, ignore_nulls: bool = False, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def asked(self, column: str) -> list[Asked]:
        """Return what Arrow is asked for, of a column."""
        return [(column, "distinct", pc.CountOptions("only_valid" if self._skip_nulls else "all"))]


class Quantile(AsList):
    """The value below which a part of the values is.

    Args:
        on: The column.
        q: The part, from 0 to 1.
        ignore_nulls: Whether rows without a value are left out.
        alias_name: Name of the result.
    """

    _called = "quantile"

    def __init__(
        self, on: str, q: float = 0.5, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self._part = q

    def finished(self, found: Column, *beside: Column) -> Column:
        """Return the results, made of what Arrow returns."""
        return pa.array([self._quantile(values) for values in super().finished(found).to_pylist()])

    def _quantile(self, values: list[Value]) -> float | None:
        if not values or None in values:
            return None
        return float(np.quantile(values, self._part))


def columns_of(aggregates: Sequence[AggregateFn]) -> list[str]:
    """Return the columns that aggregates need.

    Raises:
        ConfigError: One is no aggregate.
    """
    for each in aggregates:
        if not isinstance(each, AggregateFn):
            raise ConfigError(
                f"aggregate takes such as Mean('x') of dray.data.aggregate, not {each!r}"
            )
    return list(dict.fromkeys(each.on for each in aggregates if each.on is not None))


def aggregated(table: Table, keys: Sequence[str], aggregates: Iterable[AggregateFn]) -> Table:
    """Return the keys of a table's groups, each with its aggregates."""
    by = list(keys) or [_ALL_ROWS]
    groups = table.select(keys) if keys else table
    if not keys:
        groups = pa.table({_ALL_ROWS: pa.repeat(0, table.num_rows)})
    asked: list[list[Asked]] = []
    listed = list(aggregates)
    for number, each in enumerate(listed):
        column = f"_{number}"
        values = pa.repeat(0, table.num_rows)
        if each.on is not None:
            check_column(table, [each.on])
            values = each.prepared(table.column(each.on))
        groups = groups.append_column(column, values)
        asked.append(each.asked(column))
    made = groups.group_by(by, use_threads=False).aggregate([one for some in asked for one in some])
    results = {
        each.name: each.finished(*(made.column(f"{column}_{how}") for column, how, _ in some))
        for each, some in zip(listed, asked, strict=True)
    }
    return pa.table({**{key: made.column(key) for key in keys}, **results})


attach_getattr(__name__)
