"""Arrays of JAX, made of batches of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dray.data.forms.blocks import Batch


@dataclass(frozen=True)
class ToJax:
    """A function from a batch to arrays on JAX's first local device.

    Attributes:
        dtypes: The type of all arrays, or column -> type; None as NumPy has it.
        collate_fn: Makes an array, or a dict of them, of the batch before.
        rows: Rows that each batch is filled up to; None leaves a last one short.
        paddings: Value that fills it, or column -> value (0 for a column that is not there).
    """

    dtypes: Any = None
    collate_fn: Callable[[Batch], Any] | None = None
    rows: int | None = None
    paddings: Any = None

    def __call__(self, batch: Batch) -> Any:
        """Return a batch's arrays: a dict by column, or what `collate_fn` makes."""
        made = batch if self.collate_fn is None else self.collate_fn(batch)
        if isinstance(made, Mapping):
            return {name: self._array(name, value) for name, value in made.items()}
        return self._array("", made)

    def _array(self, name: str, value: Any) -> Any:
        import jax.numpy as jnp

        if self.rows is not None and len(value) < self.rows:
            filled = np.full((self.rows, *np.shape(value)[1:]), _for(self.paddings, name, 0))
            filled = filled.astype(np.asarray(value).dtype)
            filled[: len(value)] = value
            value = filled
        return jnp.asarray(value, _for(self.dtypes, name, None))


def _for(given: Any, name: str, default: Any) -> Any:
    """Return what is given for a column: of a dict its entry, else what serves all."""
    return given.get(name, default) if isinstance(given, Mapping) else given
