"""Columns of tensors in files of Ray Data: lists, with their shape beside the type."""

from __future__ import annotations

import json
import math

import pyarrow as pa

from dray.data.forms.blocks import Column, Table

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
    """Return the columns of a schema as it has them."""
    if table.schema.equals(schema):
        return table
    columns = [_as_field(table.column(field.name), field) for field in schema]
    return pa.table(columns, schema=schema)


def _as_field(column: Column, field: pa.Field) -> Column:
    kind = field.type
    if not isinstance(kind, pa.FixedShapeTensorType) or column.type == kind:
        return column.cast(kind)
    size = math.prod(kind.shape)
    chunks = []
    for chunk in column.chunks:
        lists = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        fixed = lists.cast(pa.list_(kind.value_type, size))
        chunks.append(pa.ExtensionArray.from_storage(kind, fixed))
    return pa.chunked_array(chunks, kind)
