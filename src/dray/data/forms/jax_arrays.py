"""JAX arrays from batches of NumPy arrays, distributed over the devices of all processes."""

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
    """A function from the batches of all processes to JAX arrays with the rows of all.

    The rows of a process are divided evenly among its own devices.

    Attributes:
        dtypes: The type of all arrays, or a dict of column -> type; None keeps NumPy's types.
        collate_fn: A function from a batch to an array, or to a dict of arrays.
        rows: The number of rows to which each batch of a process is filled up; None fills none.
        paddings: The value for filling up, or a dict of column -> value (0 for missing columns).
    """

    dtypes: Any
    collate_fn: Callable[[Any], Any] | None
    rows: int | None
    paddings: Any

    def __call__(self, batch: Batch) -> Any:
        """Return the arrays of a batch: a dict by column, or the result of `collate_fn`.

        Raises:
            ConfigError: The rows cannot be divided evenly among the devices.
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
        """Return the distribution of rows over the devices of all processes."""
        import jax
        from jax.experimental import mesh_utils
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        devices = mesh_utils.create_device_mesh((jax.device_count(),))
        return NamedSharding(Mesh(devices, (_AXIS,)), PartitionSpec(_AXIS))


_AXIS = "data"
_ADVICE = "drop_last=True drops an incomplete last batch, and paddings=0 fills it up"


def check_rows(rows: int, what: str, advice: str) -> None:
    """Raise an error if this process's devices cannot share a number of rows evenly."""
    import jax

    devices = jax.local_device_count()
    if rows % devices:
        raise ConfigError(
            f"{what} must be evenly divisible by the number of local JAX devices ({devices}): "
            f"{advice}"
        )


def check_alike(batch: Any) -> Any:
    """Return a batch after checking that the batches of all processes have equally many rows."""
    import jax
    from jax.experimental import multihost_utils

    arrays = batch.values() if isinstance(batch, Mapping) else [batch]
    rows = np.array([len(array) // jax.process_count() for array in arrays])
    every = np.asarray(multihost_utils.process_allgather(rows)).reshape(-1, len(rows))
    if (every != every[0]).any():
        raise ConfigError(
            f"the processes have batches of {', '.join(map(str, every[:, 0].tolist()))} rows: "
            "collate_fn must return the same number of rows on every process"
        )
    return batch


def _for(given: Any, name: str, default: Any) -> Any:
    """Return the value for a column: from a dict, or the value for all columns."""
    return given.get(name, default) if isinstance(given, Mapping) else given
