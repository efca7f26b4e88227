"""Aggregates of a column's values that Arrow computes."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dray import checks
from dray.compat.arguments import checked_arguments
from dray.data.aggregate.base import AggregateFn, Asked, Rows, unfit
from dray.data.aggregate.sums import summable, summed
from dray.data.forms.blocks import (
    Column,
    Table,
    Value,
    column_to_values,
    plain_values,
    to_column,
)
from dray.data.forms.lists import is_compound, is_number
from dray.data.forms.names import check_column
from dray.data.relational import hashable
from dray.errors import ConfigError


class OfColumn(AggregateFn):
    """One value for each group, which Arrow computes from a column.

    Args:
        on: The column.
        ignore_nulls: Whether to skip nulls; if False, one null makes the result null.
        alias_name: Name of the result; default: a name such as `mean(x)`.

    Attributes:
        on: The column; None for a number of rows.
        name: Name of the result.
    """

    # The name of the Arrow function, and the prefix of the results' names.
    _how = ""
    _called = ""

    def __init__(
        self, on: str | None, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        self.on = on
        self.name = alias_name or f"{self._called or self._how}({on or ''})"
        self._skip_nulls = ignore_nulls

    def columns(self) -> list[str] | None:
        return [] if self.on is None else [self.on]

    def prepared(self, table: Table) -> Column:
        if self.on is None:
            return pa.repeat(0, table.num_rows)
        check_column(table, [self.on])
        return self.of_values(plain_values(table.column(self.on)))

    def of_values(self, values: Column) -> Column:
        """Return the values to aggregate in place of the column's values."""
        return values

    def asked(self, column: str) -> list[Asked]:
        return [(column, self._how, self._options())]

    def _options(self) -> pc.FunctionOptions | None:
        return pc.ScalarAggregateOptions(skip_nulls=self._skip_nulls)

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        return found


class Count(OfColumn):
    """The number of rows, or of non-null values if nulls are skipped."""

    _how = "count"

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def _options(self) -> pc.FunctionOptions:
        return pc.CountOptions("only_valid" if self._skip_nulls else "all")


class CountDistinct(Count):
    """The number of distinct values."""

    _how = "count_distinct"

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def of_values(self, values: Column) -> Column:
        kind = values.type  # Arrow counts a column of the type null as having no null
        return _first_rows(values) if is_compound(kind) or pa.types.is_null(kind) else values


def _first_rows(values: Column) -> Column:
    """Return the number of the first row with the value of each row; null stays null."""
    first: dict[Hashable, int] = {}
    numbers = [
        None if value is None else first.setdefault(hashable(value), row)
        for row, value in enumerate(column_to_values(values))
    ]
    return pa.array(numbers, pa.int64())


class Sum(OfColumn):
    """The sum; a sum of integers that does not fit into 64 bits is an error."""

    _how = "sum"

    def of_values(self, values: Column) -> Column:
        return summable(values)

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        return summed(found, rows.chunks.table.field(self.on).type, self.name)


class Min(OfColumn):
    """The least value."""

    _how = "min"


class Max(OfColumn):
    """The greatest value."""

    _how = "max"


class AbsMax(Max):
    """The greatest absolute value."""

    _called = "abs_max"

    def of_values(self, values: Column) -> Column:
        if pa.types.is_signed_integer(values.type):  # abs(-128) does not fit int8
            values = values.cast(pa.int64())
        try:
            return pc.abs_checked(values)
        except pa.ArrowInvalid:  # only uint64 holds the absolute value of the least int64
            return pc.abs(values).cast(pa.uint64(), safe=False)


class Mean(OfColumn):
    """The mean."""

    _how = "mean"


class Std(OfColumn):
    """The standard deviation; NaN if there are at most `ddof` values.

    Args:
        on: The column.
        ddof: Delta degrees of freedom: the divisor is the number of values minus `ddof`.
        ignore_nulls: Whether to skip nulls.
        alias_name: Name of the result.
    """

    _how, _called = "stddev", "std"

    def __init__(
        self, on: str, ddof: int = 1, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self._ddof = ddof

    def of_values(self, values: Column) -> Column:
        kind = values.type
        is_plain = not pa.types.is_null(kind) and not pa.types.is_boolean(kind)
        return values if is_plain else values.cast(pa.float64())

    def asked(self, column: str) -> list[Asked]:
        options = pc.VarianceOptions(ddof=self._ddof, skip_nulls=self._skip_nulls)
        return [(column, self._how, options), (column, "mean", self._options())]

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        # NaN if there are too few values, null if there are none.
        too_few = pc.and_(pc.is_null(found), pc.is_valid(beside[0]))
        return pc.if_else(too_few, math.nan, found)


class AsList(OfColumn):
    """All values as a list; nulls are included unless they are skipped."""

    _how = "list"

    def __init__(self, on: str, alias_name: str | None = None, ignore_nulls: bool = False) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def of_values(self, values: Column) -> Column:
        return self._rows(values) if is_compound(values.type) else values

    def _rows(self, values: Column) -> Column:
        """Return row numbers in place of values of types that Arrow cannot put into lists."""
        each = enumerate(column_to_values(values))
        return pa.array([None if value is None else row for row, value in each], pa.int64())

    def _options(self) -> pc.FunctionOptions | None:
        return None

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        lists = found.to_pylist()
        if self._skip_nulls:
            lists = [[value for value in values if value is not None] for values in lists]
        values = rows.chunks.table.column(self.on)
        if is_compound(values.type):
            each = column_to_values(values)
            return to_column([[None if n is None else each[n] for n in group] for group in lists])
        return pa.array(lists, found.type) if self._skip_nulls else found


@checked_arguments("Unique")
class Unique(AsList):
    """The distinct values as a list."""

    _how, _called = "distinct", "unique"

    def __init__(self, on: str, ignore_nulls: bool = False, alias_name: str | None = None) -> None:
        super().__init__(on, alias_name, ignore_nulls)

    def _rows(self, values: Column) -> Column:
        return _first_rows(values)

    def _options(self) -> pc.FunctionOptions:
        return pc.CountOptions("only_valid" if self._skip_nulls else "all")


class Quantile(AsList):
    """A quantile of a column.

    Args:
        on: The column.
        q: The fraction of the quantile, from 0 to 1.
        ignore_nulls: Whether to skip nulls.
        alias_name: Name of the result.
    """

    _called = "quantile"

    def __init__(
        self, on: str, q: float = 0.5, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        super().__init__(on, alias_name, ignore_nulls)
        self._part = checks.plain(q)
        if not is_part(self._part):
            raise ConfigError(f"q must be a number from 0 to 1, not {q!r}")

    def of_values(self, values: Column) -> Column:
        kind = values.type
        if not (is_number(kind) or any(holds(kind) for holds in _LIKE_NUMBERS)):
            raise unfit(self.name, pa.field(self.on, kind))
        return values.cast(pa.float64(), safe=False)

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        return pa.array(
            [self._quantile(values) for values in super().finished(rows, found).to_pylist()]
        )

    def _quantile(self, values: list[Value]) -> float | list[float] | None:
        if not values or None in values:
            return None
        return float(np.quantile(values, self._part))


_LIKE_NUMBERS = (pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)


def is_part(value: object) -> bool:
    """Return whether a value is a number from 0 to 1."""
    number = checks.plain(value)
    return checks.is_number(number) and 0 <= number <= 1
