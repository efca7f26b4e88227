"""Aggregates to ask of groups by their classes: `rows.groupby("kind").aggregate(Mean("x"))`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from dray.checks import require
from dray.compat.arguments import checked_arguments
from dray.compat.attributes import attach_getattr

require("numpy", "dray[data]")
require("pyarrow", "dray[data]")

import numpy as np  # noqa: E402 (what is above says how to install it)
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402

from dray.data.forms.blocks import (  # noqa: E402
    Column,
    Row,
    Table,
    Value,
    table_rows,
    to_column,
    with_plain,
)
from dray.data.forms.chunks import Chunks  # noqa: E402
from dray.data.forms.names import column_named, free_names  # noqa: E402
from dray.data.operations import UserFunction  # noqa: E402
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


class Rows(NamedTuple):
    """Rows that are aggregated.

    Attributes:
        keys: The columns whose values make groups; none is one group.
    """

    chunks: Chunks
    keys: Sequence[str]


class AggregateFn:
    """One value for each group, made by functions of your own; the classes below are faster.

    All columns are held in memory for it.

    Args:
        init: It takes the value of the key (a tuple of several; None without any), and returns
            what to begin with.
        merge: It puts two results together: not called here, where each group is in one piece.
        name: Name of the result.
        accumulate_row: It takes what there is so far and a row, a dict, and returns what there is
            then.
        accumulate_block: The same for all rows of a group, a `pyarrow.Table`.
        finalize: It makes the result of what there is in the end; default: nothing more.

    Attributes:
        name: Name of the result.

    Raises:
        ConfigError: There are both ways to accumulate, or none.

    Example:
        >>> import dray.data
        >>> from dray.data.aggregate import AggregateFn
        >>> longest = AggregateFn(lambda key: 0, max, "longest", lambda n, row: max(n, row["id"]))
        >>> dray.data.range(5).aggregate(longest)
        {'longest': 4}
    """

    # The column; None for all of them, or for a number of rows.
    on: str | None = None

    def __init__(
        self,
        init: Callable[[Value], Value],
        merge: Callable[[Value, Value], Value],
        name: str,
        accumulate_row: Callable[[Value, Row], Value] | None = None,
        accumulate_block: Callable[[Value, Table], Value] | None = None,
        finalize: Callable[[Value], Value] | None = None,
    ) -> None:
        if (accumulate_row is None) == (accumulate_block is None):
            raise ConfigError("AggregateFn takes either accumulate_row or accumulate_block")
        self.name, self._init, self._finalize = name, init, finalize
        self._row, self._block = accumulate_row, accumulate_block

    def columns(self) -> list[str] | None:
        """Return the columns that are needed; None for all."""
        return None

    def prepared(self, table: Table) -> Column:
        """Return what Arrow aggregates: the numbers of rows."""
        return pa.array(np.arange(table.num_rows))

    def asked(self, column: str) -> list[Asked]:
        """Return what Arrow is asked for, of what is prepared."""
        return [(column, "list", None)]

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        """Return the results, made of what Arrow returns: the numbers of each group's rows."""
        return to_column([self._of_group(rows, numbers) for numbers in found.to_pylist()])

    def _of_group(self, rows: Rows, numbers: list[int]) -> Value:
        group = rows.chunks.take(np.array(numbers, np.int64))
        values = tuple(group.column(key)[0].as_py() for key in rows.keys)
        key = values[0] if len(values) == 1 else values or None
        try:
            so_far = self._init(key)
            if self._block is not None:
                so_far = self._block(so_far, group)
            if self._row is not None:
                so_far = functools.reduce(self._row, table_rows(group), so_far)
            return so_far if self._finalize is None else self._finalize(so_far)
        except Exception as error:
            function = UserFunction(self._init, "aggregate", called=f"AggregateFn {self.name!r}")
            raise function.failed(error, f"the group {key!r}") from error


class OfColumn(AggregateFn):
    """One value of a column for each group, which Arrow calculates.

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

    def columns(self) -> list[str] | None:
        """Return the columns that are needed."""
        return [] if self.on is None else [self.on]

    def prepared(self, table: Table) -> Column:
        """Return what Arrow aggregates."""
        if self.on is None:
            return pa.repeat(0, table.num_rows)
        return self.of_values(column_named(table, self.on))

    def of_values(self, values: Column) -> Column:
        """Return what is aggregated in place of the column's values."""
        return values

    def asked(self, column: str) -> list[Asked]:
        """Return what Arrow is asked for, of a column."""
        return [(column, self._how, self._options())]

    def _options(self) -> pc.FunctionOptions | None:
        return pc.ScalarAggregateOptions(skip_nulls=self._skip_nulls)

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        """Return the results, made of what Arrow returns."""
        return found


class Count(OfColumn):
    """The number of rows, or of those that have a value if nulls are to be left out."""

    _how = "count"

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def _options(self) -> pc.FunctionOptions:
        return pc.CountOptions("only_valid" if self._skip_nulls else "all")


class CountDistinct(Count):
    """The number of values that differ."""

    _how = "count_distinct"

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name)


class Sum(OfColumn):
    """The sum."""

    _how = "sum"


class Min(OfColumn):
    """The least value."""

    _how = "min"


class Max(OfColumn):
    """The greatest value."""

    _how = "max"


class AbsMax(Max):
    """The greatest value without its sign."""

    _called = "abs_max"

    def of_values(self, values: Column) -> Column:
        """Return what is aggregated in place of the column's values."""
        if pa.types.is_signed_integer(values.type):  # whose least has no counterpart
            values = values.cast(pa.int64())
        try:
            return pc.abs_checked(values)
        except pa.ArrowInvalid:  # the least one of these has a counterpart without a sign alone
            return pc.abs(values).cast(pa.uint64(), safe=False)


class Mean(OfColumn):
    """The mean."""

    _how = "mean"


class Std(OfColumn):
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

    def of_values(self, values: Column) -> Column:
        """Return what is aggregated in place of the column's values."""
        kind = values.type
        is_plain = not pa.types.is_null(kind) and not pa.types.is_boolean(kind)
        return values if is_plain else values.cast(pa.float64())

    def asked(self, column: str) -> list[Asked]:
        """Return what Arrow is asked for, of a column."""
        options = pc.VarianceOptions(ddof=self._ddof, skip_nulls=self._skip_nulls)
        return [(column, self._how, options), (column, "mean", self._options())]

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        """Return the results, made of what Arrow returns: NaN of too few values, null of none."""
        too_few = pc.and_(pc.is_null(found), pc.is_valid(beside[0]))
        return pc.if_else(too_few, math.nan, found)


class AsList(OfColumn):
    """All values, null among them unless nulls are to be left out."""

    _how = "list"

    def __init__(self, on: str, alias_name: str | None = None, ignore_nulls: bool = False) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def _options(self) -> pc.FunctionOptions | None:
        return None

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
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
        super().__init__(on, alias_name, ignore_nulls)

    def _options(self) -> pc.FunctionOptions:
        return pc.CountOptions("only_valid" if self._skip_nulls else "all")


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
        super().__init__(on, alias_name, ignore_nulls)
        self._part = q

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        """Return the results, made of what Arrow returns."""
        return pa.array(
            [self._quantile(values) for values in super().finished(rows, found).to_pylist()]
        )

    def _quantile(self, values: list[Value]) -> float | None:
        if not values or None in values:
            return None
        return float(np.quantile(values, self._part))


def columns_of(aggregates: Sequence[AggregateFn]) -> list[str] | None:
    """Return the columns that aggregates need; None for all."""
    for each in aggregates:
        if not isinstance(each, AggregateFn):
            raise ConfigError(
                f"aggregate takes such as Mean('x') of dray.data.aggregate, not {each!r}"
            )
    needed = [each.columns() for each in aggregates]
    if None in needed:
        return None
    return list(dict.fromkeys(name for names in needed for name in names or ()))


def aggregated(table: Table, keys: Sequence[str], aggregates: Iterable[AggregateFn]) -> Table:
    """Return the keys of a table's groups, each with its aggregates."""
    by = list(keys) or [_ALL_ROWS]
    groups = with_plain(table.select(keys), keys) if keys else table
    if not keys:
        groups = pa.table({_ALL_ROWS: pa.repeat(0, table.num_rows)})
    asked: list[list[Asked]] = []
    listed = list(aggregates)
    for number, each in enumerate(listed):
        column = f"_{number}"
        groups = groups.append_column(column, each.prepared(table))
        asked.append(each.asked(column))
    made = groups.group_by(by, use_threads=False).aggregate([one for some in asked for one in some])
    rows = Rows(Chunks(table), keys)
    names = free_names([each.name for each in listed], keys)
    results = {
        name: each.finished(rows, *(made.column(f"{column}_{how}") for column, how, _ in some))
        for name, each, some in zip(names, listed, asked, strict=True)
    }
    return pa.table({**{key: made.column(key) for key in keys}, **results})


attach_getattr(__name__)
