"""Columns of tensors in files of Ray Data: lists, with their shape beside the type."""

from __future__ import annotations

import json
import math

import pyarrow as pa

from dray.data.forms.blocks import Column, PickledType, Table

_NAMES = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")


def with_tensors(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a file, with tensors in place of Ray's lists."""
    return pa.schema([_with_tensor(field) for field in schema])


def _with_tensor(field: pa.Field) -> pa.Field:
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):  # Ray is imported here
        name, storage = kind.extension_name, kind.storage_type
        shape = list(getattr(kind, "shape", ()))
    else:
        told = field.metadata or {}
        name, storage = told.get(b"ARROW:extension:name", b"").decode(), kind
        shape = _shape(told.get(b"ARROW:extension:metadata", b""))
    if name not in _NAMES or not shape:
        return field
    try:
        return pa.field(field.name, pa.fixed_shape_tensor(storage.value_type, shape))
    except (pa.ArrowException, TypeError):
        return field


def _shape(text: bytes) -> list[int]:
    try:
        shape = json.loads(text)
    except ValueError:  # Ray has pickled it
        return []
    return shape if isinstance(shape, list) else []


def in_schema(table: Table, schema: pa.Schema) -> Table:
    """Return the columns of a schema as it has them; what a table lacks is null.

    Tensors of another shape stay as they are.

    Raises:
        pyarrow.ArrowInvalid: Values do not fit, in the column that is named.
    """
    if table.schema.equals(schema):
        return table
    return pa.table({field.name: _as_field(table, field) for field in schema})


def of_several_shapes(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return whether types are of tensors that no type of one shape can hold."""
    both = (kind, other)
    shapes = [getattr(each, "shape", None) for each in both]
    return shapes[0] != shapes[1] and all(isinstance(each, _TENSORS) for each in both)


_TENSORS = (pa.FixedShapeTensorType, PickledType)  # those of several shapes are pickled


def _as_field(table: Table, field: pa.Field) -> Column:
    if not table.schema.get_all_field_indices(field.name):
        return pa.nulls(table.num_rows, field.type)
    own = _with_tensor(table.schema.field(field.name)).type
    kind = own if of_several_shapes(own, field.type) else field.type
    try:
        return _cast(table.column(field.name), kind)
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(f"column {field.name!r}: {error}") from error


def _cast(column: Column, kind: pa.DataType) -> Column:
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if not isinstance(kind, pa.FixedShapeTensorType) or column.type == kind:
        return column.cast(kind)
    size = math.prod(kind.shape)
    chunks = []
    for chunk in column.chunks:
        lists = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        fixed = lists.cast(pa.list_(kind.value_type, size))
        chunks.append(pa.ExtensionArray.from_storage(kind, fixed))
    return pa.chunked_array(chunks, kind)
