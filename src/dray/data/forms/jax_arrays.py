"""Arrays of JAX, made of batches of NumPy arrays: one over the devices of all processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dray.data.forms.blocks import Array, Batch
from dray.data.forms.tensors import stacked
from dray.errors import ConfigError


@dataclass(frozen=True)
class ToJax:
    """A function from batches of all processes to arrays of JAX that hold the rows of all.

    Rows lie on the devices of the process that has read them, divided evenly.

    Attributes:
        dtypes: The type of all arrays, or column -> type; None as NumPy has it.
        collate_fn: Makes an array, or a dict of them, of the batch before.
        rows: Rows that each batch of a process is filled up to; None leaves a last one short.
        paddings: Value that fills it, or column -> value (0 for a column that is not there).
    """

    dtypes: Any
    collate_fn: Callable[[Any], Any] | None
    rows: int | None
    paddings: Any

    def __call__(self, batch: Batch) -> Any:
        """Return a batch's arrays: a dict by column, or what `collate_fn` makes.

        Raises:
            ConfigError: Its rows cannot be divided among the devices.
        """
        made = batch if self.collate_fn is None else self.collate_fn(batch)
        if isinstance(made, Mapping):
            return {name: self._array(name, value) for name, value in made.items()}
        return self._array("", made)

    def _array(self, name: str, value: Any) -> Any:
        import jax

        if isinstance(value, np.ndarray) and value.dtype == object:
            value = stacked(name, value)
        local = self._filled(name, np.asarray(value, _for(self.dtypes, name, None)))
        check_rows(len(local), f"a batch of {len(local)} rows", _ADVICE)
        shape = (len(local) * jax.process_count(), *local.shape[1:])
        return jax.make_array_from_process_local_data(self._sharding, local, shape)

    def _filled(self, name: str, value: Array) -> Array:
        if self.rows is None or len(value) >= self.rows:
            return value
        filling = np.full(
            (self.rows - len(value), *value.shape[1:]), _for(self.paddings, name, 0), value.dtype
        )
        return np.concatenate([value, filling])

    @functools.cached_property
    def _sharding(self) -> Any:
        """Return how rows are divided among the devices of all processes."""
        import jax
        from jax.experimental import mesh_utils
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        devices = mesh_utils.create_device_mesh((jax.device_count(),))
        return NamedSharding(Mesh(devices, (_AXIS,)), PartitionSpec(_AXIS))


_AXIS = "data"
_ADVICE = "drop_last=True leaves a last one out, and paddings=0 fills it up"


def check_rows(rows: int, what: str, advice: str) -> None:
    """Refuse a number of rows that this process's devices cannot share evenly."""
    import jax

    devices = jax.local_device_count()
    if rows % devices:
        raise ConfigError(
            f"{what} must be evenly divisible by the number of local JAX devices ({devices}): "
            f"{advice}"
        )


def check_alike(batch: Any) -> Any:
    """Return a batch if it has as many rows as those of all other processes."""
    import jax
    from jax.experimental import multihost_utils

    arrays = batch.values() if isinstance(batch, Mapping) else [batch]
    rows = np.array([len(array) // jax.process_count() for array in arrays])
    every = np.asarray(multihost_utils.process_allgather(rows)).reshape(-1, len(rows))
    if (every != every[0]).any():
        raise ConfigError(
            f"the processes have batches of {', '.join(map(str, every[:, 0].tolist()))} rows: "
            "collate_fn must make as many rows of as many"
        )
    return batch


def _for(given: Any, name: str, default: Any) -> Any:
    """Return what is given for a column: of a dict its entry, else what serves all."""
    return given.get(name, default) if isinstance(given, Mapping) else given
