"""Aggregates by functions of your own, and the calculation of aggregates of all kinds."""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dray.data.forms.blocks import Column, Row, Table, Value, table_rows, to_column, with_plain
from dray.data.forms.chunks import Chunks
from dray.data.forms.names import free_names
from dray.data.operations import UserFunction
from dray.errors import ConfigError

# A column, the name of an Arrow function, and its options.
Asked: TypeAlias = tuple[str, str, pc.FunctionOptions | None]
AccumulatorType = TypeVar("AccumulatorType")
AggOutputType = TypeVar("AggOutputType")

_ALL_ROWS = "_all rows"
# Aggregates that Arrow can also compute of all rows without grouping, in a tenth of the time.
_WITHOUT_GROUPS = ("sum", "min", "max", "mean", "count")


class Rows(NamedTuple):
    """The rows to aggregate.

    Attributes:
        keys: The columns whose values form groups; without any, all rows are one group.
    """

    chunks: Chunks
    keys: Sequence[str]


class AggregateFn:
    """One value for each group, computed by your own functions; the built-in aggregates are faster.

    All columns are held in memory.

    Args:
        init: Returns the initial accumulator for a key: a value, a tuple of several values, or None
            without keys.
        merge: Combines two accumulators; dray does not call it, because it accumulates each group
            in one piece.
        name: Name of the result.
        accumulate_row: Returns the new accumulator for an accumulator and a row (a dict).
        accumulate_block: The same for all rows of a group, as a `pyarrow.Table`.
        finalize: Returns the result for the last accumulator; default: the accumulator itself.

    Attributes:
        name: Name of the result.

    Raises:
        ConfigError: `accumulate_row` and `accumulate_block` are both given or both missing.

    Example:
        >>> import dray.data
        >>> from dray.data.aggregate import AggregateFn
        >>> longest = AggregateFn(lambda key: 0, max, "longest", lambda n, row: max(n, row["id"]))
        >>> dray.data.range(5).aggregate(longest)
        {'longest': 4}
    """

    # The column; None for all columns, or for a number of rows.
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

    def get_agg_name(self) -> str:
        """Return the first part of the name: `mean` of `mean(x)`."""
        return self.name.partition("(")[0]

    def get_target_column(self) -> str | None:
        """Return the column; None for all columns, or for a number of rows."""
        return self.on

    def columns(self) -> list[str] | None:
        """Return the columns that are needed; None for all."""
        return None if self.on is None else [self.on]

    def prepared(self, table: Table) -> Column:
        """Return the input of Arrow's aggregation: the row numbers."""
        return pa.array(np.arange(table.num_rows))

    def asked(self, column: str) -> list[Asked]:
        """Return the aggregations that Arrow runs on the prepared column."""
        return [(column, "list", None)]

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        """Return the results, computed from Arrow's result: the row numbers of each group."""
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


class AggregateFnV2(AggregateFn, abc.ABC, Generic[AccumulatorType, AggOutputType]):
    """One value for each group, computed by the methods of your own class.

    The columns are held in memory: each group is aggregated in one piece.

    Args:
        name: Name of the result, such as `range(x)`.
        zero_factory: Returns the accumulator of a group without rows; dray does not call it,
            because there is no such group.
        on: The column; None for all columns.
        ignore_nulls: Whether to skip nulls. The methods must do this: they find the value in
            `self._ignore_nulls`, and the column's name in `self._target_col_name`.

    Raises:
        ConfigError: `name` is empty.

    Example:
        >>> import dray.data
        >>> import pyarrow.compute as pc
        >>> from dray.data.aggregate import AggregateFnV2
        >>> class Distance(AggregateFnV2):
        ...     def __init__(self, on):
        ...         super().__init__(f"distance({on})", lambda: [], on=on, ignore_nulls=True)
        ...     def aggregate_block(self, block):
        ...         ends = pc.min_max(block[self.get_target_column()]).as_py()
        ...         return [ends["min"], ends["max"]]
        ...     def combine(self, current_accumulator, new):
        ...         ends = current_accumulator + new
        ...         return [min(ends), max(ends)]
        ...     def finalize(self, accumulator):
        ...         return accumulator[1] - accumulator[0]
        >>> dray.data.range(5).aggregate(Distance("id"))
        {'distance(id)': 4}
    """

    def __init__(
        self,
        name: str,
        zero_factory: Callable[[], AccumulatorType],
        *,
        on: str | None,
        ignore_nulls: bool,
    ) -> None:
        if not name:
            raise ConfigError("an aggregate needs a name, that of its result")
        super().__init__(
            init=lambda key: zero_factory(),
            merge=self.combine,
            name=name,
            accumulate_block=lambda _, block: self.aggregate_block(block),
            finalize=lambda made: None if made is None else self.finalize(made),
        )
        self.on = self._target_col_name = on
        self._ignore_nulls = ignore_nulls

    @abc.abstractmethod
    def aggregate_block(self, block: Table) -> AccumulatorType | None:
        """Return the accumulator of rows; None if they have no value.

        Args:
            block: The rows.
        """

    @abc.abstractmethod
    def combine(
        self, current_accumulator: AccumulatorType, new: AccumulatorType
    ) -> AccumulatorType:
        """Combine two accumulators of a group; dray does not call it, because groups are whole.

        Args:
            current_accumulator: The accumulator of the first part.
            new: The accumulator of the second part.
        """

    def finalize(self, accumulator: AccumulatorType) -> AggOutputType | None:
        """Return the result of a group.

        Args:
            accumulator: The accumulator of its rows.
        """
        return accumulator  # type: ignore[return-value]


@contextlib.contextmanager
def _naming(aggregate: AggregateFn, table: Table) -> Iterator[None]:
    """Raise an error with the column's name if Arrow lacks the aggregate for the column's type."""
    try:
        yield
    except pa.ArrowNotImplementedError as error:
        if aggregate.on is None:
            raise
        raise unfit(aggregate.name, table.field(aggregate.on)) from error


def unfit(called: str, column: pa.Field) -> ConfigError:
    """Return the error for a column of which an aggregate cannot be computed."""
    return ConfigError(
        f"{called} does not work on column {column.name!r}, which is {column.type}: choose "
        "another column, or convert its values first"
    )


def columns_of(aggregates: Sequence[AggregateFn]) -> list[str] | None:
    """Return the columns that aggregates need; None for all."""
    for each in aggregates:
        if not isinstance(each, AggregateFn):
            raise ConfigError(
                "aggregate takes aggregates of dray.data.aggregate, such as Mean('x'), not "
                f"{each!r}"
            )
    needed = [each.columns() for each in aggregates]
    if None in needed:
        return None
    return list(dict.fromkeys(name for names in needed for name in names or ()))


def aggregated(table: Table, keys: Sequence[str], aggregates: Iterable[AggregateFn]) -> Table:
    """Return a table with the keys and aggregates of each group."""
    groups = with_plain(table.select(keys), keys) if keys else table
    if not keys:
        groups = pa.table({_ALL_ROWS: pa.repeat(0, table.num_rows)})
    asked: list[list[Asked]] = []
    listed = list(aggregates)
    for number, each in enumerate(listed):
        column = f"_{number}"
        with _naming(each, table):
            groups = groups.append_column(column, each.prepared(table))
        asked.append(each.asked(column))
    every = [one for some in asked for one in some]
    by = list(keys)
    if not keys and any(how not in _WITHOUT_GROUPS for _, how, _ in every):
        by = [_ALL_ROWS]
    try:
        made = groups.group_by(by, use_threads=False).aggregate(every)
    except pa.ArrowNotImplementedError:
        for each, some in zip(listed, asked, strict=True):
            with _naming(each, table):  # the first aggregate that Arrow cannot compute alone either
                groups.slice(0, 0).group_by(by).aggregate(some)
        raise
    rows = Rows(Chunks(table), keys)
    names = free_names([each.name for each in listed], keys)
    results = {
        name: each.finished(rows, *(made.column(f"{column}_{how}") for column, how, _ in some))
        for name, each, some in zip(names, listed, asked, strict=True)
    }
    return pa.table({**{key: made.column(key) for key in keys}, **results})
