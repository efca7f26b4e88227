"""The forms in which functions see columns, and columns made of what they return."""

from __future__ import annotations

import datetime
import decimal
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dray.data
from dray.data.aggregate import AsList, Max, Unique, ZeroPercentage
from dray.data.sources import staging
from dray.errors import ConfigError

LARGE = 2**53 + 1  # no float is that number
NOON = datetime.datetime(2020, 1, 1, 12)


def _plain(value: Any) -> Any:
    """Return a value with lists for arrays."""
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize(
    "rows",
    [
        [[1, LARGE], [], [3]],
        [[1], None],
        [[True], [False, True]],
        [["a\0", "bc"], []],
        [[b"a\0"], [b"bc"]],
        [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
        [[[1, 2], [3]], [[4]]],
        [[[1]], []],
        [[{"a": LARGE}], []],
        [[decimal.Decimal("1.50")], []],
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
def test_lists_stay_as_they_are(rows: list[Any], batch_format: str) -> None:
    source = dray.data.from_items([{"x": row} for row in rows])
    same = source.map_batches(lambda batch: batch, batch_format=batch_format)
    assert [_plain(row["x"]) for row in same.take_all()] == rows


def test_lists_of_numbers_are_arrays_of_their_type() -> None:
    lists = dray.data.from_items([{"x": [1, 2], "m": [[1, 2]]}, {"x": [], "m": [[3, 4]]}])
    batch = lists.take_batch(2)
    assert [array.dtype for array in batch["x"]] == [np.int64, np.int64]
    assert [array.shape for array in batch["m"]] == [(1, 2), (1, 2)]
    for given in lists.iter_batches(batch_size=2):
        given["x"][0][0] = 7
        given["m"][0][0] = 7
    assert lists.take(1) == [{"x": [1, 2], "m": [[1, 2]]}]


@pytest.mark.parametrize("batch_format", ["numpy", "pandas"])
def test_maps_stay_maps(batch_format: str) -> None:
    table = pa.table({"x": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))})
    same = dray.data.from_arrow(table).map_batches(lambda batch: batch, batch_format=batch_format)
    assert [row["x"] for row in same.take_all()] == [[("k", 1)], []]


def test_a_frame_holds_what_pandas_would_make_floats_of() -> None:
    table = pa.table(
        {
            "whole": pa.array([LARGE, None]),
            "struct": pa.array([{"a": LARGE}, {"a": None}]),
            "decimal": pa.array([decimal.Decimal("1.10"), None], pa.decimal128(10, 2)),
            "map": pa.array([[("k", LARGE)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    source = dray.data.from_arrow(table)
    same = source.map_batches(lambda frame: frame, batch_format="pandas")
    assert same.take_all() == table.to_pylist()
    schema = same.schema()
    assert schema is not None
    assert schema.types == list(table.schema.types)
    assert source.to_pandas()["whole"][0] == LARGE


@pytest.mark.parametrize(
    "matrix",
    [
        np.array([[True, False], [True, True]]),
        np.array([[["a", "b"]], [["cd", "e"]]]),
        np.array([[NOON, NOON], [NOON, NOON]], "M8[s]"),
    ],
    ids=lambda matrix: matrix.dtype.kind,
)
def test_a_matrix_of_anything_keeps_its_shape(matrix: np.ndarray[Any, Any]) -> None:
    made = dray.data.range(2).map_batches(lambda batch: {"x": matrix})
    (batch,) = made.iter_batches(batch_size=2)
    assert batch["x"].shape == matrix.shape
    assert (batch["x"] == matrix).all()
    (kept,) = made.map_batches(lambda batch: batch).iter_batches(batch_size=2)
    assert (kept["x"] == matrix).all()
    assert [row["x"].shape for row in made.take_all()] == [matrix.shape[1:]] * 2


@pytest.mark.parametrize(
    "values",
    [
        np.array([1, 2], ">i4"),
        np.array([1.5, 2.0], ">f8"),
        np.array([1 + 2j, 2]),
        np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")]),
        np.array([b"a", b"b\0c"]),
        np.array(["2020-01-01T01", "2020-01-01T02"], "M8[h]"),
    ],
    ids=lambda values: values.dtype.str,
)
def test_arrays_of_any_type_keep_their_values(values: np.ndarray[Any, Any]) -> None:
    made = dray.data.range(2).map_batches(lambda batch: {"data": values})
    for rows in (dray.data.from_numpy(values), made):
        assert [row["data"] for row in rows.take_all()] == list(values)


def test_arrays_of_several_lengths_are_arrays_in_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = dray.data.range(6).map(
        lambda row: {**row, "x": np.arange(row["id"] % 3 + 1.0) if row["id"] else None}
    )
    monkeypatch.setattr(staging, "IN_MEMORY_BYTES", 0)
    made.write_parquet(tmp_path)
    first, last = made.split_at_indices([5])  # the last one has arrays of one length
    for rows in (
        made,
        made.materialize(),
        made.sort("id"),
        made.map_batches(lambda batch: batch),
        first.union(last).materialize(),
        made.zip(made.rename_columns({"x": "y"})),
        made.join(dray.data.range(6), "inner", 1, ("id",)),
        dray.data.read_parquet(tmp_path),
    ):
        doubled = rows.filter(lambda row: row["id"] > 0).map(lambda row: {"x": row["x"] * 2})
        assert [row["x"].tolist() for row in doubled.take_all()] == [
            *([0, 2], [0, 2, 4], [0], [0, 2], [0, 2, 4])
        ]
    assert dray.data.from_items([{"x": [1]}, {"x": [1, 2]}]).take(1) == [{"x": [1]}]


@pytest.mark.parametrize("texts", [["a", "b"], ["a", None]])
def test_arrays_of_texts_are_arrays_in_rows(texts: list[str | None], tmp_path: Path) -> None:
    made = dray.data.range(2).map(lambda row: {"x": np.array(texts)})
    made.write_json(tmp_path)
    lists = dray.data.read_json(tmp_path)
    assert lists.take(1) == [{"x": texts}]
    for rows in (made, lists.map_batches(lambda batch: batch)):
        assert rows.map(lambda row: {"x": row["x"].tolist()}).take_all() == [{"x": texts}] * 2


def test_an_array_of_no_dimension_is_its_number() -> None:
    torch = pytest.importorskip("torch")
    rows = dray.data.range(2).map(lambda row: {"x": torch.tensor(row["id"] + 1), "y": np.array(2)})
    assert rows.sum("x") == 3
    assert rows.take(1) == [{"x": 1, "y": 2}]


def test_frames_of_files_that_pandas_wrote_keep_all_values(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": range(10), "r": [{"a": number} for number in range(10)]})
    frame[frame.x > 7].to_parquet(tmp_path / "part.parquet")
    part = dray.data.read_parquet(tmp_path / "part.parquet")
    assert part.to_pandas()["r"].tolist() == [{"a": 8}, {"a": 9}]
    assert part.columns() == part.to_pandas().columns.tolist() == ["x", "r"]
    same = part.map_batches(lambda batch: batch, batch_format="pandas")
    assert same.take_all() == part.take_all()
    indexed = pd.DataFrame({"v": [1.0, 2.0]}, index=pd.Index(["a", "b"], name="k"))
    indexed.to_parquet(tmp_path / "indexed.parquet")
    named = dray.data.read_parquet(tmp_path / "indexed.parquet")
    assert named.to_pandas()["k"].tolist() == ["a", "b"]
    assert named.groupby("k").map_groups(lambda group: group).take_all() == named.take_all()


def test_blocks_of_mixed_values_go_together_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.ones((2, 2)), np.ones(3), "text"
    parts = [dray.data.from_items([{"x": value}]) for value in values]
    monkeypatch.setattr(staging, "IN_MEMORY_BYTES", 0)
    for order in itertools.permutations(parts):
        mixed = order[0].union(*order[1:]).materialize()
        shapes = [str(np.shape(row["x"])) for row in mixed.take_all()]
        assert sorted(shapes) == ["()", "(2, 2)", "(3,)"]


def test_arrays_of_cupy_are_asked_for_their_values() -> None:
    """Which lie on a GPU, and CuPy converts none unasked; this stands for them."""

    class OnAGpu:
        def __init__(self, values: Any) -> None:
            self._values = values

        def __array__(self, *_: object, **__: object) -> Any:
            raise TypeError("Implicit conversion to a NumPy array is not allowed")

        def get(self) -> Any:
            return self._values

    OnAGpu.__module__ = "cupy"
    rows = dray.data.from_items([{"x": 1}, {"x": 2}])
    doubled = rows.map_batches(lambda batch: {"x": OnAGpu(batch["x"] * 2)})
    pairs = rows.map_batches(lambda batch: {"x": [OnAGpu(np.array([x, x])) for x in batch["x"]]})
    assert [row["x"] for row in doubled.take_all()] == [2, 4]
    assert [row["x"].tolist() for row in pairs.take_all()] == [[1, 1], [2, 2]]


def test_tensors_of_bfloat16_have_32_bits() -> None:
    """NumPy has no such type; it holds all of its values."""
    torch = pytest.importorskip("torch")

    def halves(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": torch.tensor(batch["id"] / 2).to(torch.bfloat16)}

    made = dray.data.range(3).map_batches(halves)
    rows = made.map(lambda row: {"y": torch.tensor([row["x"]], dtype=torch.bfloat16)})
    assert made.take_batch()["x"].dtype == rows.take_batch()["y"].dtype == np.float32
    assert rows.take_batch()["y"].tolist() == [[0], [0.5], [1]]
    [batch] = made.iter_torch_batches(dtypes=torch.bfloat16)
    assert batch["x"].tolist() == [0, 0.5, 1]


def test_a_column_without_any_value_is_a_tensor_of_nan() -> None:
    torch = pytest.importorskip("torch")
    rows = dray.data.from_items([{"x": None, "y": 1}, {"x": None, "y": 2}])
    [batch] = rows.iter_torch_batches()
    assert batch["x"].dtype == torch.float32
    assert batch["x"].isnan().tolist() == [True, True]
    assert batch["y"].tolist() == [1, 2]


def test_times_among_dates_stay_times() -> None:
    values = [NOON.date(), NOON, None]
    for order in (values, values[::-1]):
        rows = dray.data.from_items([{"x": value} for value in order])
        assert [row["x"] for row in rows.take_all()] == order
    for within in ([NOON.date(), NOON], {"y": [NOON], "z": None}):
        others = [{"y": [NOON.date()], "z": 1}] if isinstance(within, dict) else [[NOON.date()]]
        nested = dray.data.from_items([{"x": value} for value in [*others, within]])
        assert [row["x"] for row in nested.take_all()] == [*others, within]


def test_times_in_nanoseconds_are_kept_in_frames() -> None:
    table = pa.table({"x": pa.array([3001, None], pa.time64("ns"))})
    rows = dray.data.from_arrow(table)
    assert rows.map_batches(lambda frame: frame, batch_format="pandas").to_arrow() == table
    assert str(rows.to_pandas()["x"].dtype) == "time64[ns][pyarrow]"


def test_rows_without_columns_are_rows() -> None:
    rows = dray.data.from_items([{}, {}])
    assert rows.count() == 2
    assert rows.take_all() == rows.materialize().take_all() == [{}, {}]
    assert rows.map(lambda row: {**row, "x": 1}).take_all() == [{"x": 1}] * 2
    assert dray.data.range(2).drop_columns(["id"]).take_all() == [{}, {}]
    assert pickle.loads(pickle.dumps(rows)).count() == 2
    more = rows.union(dray.data.from_items([{}, {}, {}]))
    batches = more.iter_batches(batch_size=2, batch_format="pyarrow")
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert more.materialize().count() == len(more.random_shuffle().take_all()) == 5
    assert more.filter(lambda row: False).take_all() == []
    assert more.to_pandas().shape == (5, 0)
    assert [len(list(part.iter_rows())) for part in more.streaming_split(2, equal=True)] == [2, 2]
    with_others = more.limit(1).union(dray.data.range(1)).materialize()
    assert with_others.take_all() == [{"id": None}, {"id": 0}]


def test_rows_of_several_types_are_a_frame_of_objects() -> None:
    both = dray.data.from_items([{"x": 1}]).union(dray.data.from_items([{"x": "a"}]))
    assert both.take_all() == [{"x": 1}, {"x": "a"}]
    frame = both.to_pandas(limit=2)
    assert (frame["x"].tolist(), frame.index.tolist()) == ([1, "a"], [0, 1])


def test_categories_are_put_beside_texts() -> None:
    kinds = dray.data.from_pandas(pd.DataFrame({"x": pd.Categorical(["b", None])}))
    both = kinds.union(dray.data.from_items([{"x": "a"}]))
    for rows in (both, both.materialize(), both.random_shuffle(seed=0)):
        assert [row["x"] for row in rows.sort("x").take_all()] == ["a", "b", None]
    assert kinds.aggregate(Unique("x"), AsList("x"), Max("x")) == {
        "unique(x)": ["b", None],
        "list(x)": ["b", None],
        "max(x)": "b",
    }


def test_views_of_texts_are_texts(tmp_path: Path) -> None:
    texts = pa.array(["b", None, "a"], pa.string_view())
    lists = pa.array([["b"], None, []], pa.list_(pa.string_view()))
    records = pa.StructArray.from_arrays([texts.cast(pa.binary_view())], ["y"])
    table = pa.table({"text": texts, "many": lists, "record": records})
    expected = [row for row in table.to_pylist() if row["text"] == "a"]
    pq.write_table(table, tmp_path / "views.parquet")
    for rows in (dray.data.from_arrow(table), dray.data.read_parquet(tmp_path)):
        assert rows.sort("text").take(1) == expected
        assert rows.groupby("text").count().count() == 3
        assert rows.random_shuffle(seed=1).count() == 3


def test_runs_of_equal_values_are_values(tmp_path: Path) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["b", "a"]))
    rows = dray.data.from_arrow(pa.table({"x": runs}))
    assert [row["x"] for row in rows.sort("x").take_all()] == ["a", "a", "b", "b"]
    assert rows.groupby("x").count().count() == 2
    rows.write_parquet(tmp_path)
    assert dray.data.read_parquet(tmp_path).take_all() == rows.take_all()


@pytest.mark.parametrize("bits", [32, 64])
def test_small_decimals_are_ordered(bits: int) -> None:
    kind = getattr(pa, f"decimal{bits}", None) or pytest.skip("this Arrow has no small decimals")
    rows = dray.data.from_arrow(pa.table({"x": pa.array([2, 1, 2], kind(9, 2))}))
    assert [row["x"] for row in rows.sort("x").take_all()] == [1, 2, 2]
    assert sorted(rows.unique("x")) == [1, 2]
    assert (rows.max("x"), rows.sum("x")) == (2, 5)
    assert [row["count()"] for row in rows.groupby("x").count().take_all()] == [1, 2]


def test_types_by_which_rows_cannot_be_ordered(tmp_path: Path) -> None:
    halves = dray.data.from_arrow(pa.table({"x": np.array([2, 1, 2], np.float16)}))
    assert halves.sort("x").take(1) == [{"x": 1.0}]
    assert [row["count()"] for row in halves.groupby("x").count().take_all()] == [1, 2]
    spans = pa.array([(1, 2, 3), (0, 0, 1)], pa.month_day_nano_interval())
    with pytest.raises(ConfigError, match="rows cannot be sorted by 'x', which is month_day_nano"):
        dray.data.from_arrow(pa.table({"x": spans})).sort("x").take_all()
    rows = dray.data.from_items([{"x": [1], "y": 1}, {"x": [1], "y": 2}])
    with pytest.raises(ConfigError, match="column 'x' is list"):
        rows.write_parquet(tmp_path / "out", partition_cols=["x"])
    first, last = rows.train_test_split(0.5, stratify="x")
    assert (first.count(), last.count()) == (1, 1)
    large = dray.data.from_arrow(pa.table({"x": pa.array([1 << 63, 0], pa.uint64())}))
    assert large.aggregate(ZeroPercentage("x")) == {"zero_pct(x)": 50.0}
