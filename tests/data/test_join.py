"""Joins: pairs of rows of two datasets whose keys are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dray.data
from dray.errors import ConfigError

LEFT = dray.data.from_items([{"id": n, "x": n, "t": np.full(2, n)} for n in (3, 1, 2)])
RIGHT = dray.data.from_items([{"id": n, "x": -n, "other": n} for n in (1, 3, 3, 5)])


@pytest.mark.parametrize(
    ("how", "pairs"),
    [
        ("inner", [(3, 3, -3), (3, 3, -3), (1, 1, -1)]),
        ("left_outer", [(3, 3, -3), (3, 3, -3), (1, 1, -1), (2, 2, None)]),
        ("right_outer", [(3, 3, -3), (3, 3, -3), (1, 1, -1), (5, None, -5)]),
        ("full_outer", [(3, 3, -3), (3, 3, -3), (1, 1, -1), (2, 2, None), (5, None, -5)]),
        ("left_semi", [(3, 3, None), (1, 1, None)]),
        ("left_anti", [(2, 2, None)]),
        ("right_semi", [(1, -1, None), (3, -3, None), (3, -3, None)]),
        ("right_anti", [(5, -5, None)]),
    ],
)
def test_joins(how: str, pairs: list[Any]) -> None:
    rows = LEFT.join(RIGHT, how, 2, on=("id",), right_suffix="_r").take_all()
    assert [(row["id"], row["x"], row.get("x_r")) for row in rows] == pairs
    for row in rows:
        tensor = row.get("t")
        assert tensor is None or tensor.tolist() == [row["x"]] * 2


def test_keys_of_other_names() -> None:
    rows = LEFT.select_columns(["id"]).join(
        RIGHT.drop_columns(["id"]), "inner", on="id", right_on="other"
    )
    assert [row["x"] for row in rows.take_all()] == [-3, -3, -1]


def test_joins_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="both datasets have a column 'x': give left_suffix="):
        LEFT.join(RIGHT, "inner").take()
    with pytest.raises(ConfigError, match="join_type must be one of inner, left_outer"):
        LEFT.join(RIGHT, "outer")
    with pytest.raises(ConfigError, match="there is no column 'k'"):
        LEFT.join(RIGHT, "inner", on="k").take()
    with pytest.raises(ConfigError, match="join takes the same number of keys of each"):
        LEFT.join(RIGHT, "inner", on="id", right_on=["id", "x"])
    with pytest.raises(ConfigError, match="the datasets cannot be joined"):
        LEFT.join(dray.data.from_items([{"id": "a"}]), "inner").take()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array(["a", "b"], pa.large_string()), pa.array(["b", "c"])),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "c"])),
        (pa.array([1, 2], pa.int32()), pa.array([2, 3])),
        (pa.array([1, 2], pa.uint8()), pa.array([2.0, 3.5])),
        (pa.array([None, "b"]), pa.array(["b"], pa.large_string())),
        (pa.nulls(2), pa.array(["b"])),
    ],
    ids=str,
)
def test_keys_of_types_that_one_type_holds_are_joined(left: pa.Array, right: pa.Array) -> None:
    first, second = (
        dray.data.from_arrow(pa.table({"k": keys, name: range(len(keys))}))
        for keys, name in ((left, "x"), (right, "y"))
    )
    pairs = [(row["x"], row["y"]) for row in first.join(second, "inner", on="k").take_all()]
    assert pairs == ([] if left.null_count == 2 else [(1, 0)])
    whole = second.join(first, "full_outer", on="k").take_all()
    assert sorted(row["x"] for row in whole if row["x"] is not None) == [0, 1]


def test_frames_of_pandas_are_joined_with_rows() -> None:
    frame = dray.data.from_pandas(pd.DataFrame({"k": ["a", "b"]}))
    rows = dray.data.from_items([{"k": "b", "w": 1}])
    assert frame.join(rows, "inner", on="k").take_all() == [{"k": "b", "w": 1}]
