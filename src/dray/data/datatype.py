"""Types of values under Ray Data's names, for `cast` and `udf` of expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dray.checks import require
from dray.compat.attributes import attach_getattr
from dray.errors import ConfigError

require("pyarrow", "dray[data]")

import pyarrow as pa  # noqa: E402 (after the check for pyarrow)

__all__ = ["DataType"]


def _maker(make: Callable[[], pa.DataType], name: str) -> staticmethod[[], DataType]:
    def method() -> DataType:
        return DataType(make())

    method.__doc__ = f"Return the type of Arrow that is called {name}."
    return staticmethod(method)


@dataclass(frozen=True)
class DataType:
    """A type of values; it wraps a type of Arrow.

    Args:
        kind: A type of Arrow, NumPy or Python.

    Example:
        >>> from dray.data.datatype import DataType
        >>> DataType.list(DataType.int64()).to_arrow_dtype()
        ListType(list<item: int64>)
    """

    kind: pa.DataType | np.dtype[Any] | type

    int8 = _maker(pa.int8, "int8")
    int16 = _maker(pa.int16, "int16")
    int32 = _maker(pa.int32, "int32")
    int64 = _maker(pa.int64, "int64")
    uint8 = _maker(pa.uint8, "uint8")
    uint16 = _maker(pa.uint16, "uint16")
    uint32 = _maker(pa.uint32, "uint32")
    uint64 = _maker(pa.uint64, "uint64")
    float32 = _maker(pa.float32, "float32")
    float64 = _maker(pa.float64, "float64")
    string = _maker(pa.string, "string")
    bool = _maker(pa.bool_, "bool_")
    binary = _maker(pa.binary, "binary")

    @classmethod
    def from_arrow(cls, arrow_type: pa.DataType) -> DataType:
        """Return the DataType of an Arrow type."""
        return cls(arrow_type)

    @classmethod
    def from_numpy(cls, numpy_dtype: npt.DTypeLike) -> DataType:
        """Return the DataType of a NumPy type."""
        return cls(np.dtype(numpy_dtype))

    @classmethod
    def list(cls, value_type: DataType) -> DataType:
        """Return the type of lists whose values have a given type."""
        return cls(pa.list_(value_type.to_arrow_dtype()))

    @classmethod
    def fixed_size_list(cls, value_type: DataType, list_size: int) -> DataType:
        """Return the type of lists that have a fixed length and values of a given type."""
        return cls(pa.list_(value_type.to_arrow_dtype(), list_size))

    @classmethod
    def struct(cls, fields: Sequence[tuple[str, DataType]]) -> DataType:
        """Return the type of records with named and typed fields."""
        return cls(pa.struct([(name, kind.to_arrow_dtype()) for name, kind in fields]))

    @classmethod
    def map(cls, key_type: DataType, value_type: DataType) -> DataType:
        """Return the type of maps from keys to values of given types."""
        return cls(pa.map_(key_type.to_arrow_dtype(), value_type.to_arrow_dtype()))

    def to_arrow_dtype(self) -> pa.DataType:
        """Return the Arrow type.

        Raises:
            ConfigError: The type is a Python type, which does not determine an Arrow type.
        """
        if isinstance(self.kind, np.dtype):
            return pa.from_numpy_dtype(self.kind)
        if isinstance(self.kind, type):
            raise ConfigError(
                f"{self.kind.__name__} is not an Arrow type: pass one, such as DataType.int64()"
            )
        return self.kind


attach_getattr(__name__)
