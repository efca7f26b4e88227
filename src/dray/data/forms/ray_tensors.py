"""Tensor columns in files in Ray Data's format: lists, with the shape in the metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dray.data.forms.blocks import (
    Array,
    Column,
    Table,
    Value,
    column_to_numpy,
    column_to_values,
)
from dray.data.forms.lists import marked, marked_names, without_views
from dray.data.forms.pickles import PickledType, as_pickled, pickled
from dray.user_warnings import warn_user

_EXTENSION, _TOLD = b"ARROW:extension:name", b"ARROW:extension:metadata"
_NAMES = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
_OF_SEVERAL_SHAPES = "ray.data.arrow_variable_shaped_tensor"
_PICKLES = ("dray.pickled", "ray.data.arrow_pickled_object")


def with_tensors(schema: pa.Schema, *, pickles: bool = False) -> pa.Schema:
    """Return the schema of a file with tensor types for Ray's lists.

    Args:
        pickles: Whether to load the values of pickled columns.
    """
    return pa.schema([_with_tensor(field, pickles=pickles) for field in schema])


def pickled_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a file that contain pickles, which may run any code."""
    return [field.name for field in schema if _has_pickles(field)]


def _has_pickles(field: pa.Field) -> bool:
    kind = getattr(field.type, "storage_type", field.type)
    if pa.types.is_dictionary(kind):
        return _has_pickles(pa.field("", kind.value_type))
    inside = (kind.field(number) for number in range(kind.num_fields))
    return _extension(field) in _PICKLES or any(map(_has_pickles, inside))


def _extension(field: pa.Field) -> str:
    """Return the name of a field's Arrow extension type; "" if it has none."""
    if isinstance(field.type, pa.BaseExtensionType):  # for example Ray's types, if Ray is imported
        return str(field.type.extension_name)
    name: bytes = (field.metadata or {}).get(_EXTENSION, b"")
    return name.decode(errors="replace")


def _with_tensor(field: pa.Field, *, pickles: bool = False) -> pa.Field:
    kind, name = field.type, _extension(field)
    if isinstance(kind, pa.BaseExtensionType):
        storage, shape = kind.storage_type, list(getattr(kind, "shape", ()))
    else:
        storage = kind
        shape = _shape((field.metadata or {}).get(_TOLD, b""))
    ragged = name == _OF_SEVERAL_SHAPES and _is_struct(kind)
    if ragged or (pickles and name in _PICKLES):
        return pa.field(field.name, PickledType())
    if name not in _NAMES or not shape:
        return without_views(field)
    try:
        return pa.field(field.name, pa.fixed_shape_tensor(storage.value_type, shape))
    except (pa.ArrowException, TypeError, OverflowError):
        return field


def _shape(text: bytes) -> list[int]:
    try:
        shape = json.loads(text)
    except (ValueError, RecursionError):  # Ray has pickled the shape
        return []
    return shape if isinstance(shape, list) else []


def in_schema(table: Table, schema: pa.Schema) -> Table:
    """Return a table with the columns and types of a schema; missing columns are null.

    Tensors of another shape keep their shape.

    Raises:
        pyarrow.ArrowInvalid: Values do not fit into a column, which the message names.
    """
    if table.schema.equals(schema):
        return table
    fitting = pa.table({field.name: _as_field(table, field) for field in schema})
    return marked(fitting, set(marked_names(table.schema)) & set(schema.names))


def of_several_shapes(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two tensor types have no common type with one shape."""
    both = (kind, other)
    shapes = [getattr(each, "shape", None) for each in both]
    return shapes[0] != shapes[1] and all(isinstance(each, _TENSORS) for each in both)


_TENSORS = (pa.FixedShapeTensorType, PickledType)  # tensors of several shapes are pickled


def _as_field(table: Table, field: pa.Field) -> Column:
    if not table.schema.get_all_field_indices(field.name):
        return pa.nulls(table.num_rows, field.type)
    own = _with_tensor(table.schema.field(field.name)).type
    kind = own if of_several_shapes(own, field.type) else field.type
    try:
        return _cast(table.column(field.name), kind)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise pa.ArrowInvalid(f"column {field.name!r}: {error}") from error


def _cast(column: Column, kind: pa.DataType) -> Column:
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if column.type == kind:
        return column
    if isinstance(kind, PickledType):
        return _of_shapes(column) if _is_struct(column.type) else as_pickled(column)
    if not isinstance(kind, pa.FixedShapeTensorType):
        return column.cast(kind)
    size = math.prod(kind.shape)
    chunks = []
    for chunk in column.chunks:
        lists = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        fixed = lists.cast(pa.list_(kind.value_type, size))
        chunks.append(pa.ExtensionArray.from_storage(kind, fixed))
    return pa.chunked_array(chunks, kind)


def _is_struct(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(getattr(kind, "storage_type", kind)))


def _of_shapes(column: pa.ChunkedArray) -> Column:
    """Return structs of a list and a shape as tensors."""
    chunks = []
    for chunk in column.chunks:
        data, shapes = getattr(chunk, "storage", chunk).flatten()
        lists = zip(column_to_numpy(data), shapes.to_pylist(), strict=True)
        tensors = [None if one is None else one.reshape(shape) for one, shape in lists]
        chunks.append(pickled(tensors))
    return pa.chunked_array(chunks, PickledType())


def without_pickles(table: Table) -> Table:
    """Return a table for a file; tensors of several shapes become lists, as Ray writes them."""
    for index, field in enumerate(table.schema):
        if not isinstance(field.type, PickledType):
            continue
        values = column_to_values(table.column(index))
        there = [value for value in values if value is not None]
        if not there:
            table = table.set_column(index, field.name, pa.nulls(len(values)))
        elif (dtype := _type_of_all(there)) is not None:
            table = table.set_column(index, *_as_lists(field.name, values, dtype))
        else:
            warn_user(
                f"the values of column {field.name!r} are written as pickles, which only "
                "read_parquet(..., allow_pickle=True) reads"
            )
    return table


def _type_of_all(values: Sequence[Value]) -> np.dtype[Any] | None:
    """Return a type that holds the numbers of all arrays exactly; None if there is none."""
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in "iufb" for value in values):
        return None
    dtype = np.result_type(*{value.dtype for value in values})
    known = dtype.itemsize <= 8  # Arrow has no larger numbers
    return dtype if known and all(_is_same(value, dtype) for value in values) else None


def _is_same(array: Array, dtype: np.dtype[Any]) -> bool:
    if array.dtype == dtype:
        return True
    with np.errstate(invalid="ignore"):
        there_and_back = array.astype(dtype).astype(array.dtype)
    return np.array_equal(there_and_back, array, equal_nan=True)


def _as_lists(
    name: str, values: Sequence[Array | None], dtype: np.dtype[Any]
) -> tuple[pa.Field, pa.Array]:
    native = dtype.newbyteorder("=")
    flat = [None if one is None else np.ascontiguousarray(one, native).ravel() for one in values]
    shapes = [None if one is None else one.shape for one in values]
    lists = pa.StructArray.from_arrays(
        [
            pa.array(flat, pa.large_list(pa.from_numpy_dtype(native))),
            pa.array(shapes, pa.list_(pa.int64())),
        ],
        ["data", "shape"],
        mask=pa.array([one is None for one in values]),
    )
    dimensions = next(one.ndim for one in values if one is not None)
    told = {_EXTENSION: _OF_SEVERAL_SHAPES, _TOLD: str(dimensions)}
    return pa.field(name, lists.type, metadata=told), lists
