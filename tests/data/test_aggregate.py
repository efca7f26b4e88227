"""Aggregates by their classes, and blocks as references, as programs for Ray Data ask for them."""

from __future__ import annotations

import datetime as dt
import decimal
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dray
import dray.data
from dray.data.aggregate import (
    AbsMax,
    AggregateFn,
    ApproximateQuantile,
    ApproximateTopK,
    AsList,
    Count,
    CountDistinct,
    Max,
    Mean,
    Min,
    MissingValuePercentage,
    Quantile,
    Std,
    Sum,
    Unique,
    ValueCounter,
    ZeroPercentage,
)
from dray.data.datatype import DataType
from dray.data.preprocessors import SimpleImputer, StandardScaler
from dray.errors import AbsentArgumentError, AbsentNameError, ConfigError

FRAME = pd.DataFrame({"kind": ["b", "a", "b", "b"], "x": [1.0, -5.0, 2.0, None]})
ROWS = dray.data.from_pandas(FRAME)


def test_aggregates_of_groups_and_of_all_rows() -> None:
    every: list[AggregateFn] = [
        *(Count(), Count("x"), Count("x", ignore_nulls=True), CountDistinct("x")),
        *(Sum("x"), Min("x"), Max("x"), Mean("x", alias_name="middle"), Std("x", ddof=0)),
        *(AbsMax("x"), Quantile("x", q=0.25), AsList("x", ignore_nulls=True), Unique("kind")),
    ]
    every[2].name = "known"
    last = ROWS.groupby("kind").aggregate(*every).take_all()[1]
    assert last == {
        "kind": "b",
        "count()": 3,
        "count(x)": 3,
        "known": 2,
        "count_distinct(x)": 2,
        "sum(x)": 3.0,
        "min(x)": 1.0,
        "max(x)": 2.0,
        "middle": 1.5,
        "std(x)": 0.5,
        "abs_max(x)": 2.0,
        "quantile(x)": 1.25,
        "list(x)": [1.0, 2.0],
        "unique(kind)": ["b"],
    }
    whole = ROWS.aggregate(Max("x"), AbsMax("x"), Unique("kind"), Sum("x", ignore_nulls=False))
    assert whole is not None
    assert (whole["max(x)"], whole["abs_max(x)"]) == (2.0, 5.0)
    assert sorted(whole["unique(kind)"]) == ["a", "b"]
    assert whole["sum(x)"] is None
    listed = ROWS.groupby("kind").aggregate(AsList("x", "every")).take_all()
    assert listed[1]["every"] == [1.0, 2.0, None]
    assert ROWS.limit(0).aggregate(Max("x")) is None
    flags = dray.data.from_items([{"x": True}, {"x": False}])
    assert flags.std("x", ddof=0) == 0.5
    least = dray.data.from_items([{"x": -(2**63)}, {"x": 1}])
    assert least.aggregate(AbsMax("x")) == {"abs_max(x)": 2**63}
    with pytest.raises(ConfigError, match="there is no column 'z'"):
        ROWS.aggregate(Max("z"))
    with pytest.raises(
        ConfigError, match=r"aggregate takes aggregates of dray.data.aggregate, such as Mean\('x'\)"
    ):
        ROWS.aggregate("x")  # type: ignore[arg-type]
    with pytest.raises(AbsentNameError, match="AggregateFnV2"):
        _ = dray.data.aggregate.VectorizedAggregateFnV2  # type: ignore[attr-defined]


def test_means_of_large_numbers() -> None:
    times = dray.data.from_items([{"at": 1_700_000_000_000_001 + 2 * n} for n in range(9)])
    assert times.mean("at") == pytest.approx(1_700_000_000_000_009, abs=1)
    assert times.groupby(None).mean("at").take_all()[0]["mean(at)"] > 1.7e15
    huge = dray.data.from_items([{"at": (1 << 60) + 1}, {"at": (1 << 61) + 1}, {"at": None}])
    scaled = StandardScaler(["at"]).fit_transform(huge.limit(2)).take_all()
    assert [row["at"] for row in scaled] == [-1.0, 1.0]
    filled = SimpleImputer(["at"]).fit_transform(huge).take_all()
    assert filled[2]["at"] == pytest.approx(1.5 * (1 << 60))


def test_sums_of_large_numbers() -> None:
    rows = dray.data.from_arrow(pa.table({"k": ["a", "a", "b"], "n": [1 << 62, 1 << 62, -5]}))
    assert rows.groupby("k").mean("n").take_all()[0] == {"k": "a", "mean(n)": float(1 << 62)}
    assert rows.sum("n") == (1 << 63) - 5
    large = dray.data.from_arrow(pa.table({"n": pa.array([1 << 62] * 3, pa.uint64())}))
    assert large.aggregate(Sum("n")) == {"sum(n)": 3 << 62}
    sums: list[Callable[[], object]] = [
        lambda: rows.union(rows).sum("n"),
        lambda: rows.groupby("k").sum("n").take_all(),
        lambda: rows.groupby("k").aggregate(Sum("n")).take_all(),
        lambda: large.union(large).sum("n"),
    ]
    for fails in sums:
        with pytest.raises(
            ConfigError,
            match=r"sum\(n\) is more than u?int64 can hold: convert the column to floats",
        ):
            fails()


def test_counts_of_values() -> None:
    items = [("a", 1.0, [1, 2], True), ("a", None, None, False), ("b", 0.0, [1], None)]
    items += [("b", float("nan"), [1], False), ("b", 0.0, [1], True)]
    rows = dray.data.from_items([dict(zip("kxlb", item, strict=True)) for item in items])
    by_kind = rows.groupby("k")
    counted = by_kind.aggregate(ValueCounter("b"), ValueCounter("l", "lists")).take_all()
    assert counted == [
        {
            "k": "a",
            "value_counter(b)": {"values": [True, False], "counts": [1, 1]},
            "lists": {"values": [[1, 2], None], "counts": [1, 1]},
        },
        {
            "k": "b",
            "value_counter(b)": {"values": [None, False, True], "counts": [1, 1, 1]},
            "lists": {"values": [[1]], "counts": [3]},
        },
    ]
    parts = [MissingValuePercentage("x"), ZeroPercentage("x"), ZeroPercentage("b", False, "no")]
    assert by_kind.aggregate(*parts).take_all() == [
        {"k": "a", "missing_pct(x)": 50.0, "zero_pct(x)": 0.0, "no": 50.0},
        {"k": "b", "missing_pct(x)": 1 / 3 * 100, "zero_pct(x)": 2 / 3 * 100, "no": 1 / 3 * 100},
    ]
    frequent = [ApproximateTopK("l", 1), ApproximateTopK("l", 2, alias_name="n", encode_lists=True)]
    assert rows.aggregate(*frequent, ApproximateQuantile("x", [0, 0.5, 1])) == {
        "approx_topk(l)": [{"l": [1], "count": 3}],
        "n": [{"l": 1, "count": 4}, {"l": 2, "count": 1}],
        "approx_quantile(x)": [0.0, 0.0, 1.0],
    }
    none = dray.data.from_items([{"x": None}])
    wanted = [ValueCounter("x"), ZeroPercentage("x"), ApproximateQuantile("x", [0.5])]
    wanted += [CountDistinct("x"), MissingValuePercentage("x"), ApproximateTopK("x", 1)]
    assert none.aggregate(*wanted) == {
        "value_counter(x)": {"values": [None], "counts": [1]},
        "zero_pct(x)": None,
        "approx_quantile(x)": None,
        "count_distinct(x)": 0,
        "missing_pct(x)": 100.0,
        "approx_topk(x)": [],
    }


def test_summary() -> None:
    day = dt.datetime(2024, 1, 1)
    ages = [{"age": 25, "name": "Ada", "at": day}, {"age": 0, "name": None, "at": day}]
    rows = dray.data.from_items([*ages, {"age": None, "name": "Bob", "at": None}])
    summary = rows.summary()
    assert summary.columns == ["age", "name", "at"]
    assert summary.get_column_stats("age").set_index("statistic")["value"].dropna().to_dict() == {
        "approx_quantile[0]": 25.0,
        "count": 3.0,
        "max": 25.0,
        "mean": 12.5,
        "min": 0.0,
        "missing_pct": 1 / 3 * 100,
        "std": 12.5,
        "zero_pct": 50.0,
    }
    frame = summary.to_pandas().set_index("statistic")
    assert list(frame.columns) == ["age", "at", "name"]
    assert frame["name"]["approx_topk[1]"] == {"name": "Bob", "count": 1}
    assert frame["at"]["max"] == day
    assert list(frame.index) == sorted(frame.index)
    assert rows.summary("age").columns == ["age"]
    spans = dray.data.from_items([{"for": dt.timedelta(1)}]).summary()
    assert set(spans.statistics) == {"count", "missing_pct", "approx_topk[0]"}
    late = dray.data.range(300).map(lambda row: {"x": 1.5 if row["id"] > 280 else None})
    assert late.summary().statistics["mean"] == {"x": 1.5}
    own = rows.summary(["age"], {DataType.int64(): lambda name: [Sum(name), Count()]})
    assert own.to_pandas().to_dict("records") == [{"statistic": "sum", "age": 25}]
    assert importlib.import_module("dray.data.stats").DatasetSummary is dray.data.DatasetSummary
    with pytest.raises(ConfigError, match="there is no column 'z'"):
        rows.summary(["z"])
    with pytest.raises(ConfigError, match="there is no column 'z'"):
        summary.get_column_stats("z")
    for nothing in (rows.limit(0), rows.select_columns([])):
        with pytest.raises(ConfigError, match="summary has"):
            nothing.summary()


def test_module_paths_of_ray() -> None:
    assert importlib.import_module("dray.data.context").DataContext is dray.data.DataContext
    found = importlib.import_module("dray.data.preprocessor").Preprocessor
    assert found is dray.data.Preprocessor
    for path in ("grouped_data", "block", "preprocessors.normalizer", "preprocessors.scaler"):
        assert importlib.import_module(f"dray.data.{path}")


class Numbered:
    """Names a group, and says how many rows it has."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, group: pd.DataFrame, least: int, more: int = 0) -> dict[str, list[object]]:
        if len(group) < least:
            raise ValueError("too few")
        return {"name": [self.name], "rows": [len(group) + more]}


def test_arguments_of_ray() -> None:
    groups = ROWS.groupby("kind")
    options: dict[str, Any] = {"batch_format": "pandas", "fn_constructor_args": ["g"]}
    options["concurrency"] = 2
    made = groups.map_groups(Numbered, fn_args=[1], fn_kwargs={"more": 1}, **options)
    assert made.take_all() == [{"name": "g", "rows": 2}, {"name": "g", "rows": 4}]
    with pytest.raises(ValueError, match=r"map_groups\(Numbered\) failed on the group kind='a'"):
        groups.map_groups(Numbered, fn_args=[2], **options).take_all()
    with pytest.raises(AbsentArgumentError, match="no argument 'batch_sise'"):
        groups.map_groups(Numbered, batch_sise=2)
    assert [row["sum(x)"] for row in groups.sum("x", ignore_nulls=False).take()] == [-5, None]
    assert (ROWS.mean("x", ignore_nulls=False), ROWS.min("x", ignore_nulls=False)) == (None, None)
    assert ROWS.unique("x", ignore_nulls=True) == [1, -5, 2]
    added = ROWS.add_column("y", lambda frame: frame["x"], concurrency=2)
    assert added.select_columns(["y"], concurrency=1).columns() == ["y"]
    assert added.rename_columns({"y": "z"}, num_cpus=1).columns() == ["kind", "x", "z"]
    with pytest.raises(AbsentArgumentError, match="no argument 'columns'"):
        ROWS.drop_columns(["x"], columns=1)


def test_values_of_any_type_come_once() -> None:
    several = dray.data.from_items([{"x": value} for value in ([1, 2], [3], None, [1, 2])])
    assert several.unique("x") == [[1, 2], [3], None]
    records = several.map(lambda row: {"x": {"tags": row["x"], "y": 1}})
    assert records.unique("x") == [row["x"] for row in records.take(3)]
    arrays = dray.data.from_items([{"x": np.full(2, number)} for number in (1, 2, 1)]).unique("x")
    assert [array.tolist() for array in arrays] == [[1, 1], [2, 2]]


def test_aggregates_of_values_with_parts() -> None:
    items = [{"k": 1, "l": [1, 2], "d": {"a": 1}, "t": np.ones(2)}]
    items += [{"k": 1, "l": [1, 2], "d": None, "t": np.ones(2)}, {"k": 2, "l": [3], "d": None}]
    rows = dray.data.from_items([{**items[2], "t": None, **item} for item in items])
    asked = [Unique("l"), CountDistinct("l"), AsList("l", "all")]
    assert rows.groupby("k").aggregate(*asked).take_all() == [
        {"k": 1, "unique(l)": [[1, 2]], "count_distinct(l)": 1, "all": [[1, 2], [1, 2]]},
        {"k": 2, "unique(l)": [[3]], "count_distinct(l)": 1, "all": [[3]]},
    ]
    of_records = [Unique("d"), AsList("d", "known", ignore_nulls=True), CountDistinct("t")]
    assert rows.aggregate(*of_records) == {
        "unique(d)": [{"a": 1}, None],
        "known": [{"a": 1}],
        "count_distinct(t)": 1,
    }
    for by_lists in (rows.groupby("l").count(), rows.sort("l"), rows.join(rows, "inner", on="l")):
        with pytest.raises(
            ConfigError, match=r"column 'l' is list.*: convert it to text or numbers"
        ):
            by_lists.take_all()


def test_aggregates_that_a_type_does_not_have() -> None:
    rows = dray.data.from_items([{"t": "a", "l": [1], "x": decimal.Decimal(2), "b": True}])
    numeric: list[Any] = [Sum, Mean, Std, AbsMax, Quantile, ZeroPercentage]
    for kind in (*numeric, Min):
        with pytest.raises(ConfigError, match=r"does not work on column 'l', which is list"):
            rows.aggregate(kind("l"))
        if kind is not Min:
            with pytest.raises(ConfigError, match=r"does not work on column 't', which is string"):
                rows.groupby("b").aggregate(kind("t")).take_all()
    for how in ("sum", "mean", "std"):
        with pytest.raises(ConfigError, match=rf"{how}\(t\) does not work on column 't'"):
            getattr(rows, how)("t")
    found = rows.aggregate(Quantile("x"), ApproximateQuantile("b", [0.5], alias_name="b"))
    assert found == {"quantile(x)": 2.0, "b": [1.0]}
    for wrong in (0.5, [2], None):
        with pytest.raises(ConfigError, match="quantiles must be a list of numbers from 0 to 1"):
            ApproximateQuantile("x", wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="q must be a number from 0 to 1, not 50"):
        Quantile("x", 50)
    with pytest.raises(ConfigError, match="k must be a number of values"):
        ApproximateTopK("x", 0)


def test_values_may_come_behind_rows_without_any() -> None:
    late = dray.data.range(9).map(lambda row: {"x": 0.5 if row["id"] == 8 else None, "y": "a"})
    assert late.sum() == 0.5
    assert late.groupby("y").max().take_all() == [{"y": "a", "max(x)": 0.5}]


def test_blocks_as_references() -> None:
    try:
        [table] = dray.get(ROWS.to_arrow_refs())
        assert table.num_rows == 4
        [frame] = dray.get(ROWS.to_pandas_refs())
        assert frame["kind"].tolist() == FRAME["kind"].tolist()
        [arrays] = dray.get(ROWS.to_numpy_refs(column="kind"))
        assert arrays.tolist() == FRAME["kind"].tolist()
        assert dray.data.from_arrow_refs(ROWS.to_arrow_refs()).count() == 4
        assert dray.data.from_pandas_refs(dray.put(FRAME)).columns() == ["kind", "x"]
        assert dray.data.from_numpy_refs([dray.put(np.arange(3))]).take(1) == [{"data": 0}]
    finally:
        dray.shutdown()


def test_aggregates_without_values() -> None:
    groups = ROWS.groupby("kind")
    for how in ("sum", "min", "max", "mean", "std"):
        of_groups = getattr(groups, how)
        values = [row[f"{how}(x)"] for row in of_groups("x", ignore_nulls=False).take()]
        assert values[1] is None, how
        of_one, of_two = (row[f"{how}(x)"] for row in of_groups("x").take())
        assert (of_one is None, of_two is None) == (False, False), how
        of_all = getattr(ROWS, how)
        assert (of_all("x", ignore_nulls=False), of_all("x") is None) == (None, False), how
        nulls = dray.data.from_items([{"x": None}, {"x": None}])
        none = ROWS.filter(lambda row: False)
        assert (getattr(nulls, how)("x"), getattr(none, how)("x")) == (None, None), how
        assert getattr(none.groupby("kind"), how)("x").take() == [], how
    with pytest.raises(ConfigError, match="by their names, not 5"):
        groups.mean([5])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="groupby takes columns by their names, not 3"):
        ROWS.groupby(3)  # type: ignore[arg-type]
    assert repr(groups) == f"GroupedData(dataset={ROWS!r}, key='kind')"
    with pytest.raises(ConfigError, match="a column or several"):
        groups.mean([])
    assert np.isnan(groups.std("x").take(1)[0]["std(x)"])
    unique = ROWS.aggregate(Unique("x"), Unique("x", ignore_nulls=True, alias_name="known"))
    assert unique is not None
    assert (set(unique["unique(x)"]), set(unique["known"])) == ({1, -5, 2, None}, {1, -5, 2})


def test_functions_of_groups() -> None:
    def shares(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(share=frame["x"] / frame["x"].sum())

    def halves(batch: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        yield {"rows": np.array([len(batch["x"])])}
        yield {"rows": np.array([0])}

    groups, one = ROWS.groupby("kind"), ROWS.groupby(None)
    assert groups.map_groups(shares).to_pandas()["share"][:2].tolist() == [1, 1 / 3]
    made = one.map_groups(halves, batch_format="numpy")
    assert [row["rows"] for row in made.take()] == [4, 0]
    sizes = groups.map_groups(
        lambda table: {"rows": [table.num_rows], "process": [os.getpid()]},
        batch_format="pyarrow",
        concurrency=2,
    ).to_pandas()
    assert sizes["rows"].tolist() == [1, 3]
    assert os.getpid() not in sizes["process"].tolist()
    assert one.count().take() == [{"count()": 4}]


def test_nan_is_a_number_and_null_in_frames_of_pandas() -> None:
    items = [{"x": 1.0, "name": "a"}, {"x": np.nan, "name": np.nan}, {"x": None, "name": "b"}]
    first, second, third = dray.data.from_items(items).map(lambda row: row).take_all()
    assert np.isnan(second["x"])
    assert (first["x"], third["x"], second["name"], third["name"]) == (1.0, None, None, "b")
    mixed = pd.DataFrame({"x": [1.0, np.nan], "any": [(1,), "a"]})
    assert [row["x"] for row in dray.data.from_pandas(mixed).take()] == [1.0, None]
    pairs = [{"a": value, "b": value} for value in (np.nan, 1.0, np.nan, 2.0)]
    made = (
        dray.data.from_items(pairs)
        .groupby(["a", "b"])
        .map_groups(lambda frame: {"a": [frame["a"][0]], "rows": [len(frame)]})
    )
    *rows, last = made.take_all()
    assert rows == [{"a": 1.0, "rows": 1}, {"a": 2.0, "rows": 1}]
    assert (bool(np.isnan(last["a"])), last["rows"]) == (True, 2)
