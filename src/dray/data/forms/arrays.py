"""Conversion of arrays and tensors of other libraries to NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def as_array(values: Any) -> Any:
    """Return tensors, Series and similar objects as NumPy arrays; return other values unchanged."""
    if isinstance(values, pa.Array | pa.ChunkedArray):  # Arrow arrays also have the methods below
        return values
    if hasattr(values, "detach"):  # a torch tensor
        values = values.detach().cpu()
        try:
            values = values.numpy()
        except TypeError:  # NumPy lacks bfloat16; float32 holds its values
            values = values.float().numpy()
    if type(values).__module__.partition(".")[0] == "cupy":  # CuPy needs an explicit conversion
        values = values.get()
    if hasattr(values, "to_numpy"):  # a pandas or Polars Series
        values = values.to_numpy()
    if hasattr(values, "__array__") and not isinstance(values, np.ndarray):  # for example of JAX
        values = np.asarray(values)
    if isinstance(values, np.ndarray) and values.dtype.isbuiltin == _ADDED_TO_NUMPY:
        short = np.can_cast(values.dtype, np.float32)  # for example JAX's bfloat16
        return values.astype(np.float32) if short else values
    return values


_ADDED_TO_NUMPY = 2  # NumPy's value for types that other libraries add
