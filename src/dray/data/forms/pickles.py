"""Columns of values that Arrow has no type for; each value is pickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import cloudpickle
import pyarrow as pa

from dray.errors import ConfigError, describe


class PickledType(pa.ExtensionType):  # type: ignore[misc]
    """The type of columns with pickled values.

    It is not registered with Arrow; otherwise Arrow would find it in files of unknown origin, and
    loading them would run their code.
    """

    def __init__(self) -> None:
        super().__init__(pa.large_binary(), "dray.pickled")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.Array, serialized: bytes) -> PickledType:
        return cls()

    def __reduce__(self) -> tuple[object, ...]:
        return PickledType, ()

    def __hash__(self) -> int:
        return hash(self.extension_name)


def with_pickles(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table from Arrow, with the pickled columns of the schema."""
    for field in schema:
        if isinstance(field.type, PickledType):
            index = table.column_names.index(field.name)
            table = table.set_column(index, field.name, as_pickled(table.column(index)))
    return table


def as_pickled(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of pickles with the type of their values; the pickles must be trusted."""
    kind = PickledType()
    storage = [getattr(chunk, "storage", chunk).cast(kind.storage_type) for chunk in column.chunks]
    return pa.chunked_array([pa.ExtensionArray.from_storage(kind, each) for each in storage], kind)


def pickled(values: Iterable[object]) -> pa.ExtensionArray:
    """Return values of any type as an Arrow array; None becomes null."""
    try:
        storage = pa.array([cloudpickle.dumps(value) for value in values], pa.large_binary())
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            "dray pickles values for which Arrow has no type, and these values cannot be "
            f"pickled: {describe(error)}"
        ) from error
    return pa.ExtensionArray.from_storage(PickledType(), storage)


def unpickled(storage: pa.Array) -> list[object]:
    """Return the values of pickles, which must come from a trusted source."""
    return [None if each is None else pickle.loads(each) for each in storage.to_pylist()]
