"""Lists in columns; they are arrays in batches, and also in rows if the program gave arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# The metadata key of columns whose lists were arrays.
_WERE_ARRAYS = b"dray.arrays"


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is a number type with contiguous values in memory."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is a list type, of variable or fixed size."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_compound(kind: pa.DataType) -> bool:
    """Return whether a type is nested or an extension type, whose values Arrow cannot compare."""
    return isinstance(kind, pa.BaseExtensionType) or pa.types.is_nested(kind)


def without_views(field: pa.Field) -> pa.Field:
    """Return a field without view types for strings and bytes; Arrow cannot take rows of these."""
    kind = field.type
    if pa.types.is_string_view(kind):
        kind = pa.large_string()
    elif pa.types.is_binary_view(kind):
        kind = pa.large_binary()
    elif pa.types.is_struct(kind):
        kind = pa.struct([without_views(kind.field(n)) for n in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(without_views(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(without_views(kind.value_field))
    return field.with_type(kind)


def without_runs(table: pa.Table) -> pa.Table:
    """Return a table without run-end encoding, which Arrow can neither sort nor write."""
    for index, field in enumerate(table.schema):
        if pa.types.is_run_end_encoded(field.type):
            values = pc.run_end_decode(table.column(index))
            table = table.set_column(index, field.with_type(field.type.value_type), values)
    return table


def as_arrays(lists: pa.Array) -> list[npt.NDArray[Any] | None]:
    """Return lists as arrays; nested lists of numbers with equal lengths become matrices."""
    rows = lists.to_numpy(zero_copy_only=False)
    within = lists.type
    while is_list(within):
        within = within.value_type
    if is_number(within) or pa.types.is_boolean(within):
        with contextlib.suppress(ValueError):
            return [None if row is None else _stacked(row) for row in rows]
    return list(rows)


def _stacked(row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return nested lists as one writable array.

    Raises:
        ValueError: The lists have different lengths.
    """
    if row.dtype != object:
        return row if row.flags.writeable else row.copy()
    if any(each is None for each in row):
        raise ValueError("a row has no list where other rows have one")
    return np.stack([_stacked(each) for each in row])


def values_in(value: object) -> Iterable[object]:
    """Return the values of a list; another value is returned in a list, and None has no values."""
    if value is None:
        return ()
    return value if isinstance(value, list | np.ndarray) else [value]


def were_arrays(kind: pa.DataType, values: Iterable[object]) -> bool:
    """Return whether values in a list column are arrays, judging by the first one.

    Args:
        kind: The type of the column.
    """
    within = kind.value_type if is_list(kind) else kind
    text = pa.types.is_string(within) or pa.types.is_large_string(within)
    if within is kind or not (text or is_number(within) or pa.types.is_boolean(within)):
        return False
    first = next((value for value in values if value is not None), None)
    return is_array(first)


def is_array(value: object) -> bool:
    """Return whether a value is an array or tensor of any library, but not a single number."""
    return hasattr(value, "__array__") and not isinstance(value, np.generic)


def marked(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return a table that records which columns of lists were arrays."""
    for name in names:
        index = table.column_names.index(name)
        field = table.schema.field(index).with_metadata({_WERE_ARRAYS: b""})
        table = table.set_column(index, field, table.column(index))
    return table


def marked_names(schema: pa.Schema) -> list[str]:
    """Return the columns of lists that were arrays."""
    return [field.name for field in schema if _WERE_ARRAYS in (field.metadata or {})]
