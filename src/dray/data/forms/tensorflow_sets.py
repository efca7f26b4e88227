"""TensorFlow tensors and datasets from batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dray.data.forms.blocks import Array, Batch
from dray.data.forms.names import check_column
from dray.data.forms.tensors import stacked


def to_tf_tensors(batch: Batch, dtypes: Any) -> dict[str, Any]:
    """Return a dict of NumPy arrays as TensorFlow tensors.

    Args:
        dtypes: The type of all tensors, or a dict of column -> type.
    """
    import tensorflow as tf

    kinds = dtypes if isinstance(dtypes, Mapping) else dict.fromkeys(batch, dtypes)
    return {
        name: tf.convert_to_tensor(_dense(name, array), dtype=kinds.get(name))
        for name, array in batch.items()
    }


def columns_of(batch: Batch, wanted: tuple[str | list[str], ...]) -> tuple[Any, ...]:
    """Return columns of a batch: an array for one name, a dict for several names.

    Raises:
        ConfigError: A column is missing.
    """
    check_column(batch, (name for names in wanted for name in _names(names)))
    return tuple(
        _dense(names, batch[names])
        if isinstance(names, str)
        else {name: _dense(name, batch[name]) for name in names}
        for names in wanted
    )


def as_tf_dataset(
    batches: Callable[[], Iterator[Any]], example: tuple[Any, ...], specs: tuple[Any, ...]
) -> Any:
    """Return a `tf.data.Dataset` of batches that TensorFlow does not divide among workers again.

    Args:
        batches: An iterable of batches that can be iterated repeatedly.
        example: A batch of any size.
        specs: The `tf.TypeSpec` of each part of a batch; None derives it from the example.
    """
    import tensorflow as tf

    def described(array: Array) -> Array:
        return tf.TensorSpec((None, *array.shape[1:]), array.dtype)

    def signature_of(part: Any, spec: Any) -> Any:
        if spec is not None:
            return spec
        if isinstance(part, dict):
            return {name: described(array) for name, array in part.items()}
        return described(part)

    signature = tuple(map(signature_of, example, specs))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    made = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return made.with_options(options).prefetch(1)


def _names(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _dense(name: str, array: Array) -> Array:
    """Return an array of numbers; arrays in a column are stacked, and strings are converted."""
    if array.dtype == object and len(array) and not isinstance(array[0], str | bytes):
        return stacked(name, array)
    return array.astype(np.bytes_) if array.dtype.kind == "U" else array
