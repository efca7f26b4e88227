"""Datasets under Ray Data's names: what is done with rows, and what comes out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dray.data
from dray.data.accepted import dataset_of
from dray.data.iterator import DataIterator
from dray.errors import AbsentError, ConfigError, DataFunctionError
from dray.exceptions import UserCodeException
from dray.train import DataConfig
from tests.data.test_accepted import FRAME, ROWS, Stream, parquet


def values(dataset: Any, column: str = "x") -> list[Any]:
    return [row[column] for row in dataset.take_all()]


@pytest.fixture(params=["memory", "files", "unknown"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The same rows from memory, from files, and from something that nobody has counted."""
    if request.param == "memory":
        return dray.data.from_items(ROWS)
    if request.param == "files":
        return dray.data.read_parquet(parquet(tmp_path))
    return dray.data.from_items([*ROWS, {"x": 99, "name": ""}]).filter(lambda row: row["x"] < 99)


def test_operations_on_rows_and_batches(rows: Any) -> None:
    doubled = rows.map_batches(lambda batch, by: {"x": batch["x"] * by}, fn_args=(2,), batch_size=4)
    assert values(doubled.map(lambda row: {"x": row["x"] + 1})) == list(range(1, 20, 2))
    assert values(rows.flat_map(lambda row: [row] * (row["x"] % 2))) == [1, 3, 5, 7, 9]
    assert values(rows.filter(lambda row: row["x"] > 7)) == [8, 9]
    assert values(rows.filter(expr=pc.field("x") > 7)) == [8, 9]
    pandas = rows.map_batches(lambda frame: frame[frame.x < 2], batch_format="pandas")
    assert pandas.take_all() == ROWS[:2]
    assert pandas.count() == 2
    arrow = rows.map_batches(lambda table: table.slice(0, 1), batch_format="pyarrow", batch_size=5)
    assert values(arrow) == [0, 5]
    assert rows.add_column("y", lambda frame: frame["x"] ** 2).columns() == ["x", "name", "y"]
    assert rows.drop_columns(["name"]).rename_columns({"x": "y"}).columns() == ["y"]
    assert values(rows.union(rows.limit(2))) == [*range(10), 0, 1]
    assert rows.zip(rows.rename_columns({"x": "y"})).take(1) == [
        {"x": 0, "name": "n0", "y": 0, "name_1": "n0"}
    ]
    assert values(rows.sort("name", descending=True).limit(4)) == [2, 5, 8, 1]
    assert values(rows.sort(["name", "x"], [False, True]))[:4] == [9, 6, 3, 0]
    assert sorted(values(rows.random_shuffle(seed=1))) == list(range(10))
    assert rows.unique("name") == ["n0", "n1", "n2"]
    with pytest.raises(ConfigError, match="must have the same number of rows"):
        rows.zip(rows.limit(3)).take_all()
    with pytest.raises(ConfigError, match=r"descending takes a bool for each of \['x', 'name'\]"):
        rows.sort(["x", "name"], [True])


def test_a_dataset_shows_what_is_known_of_it() -> None:
    numbers = dray.data.range(10)
    assert repr(numbers) == "Dataset(num_rows=10, schema={id: int64})"
    changed = numbers.map(lambda row: row)
    assert repr(changed) == "Dataset(num_rows=10, operations=1)"
    assert repr(changed.iterator()) == f"DataIterator({changed!r})"
    assert repr(changed.streaming_split(2)[1]).endswith(", rank=1, ranks=2)")
    assert repr(changed.filter(bool)) == "Dataset(num_rows=?, operations=2)"
    assert numbers.name is None
    numbers.set_name("numbers")
    named = numbers.map_batches(lambda batch: batch)
    assert named.name == "numbers"
    assert repr(named) == "Dataset(name='numbers', num_rows=?, operations=1)"


def test_groups_and_aggregates(rows: Any) -> None:
    by_name = rows.groupby("name")
    assert by_name.count().take(1) == [{"name": "n0", "count()": 4}]
    assert values(by_name.sum("x"), "sum(x)") == [18, 12, 15]
    assert values(by_name.mean("x"), "mean(x)") == [4.5, 4.0, 5.0]
    assert values(by_name.max("x"), "max(x)") == [9, 7, 8]
    assert values(by_name.min(), "min(x)") == [0, 1, 2]
    assert values(by_name.std("x"), "std(x)") == pytest.approx(FRAME.groupby("name").x.std())
    first = by_name.map_groups(lambda frame: frame.head(1), batch_format="pandas")
    assert values(first) == [0, 1, 2]
    assert (rows.sum("x"), rows.mean("x"), rows.max("x"), rows.min("x")) == (45, 4.5, 9, 0)
    assert rows.std("x") == pytest.approx(FRAME.x.std())
    assert rows.sum(["x"]) == {"sum(x)": 45} or rows.sum(["x"]) == 45


def test_parts_of_rows(rows: Any) -> None:
    train, test = rows.train_test_split(0.3)
    assert (train.count(), values(test)) == (7, [7, 8, 9])
    assert [part.count() for part in rows.train_test_split(0.25)] == [7, 3]  # as with Ray
    shuffled = rows.train_test_split(2, shuffle=True, seed=1)
    assert sorted(values(shuffled[0]) + values(shuffled[1])) == list(range(10))
    assert [values(part) for part in rows.split(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert [part.count() for part in rows.split(3, equal=True)] == [3, 3, 3]
    assert [part.count() for part in rows.split_proportionately([0.2, 0.5])] == [2, 5, 3]
    assert values(rows.limit(3)) == [0, 1, 2]
    assert rows.limit(0).take_all() == []
    assert len(rows.random_sample(0.5, seed=2).take_all()) < 10


def test_a_count_stays_what_it_is_once_rows_have_been_made(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "rows.csv")
    few = dray.data.read_csv(str(tmp_path / "rows.csv")).map_batches(
        lambda batch: {"x": batch["x"][batch["x"] < 6]}
    )
    shuffled = few.random_shuffle(seed=1)
    assert [shuffled.count(), len(shuffled.take_all()), shuffled.count()] == [6, 6, 6]
    assert dray.data.read_binary_files(str(tmp_path)).size_bytes() > 0


def test_a_union_is_what_its_parts_are() -> None:
    stream = dataset_of(Stream(), "train")
    assert stream.union(stream).is_stream
    assert stream.union(stream).take(11)[-1] == {"x": 0}
    others = dray.data.from_items([{"a": 1}]).union(dray.data.from_items([{"b": 2}]))
    assert others.columns() == ["a", "b"]
    differing = dray.data.from_items([{"a": 1}]).union(dray.data.from_items([{"a": "x"}]))
    assert differing.columns() == ["a"]


@pytest.mark.parametrize("test_size", [0.25, 5])
def test_parts_with_as_many_rows_of_each_value(test_size: float) -> None:
    rows = dray.data.from_items([{"x": n, "kind": "ab"[n % 4 == 0]} for n in range(20)])
    train, test = rows.train_test_split(test_size, stratify="kind")
    assert [row["x"] for row in test.take_all()] == [16, 17, 18, 19]  # of 5 one, of 15 three
    assert [row["x"] for row in train.take_all()] == [*range(16)]
    train, test = rows.train_test_split(0.5, stratify="kind", shuffle=True, seed=1)
    assert test.count() == 9  # of 15 and of 5
    assert sorted(row["x"] for row in train.union(test).take_all()) == [*range(20)]
    with pytest.raises(ConfigError, match="there is no column 'y'"):
        rows.train_test_split(0.5, stratify="y")


def test_forms_of_batches(rows: Any, capsys: pytest.CaptureFixture[str]) -> None:
    batch = rows.take_batch(3)
    assert batch["x"].tolist() == [0, 1, 2]
    assert batch["x"].dtype == np.int64
    assert isinstance(rows.take_batch(2, batch_format="pandas"), pd.DataFrame)
    assert rows.to_pandas().equals(FRAME)
    assert [
        table.num_rows for table in rows.iter_batches(batch_size=4, batch_format="pyarrow")
    ] == [*(4, 4, 2)]
    sizes = [len(b["x"]) for b in rows.iter_batches(batch_size=4, drop_last=True)]
    assert sizes == [4, 4]
    made = list(rows.iter_batches(batch_size=5, collate_fn=lambda batch: batch["x"].sum()))
    assert made == [10, 35]
    rows.show(1)
    assert capsys.readouterr().out == "{'x': 0, 'name': 'n0'}\n"
    assert repr(rows.schema()).split()[-4:-1] == ["x", "int64", "name"]
    with pytest.raises(ConfigError, match="batch_format must be one of default, numpy"):
        rows.iter_batches(batch_format="list")
    with pytest.raises(ConfigError, match="more than 3 rows"):
        rows.take_all(3)


def test_arrays_and_objects_keep_their_shape_and_kind() -> None:
    images: Any = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    dataset = dray.data.from_numpy(images).map_batches(
        lambda batch: {"image": batch["data"], "label": np.arange(len(batch["data"]))}
    )
    batch = next(iter(dataset.iter_batches(batch_size=3)))
    assert batch["image"].shape == (3, 3, 2)
    assert (batch["image"] == images[:3]).all()
    assert (dataset.take(2)[1]["image"] == images[1]).all()
    assert dataset.random_shuffle(seed=1).take_batch(4)["image"].shape == (4, 3, 2)
    swapped = dray.data.from_numpy(np.asfortranarray(images, ">i4")).take_batch(4)["data"]
    assert (swapped == images).all()
    several = dray.data.from_items(
        [{"a": np.zeros((2, 2)), "o": {1, 2}}, {"a": np.ones(3), "o": 1}]
    )
    assert [row["o"] for row in several.take_all()] == [{1, 2}, 1]
    assert several.take_batch(2)["a"][1].tolist() == [1, 1, 1]
    shuffled = several.random_shuffle(seed=1).iter_batches()
    assert {1, 2} in next(iter(shuffled))["o"].tolist()
    ragged = dray.data.from_items([{"tokens": [1]}, {"tokens": [1, 2]}]).take_batch(2)["tokens"]
    assert [list(value) for value in ragged] == [[1], [1, 2]]
    pairs = pa.table({"pair": pa.array([[1, 2], [3, None]], pa.list_(pa.int32(), 2))})
    assert np.isnan(dray.data.from_arrow(pairs).take_batch()["pair"][1][1])
    assert dray.data.from_items([1, "a"]).take_all() == [{"item": 1}, {"item": "a"}]


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    dataset = dray.data.from_items([{"x": float(n), "y": [n, n], "z": "a"} for n in range(4)])
    numbers = dataset.select_columns(["x", "y"])
    batch = next(iter(numbers.iter_torch_batches(batch_size=3, dtypes={"x": torch.float32})))
    assert batch["x"].dtype == torch.float32
    assert batch["y"].tolist() == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(ConfigError, match=r"column 'z' .*cannot be a tensor"):
        next(iter(dataset.iter_torch_batches()))
    made = numbers.iter_torch_batches(batch_size=2, collate_fn=lambda b: torch.as_tensor(b["x"]))
    assert [each.tolist() for each in made] == [[0, 1], [2, 3]]
    with pytest.raises(ConfigError, match="dtypes= cannot be combined with collate_fn="):
        numbers.iter_torch_batches(collate_fn=dict, dtypes=torch.float32)
    pairs = dray.data.from_torch([(torch.ones(2), 1)])
    with pytest.raises(
        ConfigError, match=r"column 'item' has values that are not arrays.* a tuple"
    ):
        list(pairs.iter_torch_batches())
    loader = torch.utils.data.DataLoader(numbers.to_torch(batch_size=2), batch_size=None)
    assert len(list(loader)) == 2


def test_pairs_of_torch() -> None:
    torch = pytest.importorskip("torch")
    rows = dray.data.from_items([{"x": float(n), "y": [n, n], "z": n % 2} for n in range(4)])

    def first(**options: Any) -> Any:
        return next(iter(rows.to_torch(batch_size=2, **options)))

    features, label = first(label_column="z", feature_column_dtypes=torch.float32)
    assert features.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert (features.dtype, label.tolist()) == (torch.float32, [[0], [1]])
    features, label = first(feature_columns=["x"], unsqueeze_feature_tensors=False)
    assert (features.tolist(), label) == ([0, 1], None)
    (one, two), _ = first(feature_columns=[["x"], ["y", "z"]])
    assert (one.tolist(), two.tolist()) == ([[0], [1]], [[0, 0, 0], [1, 1, 1]])
    named, label = first(
        label_column="z",
        feature_columns={"a": ["x"]},
        feature_column_dtypes={"a": torch.int32},
        unsqueeze_label_tensor=False,
    )
    assert (named["a"].dtype, named["a"].tolist()) == (torch.int32, [[0], [1]])
    assert label.tolist() == [0, 1]
    with pytest.raises(ConfigError, match="no column 'w'; the columns are x, y, z"):
        first(feature_columns=["w"])


@pytest.mark.parametrize(
    ("condition", "passing"),
    [
        ("x > 5", [6, 7, 8, 9]),
        ("x > 2 and half.of < 4", [3, 4, 5, 6, 7]),
        ("kind in ['odd'] or not x > 3", [0, 1, 2, 3, 5, 7, 9]),
        ("1 < x <= 3 and kind not in ['odd']", [2]),
        ("x * 2 + 1 >= 17 - x / 10 and x != -1", [8, 9]),
        ("last is not None", [9]),
        ("x > 6 and last is None", [7, 8]),
    ],
)
def test_conditions_as_text(condition: str, passing: list[int]) -> None:
    rows = dray.data.from_items(
        [{"x": n, "half.of": n / 2, "kind": "odd" if n % 2 else "even"} for n in range(9)]
        + [{"x": 9, "half.of": 4.5, "kind": "odd", "last": True}]
    )
    assert [row["x"] for row in rows.filter(expr=condition).take_all()] == passing


def test_conditions_that_are_none() -> None:
    rows = dray.data.range(2)
    for condition, message in (
        *(("f(id)", "cannot hold"), ("id is 1", "cannot hold 'id is 1'")),
        *(("3", "no column"), ("id >", "not an expr")),
    ):
        with pytest.raises(ConfigError, match=message):
            rows.filter(expr=condition)


def test_classes_scalars_and_times_as_rays_programs_have_them() -> None:
    pandas = pytest.importorskip("pandas")

    class Above:
        def __init__(self, least: int) -> None:
            self.least = least

        def __call__(self, row: dict[str, Any]) -> bool:
            return bool(row["id"] > self.least)

    kept = dray.data.range(4).filter(Above, fn_constructor_args=(2,))
    assert kept.add_column("one", lambda batch: 1).take_all() == [{"id": 3, "one": 1}]
    parts = dray.data.range(10).split_proportionately([0.8, 0.05])
    assert [part.count() for part in parts] == [8, 1, 1]
    with pytest.raises(ConfigError, match="2 rows cannot be 3 parts"):
        dray.data.range(2).split_proportionately([0.4, 0.4])
    precise = pandas.Timestamp("2024-01-01 00:00:00.123456789", tz="UTC")
    times = dray.data.from_items([{"at": None}, {"at": precise}]).map(lambda row: row)
    assert times.to_pandas()["at"][1] == precise


def test_a_failing_function_names_its_rows_and_keeps_its_type(tmp_path: Path) -> None:
    files = dray.data.read_parquet(parquet(tmp_path))

    def fails(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 // (row["x"] - 4)}

    with pytest.raises(ZeroDivisionError, match=r"map\(fails\) failed on row") as caught:
        files.map(fails).take_all()
    assert isinstance(caught.value, DataFunctionError)
    assert f"failed on row 4, of rows 3 to 9 of {tmp_path}/a.parquet" in str(caught.value)
    for rows in (files.rename_columns({"name": "n"}), files.map(lambda row: row)):
        with pytest.raises(ZeroDivisionError, match="failed on row 4, of rows 3 to 9 of"):
            rows.map(fails).take_all()
    late = files.filter(lambda row: row["x"] != 3).map(fails)
    with pytest.raises(ZeroDivisionError, match="failed on a row made from rows 3 to 9 of"):
        late.take_all()
    assert isinstance(caught.value, UserCodeException)
    assert any(entry.name == "fails" for entry in caught.traceback) or caught.value.__cause__
    with pytest.raises(KeyError, match="map_batches"):
        files.map_batches(lambda batch: batch["y"]).take_all()

    def opens(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": len(Path("/no/such/label").read_text())}

    for make in (files.map(opens).take_all, lambda: files.map(opens).write_parquet(tmp_path / "b")):
        with pytest.raises(
            FileNotFoundError, match=r"map\(opens\) failed on row 0, of .*no/such/label"
        ):
            make()
    with pytest.raises(ConfigError, match="must return a row, a dict of columns, not a int"):
        files.map(lambda row: cast(Any, 3)).take_all()
    for wrong in (3, pd.Series([1])):
        with pytest.raises(ConfigError, match=f"must be a dict of columns.*{type(wrong).__name__}"):
            files.map_batches(lambda batch, wrong=wrong: wrong).take_all()


def test_what_is_not_there_says_what_to_use() -> None:
    data: Any = dray.data
    with pytest.raises(AbsentError, match="has no read_mongo: make rows with"):
        data.read_mongo("a")
    for name, advice in {
        "lazy": "always lazy",
        "window": "block by block",
        "names": r"columns\(\)",
        "types": r"schema\(\)",
        "__len__": r"count\(\)",
    }.items():
        with pytest.raises(AttributeError, match=f"Dataset has no {name}.*: .*{advice}"):
            getattr(data.range(3), name)()
    with pytest.raises(AbsentError, match=r"call count\(\)"):
        len(data.range(3))
    with pytest.raises(TypeError, match=r"call its iter_rows\(\)"):
        list(data.range(3))
    assert data.range(0)
    with pytest.raises(AbsentError, match=r"has no argument 'column'; did you mean columns"):
        data.read_parquet("a", column=["x"])
    assert not hasattr(data.range(3), "write_mongo")
    context = data.DataContext.get_current().copy()
    context.some_options.limit = 3
    assert context.some_options.limit == 3
    with pytest.raises(AbsentError, match="DataContext has no such function"):
        context.an_executor()
    assert context.max_errored_blocks == 0
    context.max_errored_blocks = 0
    with pytest.raises(AbsentError, match="catch the error and return an empty batch"):
        context.max_errored_blocks = -1
    options = DataConfig.default_ingest_options()
    options.resource_limits = data.ExecutionResources(object_store_memory=1e9)
    assert isinstance(
        DataConfig(execution_options=options).execution_options, data.ExecutionOptions
    )


def test_rows_that_are_large_go_through_a_file_that_ends_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.data.sources.staging.IN_MEMORY_BYTES", 1000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = dray.data.range(20_000).filter(lambda row: row["id"] % 2 == 0).materialize()
    assert len(os.listdir(tmp_path)) == 1
    assert kept.count() == 10_000
    assert kept.random_shuffle(seed=1).take_batch(5)["id"].tolist() != [0, 2, 4, 6, 8]
    del kept
    assert os.listdir(tmp_path) == []


def test_rows_that_a_function_makes_larger_are_given_to_it_a_few_at_a_time() -> None:
    given: list[int] = []

    def widened(batch: dict[str, Any]) -> dict[str, Any]:
        given.append(len(batch["id"]))
        return {"image": np.zeros((len(batch["id"]), 1 << 16), np.uint8)}

    shard = DataIterator(dray.data.range(3000).map_batches(widened), 0, 2, equal=True)
    assert sum(len(batch["image"]) for batch in shard.iter_batches(batch_size=50)) == 1500
    assert max(given) <= 128  # 8 MiB


def test_a_function_is_not_called_with_a_batch_of_no_rows() -> None:
    rows = dray.data.from_items([{"a": 1}, {"a": 1}, {"a": 2}]).groupby("a")
    groups = rows.map_groups(lambda group: group)
    first = groups.map_batches(lambda batch: {"a": batch["a"][batch["a"] == 1]})
    highest = first.map_batches(lambda batch: {"highest": [batch["a"].max()]})
    assert highest.take_all() == [{"highest": 1}]


@pytest.mark.parametrize("shape", [(), (2,)])
def test_tensors_that_blocks_have_in_other_shapes_are_put_together(shape: tuple[int, ...]) -> None:
    def padded(batch: dict[str, Any]) -> dict[str, Any]:
        longest = int(batch["id"].max())
        return {"ids": np.ones((len(batch["id"]), longest, *shape), int), "n": batch["id"] * 2}

    rows = dray.data.range(6).map_batches(padded, batch_size=2).materialize()
    assert [len(row["ids"]) for row in rows.iter_rows()] == [1, 1, 3, 3, 5, 5]
    (batch,) = rows.iter_batches(batch_size=6)
    assert [np.shape(value) for value in batch["ids"]][1::2] == [(n, *shape) for n in (1, 3, 5)]
    assert batch["n"].tolist() == [0, 2, 4, 6, 8, 10]
