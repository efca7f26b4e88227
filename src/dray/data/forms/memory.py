"""Memory of batches: writable arrays, arrays that the program may have kept, and copies."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from dray.data.forms.arrays import as_array
from dray.data.forms.blocks import Array, Batch, Value, column_to_numpy, one_chunk
from dray.data.forms.lists import is_number


def handed_over(results: list[Batch]) -> tuple[Batch, bool]:
    """Return a batch from a function, and whether its memory belongs to the batch alone.

    Arrays and frames that other code can still write to are copied, because the function may keep
    one and return it again with other values. Arrays that only the batch refers to are not copied.
    Read-only arrays, such as the function's own arguments, stay as they are, so that Arrow treats
    their memory as read-only.

    Args:
        results: A list with only the batch; nothing else may refer to the batch.
    """
    alone = _counts(results) == [_ALONE]
    batch = results[0]
    if not isinstance(batch, dict):
        is_shared = not alone and type(batch).__module__.partition(".")[0] == "pandas"
        return batch.copy() if is_shared else batch, False
    columns = {
        name: _kept_apart(values, alone and references == _ALONE)
        for (name, values), references in zip(batch.items(), _counts(batch.values()), strict=True)
    }
    return columns, not any(isinstance(c, pa.Array | pa.ChunkedArray) for c in columns.values())


def _counts(objects: Iterable[object]) -> list[int]:
    """Return the reference counts of objects without adding references from Python code.

    The count inside a Python function would depend on the interpreter: Python 3.14 borrows
    references.
    """
    return list(map(sys.getrefcount, objects))


_ALONE = _counts([object()])[0]  # the count of an object that only a list or dict refers to


def _kept_apart(values: Value, alone: bool) -> Value:
    array = as_array(values)
    if not isinstance(array, np.ndarray) or array.dtype == object or _is_fixed(array):
        return array
    alone = alone and array is values and array.flags.owndata
    return array if alone and not weakref.getweakrefcount(array) else array.copy()


def _is_fixed(array: Array) -> bool:
    """Return whether an array and the arrays that it is a view of are read-only."""
    seen: object = array
    while isinstance(seen, np.ndarray):
        if seen.flags.writeable:
            return False
        seen = seen.base
    return True


def writable(batch: Batch) -> Batch:
    """Return a batch with writable NumPy arrays; Arrow tables are never writable."""
    if isinstance(batch, dict):
        return {name: _writable(array) for name, array in batch.items()}
    return batch if isinstance(batch, pa.Table) else batch.copy()


def _writable(array: Array) -> Array:
    return array if array.flags.writeable else array.copy()


def own_array(column: pa.ChunkedArray, *, own: bool) -> Array:
    """Return a column as a writable array, copied unless its block is `own`."""
    put_together = column.num_chunks > 1  # joining chunks makes a copy
    array = one_chunk(column)
    return _as_it_lies(array) if own or put_together else _writable(column_to_numpy(array))


def _as_it_lies(array: pa.Array) -> Array:
    """Return an Arrow array as a writable NumPy array, without copying numbers."""
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
