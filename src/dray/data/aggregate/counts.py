"""Aggregates that count: values, nulls, zeros and the most frequent values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dray.checks import is_whole, plain
from dray.data.aggregate.base import AggregateFn, Rows
from dray.data.aggregate.of_columns import OfColumn, Quantile, is_part
from dray.data.forms.blocks import Column, Row, Value, row_values
from dray.data.forms.lists import is_number, values_in
from dray.data.relational import hashable
from dray.errors import ConfigError


class _OfValues(AggregateFn):
    """One result for each group, computed from the Python values of a column."""

    on: str

    def __init__(self, on: str, name: str) -> None:
        self.on, self.name = on, name

    def _of_group(self, rows: Rows, numbers: list[int]) -> Value:
        group = rows.chunks.take(np.array(numbers, np.int64))
        return self._of_values(row_values(group, self.on))

    def _of_values(self, values: list[Value]) -> Value:
        raise NotImplementedError


class ValueCounter(_OfValues):
    """The distinct values and the count of each, as `{"values": [...], "counts": [...]}`.

    Args:
        on: The column.
        alias_name: Name of the result; default: a name such as `value_counter(x)`.

    Example:
        >>> import dray.data
        >>> from dray.data.aggregate import ValueCounter
        >>> dray.data.from_items(["a", "b", "a"]).aggregate(ValueCounter("item"))
        {'value_counter(item)': {'values': ['a', 'b'], 'counts': [2, 1]}}
    """

    def __init__(self, on: str, alias_name: str | None = None) -> None:
        super().__init__(on, alias_name or f"value_counter({on})")

    def _of_values(self, values: list[Value]) -> dict[str, list[Value]]:
        counted = _counted(values)
        return {
            "values": [value for value, _ in counted],
            "counts": [times for _, times in counted],
        }


def _counted(values: Sequence[Value]) -> list[tuple[Value, int]]:
    """Return the distinct values in the order of their first occurrence, with their counts."""
    found: dict[object, list[Value]] = {}
    for value in values:
        found.setdefault(hashable(value), []).append(value)
    return [(same[0], len(same)) for same in found.values()]


class _Percentage(OfColumn):
    """The percentage of rows of a kind; null if there are no rows to count."""

    _how = "mean"

    def finished(self, rows: Rows, found: Column, *beside: Column) -> Column:
        return pc.multiply(found, 100.0)


class MissingValuePercentage(_Percentage):
    """The percentage of rows that are null or NaN.

    Args:
        on: The column.
        alias_name: Name of the result; default: a name such as `missing_pct(x)`.

    Example:
        >>> import dray.data
        >>> from dray.data.aggregate import MissingValuePercentage
        >>> rows = dray.data.from_items([{"x": 1}, {"x": None}])
        >>> rows.aggregate(MissingValuePercentage("x"))
        {'missing_pct(x)': 50.0}
    """

    _called = "missing_pct"

    def __init__(self, on: str, alias_name: str | None = None) -> None:
        super().__init__(on, alias_name=alias_name)

    def of_values(self, values: Column) -> Column:
        return pc.is_null(values, nan_is_null=True).cast(pa.float64())


class ZeroPercentage(_Percentage):
    """The percentage of rows that are zero.

    Args:
        on: The column of numbers.
        ignore_nulls: Whether to leave nulls out of the count; if False, they count as nonzero.
        alias_name: Name of the result; default: a name such as `zero_pct(x)`.

    Example:
        >>> import dray.data
        >>> from dray.data.aggregate import ZeroPercentage
        >>> dray.data.range(4).aggregate(ZeroPercentage("id"))
        {'zero_pct(id)': 25.0}
    """

    _called = "zero_pct"

    def of_values(self, values: Column) -> Column:
        if pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
            values = values.cast(pa.int8())
        zero = pa.scalar(0, values.type) if is_number(values.type) else 0
        zeros = pc.equal(values, zero).cast(pa.float64())
        return zeros if self._skip_nulls else pc.fill_null(zeros, 0.0)


class ApproximateQuantile(Quantile):
    """The quantiles of a column, as a list; they are exact in dray.

    Ray estimates them with Apache DataSketches, which uses less memory.

    Args:
        on: The column of numbers; NaN counts as null.
        quantiles: The fractions of the quantiles, from 0 to 1.
        quantile_precision: Ignored, because quantiles are exact; for compatibility with Ray.
        alias_name: Name of the result; default: a name such as `approx_quantile(x)`.

    Example:
        >>> import dray.data
        >>> from dray.data.aggregate import ApproximateQuantile
        >>> dray.data.range(101).aggregate(ApproximateQuantile("id", [0.1, 0.5]))
        {'approx_quantile(id)': [10.0, 50.0]}
    """

    _called = "approx_quantile"

    def __init__(
        self,
        on: str,
        quantiles: Sequence[float],
        quantile_precision: int = 800,
        alias_name: str | None = None,
    ) -> None:
        super().__init__(on, alias_name=alias_name)
        if not isinstance(quantiles, Iterable) or not all(map(is_part, quantiles)):
            raise ConfigError(
                f"quantiles must be a list of numbers from 0 to 1, such as [0.5], not {quantiles!r}"
            )
        self._parts = list(quantiles)

    def _quantile(self, values: list[Value]) -> list[float] | None:
        numbers = np.sort([float(value) for value in values if not math.isnan(value)])
        if not len(numbers):
            return None
        places = (min(int(part * len(numbers)), len(numbers) - 1) for part in self._parts)
        return [float(numbers[place]) for place in places]


class ApproximateTopK(_OfValues):
    """The most frequent values, as a list such as `[{"x": "a", "count": 2}]`; exact in dray.

    Ray estimates them with Apache DataSketches, which uses less memory.

    Args:
        on: The column.
        k: The number of values.
        log_capacity: Ignored, because counts are exact; for compatibility with Ray.
        alias_name: Name of the result; default: a name such as `approx_topk(x)`.
        encode_lists: Whether to count the values inside lists; if False, a list counts as one
            value.

    Example:
        >>> import dray.data
        >>> from dray.data.aggregate import ApproximateTopK
        >>> dray.data.from_items(["a", "b", "a"]).aggregate(ApproximateTopK("item", 1))
        {'approx_topk(item)': [{'item': 'a', 'count': 2}]}
    """

    def __init__(
        self,
        on: str,
        k: int,
        log_capacity: int = 15,
        alias_name: str | None = None,
        encode_lists: bool = False,
    ) -> None:
        super().__init__(on, alias_name or f"approx_topk({on})")
        if not is_whole(plain(k), 1):
            raise ConfigError(f"k must be a number of values, 1 or more, not {k!r}")
        self._most, self._in_lists = plain(k), encode_lists

    def _of_values(self, values: list[Value]) -> list[Row]:
        if self._in_lists:
            values = [each for value in values for each in values_in(value)]
        counted = _counted([value for value in values if value is not None])
        counted.sort(key=lambda each: -each[1])
        return [{self.on: value, "count": times} for value, times in counted[: self._most]]
