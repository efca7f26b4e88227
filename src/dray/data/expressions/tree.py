"""Expressions as trees: columns, values, and functions on them."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dray.data.columns import kernels
from dray.data.datatype import DataType
from dray.data.forms.blocks import Column, Table, Value
from dray.data.forms.names import column_named
from dray.errors import ConfigError


def _method(function: Callable[..., Value], first: builtins.str = "") -> Callable[..., Expr]:
    """Return a method that calls a function with an expression and further arguments.

    Args:
        first: The name of the first of these in Ray, if the function names it otherwise.
    """

    def method(self: Any, *arguments: object, **named: object) -> Expr:
        if first in named:
            arguments = (named.pop(first), *arguments)
        return Call(function, (self._expr, *arguments), named)

    method.__doc__ = f"Return what `{function.__name__}` makes of the values."
    return method


def _methods(*functions: Callable[..., Value]) -> tuple[Callable[..., Expr], ...]:
    return tuple(_method(function) for function in functions)


def _reflected(function: Callable[..., Value]) -> Callable[..., Expr]:
    """Return the same for an operator whose left operand is a plain value."""
    return lambda self, other: Call(function, (other, self), {})


@dataclass(frozen=True)
class Functions:
    """Functions on values of one type."""

    _expr: Expr


class StringFunctions(Functions):
    """Functions on strings: `col("name").str.upper()`; options are those of `pyarrow.compute`."""

    len, byte_len = _method(pc.utf8_length), _method(pc.binary_length)
    upper, lower = _method(pc.utf8_upper), _method(pc.utf8_lower)
    capitalize, title = _method(pc.utf8_capitalize), _method(pc.utf8_title)
    swapcase, reverse = _method(pc.utf8_swapcase), _method(pc.utf8_reverse)
    is_alpha, is_alnum = _method(pc.utf8_is_alpha), _method(pc.utf8_is_alnum)
    is_digit, is_decimal = _method(pc.utf8_is_digit), _method(pc.utf8_is_decimal)
    is_numeric, is_space = _method(pc.utf8_is_numeric), _method(pc.utf8_is_space)
    is_lower, is_upper = _method(pc.utf8_is_lower), _method(pc.utf8_is_upper)
    is_title, is_printable = _method(pc.utf8_is_title), _method(pc.utf8_is_printable)
    is_ascii = _method(pc.string_is_ascii)
    starts_with, ends_with = _method(pc.starts_with), _method(pc.ends_with)
    contains, match = _method(pc.match_substring), _method(pc.match_like)
    match_regex, extract = _method(pc.match_substring_regex), _method(pc.extract_regex)
    find, find_regex = _method(pc.find_substring), _method(pc.find_substring_regex)
    count, count_regex = _method(pc.count_substring), _method(pc.count_substring_regex)
    replace, replace_regex = _method(pc.replace_substring), _method(pc.replace_substring_regex)
    replace_slice, slice = _method(pc.binary_replace_slice), _method(pc.utf8_slice_codeunits)
    split, split_regex = _method(pc.split_pattern), _method(pc.split_pattern_regex)
    split_whitespace, repeat = _method(pc.utf8_split_whitespace), _method(pc.binary_repeat, "n")
    center, lpad, rpad = _methods(pc.utf8_center, pc.utf8_lpad, pc.utf8_rpad)
    strip, lstrip, rstrip = _methods(kernels.strip, kernels.lstrip, kernels.rstrip)
    pad = _method(kernels.pad)


class ListFunctions(Functions):
    """Functions on lists: `col("items").list.len()`, `col("items").list[0]`."""

    len, get = _method(pc.list_value_length), _method(pc.list_element, "index")
    sort, flatten = _method(kernels.sort_lists), _method(kernels.flatten_lists)

    slice = _method(kernels.slice_lists)

    def __getitem__(self, key: int | builtins.slice) -> Expr:
        if isinstance(key, builtins.slice):
            return self.slice(key.start, key.stop, key.step)
        return self.get(key)


class ArrayFunctions(Functions):
    """Functions on fixed-size lists: `col("pair").arr.to_list()`."""

    to_list = _method(kernels.to_list)


class StructFunctions(Functions):
    """Functions on records: `col("user").struct["name"]`."""

    field = __getitem__ = _method(pc.struct_field, "field_name")
    field_by_index = _method(pc.struct_field, "index")


class MapFunctions(Functions):
    """Functions on maps: `col("headers").map.keys()`."""

    keys, values = _method(kernels.map_keys), _method(kernels.map_values)


class TimeFunctions(Functions):
    """Functions on dates and times: `col("at").dt.year()`."""

    year, month, day = _methods(pc.year, pc.month, pc.day)
    hour, minute, second = _methods(pc.hour, pc.minute, pc.second)
    strftime = _method(pc.strftime, "fmt")
    ceil, floor, round = _methods(kernels.ceil_times, kernels.floor_times, kernels.round_times)


class Expr:
    """An expression on the columns of a row; create one with `col` or `lit`.

    It supports Python's operators (`& | ~` instead of `and`, `or`, `not`) and methods on numbers.
    `str`, `list`, `struct`, `map`, `arr` and `dt` have the functions on other types.

    Example:
        >>> import dray.data
        >>> from dray.data.expressions import col
        >>> rows = dray.data.from_items([{"name": "ada", "age": 36}, {"name": "bob", "age": 7}])
        >>> rows.filter(expr=(col("age") > 30) & col("name").str.starts_with("a")).take_all()
        [{'name': 'ada', 'age': 36}]
    """

    @property
    def name(self) -> builtins.str | None:
        """The name of the column or alias; None for other expressions."""
        return None

    @property
    def _expr(self) -> Expr:
        return self

    def of(self, table: Table) -> Value:
        """Return the values of a table's rows: a column, or one value for all rows."""
        raise NotImplementedError

    def column(self, table: Table) -> Column:
        """Return the values of a table's rows as a column."""
        values = self.of(table)
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values
        value = values if isinstance(values, pa.Scalar) else pa.scalar(values)
        return pa.repeat(value, table.num_rows)

    __add__, __radd__ = _method(kernels.add), _reflected(kernels.add)
    __sub__, __rsub__ = _method(pc.subtract), _reflected(pc.subtract)
    __mul__, __rmul__ = _method(pc.multiply), _reflected(pc.multiply)
    __truediv__, __rtruediv__ = _method(pc.divide), _reflected(pc.divide)
    __floordiv__, __rfloordiv__ = _method(kernels.floor_divide), _reflected(kernels.floor_divide)
    __mod__, __rmod__ = _method(kernels.modulo), _reflected(kernels.modulo)
    __gt__, __ge__ = _method(pc.greater), _method(pc.greater_equal)
    __lt__, __le__ = _method(pc.less), _method(pc.less_equal)
    __eq__, __ne__ = _method(pc.equal), _method(pc.not_equal)  # type: ignore[assignment]
    __and__, __or__ = _method(pc.and_kleene), _method(pc.or_kleene)
    __invert__ = _method(pc.invert)
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise ConfigError(
            f"{self!r} has a value for each row: write (a > 1) & ~(b < 2), not a > 1 and not b < 2"
        )

    is_null, is_not_null = _method(pc.is_null), _method(pc.is_valid)
    is_in, not_in = _method(kernels.is_in, "values"), _method(kernels.not_in, "values")
    ceil, floor, round, trunc = _methods(pc.ceil, pc.floor, pc.round, pc.trunc)
    ln, log10, log2, exp = _methods(pc.ln, pc.log10, pc.log2, pc.exp)
    sin, cos, tan = _methods(pc.sin, pc.cos, pc.tan)
    asin, acos, atan = _methods(pc.asin, pc.acos, pc.atan)
    negate, sign, abs = _methods(pc.negate_checked, pc.sign, pc.abs_checked)
    power = _method(pc.power, "exponent")

    def cast(self, target_type: DataType | pa.DataType, *, safe: bool = True) -> Expr:
        """Return the values converted to another type.

        Args:
            target_type: The type, such as `DataType.int64()`, or an Arrow type.
            safe: Whether a value that does not fit raises an error.
        """
        if isinstance(target_type, DataType):
            target_type = target_type.to_arrow_dtype()
        if not isinstance(target_type, pa.DataType):
            raise ConfigError(f"cast takes a type such as DataType.int64(), not {target_type!r}")
        return Call(pc.cast, (self, target_type), {"safe": safe})

    def alias(self, name: builtins.str) -> Expr:
        """Return the same expression with a name."""
        return AliasExpr(self, name)

    str = functools.cached_property(StringFunctions)
    list = functools.cached_property(ListFunctions)
    arr = functools.cached_property(ArrayFunctions)
    struct = functools.cached_property(StructFunctions)
    map = functools.cached_property(MapFunctions)
    dt = functools.cached_property(TimeFunctions)


@dataclass(frozen=True, eq=False, repr=False)
class ColumnExpr(Expr):
    """The values of a column, created by `col`."""

    _name: str

    @property
    def name(self) -> str:
        return self._name

    def of(self, table: Table) -> Value:
        return column_named(table, self._name)

    def __repr__(self) -> str:
        return f"col({self._name!r})"


@dataclass(frozen=True, eq=False, repr=False)
class LiteralExpr(Expr):
    """A constant for all rows, created by `lit`."""

    value: Value

    def of(self, table: Table) -> Value:
        return self.value

    def __repr__(self) -> str:
        return f"lit({self.value!r})"


@dataclass(frozen=True, eq=False, repr=False)
class AliasExpr(Expr):
    """An expression with another name, created by `alias`."""

    expr: Expr
    _name: str

    @property
    def name(self) -> str:
        return self._name

    def of(self, table: Table) -> Value:
        return self.expr.of(table)

    def __repr__(self) -> str:
        return f"{self.expr!r}.alias({self._name!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Call(Expr):
    """A function call on the values of other expressions and on constants."""

    function: Callable[..., Value]
    arguments: Sequence[object]
    named: Mapping[str, object]

    def of(self, table: Table) -> Value:

        def value(argument: object) -> Value:
            return argument.of(table) if isinstance(argument, Expr) else argument

        named = {name: value(argument) for name, argument in self.named.items()}
        return self.function(*map(value, self.arguments), **named)

    def __repr__(self) -> str:
        named = (f"{name}={argument!r}" for name, argument in self.named.items())
        return f"{self.function.__name__}({', '.join([*map(repr, self.arguments), *named])})"


@dataclass(frozen=True, eq=False, repr=False)
class Generated(Expr):
    """Values that depend on no column, such as random numbers."""

    make: Callable[[Table], Column]
    called: str

    def of(self, table: Table) -> Value:
        return self.make(table)

    def __repr__(self) -> str:
        return self.called


@dataclass(frozen=True)
class UnnestExpr:
    """The fields of records as columns, created by `unnest`."""

    expr: Expr

    def columns(self, table: Table) -> dict[str, Column]:
        """Return the columns by name."""
        records = self.expr.column(table)
        if not pa.types.is_struct(records.type):
            raise ConfigError(
                f"unnest takes a column of records, but {self.expr!r} is of {records.type}"
            )
        names = [field.name for field in records.type]
        return dict(zip(names, records.flatten(), strict=True))


def checked(expr: object, taker: str) -> Expr:
    """Return `expr` if it is an expression, else raise an error."""
    if not isinstance(expr, Expr):
        raise ConfigError(f"{taker} takes an expression such as col('x') + 1, not {expr!r}")
    return expr
