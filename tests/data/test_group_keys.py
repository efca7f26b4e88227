"""The keys of groups, and the names of results beside them."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

import dray
import dray.data
from dray.data.aggregate import (
    Count,
    Max,
    Quantile,
    Sum,
)


def test_categories_are_keys_as_their_values_are() -> None:
    frame = pd.DataFrame({"kind": pd.Categorical(["v", "u", "v"]), "x": [1, 2, 3]})
    groups = dray.data.from_pandas(frame).groupby("kind")
    assert groups.sum("x").take_all() == [{"kind": "u", "sum(x)": 2}, {"kind": "v", "sum(x)": 4}]
    assert [row["count()"] for row in groups.count().take_all()] == [1, 2]
    assert [row["x"] for row in groups.aggregate(Max("x", alias_name="x")).take_all()] == [2, 3]
    first = groups.map_groups(lambda group: group.head(1))
    assert [(row["kind"], row["x"]) for row in first.take_all()] == [("u", 2), ("v", 1)]


def test_aggregates_of_one_name_get_numbers() -> None:
    rows = dray.data.from_items([{"k": 0, "x": float(n)} for n in range(5)] + [{"k": 0, "x": None}])
    quarters = (Quantile("x", part) for part in (0.25, 0.5, 0.75))
    assert rows.aggregate(*quarters) == {
        "quantile(x)": 1.0,
        "quantile(x)_2": 2.0,
        "quantile(x)_3": 3.0,
    }
    counts = Count("x"), Count("x", ignore_nulls=True), Sum("x", alias_name="count(x)_2")
    assert rows.groupby("k").aggregate(*counts).take_all() == [
        {"k": 0, "count(x)": 6, "count(x)_2": 5, "count(x)_2_2": 10.0}
    ]


@pytest.mark.parametrize("how", ["sum", "min", "max", "mean", "std"])
def test_a_column_may_be_aggregated_twice_and_beside_a_key_of_that_name(how: str) -> None:
    first, second, third = f"{how}(x)", f"{how}(x)_2", f"{how}(x)_3"
    rows = dray.data.from_items([{first: "a", "x": 1}, {first: "a", "x": 1}])
    expected = 0.0 if how == "std" else 2 if how == "sum" else 1
    [row] = getattr(rows.groupby(first), how)(["x", "x"]).take_all()
    assert row == {first: "a", second: expected, third: expected}
    assert getattr(rows, how)(["x", "x"]) == {first: expected, second: expected}


def test_a_key_may_have_the_name_of_a_result() -> None:
    rows = dray.data.from_items([{"count()": "a", "x": 1}, {"count()": "a", "x": 3}])
    assert rows.groupby("count()").count().take_all() == [{"count()": "a", "count()_2": 2}]
    summed = rows.groupby("count()").aggregate(Sum("x", alias_name="count()"))
    assert summed.take_all() == [{"count()": "a", "count()_2": 4}]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_zero_is_one_key_whatever_its_sign(kind: pa.DataType) -> None:
    signs = dray.data.from_arrow(pa.table({"k": pa.array([0.0, -0.0, 0.0], kind), "v": [1, 2, 3]}))
    made = signs.groupby("k").map_groups(lambda group: {"n": [len(group)]})
    assert made.take_all() == [{"n": 3}]
    summed = signs.groupby("k").sum("v")
    assert summed.take_all() == [{"k": 0.0, "sum(v)": 6}]
    schema = summed.schema()
    assert schema is not None
    assert schema.base_schema.field("k").type == kind
    others = dray.data.from_arrow(pa.table({"k": pa.array([-0.0], kind), "w": [1]}))
    assert signs.join(others, "inner", on="k").count() == 3
