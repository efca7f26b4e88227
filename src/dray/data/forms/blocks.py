"""Blocks of rows as Arrow tables, and their conversion to rows and batches for programs."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dray.checks import require
from dray.errors import ConfigError, DataFunctionError, describe

require("numpy", "dray[data]")
require("pyarrow", "dray[data]")

import numpy as np  # noqa: E402 (after the check for pyarrow)
import numpy.typing as npt  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402

from dray.data.forms.arrays import as_array  # noqa: E402
from dray.data.forms.bare import bare_rows, joined_bare  # noqa: E402
from dray.data.forms.lists import (  # noqa: E402
    as_arrays,
    is_array,
    is_compound,
    is_list,
    is_number,
    marked,
    marked_names,
    were_arrays,
    without_runs,
    without_views,
)
from dray.data.forms.pickles import PickledType, pickled, unpickled, with_pickles  # noqa: E402
from dray.data.forms.times import has_time, holds_dates, type_in_ns  # noqa: E402

if TYPE_CHECKING:
    import pandas as pd

# Types of pyarrow and pandas, which mypy treats as Any because it cannot read them.
Table: TypeAlias = pa.Table
Column: TypeAlias = pa.Array | pa.ChunkedArray
Frame: TypeAlias = "pd.DataFrame"
# NumPy arrays of any type of numbers or objects.
Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
RowNumbers: TypeAlias = npt.NDArray[np.int64]
# A dict of arrays, a Frame or a Table, depending on the batch format.
Batch: TypeAlias = Any
# A value in a row, of any type.
Value: TypeAlias = Any
Row: TypeAlias = dict[str, Value]

# The column of values that are not dicts, as in Ray Data.
ITEM = "item"
# The columns of `range` and of arrays, as in Ray Data.
ID, DATA = "id", "data"

FORMATS = ("default", "numpy", "pandas", "pyarrow")


class Block(NamedTuple):
    """A block of rows.

    Attributes:
        origin: The file and numbers of the rows, for messages.
        own: Whether mutable memory of the table belongs to the block alone, so that it may be
            overwritten.
        first: The number of the first row in its source, if the other rows follow it.
    """

    table: Table
    origin: str = ""
    own: bool = False
    first: int | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pass the names of pickled columns; Ray drops types that Arrow does not know."""
        schema = self.table.schema
        return _sent, ([each.name for each in schema if isinstance(each.type, PickledType)], *self)

    def row(self, nth: int) -> str:
        """Return the name of a row in messages; the first row has index 0."""
        origin = self.origin or "a block"
        if self.first is None:
            return f"a row made from {origin}"
        return f"row {self.first + nth}, of {origin}"


def _sent(pickles: list[str], table: Table, *others: Any) -> Block:
    kinds = pa.schema([(name, PickledType()) for name in pickles])
    return Block(with_pickles(table, kinds), *others)


def with_plain(table: Table, names: Iterable[str]) -> Table:
    """Return a table with columns by which Arrow can group: no dictionaries, no negative zero.

    Raises:
        ConfigError: Arrow cannot group, sort or join by the values of a column.
    """
    for name in names:
        column = table.column(name)
        if is_compound(column.type):
            raise ConfigError(
                f"column {name!r} is {column.type}, by which rows cannot be grouped, sorted or "
                "joined: convert it to text or numbers first, for example with map_batches"
            )
        column = plain_values(column)
        if pa.types.is_floating(column.type):
            kind = pa.float32() if pa.types.is_float16(column.type) else column.type
            column = pc.add(column.cast(pa.float64()), 0.0).cast(kind)
        table = put_column(table, name, column)
    return table


def plain_values(column: Column) -> Column:
    """Return a column that Arrow can aggregate: the values of a dictionary column."""
    kind = column.type
    if pa.types.is_decimal(kind) and kind.bit_width < 128:  # Arrow cannot sort smaller ones
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def to_table(data: Batch, whence: str = "a block") -> Table:
    """Return columns of any kind as a table.

    Args:
        data: A mapping of columns, an Arrow table or record batch, or a DataFrame of pandas or
            Polars.

    Raises:
        ConfigError: `data` has another type, or columns with equal names or different lengths.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        refuse_doubled(data.column_names, whence)
        data = without_runs(data)
        schema = pa.schema(map(without_views, data.schema), data.schema.metadata)
        return data if schema.equals(data.schema) else data.cast(schema)
    if isinstance(data, Mapping):
        given = {str(name): values for name, values in data.items()}
        columns = {name: to_column(values) for name, values in given.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(f"{whence} has columns of different lengths: {lengths}")
        arrays = [name for name in given if were_arrays(columns[name].type, given[name])]
        return marked(pa.table(columns), arrays)
    kind = type(data).__module__.partition(".")[0]
    if kind == "pandas" and hasattr(data, "columns"):  # a Series has no columns
        refuse_doubled(list(map(str, data.columns)), whence)
        return _from_pandas(data)
    if kind == "polars":  # including LazyFrames
        return (data.collect() if hasattr(data, "collect") else data).to_arrow()
    raise ConfigError(
        f"{whence} must be a dict of columns, a pandas.DataFrame or a pyarrow.Table, not a "
        f"{type(data).__name__}"
    )


def _from_pandas(frame: Frame) -> Table:
    if not any(map(_holds_objects, frame.dtypes)):
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    return pa.table({str(name): _from_series(frame[name]) for name in frame.columns})


def _from_series(values: pd.Series) -> Column:
    """Return a pandas column as an Arrow array; NaN becomes null."""
    is_plain = not _holds_objects(values.dtype)
    return pa.array(values, from_pandas=True) if is_plain else to_column(values)


def _holds_objects(kind: object) -> bool:
    """Return whether a pandas type is `object`, or one that Arrow lacks."""
    return getattr(kind, "kind", "") in "Oc" and isinstance(kind, np.dtype)


def refuse_doubled(names: Sequence[str], whence: str) -> None:
    """Raise ConfigError if two columns have the same name, because rows are dicts."""
    if len(set(names)) < len(names):
        twice = ", ".join(dict.fromkeys(name for name in names if names.count(name) > 1))
        raise ConfigError(f"{whence} has several columns with the name {twice}")


def rows_to_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """Return rows as a table; values that a row lacks are null."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    if not names:
        return bare_rows(len(rows))
    return to_table({name: [row.get(name) for row in rows] for name in names})


def to_row(value: object) -> Row:
    """Return a value as a row; a value that is not a mapping becomes the column `item`."""
    return dict(value) if isinstance(value, Mapping) else {ITEM: value}


def to_column(values: Value) -> Column:
    """Return the values of a column as an Arrow array; values that Arrow lacks are pickled."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    values = as_array(values)
    if _is_one_value(values):
        raise ConfigError(
            f"a column must have one value for each row, not a single value: {values!r}"
        )
    if isinstance(values, np.ndarray) and values.dtype != object:
        return _from_array(values)
    return _from_values(list(values))


def _is_one_value(values: Value) -> bool:
    """Return whether a value is not a list of values, even if it is iterable."""
    if isinstance(values, np.ndarray):
        return values.ndim == 0
    return values is None or np.isscalar(values) or isinstance(values, Mapping | Set)


def only_column(values: Value) -> Value:
    """Return the column of a table with one column; return other values unchanged.

    Raises:
        ConfigError: The table does not have exactly one column.
    """
    if isinstance(values, pa.Table):
        columns = dict(zip(values.column_names, values.columns, strict=True))
    elif hasattr(values, "columns") and hasattr(values, "items"):  # a pandas DataFrame
        columns = dict(values.items())
    else:
        return values
    if len(columns) != 1:
        names = ", ".join(map(str, columns))
        raise ConfigError(f"give one column, not a table of the {len(columns)} columns {names}")
    return columns.popitem()[1]


_OF_TENSORS = "iufbMm"  # kinds of NumPy arrays whose rows become tensors; strings do in matrices


def _from_array(values: Array) -> Column:
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.ndim == 1:
        if values.dtype.kind != "S":  # Arrow cuts bytes at a zero
            with contextlib.suppress(pa.ArrowNotImplementedError):
                return pa.array(values)
        return _from_values(list(values))
    if not len(values):
        return pa.array([], pa.null())
    if not values.size and values.dtype.kind in _OF_TENSORS:  # Arrow lacks empty tensors
        kind = pa.from_numpy_dtype(values.dtype)
        for _ in values.shape[1:]:
            kind = pa.list_(kind)
        return pa.array(values.tolist(), kind)
    if values.dtype.kind in "iuf":
        flat = _numbers(np.ascontiguousarray(values), pa.from_numpy_dtype(values.dtype))
    elif values.dtype.kind in f"{_OF_TENSORS}U":
        flat = pa.array(values.reshape(-1))
    else:
        return _from_values(list(values))
    kind = pa.fixed_shape_tensor(flat.type, values.shape[1:])
    storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(values.shape[1:]))
    return pa.ExtensionArray.from_storage(kind, storage)


def _numbers(values: Array, kind: pa.DataType) -> pa.Array:
    """Return an array of numbers without a copy; pa.array() would import pandas."""
    return pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(values)])


def _from_values(values: list[Value]) -> Column:
    """Return Python values as an array, of a type that holds all of them."""
    if any(map(is_array, values)):
        values = [_as_numpy(value) if is_array(value) else value for value in values]
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if arrays and len(arrays) == len(values):
            alike = {(array.shape, array.dtype) for array in arrays}
            if len(alike) == 1 and arrays[0].dtype.kind in _OF_TENSORS:
                return _from_array(np.stack(arrays))
            if any(array.ndim != 1 for array in arrays):
                return pickled(values)
    for nan_is_null in (False, True):  # NaN stays among numbers, and is null among strings
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            made = pa.array(values, type_in_ns(values), from_pandas=nan_is_null)
            if not holds_dates(made.type) or not any(map(has_time, values)):
                return made
    return pickled(values)


def _as_numpy(value: Value) -> Value:
    """Return an array of any library as a NumPy array, or as a number if it has no dimensions."""
    array = np.asarray(as_array(value))
    return array if array.ndim else array.item()


def put_column(table: Table, name: str, values: Column) -> Table:
    """Return a table with a column that is added or replaced."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, values)
    return table.append_column(name, values)


def taken(table: Table, rows: RowNumbers) -> Table:
    """Return rows by number."""
    if not table.num_columns:
        return bare_rows(len(rows))
    return table.take(_numbers(np.ascontiguousarray(rows, np.int64), pa.int64()))


def concat(tables: Sequence[Table], called: str = "rows") -> Table:
    """Return the rows of several tables as one; types that differ are widened.

    Raises:
        DataFunctionError: No type holds all values of a column.
    """
    tables = joined_bare(tables)
    if len(tables) == 1:
        return tables[0]
    schemas = [table.schema for table in tables]
    if all(schema.equals(schemas[0]) for schema in schemas[1:]):
        return pa.concat_tables(tables)
    kinds: dict[str, set[pa.DataType]] = {}
    for field in itertools.chain.from_iterable(schemas):
        kinds.setdefault(field.name, set()).add(field.type)
    for name, of_column in kinds.items():
        tensors = any(isinstance(k, pa.FixedShapeTensorType | PickledType) for k in of_column)
        if tensors and len(of_column - {pa.null()}) > 1:
            tables = _with_ragged(tables, name)
        elif len(set(map(pa.types.is_dictionary, of_column - {pa.null()}))) > 1:
            tables = [_with_plain_values(table, name) for table in tables]
    try:
        whole = pa.concat_tables(tables, promote_options="permissive")
        return marked(whole, {name for table in tables for name in marked_names(table.schema)})
    except pa.ArrowException as error:
        raise DataFunctionError(
            f"{called} do not have the same types: {describe(error)}"
        ) from error


def in_columns(table: Table, schema: pa.Schema) -> Table:
    """Return a table with the columns of a schema, with types that hold the values of both."""
    none = pa.Table.from_batches([], schema)
    return table if table.schema.equals(schema) else concat([none, table])


def _with_plain_values(table: Table, name: str) -> Table:
    if name not in table.column_names:
        return table
    return put_column(table, name, plain_values(table.column(name)))


def _with_ragged(tables: Sequence[Table], name: str) -> list[Table]:
    """Return tables in which tensors of several shapes in a column have the same type."""
    having = [table for table in tables if name in table.column_names]
    whole = to_table({name: [v for each in having for v in row_values(each, name)]})
    changed, first = [], 0
    for table in tables:
        if name in table.column_names:
            index = table.column_names.index(name)
            values = whole.column(0).slice(first, table.num_rows)
            table = table.set_column(index, whole.field(0), values)
            first += table.num_rows
        changed.append(table)
    return changed


# Forms for programs.


def column_to_numpy(column: Column) -> Array:
    """Return a column as a NumPy array; tensors of one shape are stacked."""
    kind = column.type
    if is_number(kind) and not column.null_count:
        return np.from_dlpack(one_chunk(column))  # to_numpy() imports pandas
    if isinstance(kind, pa.FixedShapeTensorType) and not column.null_count:
        array = one_chunk(column)
        shape = (len(array), *kind.shape)
        if is_number(kind.value_type) and len(array):
            return array.to_numpy_ndarray()
        flat = column_to_numpy(array.storage.flatten())
        texts = pa.types.is_string(kind.value_type)
        return (flat.astype(str) if texts else flat).reshape(shape)
    if isinstance(kind, _SPECIAL):
        return _object_array(column_to_values(column))
    rows_of_numbers = pa.types.is_fixed_size_list(kind) and is_number(kind.value_type)
    if rows_of_numbers and not column.null_count:
        return column_to_numpy(one_chunk(column).flatten()).reshape(len(column), kind.list_size)
    if is_list(kind):
        return _object_array(as_arrays(one_chunk(column)))
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return _object_array(column_to_values(column))
    return one_chunk(column).to_numpy(zero_copy_only=False)


def one_chunk(column: Column) -> pa.Array:
    """Return a column in contiguous memory."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def _object_array(values: Sequence[object]) -> Array:
    array: Array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def column_to_values(column: Column) -> list[Value]:
    """Return a column as Python values, with tensors as arrays."""
    if isinstance(column.type, PickledType):
        return unpickled(one_chunk(column).storage)
    if isinstance(column.type, pa.FixedShapeTensorType):
        if not column.null_count:
            return list(column_to_numpy(column))
        valid = iter(column_to_numpy(column.drop_null()))
        return [next(valid) if each else None for each in column.is_valid().to_pylist()]
    return list(column.to_pylist())


def row_values(table: Table, name: str) -> list[Value]:
    """Return the values of a column for rows; lists that were arrays become arrays again."""
    column = table.column(name)
    return list(
        (column_to_numpy if name in marked_names(table.schema) else column_to_values)(column)
    )


def table_rows(table: Table) -> Iterator[Row]:
    """Yield the rows of a table as dicts."""
    names = table.column_names
    columns = [row_values(table, name) for name in names]
    rows = zip(*columns, strict=True) if names else itertools.repeat((), table.num_rows)
    for values in rows:
        yield dict(zip(names, values, strict=True))


def check_format(batch_format: object) -> str:
    """Return the name of a batch format; None is the format of blocks."""
    if batch_format is None:
        return "pyarrow"
    if batch_format not in FORMATS:
        raise ConfigError(f"batch_format must be one of {', '.join(FORMATS)}, not {batch_format!r}")
    return str(batch_format)


def to_batch(table: Table, batch_format: str) -> Batch:
    """Return a table in a batch format."""
    if batch_format == "pyarrow":
        return table
    if batch_format == "pandas":
        return to_pandas(table)
    return {name: column_to_numpy(table.column(name)) for name in table.column_names}


def to_pandas(table: Table) -> Frame:
    """Return a table as a pandas DataFrame; tensors become a column of arrays.

    Some columns keep their Arrow type, because pandas' own types would lose precision or structure:
    integers with nulls, decimals, times in nanoseconds, structs and maps.
    """
    import pandas as pd

    if not table.num_columns:
        return pd.DataFrame(index=pd.RangeIndex(table.num_rows))
    table = table.replace_schema_metadata(None)  # else pandas would restore an index from it
    values = {}
    for name in table.column_names:
        column = table.column(name)
        if isinstance(column.type, _SPECIAL):
            values[name] = pd.Series(column_to_values(column), dtype=object)
        elif _loses(column):
            values[name] = pd.Series(pd.arrays.ArrowExtensionArray(column))
    if not values:
        return table.to_pandas()
    special = list(values)
    plain = table.drop_columns(special).to_pandas() if len(special) < table.num_columns else None
    frame = pd.DataFrame(values) if plain is None else plain.assign(**values)
    return frame[table.column_names]


def _loses(column: pa.ChunkedArray) -> bool:
    """Return whether pandas' own types would lose information of a column."""
    kind = column.type
    whole = pa.types.is_integer(kind) and column.null_count > 0
    fine = pa.types.is_time64(kind) and kind.unit == "ns"  # Python's times have microseconds
    return bool(
        whole
        or fine
        or pa.types.is_decimal(kind)
        or pa.types.is_struct(kind)
        or pa.types.is_map(kind)
    )


_SPECIAL = (pa.FixedShapeTensorType, PickledType)
