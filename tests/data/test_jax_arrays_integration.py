"""Batches of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dray.data
from dray.errors import AbsentArgumentError, ConfigError


def test_batches_are_arrays_of_jax_and_a_last_one_is_filled_up() -> None:
    rows = dray.data.from_items([{"x": float(i), "n": i} for i in range(5)]).iterator()
    plain = list(rows.iter_jax_batches(batch_size=3, dtypes={"x": jnp.bfloat16}))
    assert [batch["n"].tolist() for batch in plain] == [[0, 1, 2], [3, 4]]
    assert isinstance(plain[0]["x"], jax.Array)
    assert plain[0]["x"].dtype == jnp.bfloat16

    filled = list(rows.iter_jax_batches(batch_size=3, paddings={"n": -1}))
    assert filled[1]["n"].tolist() == [3, 4, -1]
    assert filled[1]["x"].tolist() == [3, 4, 0]

    sums = rows.iter_jax_batches(batch_size=3, collate_fn=lambda b: b["x"] + b["n"], paddings=7)
    assert np.concatenate(list(sums)).tolist() == [0, 2, 4, 6, 8, 7]
    with pytest.raises(ConfigError, match="batch_size must be a number of rows"):
        rows.iter_jax_batches(batch_size=0)
    with pytest.raises(ConfigError, match="batch_size must be a number of rows here"):
        rows.iter_jax_batches(batch_size=None)
    with pytest.raises(AbsentArgumentError, match="has no argument 'shard'"):
        rows.iter_jax_batches(shard=True)  # type: ignore[call-arg]


def test_values_that_numpy_has_no_numbers_for() -> None:
    def halves(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": jnp.asarray(batch["id"] / 2, jnp.bfloat16), "none": [None] * len(batch["id"])}

    rows = dray.data.range(3).map_batches(halves)
    assert rows.take_batch()["x"].dtype == np.float32
    [batch] = rows.iter_jax_batches()
    assert batch["x"].tolist() == [0, 0.5, 1]
    assert bool(jnp.isnan(batch["none"]).all())
