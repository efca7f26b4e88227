"""Dates and times in values; Arrow's own conversion would lose parts of them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dray.data.forms.lists import is_list


def holds_dates(kind: pa.DataType) -> bool:
    """Return whether a type is a date or contains dates."""
    if is_list(kind):
        return holds_dates(kind.value_type)
    if pa.types.is_struct(kind):
        return any(holds_dates(kind.field(n).type) for n in range(kind.num_fields))
    return bool(pa.types.is_date(kind))


def has_time(value: object) -> bool:
    """Return whether a value or a part of it has a time of day, which Arrow's dates drop."""
    if isinstance(value, Mapping):
        return any(map(has_time, value.values()))
    if isinstance(value, list | tuple | np.ndarray):
        return any(map(has_time, value))
    return isinstance(value, datetime.datetime)


def type_in_ns(values: Sequence[Any]) -> pa.DataType | None:
    """Return a type in nanoseconds for pandas times, as Arrow would drop the nanoseconds."""
    first: Any = next((value for value in values if value is not None), None)
    if hasattr(first, "nanosecond"):
        return pa.timestamp("ns", None if first.tzinfo is None else str(first.tzinfo))
    return pa.duration("ns") if hasattr(first, "nanoseconds") else None
