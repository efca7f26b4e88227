"""Functions on columns that Arrow lacks, with the results of Ray Data.

Each takes columns or single values, like the functions of `pyarrow.compute`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dray.data.forms.blocks import Array, Column, Value, one_chunk, to_column
from dray.data.forms.lists import is_list
from dray.data.forms.memory import handed_over
from dray.errors import ConfigError


def add(left: Value, right: Value) -> Value:
    """Return sums of numbers, or concatenated strings."""
    sides = [_decoded(left), _decoded(right)]
    if not any(map(_is_text, sides)):
        return pc.add(*sides)
    large = any(getattr(side, "type", None) == pa.large_string() for side in sides)
    kind = pa.large_string() if large else pa.string()
    texts = [pc.cast(side, kind) if _is_text(side) else side for side in sides]
    return pc.binary_join_element_wise(*texts, pa.scalar("", kind))


def _decoded(value: Value) -> Value:
    kind = getattr(value, "type", None)
    return value.cast(kind.value_type) if isinstance(kind, pa.DictionaryType) else value


def _is_text(value: Value) -> bool:
    kind = getattr(value, "type", None)
    if kind is None:
        return isinstance(value, str)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def floor_divide(left: Value, right: Value) -> Value:
    """Return quotients rounded down; quotients of integers are truncated."""
    return pc.floor(pc.divide(left, right))


def modulo(left: Value, right: Value) -> Value:
    """Return the remainders of `floor_divide`."""
    return pc.subtract(left, pc.multiply(floor_divide(left, right), right))


def is_in(values: Value, among: Value) -> Value:
    """Return whether each value is in a list of values."""
    among = among.as_py() if isinstance(among, pa.Scalar) else among
    known = among if isinstance(among, pa.Array | pa.ChunkedArray) else pa.array(among)
    return pc.is_in(values, known)


def not_in(values: Value, among: Value) -> Value:
    """Return whether each value is missing from a list of values."""
    return pc.invert(is_in(values, among))


def strip(texts: Value, characters: str | None = None) -> Value:
    """Return strings without whitespace, or without given characters, at both ends."""
    return pc.utf8_trim_whitespace(texts) if characters is None else pc.utf8_trim(texts, characters)


def lstrip(texts: Value, characters: str | None = None) -> Value:
    """Return strings stripped at the left end only."""
    blank = characters is None
    return pc.utf8_ltrim_whitespace(texts) if blank else pc.utf8_ltrim(texts, characters)


def rstrip(texts: Value, characters: str | None = None) -> Value:
    """Return strings stripped at the right end only."""
    blank = characters is None
    return pc.utf8_rtrim_whitespace(texts) if blank else pc.utf8_rtrim(texts, characters)


def pad(
    texts: Value, width: int, fillchar: str = " ", side: Literal["left", "right", "both"] = "right"
) -> Value:
    """Return strings padded to a minimum width."""
    by_side = {"left": pc.utf8_lpad, "right": pc.utf8_rpad, "both": pc.utf8_center}
    if side not in by_side:
        raise ConfigError(f"side must be 'left', 'right' or 'both', not {side!r}")
    return by_side[side](texts, width, fillchar)


def ceil_times(times: Value, unit: str) -> Value:
    """Return times rounded up to a whole unit, such as "day"."""
    return pc.ceil_temporal(times, multiple=1, unit=unit)


def floor_times(times: Value, unit: str) -> Value:
    """Return times rounded down to a whole unit."""
    return pc.floor_temporal(times, multiple=1, unit=unit)


def round_times(times: Value, unit: str) -> Value:
    """Return times rounded to the nearest whole unit."""
    return pc.round_temporal(times, multiple=1, unit=unit)


def slice_lists(
    lists: Value, start: int | None = None, stop: int | None = None, step: int | None = None
) -> Value:
    """Return a slice of each list."""
    return pc.list_slice(lists, start or 0, stop, 1 if step is None else step)


def to_list(lists: Column) -> Column:
    """Return fixed-size lists as variable-size lists."""
    kind = _kind_of_lists(lists, "to_list")
    return lists.cast(pa.list_(kind.value_type)) if pa.types.is_fixed_size_list(kind) else lists


def sort_lists(
    lists: Column,
    order: Literal["ascending", "descending"] = "ascending",
    null_placement: Literal["at_start", "at_end"] = "at_end",
) -> Column:
    """Return lists with their values sorted."""
    kind = _kind_of_lists(lists, "sort")
    lists = one_chunk(to_list(lists))
    lengths = _lengths(lists)
    rows: Array = np.repeat(np.arange(len(lists)), lengths)
    values = pc.list_flatten(lists)
    table = pa.table({"row": rows, "null": pc.is_null(values, nan_is_null=True), "value": values})
    nulls = "ascending" if null_placement == "at_end" else "descending"
    keys = [("row", "ascending"), ("null", nulls), ("value", order)]
    made = _lists_of(values.take(pc.sort_indices(table, sort_keys=keys)), _ends(lengths), lists)
    return made.cast(kind) if pa.types.is_fixed_size_list(kind) else made


def flatten_lists(lists: Column) -> Column:
    """Return nested lists flattened by one level."""
    _kind_of_lists(lists, "flatten")
    lists = one_chunk(lists)
    inner = pc.list_flatten(lists)
    _kind_of_lists(inner, "flatten")
    ends = _ends(_lengths(inner))[_ends(_lengths(lists))]
    return _lists_of(pc.list_flatten(inner), ends, lists)


def map_keys(maps: Column) -> Column:
    """Return the keys of maps as lists."""
    return _part_of_maps(maps, 0)


def map_values(maps: Column) -> Column:
    """Return the values of maps as lists."""
    return _part_of_maps(maps, 1)


def _part_of_maps(maps: Column, number: int) -> Column:
    maps = one_chunk(maps)
    if isinstance(maps.type, pa.MapType):
        pair = pa.struct([maps.type.key_field, maps.type.item_field])
        maps = maps.cast(pa.list_(pair))
    kind = _kind_of_lists(maps, "map").value_type
    if not pa.types.is_struct(kind) or kind.num_fields < 2:
        raise ConfigError(f"map takes a column of maps, not one of {maps.type}")
    return _lists_of(pc.struct_field(pc.list_flatten(maps), number), _ends(_lengths(maps)), maps)


def _kind_of_lists(column: Column, taker: str) -> pa.DataType:
    if not is_list(column.type):
        raise ConfigError(f"{taker} takes a column of lists, not one of {column.type}")
    return column.type


def _lengths(lists: pa.Array) -> Array:
    """Return the length of each list; 0 for null."""
    lengths: Array = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return lengths


def _ends(lengths: Array) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _lists_of(values: Column, ends: Array, like: pa.Array) -> pa.Array:
    """Return lists with these values and ends, null where the lists of `like` are null."""
    large = pa.types.is_large_list(like.type)
    made, kind = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
    return made.from_arrays(pa.array(ends, kind), one_chunk(values), mask=like.is_null())


# Users' functions.


@dataclass(frozen=True)
class UserKernel:
    """A user's function whose results become Arrow columns."""

    function: Callable[..., Value]

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __call__(self, *arguments: Value, **named: Value) -> Column:
        """Return the function's result for some columns as a column."""
        given = [self.function(*arguments, **named)]
        if isinstance(given[0], str) or not hasattr(given[0], "__len__"):
            raise ConfigError(
                f"{self.__name__} must return a column, of Arrow, NumPy or pandas, not a "
                f"{type(given[0]).__name__}"
            )
        made, _ = handed_over([{"": given.pop()}])
        return to_column(made[""])


class LateInstance:
    """A user's class that is instantiated in the process that calls it."""

    def __init__(self, kind: type, arguments: Sequence[object], named: Mapping[str, object]):
        self._how = kind, arguments, named
        self.__name__ = kind.__name__

    @functools.cached_property
    def _made(self) -> Any:
        kind, arguments, named = self._how
        return kind(*arguments, **named)

    def __reduce__(self) -> tuple[object, ...]:
        return LateInstance, self._how

    def __call__(self, *arguments: object, **named: object) -> Value:
        """Return the result of calling the instance."""
        return self._made(*arguments, **named)
