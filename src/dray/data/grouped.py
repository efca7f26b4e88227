"""Rows by the values of some columns, aggregated block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dray.data.aggregate import AggregateFn, Max, Mean, Min, Sum, aggregated, columns_of
from dray.data.forms.blocks import Block, Table, check_format, concat, to_batch, to_table
from dray.data.operations import UserFunction
from dray.data.pipeline import P
from dray.data.relational import check_column, sorted_blocks
from dray.data.workers import check_options

__all__ = ["GroupedData"]

# New name -> column and "sum", "min", "max" or "count".
Wanted: TypeAlias = "Mapping[str, tuple[str | None, str]]"
# Aggregates of blocks that are kept before they are aggregated again.
_MOST_PARTS = 64


class GroupedData(Generic[P]):
    """The rows of a dataset by the values of some columns.

    Args:
        dataset: The rows.
        keys: The columns; none is one group of all rows.

    Example:
        >>> import dray.data
        >>> rows = dray.data.from_items([{"kind": "a", "x": 1}, {"kind": "a", "x": 3}])
        >>> rows.groupby("kind").mean("x").take_all()
        [{'kind': 'a', 'mean(x)': 2.0}]
    """

    def __init__(self, dataset: P, keys: Sequence[str]) -> None:
        self._dataset, self._keys = dataset, list(keys)

    def count(self) -> P:
        """Return how many rows each group has, as `count()`."""
        return self._made(lambda: self._reduced({"count()": (None, "count")}))

    def sum(self, on: str | Sequence[str] | None = None, *, ignore_nulls: bool = True) -> P:
        """Return the sum of columns in each group, as `sum(x)`; None is all that are numbers.

        Args:
            on: The columns.
            ignore_nulls: Whether rows without a value are left out; else one makes the result null.
        """
        return self._each("sum", on) if ignore_nulls else self._with_nulls(Sum, on)

    def min(self, on: str | Sequence[str] | None = None, *, ignore_nulls: bool = True) -> P:
        """Return the least values of columns in each group, as `min(x)`."""
        return self._each("min", on) if ignore_nulls else self._with_nulls(Min, on)

    def max(self, on: str | Sequence[str] | None = None, *, ignore_nulls: bool = True) -> P:
        """Return the greatest values of columns in each group, as `max(x)`."""
        return self._each("max", on) if ignore_nulls else self._with_nulls(Max, on)

    def mean(self, on: str | Sequence[str] | None = None, *, ignore_nulls: bool = True) -> P:
        """Return the means of columns in each group, as `mean(x)`."""
        if not ignore_nulls:
            return self._with_nulls(Mean, on)

        def produce() -> Iterator[Block]:
            names = self._columns(on)
            wanted: Wanted = {
                f"{how} {name}": (name, how) for name in names for how in ("sum", "count")
            }
            for block in self._reduced(wanted):
                table = block.table.select(self._keys)
                for name in names:
                    number = block.table.column(f"count {name}").cast(pa.float64())
                    total = block.table.column(f"sum {name}").cast(pa.float64())
                    number = pc.if_else(pc.equal(number, 0), None, number)
                    table = table.append_column(f"mean({name})", pc.divide(total, number))
                yield Block(table, block.origin)

        return self._made(produce)

    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1) -> P:
        """Return the standard deviations of columns in each group, as `std(x)`.

        The columns are held in memory for it.

        Args:
            on: The columns; None is all that are numbers.
            ddof: The number that is taken from the number of rows.
        """

        def produce() -> Iterator[Block]:
            names = self._columns(on)
            table = concat(
                [block.table.select([*self._keys, *names]) for block in self._blocks(names)]
            )
            options = pc.VarianceOptions(ddof=ddof)
            wanted = [(name, "stddev", options) for name in names]
            made = table.group_by(self._keys).aggregate(wanted)
            made = made.rename_columns(
                [name if name in self._keys else f"std({name[:-7]})" for name in made.column_names]
            )
            named = [f"std({name})" for name in names]
            yield from self._in_order(made.select([*self._keys, *named]))

        return self._made(produce)

    def aggregate(self, *aggs: AggregateFn) -> P:
        """Return aggregates of each group, as classes of `dray.data.aggregate` name them.

        The columns are held in memory for it.
        """
        names = columns_of(aggs)

        def produce() -> Iterator[Block]:
            wanted = list(dict.fromkeys([*self._keys, *names]))
            tables = []
            for block in self._blocks(wanted):
                check_column(block.table, names)
                tables.append(block.table.select(wanted) if wanted else block.table)
            if tables:
                yield from self._in_order(aggregated(concat(tables), self._keys, aggs))

        return self._made(produce)

    def map_groups(
        self,
        fn: Callable[..., Any],
        *,
        zero_copy_batch: bool = True,
        batch_format: str | None = "default",
        fn_args: Sequence[object] = (),
        fn_kwargs: Mapping[str, object] | None = None,
        fn_constructor_args: Sequence[object] = (),
        fn_constructor_kwargs: Mapping[str, object] | None = None,
        **workers: Any,
    ) -> P:
        """Return a dataset of what a function makes of each group; all rows are held in memory.

        Args:
            fn: It takes the batch of one group, and returns another batch; or a class that is
                called so.
            zero_copy_batch: Nothing; Ray's.
            batch_format: The format of the batch.
            fn_args: Arguments after the batch.
            fn_kwargs: The same by name.
            fn_constructor_args: Arguments of the class.
            fn_constructor_kwargs: The same by name.
            workers: `concurrency` and the like, without effect: groups are made in this process.
        """
        check_options("GroupedData.map_groups", workers)
        chosen = check_format(batch_format)
        function = UserFunction(
            fn,
            "map_groups",
            fn_args or (),
            fn_kwargs or {},
            fn_constructor_args or (),
            fn_constructor_kwargs or {},
        )

        def produce() -> Iterator[Block]:
            call = function.made()
            for block in sorted_blocks(self._blocks(), self._keys, [False] * len(self._keys)):
                for group in _groups(block.table, self._keys):
                    try:
                        made = call(to_batch(group, chosen))
                    except Exception as error:
                        raise function.failed(error, "a group") from error
                    yield Block(to_table(made, "what map_groups' function returns"), "a group")

        return self._made(produce)

    def _made(self, produce: Callable[[], Iterator[Block]]) -> P:
        return self._dataset.derived(produce, "aggregated rows")

    def _blocks(self, names: Iterable[str] | None = None) -> Iterator[Block]:
        needed = self._dataset
        if names is not None:
            needed = needed.only([*self._keys, *(name for name in names if name not in self._keys)])
        for block in needed.blocks():
            check_column(block.table, self._keys)
            yield block

    def _with_nulls(self, kind: type[AggregateFn], on: str | Sequence[str] | None) -> P:
        return self.aggregate(*(kind(name, ignore_nulls=False) for name in self._columns(on)))

    def _each(self, how: str, on: str | Sequence[str] | None) -> P:
        def produce() -> Iterator[Block]:
            return self._reduced({f"{how}({name})": (name, how) for name in self._columns(on)})

        return self._made(produce)

    def _columns(self, on: str | Sequence[str] | None) -> list[str]:
        if isinstance(on, str):
            return [on]
        if on is not None:
            return list(on)
        schema = self._dataset.arrow_schema()
        fields = () if schema is None else schema
        numbers = [
            field.name
            for field in fields
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        ]
        return [name for name in numbers if name not in self._keys]

    def _reduced(self, wanted: Wanted) -> Iterator[Block]:
        """Yield the aggregates of all groups, in the order of the keys; memory holds groups alone.

        Args:
            wanted: New name -> column and "sum", "min", "max" or "count".
        """
        parts: list[Table] = []
        names = list(dict.fromkeys(name for name, _ in wanted.values() if name is not None))
        for block in self._blocks(names if names or self._keys else None):
            check_column(block.table, names)
            parts.append(_aggregated(block.table, self._keys, wanted, first=True))
            if len(parts) > _MOST_PARTS:
                parts = [_aggregated(concat(parts), self._keys, wanted, first=False)]
        if parts:
            made = _aggregated(concat(parts), self._keys, wanted, first=False)
            yield from self._in_order(made)

    def _in_order(self, table: Table) -> Iterator[Block]:
        if not self._keys:
            yield Block(table, "aggregated rows")
            return
        yield from sorted_blocks([Block(table)], self._keys, [False] * len(self._keys))


def _aggregated(table: Table, keys: list[str], wanted: Wanted, *, first: bool) -> Table:
    """Return the aggregates of a table's groups: of rows first, and then of aggregates."""
    if not table.num_rows:
        return table
    chosen: list[Any] = []
    for new, (name, how) in wanted.items():
        if how == "count":
            counted: Any = (name or [], "count" if name else "count_all")
            chosen.append(counted if first else (new, "sum"))
        else:
            chosen.append((name, how) if first else (new, how))
    made = table.group_by(keys, use_threads=False).aggregate(chosen)
    columns = [made.column(key) for key in keys] + list(made.columns[: len(chosen)])
    if made.column_names[: len(keys)] == keys:
        columns = list(made.columns)
    return pa.table(columns, names=[*keys, *wanted])


def _groups(table: Table, keys: Sequence[str]) -> Iterator[Table]:
    """Yield the groups of a table that is in the order of its keys."""
    if not keys:
        yield table
        return
    numbers = table.select(keys).append_column("_row", pa.array(range(table.num_rows)))
    ends = numbers.group_by(list(keys), use_threads=False).aggregate([("_row", "max")])
    begin = 0
    for end in sorted(ends.column("_row_max").to_pylist()):
        yield table.slice(begin, end + 1 - begin)
        begin = end + 1
