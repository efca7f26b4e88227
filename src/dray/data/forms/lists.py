"""Lists in columns, and the arrays that they are in batches, and in rows if they were before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Beside the type of a column whose lists were arrays.
_WERE_ARRAYS = b"dray.arrays"


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers that lie side by side in memory."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of a type are lists, of any length or of one."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_compound(kind: pa.DataType) -> bool:
    """Return whether values of a type have parts, or are objects: Arrow compares no such ones."""
    return isinstance(kind, pa.BaseExtensionType) or pa.types.is_nested(kind)


def without_views(field: pa.Field) -> pa.Field:
    """Return a column whose texts and bytes are no views, of which Arrow takes no rows."""
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
    """Return a table without runs of equal values, of which Arrow neither orders nor writes any."""
    for index, field in enumerate(table.schema):
        if pa.types.is_run_end_encoded(field.type):
            values = pc.run_end_decode(table.column(index))
            table = table.set_column(index, field.with_type(field.type.value_type), values)
    return table


def as_arrays(lists: pa.Array) -> list[npt.NDArray[Any] | None]:
    """Return lists as arrays; lists of lists of numbers that are equally long as a matrix each."""
    rows = lists.to_numpy(zero_copy_only=False)
    within = lists.type
    while is_list(within):
        within = within.value_type
    if is_number(within) or pa.types.is_boolean(within):
        with contextlib.suppress(ValueError):
            return [None if row is None else _stacked(row) for row in rows]
    return list(rows)


def _stacked(row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return lists of lists as one array that may be written to.

    Raises:
        ValueError: They are not equally long.
    """
    if row.dtype != object:
        return row if row.flags.writeable else row.copy()
    if any(each is None for each in row):
        raise ValueError("there is no list where others have one")
    return np.stack([_stacked(each) for each in row])


def values_in(value: object) -> Iterable[object]:
    """Return the values of a list; what is none is the only one, and None has none."""
    if value is None:
        return ()
    return value if isinstance(value, list | np.ndarray) else [value]


def were_arrays(kind: pa.DataType, values: Iterable[object]) -> bool:
    """Return whether values are arrays that have become lists, as the first one tells.

    Args:
        kind: The type of their column.
    """
    within = kind.value_type if is_list(kind) else kind
    text = pa.types.is_string(within) or pa.types.is_large_string(within)
    if within is kind or not (text or is_number(within) or pa.types.is_boolean(within)):
        return False
    first = next((value for value in values if value is not None), None)
    return is_array(first)


def is_array(value: object) -> bool:
    """Return whether a value is an array or tensor of any library, and no single number."""
    return hasattr(value, "__array__") and not isinstance(value, np.generic)


def marked(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return a table that knows of columns of lists that these were arrays."""
    for name in names:
        index = table.column_names.index(name)
        field = table.schema.field(index).with_metadata({_WERE_ARRAYS: b""})
        table = table.set_column(index, field, table.column(index))
    return table


def marked_names(schema: pa.Schema) -> list[str]:
    """Return the columns of lists that were arrays."""
    return [field.name for field in schema if _WERE_ARRAYS in (field.metadata or {})]
