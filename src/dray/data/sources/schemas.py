"""A common schema for files that are read together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from dray.data.forms.blocks import refuse_doubled
from dray.data.forms.ray_tensors import of_several_shapes, pickled_columns, with_tensors
from dray.errors import ConfigError, StorageError, describe, shown_url

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def unified(
    files: Sequence[str],
    ends: Sequence[pq.FileMetaData],
    columns: Sequence[str] | None,
    *,
    allow_pickle: bool,
) -> pa.Schema:
    """Return a schema with the columns of all files, with types that hold the values of all files.

    Args:
        columns: The columns to read; None reads all.

    Raises:
        StorageError: No type holds all values of a column.
        ConfigError: A column is pickled, or two columns have the same name.
    """
    whose: dict[pa.Schema, str] = {}
    for path, schema in _new_ones(files, ends):
        if not allow_pickle:
            _check_no_pickles(schema, columns, path)
        refuse_doubled(schema.names, path)
        whose.setdefault(with_tensors(schema, pickles=allow_pickle), path)
    if len(whose) == 1:
        return next(iter(whose))
    names = dict.fromkeys(name for schema in whose for name in schema.names)
    return pa.schema([(name, _type_for_all(name, whose)) for name in names])


def _check_no_pickles(schema: pa.Schema, columns: Sequence[str] | None, path: str) -> None:
    for name in pickled_columns(schema):
        if columns is None or name in columns:
            raise ConfigError(
                f"{path} has pickled values in column {name!r}, and loading them may run any "
                "code: pass allow_pickle=True if you trust the file's author, or columns= "
                "without that column"
            )


def _new_ones(
    files: Sequence[str], ends: Sequence[pq.FileMetaData]
) -> Iterator[tuple[str, pa.Schema]]:
    """Yield files with their schemas, skipping most schemas that have occurred before.

    Converting the footer of each file to an Arrow schema would take a third as long as reading it.
    """
    seen: dict[bytes, pq.ParquetSchema] = {}
    last: pa.Schema | None = None
    for path, end in zip(files, ends, strict=True):
        told = (end.metadata or {}).get(b"ARROW:schema", b"")  # types that Parquet lacks
        if told in seen and seen[told].equals(end.schema):
            continue
        seen[told] = end.schema
        schema = end.schema.to_arrow_schema().remove_metadata()
        if last is None or not schema.equals(last, check_metadata=True):
            yield shown_url(path), schema
        last = schema


def _type_for_all(name: str, whose: Mapping[pa.Schema, str]) -> pa.DataType:
    types: dict[pa.DataType, str] = {}
    for schema, path in whose.items():
        for index in schema.get_all_field_indices(name):
            types.setdefault(schema.field(index).type, path)
    (kind, first), *rest = types.items()
    own = kind
    for other, path in rest:
        try:
            kind = _wider(kind, other)
        except pa.ArrowException as error:
            raise StorageError(
                f"{first} and {path} cannot be read together: column {name!r} is {own} in the "
                f"one and {other} in the other; read them separately and convert them to one "
                f"type, or choose the type with schema= ({describe(error)})"
            ) from error
        if kind == other:
            own, first = other, path
    return kind


def _wider(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type that holds the values of two types."""
    if of_several_shapes(kind, other):
        return kind  # blocks keep their shapes; `concat` converts them when it joins blocks
    both = (kind, other)
    if all(isinstance(each, pa.FixedShapeTensorType) for each in both):
        return pa.fixed_shape_tensor(_wider(kind.value_type, other.value_type), kind.shape)
    if sum(pa.types.is_dictionary(each) for each in both) == 1:
        both = tuple(getattr(each, "value_type", each) for each in both)
    alone = [pa.schema([("", each)]) for each in both]
    return pa.unify_schemas(alone, promote_options="permissive").field(0).type


def schema_of_all(schemas: Sequence[pa.Schema]) -> pa.Schema | None:
    """Return the columns of several schemas, with types that hold the values of all.

    Return None if a column has no such type, or if there are no schemas.
    """
    try:
        return pa.unify_schemas(schemas, promote_options="permissive") if schemas else None
    except pa.ArrowException:
        return None
