"""Blocks of rows as Arrow tables, and the forms in which programs see them: rows and batches."""

from __future__ import annotations

import contextlib
import math
import pickle
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import cloudpickle

from dray.checks import require
from dray.errors import ConfigError, describe

require("numpy", "dray[data]")
require("pyarrow", "dray[data]")

import numpy as np  # noqa: E402 (what is above says how to install it)
import numpy.typing as npt  # noqa: E402
import pyarrow as pa  # noqa: E402

if TYPE_CHECKING:
    import pandas as pd

# Names of pyarrow and pandas, which have no types that mypy could read: it takes them for Any.
Table: TypeAlias = pa.Table
Column: TypeAlias = pa.Array | pa.ChunkedArray
Frame: TypeAlias = "pd.DataFrame"
# Those of NumPy, of any type of numbers or objects.
Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
RowNumbers: TypeAlias = npt.NDArray[np.int64]
# Arrays, a Frame or a Table, as the batch format says.
Batch: TypeAlias = Any
# A value of a row, of any type that users give it.
Value: TypeAlias = Any
Row: TypeAlias = dict[str, Value]

# The column of values that are no rows, as Ray Data calls it.
ITEM = "item"
# The column of numbers, and of arrays, as Ray Data calls them.
ID, DATA = "id", "data"

FORMATS = ("default", "numpy", "pandas", "pyarrow")


class Block(NamedTuple):
    """A block of rows.

    Attributes:
        table: The rows.
        origin: Their file and numbers, for messages.
        own: Whether memory that Arrow takes for writable is nobody else's, so that it may be
            written to.
    """

    table: Table
    origin: str = ""
    own: bool = False


class PickledType(pa.ExtensionType):  # type: ignore[misc]
    """The type of columns whose values Arrow has no type for: each is pickled."""

    def __init__(self) -> None:
        super().__init__(pa.large_binary(), "dray.pickled")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.Array, serialized: bytes) -> PickledType:
        return cls()

    def __reduce__(self) -> tuple[object, ...]:
        return PickledType, ()


def register_types() -> None:
    """Have Arrow know the type of pickled values in files and messages; once is enough."""
    with contextlib.suppress(pa.ArrowKeyError):  # it is known
        pa.register_extension_type(PickledType())


register_types()


def to_table(data: Batch, whence: str = "a block") -> Table:
    """Return columns of any kind as a table.

    Args:
        data: A mapping of columns, a table or record batch of Arrow, a DataFrame of pandas or
            Polars.
        whence: Its name in the message.

    Raises:
        ConfigError: It is something else, or its columns are not of one length.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        columns = {str(name): to_column(values) for name, values in data.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(f"{whence} has columns of different lengths: {lengths}")
        return pa.table(columns)
    kind = type(data).__module__.partition(".")[0]
    if kind == "pandas":
        return _from_pandas(data)
    if kind == "polars":
        return data.to_arrow()
    raise ConfigError(
        f"{whence} must be a dict of columns, a pandas.DataFrame or a pyarrow.Table, not a "
        f"{type(data).__name__}"
    )


def _from_pandas(frame: Frame) -> Table:
    if all(frame[name].dtype != object for name in frame.columns) and frame.columns.is_unique:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    return pa.table({str(name): _from_series(frame[name]) for name in frame.columns})


def _from_series(values: pd.Series) -> Column:
    """Return a column of pandas, to which NaN is no value."""
    return to_column(values) if values.dtype == object else pa.array(values, from_pandas=True)


def rows_to_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """Return rows as a table; what a row lacks is null."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return pa.table({str(name): to_column([row.get(name) for row in rows]) for name in names})


def to_row(value: object) -> Row:
    """Return a value as a row; what is no mapping becomes the column `item`."""
    return dict(value) if isinstance(value, Mapping) else {ITEM: value}


def to_column(values: Value) -> Column:
    """Return the values of a column as an Arrow array: tensors by shape, the unknown pickled."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    values = as_array(values)
    if isinstance(values, np.ndarray):
        if values.ndim == 0:
            raise ConfigError(f"a column must have a value for each row, not one: {values!r}")
        if values.dtype != object:
            return _from_array(values)
    return _from_values(list(values))


def as_array(values: Value) -> Value:
    """Return tensors of torch, Series and the like as NumPy arrays, and all else as it is."""
    if isinstance(values, pa.Array | pa.ChunkedArray):  # these have the methods below as well
        return values
    if hasattr(values, "detach"):  # a tensor of torch
        values = values.detach().cpu().numpy()
    if hasattr(values, "to_numpy"):  # a Series of pandas or Polars
        values = values.to_numpy()
    if hasattr(values, "__array__") and not isinstance(values, np.ndarray):  # of JAX, say
        values = np.asarray(values)
    return values


def handed_over(results: list[Batch]) -> tuple[Batch, bool]:
    """Return a batch that a function has returned, and whether its memory is nobody else's.

    Arrays that somebody else may still write to are copied: the function may keep an array, and
    return it again with other values. Those that only the batch refers to are not. Arrays that
    nobody may write to, such as the function's own arguments, stay as they are, so that Arrow
    knows their memory for such.

    Args:
        results: The batch, to which nothing but this list may refer.
    """
    alone = _counts(results) == [_ALONE]
    batch = results[0]
    if not isinstance(batch, dict):
        return batch, False
    columns = {
        name: _kept_apart(values, alone and references == _ALONE)
        for (name, values), references in zip(batch.items(), _counts(batch.values()), strict=True)
    }
    return columns, not any(isinstance(c, pa.Array | pa.ChunkedArray) for c in columns.values())


def _counts(objects: Iterable[object]) -> list[int]:
    """Return how many references there are to objects; no Python code has one meanwhile.

    What a function of Python adds to it depends on the interpreter: Python 3.14 lends references.
    """
    return list(map(sys.getrefcount, objects))


_ALONE = _counts([object()])[0]  # for an object that a list or dict alone refers to


def _kept_apart(values: Value, alone: bool) -> Value:
    array = as_array(values)
    if not isinstance(array, np.ndarray) or not array.flags.writeable or array.dtype == object:
        return array
    alone = alone and array is values and array.flags.owndata
    return array if alone and not weakref.getweakrefcount(array) else array.copy()


def _from_array(values: Array) -> Column:
    if values.ndim == 1:
        return pa.array(values)
    if values.dtype == bool or not len(values) or values.dtype.kind not in "iuf":
        return _from_values(list(values)) if len(values) else pa.array([], pa.null())
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(values.dtype), values.shape[1:])
    native = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    numbers = _numbers(native, kind.value_type)
    storage = pa.FixedSizeListArray.from_arrays(numbers, math.prod(values.shape[1:]))
    return pa.ExtensionArray.from_storage(kind, storage)


def _numbers(values: Array, kind: pa.DataType) -> pa.Array:
    """Return an array of numbers without a copy, and without pandas, which pa.array() imports."""
    return pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(values)])


def _from_values(values: list[Value]) -> Column:
    """Return Python values as an array of whatever type holds them all."""
    arrays = [np.asarray(value) for value in values if _is_tensor(value)]
    if arrays and len(arrays) == len(values):
        alike = {(array.shape, array.dtype) for array in arrays}
        if len(alike) == 1 and arrays[0].dtype.kind in "iuf":
            return _from_array(np.stack(arrays))
        if any(array.ndim != 1 for array in arrays):
            return _pickled(values)
        values = list(arrays)
    for nan_is_null in (False, True):  # it stays among numbers, and is null among strings
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            return pa.array(values, _type_in_ns(values), from_pandas=nan_is_null)
    return _pickled(values)


def _type_in_ns(values: Sequence[Value]) -> pa.DataType | None:
    """Return the type of times of pandas, of whose nanoseconds Arrow would keep none by itself."""
    first: Value = next((value for value in values if value is not None), None)
    if hasattr(first, "nanosecond"):
        return pa.timestamp("ns", None if first.tzinfo is None else str(first.tzinfo))
    return pa.duration("ns") if hasattr(first, "nanoseconds") else None


def _is_tensor(value: object) -> bool:
    return hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0


def _pickled(values: Iterable[object]) -> Column:
    try:
        storage = pa.array([cloudpickle.dumps(value) for value in values], pa.large_binary())
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"values that Arrow has no type for are pickled, and these cannot be: {describe(error)}"
        ) from error
    return pa.ExtensionArray.from_storage(PickledType(), storage)


def put_column(table: Table, name: str, values: Column) -> Table:
    """Return a table with a column added, or put in the place of its namesake."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, values)
    return table.append_column(name, values)


def taken(table: Table, rows: RowNumbers) -> Table:
    """Return rows by their numbers."""
    return table.take(_numbers(np.ascontiguousarray(rows, np.int64), pa.int64()))


def concat(tables: Sequence[Table]) -> Table:
    """Return the rows of several tables as one; types that differ are widened."""
    if len(tables) == 1:
        return tables[0]
    for name in tables[0].column_names:
        kinds = {table.schema.field(name).type for table in tables if name in table.column_names}
        if len(kinds) > 1 and any(isinstance(kind, pa.FixedShapeTensorType) for kind in kinds):
            tables = _with_ragged(tables, name)
    return pa.concat_tables(tables, promote_options="permissive")


def _with_ragged(tables: Sequence[Table], name: str) -> list[Table]:
    """Return tables whose tensors of a column have several shapes, with one type of it for all."""
    having = [table for table in tables if name in table.column_names]
    values = _from_values([v for each in having for v in column_to_values(each.column(name))])
    changed, first = [], 0
    for table in tables:
        if name in table.column_names:
            part = values.slice(first, table.num_rows)
            table = table.set_column(table.column_names.index(name), name, part)
            first += table.num_rows
        changed.append(table)
    return changed


# Forms that programs see.


def column_to_numpy(column: Column) -> Array:
    """Return a column as a NumPy array; tensors of one shape are stacked."""
    kind = column.type
    if is_number(kind) and not column.null_count:
        return np.from_dlpack(_one_chunk(column))  # to_numpy() imports pandas
    if isinstance(kind, pa.FixedShapeTensorType) and not column.null_count:
        array = _one_chunk(column)
        shape = (len(array), *kind.shape)
        return array.to_numpy_ndarray() if len(array) else np.empty(shape, _dtype(kind))
    if isinstance(kind, _SPECIAL):
        return _object_array(column_to_values(column))
    rows_of_numbers = pa.types.is_fixed_size_list(kind) and is_number(kind.value_type)
    if rows_of_numbers and not column.null_count:
        return column_to_numpy(_one_chunk(column).flatten()).reshape(len(column), kind.list_size)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return _object_array(column_to_values(column))
    return _one_chunk(column).to_numpy(zero_copy_only=False)


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers that lie side by side in memory."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _dtype(kind: pa.FixedShapeTensorType) -> npt.DTypeLike:
    return kind.value_type.to_pandas_dtype()


def _one_chunk(column: Column) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def _object_array(values: Sequence[object]) -> Array:
    array: Array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = np.asarray(value) if isinstance(value, list) else value
    return array


def column_to_values(column: Column) -> list[Value]:
    """Return a column as Python values; tensors as arrays."""
    if isinstance(column.type, PickledType):
        storage = _one_chunk(column).storage
        return [pickle.loads(value) for value in storage.to_pylist()]
    if isinstance(column.type, pa.FixedShapeTensorType):
        if not column.null_count:
            return list(column_to_numpy(column))
        valid = iter(column_to_numpy(column.drop_null()))
        return [next(valid) if each else None for each in column.is_valid().to_pylist()]
    return list(column.to_pylist())


def table_rows(table: Table) -> Iterator[Row]:
    """Yield the rows of a table as dicts."""
    names = table.column_names
    columns = [column_to_values(table.column(name)) for name in names]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def check_format(batch_format: object) -> str:
    """Return the name of a batch format; None is the default.

    Raises:
        ConfigError: There is none of that name.
    """
    if batch_format is None:
        return "default"
    if batch_format not in FORMATS:
        raise ConfigError(f"batch_format must be one of {', '.join(FORMATS)}, not {batch_format!r}")
    return str(batch_format)


def to_arrays(table: Table) -> Arrays:
    """Return a table as NumPy arrays."""
    return {name: column_to_numpy(table.column(name)) for name in table.column_names}


def to_batch(table: Table, batch_format: str) -> Batch:
    """Return a table in a batch format."""
    if batch_format == "pyarrow":
        return table
    if batch_format == "pandas":
        return to_pandas(table)
    return to_arrays(table)


def writable(batch: Batch) -> Batch:
    """Return a batch whose NumPy arrays may be written to; tables of Arrow never can be."""
    if isinstance(batch, dict):
        return {name: _writable(array) for name, array in batch.items()}
    return batch if isinstance(batch, pa.Table) else batch.copy()


def _writable(array: Array) -> Array:
    return array if array.flags.writeable else array.copy()


def own_arrays(table: Table, *, own: bool) -> Arrays:
    """Return a table as NumPy arrays that may be written to; what is somebody else's is copied.

    Args:
        table: The table.
        own: As of a block.
    """
    return {name: _own_array(table.column(name), own=own) for name in table.column_names}


def _own_array(column: pa.ChunkedArray, *, own: bool) -> Array:
    put_together = column.num_chunks > 1  # which makes a copy
    array = _one_chunk(column)
    return _as_it_lies(array) if own or put_together else _writable(column_to_numpy(array))


def _as_it_lies(array: pa.Array) -> Array:
    """Return an array as one of NumPy that may be written to, without a copy of numbers."""
    kind = array.type
    if array.null_count:
        return _writable(column_to_numpy(array))
    if isinstance(kind, pa.FixedShapeTensorType) and kind.permutation is None:
        return _as_it_lies(array.storage.flatten()).reshape(len(array), *kind.shape)
    if pa.types.is_fixed_size_list(kind) and is_number(kind.value_type):
        return _as_it_lies(array.flatten()).reshape(len(array), kind.list_size)
    memory = array.buffers()[1] if is_number(kind) else None
    if memory is None or not memory.is_mutable:
        return _writable(column_to_numpy(array))
    dtype = np.dtype(kind.to_pandas_dtype())
    return np.frombuffer(memory, dtype, len(array), array.offset * dtype.itemsize)


def to_pandas(table: Table) -> Frame:
    """Return a table as a pandas.DataFrame; tensors become a column of arrays."""
    import pandas as pd

    special = [
        name for name in table.column_names if isinstance(table.schema.field(name).type, _SPECIAL)
    ]
    if not special:
        return table.to_pandas()
    values = {
        name: pd.Series(column_to_values(table.column(name)), dtype=object) for name in special
    }
    plain = table.drop_columns(special).to_pandas() if len(special) < table.num_columns else None
    frame = pd.DataFrame(values) if plain is None else plain.assign(**values)
    return frame[table.column_names]


_SPECIAL = (pa.FixedShapeTensorType, PickledType)
