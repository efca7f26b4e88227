"""Arrays and tensors of other libraries, as NumPy has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def as_array(values: Any) -> Any:
    """Return tensors of torch, Series and the like as NumPy arrays, and all else as it is."""
    if isinstance(values, pa.Array | pa.ChunkedArray):  # these have the methods below as well
        return values
    if hasattr(values, "detach"):  # a tensor of torch
        values = values.detach().cpu()
        try:
            values = values.numpy()
        except TypeError:  # NumPy has no bfloat16; 32 bits hold its values
            values = values.float().numpy()
    if type(values).__module__.partition(".")[0] == "cupy":  # which no one converts unasked
        values = values.get()
    if hasattr(values, "to_numpy"):  # a Series of pandas or Polars
        values = values.to_numpy()
    if hasattr(values, "__array__") and not isinstance(values, np.ndarray):  # of JAX, say
        values = np.asarray(values)
    if isinstance(values, np.ndarray) and values.dtype.isbuiltin == _ADDED_TO_NUMPY:
        short = np.can_cast(values.dtype, np.float32)  # such as JAX's bfloat16
        return values.astype(np.float32) if short else values
    return values


_ADDED_TO_NUMPY = 2  # of a type: by another library
