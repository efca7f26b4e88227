"""Groups of rows with equal values of some columns, aggregated block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dray.data.aggregate import AggregateFn, Count, Max, Min, Std, Sum
from dray.data.aggregate.base import aggregated, columns_of
from dray.data.aggregate.of_columns import OfColumn
from dray.data.columns import projections
from dray.data.expressions import Expr
from dray.data.forms.blocks import (
    Batch,
    Block,
    Column,
    Table,
    Value,
    check_format,
    concat,
    with_plain,
)
from dray.data.forms.lists import is_number
from dray.data.forms.names import check_column, free_names
from dray.data.operations import FunctionOperation, MapBatches, UserFunction
from dray.data.pipeline import P
from dray.data.pools.options import check_options, in_workers
from dray.data.relational import sorted_blocks
from dray.errors import ConfigError

__all__ = ["GroupedData"]

# A column, several columns, or None for all numeric columns.
Columns: TypeAlias = "str | Sequence[str] | None"

# The new name -> a column and one of `_KINDS`.
Wanted: TypeAlias = "Mapping[str, tuple[str | None, str]]"
# The limits of aggregated blocks kept before they are combined, and of parts for workers.
_MOST_PARTS = 64


class GroupedData(Generic[P]):
    """The rows of a dataset, grouped by the values of some columns.

    Args:
        dataset: The dataset.
        keys: The columns; an empty list makes one group of all rows.

    Example:
        >>> import dray.data
        >>> rows = dray.data.from_items([{"kind": "a", "x": 1}, {"kind": "a", "x": 3}])
        >>> rows.groupby("kind").mean("x").take_all()
        [{'kind': 'a', 'mean(x)': 2.0}]
    """

    def __init__(self, dataset: P, keys: Sequence[str]) -> None:
        self._dataset, self._keys = dataset, list(keys)

    def __repr__(self) -> str:
        keys = self._keys[0] if len(self._keys) == 1 else self._keys or None
        return f"GroupedData(dataset={self._dataset!r}, key={keys!r})"

    def count(self) -> P:
        """Return the number of rows of each group, as `count()`."""
        [name] = free_names(["count()"], self._keys)
        return self._made(lambda: self._reduced({name: (None, "count")}))

    def sum(self, on: Columns = None, ignore_nulls: bool = True) -> P:
        """Return the sum of columns in each group, as `sum(x)`.

        Args:
            on: The columns; None selects all numeric columns.
            ignore_nulls: Whether to skip nulls; if False, one null makes the result null.
        """
        return self._each("sum", on, ignore_nulls)

    def min(self, on: Columns = None, ignore_nulls: bool = True) -> P:
        """Return the least value of columns in each group, as `min(x)`; see `sum`."""
        return self._each("min", on, ignore_nulls)

    def max(self, on: Columns = None, ignore_nulls: bool = True) -> P:
        """Return the greatest value of columns in each group, as `max(x)`; see `sum`."""
        return self._each("max", on, ignore_nulls)

    def mean(self, on: Columns = None, ignore_nulls: bool = True) -> P:
        """Return the mean of columns in each group, as `mean(x)`; see `sum`."""
        chosen = _chosen(on)

        def produce() -> Iterator[Block]:
            names = self._columns(chosen)
            means = free_names([f"mean({name})" for name in names], self._keys)
            numbers = free_names([f"count({name})" for name in names], [*self._keys, *means])
            wanted: Wanted = {
                **{mean: (name, "total") for mean, name in zip(means, names, strict=True)},
                **{number: (name, "count") for number, name in zip(numbers, names, strict=True)},
            }
            for block in self._reduced(wanted, ignore_nulls):
                table = block.table.select(self._keys)
                for mean, counted in zip(means, numbers, strict=True):
                    number = block.table.column(counted).cast(pa.float64(), safe=False)
                    total = block.table.column(mean).cast(pa.float64(), safe=False)
                    number = pc.if_else(pc.equal(number, 0), None, number)
                    table = table.append_column(mean, pc.divide(total, number))
                yield Block(table, block.origin)

        return self._made(produce)

    def std(self, on: Columns = None, ddof: int = 1, ignore_nulls: bool = True) -> P:
        """Return the standard deviation of columns in each group, as `std(x)`; NaN for one row.

        The columns are held in memory.

        Args:
            on: The columns; None selects all numeric columns.
            ddof: Delta degrees of freedom: the divisor is the number of rows minus `ddof`.
            ignore_nulls: Whether to skip nulls; if False, one null makes the result null.
        """
        chosen = _chosen(on)
        return self._made(
            lambda: self._of_classes([Std(n, ddof, ignore_nulls) for n in self._columns(chosen)])
        )

    def aggregate(self, *aggs: AggregateFn) -> P:
        """Return aggregates of each group, given as classes of `dray.data.aggregate`.

        The columns are held in memory.
        """
        columns_of(aggs)
        return self._made(lambda: self._of_classes(aggs))

    def with_column(self, column_name: str, expr: Expr, **workers: Any) -> P:
        """Return all rows with an added column that is calculated group by group.

        Args:
            column_name: The name of the column.
            expr: The expression of its values.
            workers: As for `map_groups`.
        """
        check_options(GroupedData.with_column, workers)
        add = projections.Columns([{column_name: expr}], "with_column")
        return self.map_groups(add, batch_format="pyarrow", **workers)

    def map_groups(
        self,
        fn: Callable[..., Batch],
        *,
        zero_copy_batch: bool = True,
        batch_format: str | None = "default",
        fn_args: Sequence[object] | None = None,
        fn_kwargs: Mapping[str, object] | None = None,
        fn_constructor_args: Sequence[object] | None = None,
        fn_constructor_kwargs: Mapping[str, object] | None = None,
        **workers: object,
    ) -> P:
        """Return a dataset with the results of a function for each group; all rows are in memory.

        Args:
            fn: A function that takes the batch of one group and returns or yields batches, or a
                class with such a `__call__`.
            zero_copy_batch: False passes arrays that the function may write to.
            batch_format: "pandas" (also "default"), "numpy" (a dict of arrays) or "pyarrow" (also
                None).
            fn_args: Positional arguments of the function, after the batch.
            fn_kwargs: Keyword arguments of the function.
            fn_constructor_args: Positional arguments of the class's constructor.
            fn_constructor_kwargs: Keyword arguments of the class's constructor.
            workers: `concurrency`, `num_cpus`, `num_gpus`, as for `Dataset.map_batches`.

        Raises:
            ConfigError: An argument is invalid.
        """
        chosen = check_format(batch_format)
        function = UserFunction(
            fn, "map_groups", fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
        )
        batches = MapBatches(
            function, None, "pandas" if chosen == "default" else chosen, copied=not zero_copy_batch
        )
        groups = MapGroups(function, batches, tuple(self._keys))
        operation = in_workers(GroupedData.map_groups, groups, workers)
        return self._made(lambda: operation.apply(self._parts()))

    def _made(self, produce: Callable[[], Iterator[Block]]) -> P:
        return self._dataset.derived(produce, "aggregated rows")

    def _blocks(self, names: Iterable[str] | None = None) -> Iterator[Block]:
        needed = self._dataset
        if names is not None:
            needed = needed.only([*self._keys, *(name for name in names if name not in self._keys)])
        for block in needed.blocks():
            if block.table.num_rows:
                check_column(block.table, self._keys)
                yield block

    def _parts(self) -> Iterator[Block]:
        """Yield the rows sorted by the keys, in parts that contain whole groups."""
        blocks = self._blocks()
        if self._keys:
            blocks = sorted_blocks(blocks, self._keys, [False] * len(self._keys))
        tables = [block.table for block in blocks]
        if not tables:
            return
        table = concat(tables)
        least, begin = table.num_rows // _MOST_PARTS, 0
        for end in _ends(table, self._keys):
            if end - begin > least or end == table.num_rows:
                yield Block(table.slice(begin, end - begin))
                begin = end

    def _of_classes(self, aggregates: Sequence[AggregateFn]) -> Iterator[Block]:
        names = columns_of(aggregates)
        wanted = None if names is None else list(dict.fromkeys([*self._keys, *names]))
        tables = []
        for block in self._blocks(wanted):
            check_column(block.table, names or ())
            tables.append(block.table.select(wanted) if wanted else block.table)
        if tables:
            yield from self._in_order(aggregated(concat(tables), self._keys, aggregates))

    def _each(self, how: str, on: Columns, ignore_nulls: bool) -> P:
        chosen = _chosen(on)

        def produce() -> Iterator[Block]:
            names = self._columns(chosen)
            results = free_names([f"{how}({name})" for name in names], self._keys)
            wanted = {new: (name, how) for new, name in zip(results, names, strict=True)}
            return self._reduced(wanted, ignore_nulls)

        return self._made(produce)

    def _columns(self, chosen: list[str] | None) -> list[str]:
        if chosen is not None:
            return chosen
        schema = self._dataset.arrow_schema()
        if schema is not None and any(map(pa.types.is_null, schema.types)):
            none = (block.table.slice(0, 0) for block in self._dataset.blocks())
            schema = concat([schema.empty_table(), *none]).schema  # later rows may have values
        fields = () if schema is None else schema
        numbers = [field.name for field in fields if is_number(field.type)]
        return [name for name in numbers if name not in self._keys]

    def _reduced(self, wanted: Wanted, ignore_nulls: bool = True) -> Iterator[Block]:
        """Yield the aggregates of all groups, sorted by the keys, holding a row for each group.

        Args:
            wanted: The new name -> a column and one of `_KINDS`.
            ignore_nulls: Whether to skip nulls.
        """
        parts: list[Table] = []
        names = list(dict.fromkeys(name for name, _ in wanted.values() if name is not None))
        for block in self._blocks(names if names or self._keys else None):
            check_column(block.table, names)
            parts.append(_aggregated(block.table, self._keys, wanted, ignore_nulls, first=True))
            if len(parts) > _MOST_PARTS:
                parts = [_aggregated(concat(parts), self._keys, wanted, ignore_nulls)]
        if parts:
            yield from self._in_order(_aggregated(concat(parts), self._keys, wanted, ignore_nulls))

    def _in_order(self, table: Table) -> Iterator[Block]:
        if not self._keys:
            yield Block(table, "aggregated rows")
            return
        yield from sorted_blocks([Block(table)], self._keys, [False] * len(self._keys))


@dataclass(frozen=True)
class MapGroups(FunctionOperation):
    """Calls a function with each group; blocks hold whole groups, sorted by their keys."""

    batches: MapBatches
    keys: Sequence[str]
    keeps_rows: bool | None = field(default=False, init=False)

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        return replace(self.batches, function=self.function).apply(self._groups(blocks))

    def _groups(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            begin = 0
            for end in _ends(block.table, self.keys):
                group = block.table.slice(begin, end - begin)
                values = [f"{key}={group.column(key)[0].as_py()!r}" for key in self.keys]
                yield Block(group, f"the group {', '.join(values)}" if values else "all rows")
                begin = end


def _ends(table: Table, keys: Sequence[str]) -> list[int]:
    """Return the end of each group in a table that is sorted by its keys."""
    if not keys:
        return [table.num_rows]
    numbers = with_plain(table.select(keys), keys).append_column(
        "_row", pa.array(range(1, table.num_rows + 1))
    )
    ends = numbers.group_by(list(keys), use_threads=False).aggregate([("_row", "max")])
    return sorted(ends.column("_row_max").to_pylist())


def named_columns(names: Value, taker: str) -> list[str]:
    """Return one or several columns as a list."""
    several = isinstance(names, Iterable) and not isinstance(names, str)
    listed = list(names) if several else [names]
    for name in listed:
        if not isinstance(name, str):
            raise ConfigError(f"{taker} takes columns by their names, not {name!r}")
    return listed


def _chosen(on: Columns) -> list[str] | None:
    """Return the columns to aggregate as a list; None for all numeric columns."""
    if on is None:
        return None
    listed = named_columns(on, "an aggregate")
    if not listed:
        raise ConfigError("an aggregate takes a column or several: mean('x') or mean(['x', 'y'])")
    return listed


def _aggregated(
    table: Table, keys: list[str], wanted: Wanted, ignore_nulls: bool, *, first: bool = False
) -> Table:
    """Return the aggregates of a table's groups, from rows or from earlier aggregates."""
    made = []
    for new, (name, how) in wanted.items():
        kind = _KINDS[how] if first or how != "count" else Sum
        made.append(kind(name if first else new, ignore_nulls or how == "count", alias_name=new))
    return aggregated(table, keys, made)


class _Total(Sum):
    """The sum of numbers of any size, from which a mean is calculated."""

    def of_values(self, values: Column) -> Column:
        return values.cast(pa.float64(), safe=False) if is_number(values.type) else values


_KINDS: dict[str, type[OfColumn]] = {
    "sum": Sum,
    "min": Min,
    "max": Max,
    "count": Count,
    "total": _Total,
}
