"""Torch tensors from batches: their types, and their transfer to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dray.data.forms.batches import Run
from dray.data.forms.blocks import Array, Arrays, Value
from dray.errors import ConfigError

if TYPE_CHECKING:
    import torch


Dtypes: TypeAlias = "torch.dtype | Mapping[str, torch.dtype] | None"
Tensors: TypeAlias = "dict[str, torch.Tensor]"


def to_tensors(batch: Arrays, dtypes: Dtypes) -> Tensors:
    """Return a dict of NumPy arrays as tensors.

    Args:
        dtypes: The type of all tensors, or a dict of column -> type.

    Raises:
        ConfigError: A column cannot be a tensor, for example a column of strings.
    """
    kinds = dtypes if isinstance(dtypes, Mapping) else dict.fromkeys(batch, dtypes)
    return {name: _tensor(name, array, kinds.get(name)) for name, array in batch.items()}


def tensor_batches(run: Run, dtypes: Dtypes) -> Iterator[Tensors]:
    """Yield batches of tensors, as views of tensors of all rows if the rows are alike.

    Args:
        dtypes: The type of all tensors, or a dict of column -> type.

    Raises:
        ConfigError: A column cannot be a tensor, for example a column of strings.
    """
    columns = run.columns()
    if any(array.dtype == object for array in columns.values()):
        for begin, end in run.ranges():
            part = {name: array[begin:end] for name, array in columns.items()}
            yield to_tensors(part, dtypes)
        return
    tensors = to_tensors(columns, dtypes)
    for parts in zip(*(tensor.split(run.sizes) for tensor in tensors.values()), strict=True):
        yield dict(zip(tensors, parts, strict=True))


def _tensor(name: str, array: Array, dtype: torch.dtype | None) -> torch.Tensor:
    import torch

    if array.dtype == object:
        array = stacked(name, array)
    if array.dtype.kind not in "biufc":
        raise ConfigError(
            f"the column {name!r} holds {array.dtype} and cannot be a tensor: drop it "
            "(drop_columns), convert it to numbers (map_batches), or give collate_fn"
        )
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if dtype is None else tensor.to(dtype)


def stacked(name: str, array: Array) -> Array:
    """Return arrays of one shape as one array; as in Ray, a column of nulls becomes NaN."""
    if all(value is None for value in array):
        return np.full(len(array), np.nan, np.float32)
    try:
        arrays = [np.asarray(value) for value in array]
    except ValueError as error:
        raise ConfigError(
            f"the column {name!r} has values that are not arrays, such as a "
            f"{type(array[0]).__name__}: make columns of them (map), or give collate_fn"
        ) from error
    try:
        return np.stack(arrays)
    except ValueError as error:
        shapes = sorted({each.shape for each in arrays})[:3]
        raise ConfigError(
            f"the column {name!r} has values of different shapes {shapes}: pad them, or give "
            "collate_fn"
        ) from error


class Placement:
    """A function that moves all tensors of a batch to a device.

    Args:
        device: The device; None keeps tensors on the CPU.
        pin: Whether to copy tensors to pinned memory first.
    """

    def __init__(self, device: torch.device | str | None, *, pin: bool = False) -> None:
        self._device, self._pin = device, pin

    def prepared(self, batch: Value) -> Value:
        """Return a batch for the read-ahead thread: on the CPU, in pinned memory if `pin`."""
        return _each_tensor(batch, lambda tensor: tensor.pin_memory()) if self._pin else batch

    def moved(self, batch: Value) -> Value:
        """Return a batch on the device."""
        if self._device is None:
            return batch
        return _each_tensor(batch, lambda tensor: tensor.to(self._device, non_blocking=self._pin))


def _each_tensor(batch: Value, change: Callable[[torch.Tensor], torch.Tensor]) -> Value:
    import torch

    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: _each_tensor(value, change) for name, value in batch.items()}
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return type(batch)(_each_tensor(value, change) for value in batch)
    return batch
