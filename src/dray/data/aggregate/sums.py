"""Sums of integers; Arrow alone would keep only the lowest 64 bits of a sum."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from dray.data.forms.blocks import Column
from dray.errors import ConfigError

_WIDE = pa.decimal128(38, 0)


def summable(values: Column) -> Column:
    """Return integers in a type that can hold their sum in any group."""
    if not pa.types.is_integer(values.type):
        return values
    ends = pc.min_max(values).as_py().values()
    most = max(abs(end or 0) for end in ends) * len(values)
    return values if most < 1 << 63 else values.cast(_WIDE)


def summed(found: Column, kind: pa.DataType, called: str) -> Column:
    """Return the sums of values from `summable`, in Arrow's usual type for sums.

    Args:
        kind: The type of the numbers.
        called: The name of the sums in messages.

    Raises:
        ConfigError: A sum of integers does not fit into 64 bits.
    """
    if not pa.types.is_integer(kind) or not pa.types.is_decimal(found.type):
        return found
    widest = pa.int64() if pa.types.is_signed_integer(kind) else pa.uint64()
    try:
        return found.cast(widest)
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"{called} is more than {widest} can hold: convert the column to floats first, as "
            "with_column('x', col('x').cast(DataType.float64())) does"
        ) from error
