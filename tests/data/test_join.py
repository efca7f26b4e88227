"""Joins: pairs of rows of two datasets whose keys are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
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
    with pytest.raises(ConfigError, match="join takes as many keys of each"):
        LEFT.join(RIGHT, "inner", on="id", right_on=["id", "x"])
    with pytest.raises(ConfigError, match="the datasets cannot be joined"):
        LEFT.join(dray.data.from_items([{"id": "a"}]), "inner").take()
