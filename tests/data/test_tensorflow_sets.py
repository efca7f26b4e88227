"""Datasets of TensorFlow, where it is installed: `make test-tensorflow`."""

from __future__ import annotations

from typing import Any

import pytest

import dray.data
from dray.errors import ConfigError

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed: make test-tensorflow")

pytestmark = pytest.mark.filterwarnings("ignore")  # of TensorFlow itself: what NumPy deprecates


def values(part: Any) -> Any:
    return (
        {name: values(each) for name, each in part.items()}
        if isinstance(part, dict)
        else (part.numpy().tolist())
    )


def test_further_columns_come_beside_features_and_labels() -> None:
    rows = dray.data.from_items([{"x": [n, 1.5], "y": n, "w": 2 * n} for n in range(3)])
    made = rows.to_tf("x", "y", additional_columns="w", batch_size=2)
    assert [list(map(values, batch)) for batch in made] == [
        [[[0, 1.5], [1, 1.5]], [0, 1], [0, 2]],
        [[[2, 1.5]], [2], [4]],
    ]
    assert len(rows.to_tf("x", "y").element_spec) == 2
    with pytest.raises(ConfigError, match="there is no column 'z'"):
        rows.to_tf("x", "y", additional_columns=["w", "z"])


def test_specs_say_of_which_type_tensors_are() -> None:
    rows = dray.data.from_items([{"x": [n, 1.5], "y": n, "w": None} for n in range(3)])
    given = tf.TensorSpec((None, 2), tf.float32, name="features")
    made = rows.to_tf(
        "x",
        ["y"],
        additional_columns=["w", "y"],
        feature_type_spec=given,
        label_type_spec={"y": tf.TensorSpec((None,), tf.float64)},
    )
    features, labels, more = made.element_spec
    assert features == given
    assert labels["y"].dtype == tf.float64
    assert {name: spec.dtype for name, spec in more.items()} == {"w": tf.float32, "y": tf.int64}
    x, y, _ = next(iter(made))
    assert x.dtype == tf.float32
    assert values(y) == {"y": [0.0]}
