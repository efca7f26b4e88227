"""Files whose columns or types differ from those of their neighbours, read and written."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dray.data
from dray.data.sources import files
from dray.errors import AbsentArgumentError, ConfigError, NoSuchFileError, StorageError


def written(path: Path, *tables: pa.Table) -> Path:
    """Write tables of Arrow as files of a directory."""
    path.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, path / f"{number}.parquet")
    return path


FIRST = pa.table({"id": [1, 2], "note": pa.nulls(2), "x": pa.array([1, 2], pa.int32())})
THEN = pa.table({"x": [0.5], "note": ["a"], "more": [[3]], "id": pa.array([3], pa.int8())})
ROWS: list[dict[str, Any]] = [
    {"id": 1, "note": None, "x": 1.0, "more": None},
    {"id": 2, "note": None, "x": 2.0, "more": None},
    {"id": 3, "note": "a", "x": 0.5, "more": [3]},
]


def test_files_with_other_columns_are_read_as_one(tmp_path: Path) -> None:
    both = dray.data.read_parquet(written(tmp_path / "a", FIRST, THEN))
    types = {
        "id": pa.int64(),
        "note": pa.string(),
        "x": pa.float64(),
        "more": pa.list_(pa.field("element", pa.int64())),
    }
    schema = both.schema()
    assert schema is not None
    assert dict(zip(schema.names, schema.types, strict=True)) == types
    assert both.take_all() == ROWS
    assert both.count() == 3
    assert dray.data.read_parquet(written(tmp_path / "b", THEN, FIRST)).take_all() == (
        [ROWS[2], *ROWS[:2]]
    )
    some = dray.data.read_parquet(tmp_path / "a", columns=["more", "id"])
    assert some.take_all() == [{"more": row["more"], "id": row["id"]} for row in ROWS]
    alone = dray.data.read_parquet(tmp_path / "a", columns=["more"])  # which one file lacks
    assert alone.take_all() == [{"more": None}, {"more": None}, {"more": [3]}]
    assert both.filter(lambda row: row["note"] is None).select_columns(["x"]).sum("x") == 3
    assert both.split_at_indices([1])[1].take_all() == ROWS[1:]
    iterator = dray.data.read_parquet(tmp_path / "a").streaming_split(1)[0]
    assert [row["more"] for row in iterator.iter_rows()] == [None, None, [3]]
    chosen = pa.schema([("x", pa.float32()), ("none", pa.string())])
    assert dray.data.read_parquet(tmp_path / "a", schema=chosen).take(1) == [{"x": 1, "none": None}]
    with pytest.raises(ConfigError, match="has no column 'y'"):
        dray.data.read_parquet(tmp_path / "a", columns=["y"])


def test_types_are_widened_as_far_as_they_can_be(tmp_path: Path) -> None:
    def read(*values: Any) -> list[Any]:
        tables = (pa.table({"a": value}) for value in values)
        path = written(tmp_path / f"{len(os.listdir(tmp_path))}", *tables)
        return [row["a"] for row in dray.data.read_parquet(path).take_all()]

    assert read(pa.array([1], pa.int32()), [2**40]) == [1, 2**40]
    assert read(pa.array([1], pa.float32()), [1e300]) == [1.0, 1e300]
    assert read(["x"], pa.array(["y"], pa.large_string())) == ["x", "y"]
    assert read(["x"], pa.array(["y"]).dictionary_encode(), pa.nulls(1)) == ["x", "y", None]
    assert read([{"k": 1}], [{"k": 1.5, "l": 2}]) == [{"k": 1, "l": None}, {"k": 1.5, "l": 2}]
    with pytest.raises(
        StorageError,
        match=r"0\.parquet and .*2\.parquet cannot be read together: column 'a' is int64 in the "
        "one and string in the other; read them separately",
    ):
        read([1], pa.nulls(1), ["x"])
    with pytest.raises(StorageError, match=r"0\.parquet has values that do not fit .*column 'a'"):
        read([2**60 + 1], [0.5])


def test_tensors_of_several_shapes_stay_as_they_are(tmp_path: Path) -> None:
    def images(batch: dict[str, Any]) -> dict[str, Any]:
        size = int(batch["id"][0]) + 1
        return {"image": np.ones((len(batch["id"]), size, 2), np.uint8)}

    dray.data.range(4).map_batches(images, batch_size=2).write_parquet(tmp_path / "a")
    read = dray.data.read_parquet(tmp_path / "a")
    assert [row["image"].shape for row in read.iter_rows()] == [(1, 2)] * 2 + [(3, 2)] * 2
    assert [image.shape for image in read.take_batch(4)["image"]] == [(1, 2)] * 2 + [(3, 2)] * 2
    for number, kind in enumerate((np.float32, np.float64)):
        rows: Any = np.ones((1, 2, 2), kind)
        dray.data.from_numpy(rows).write_parquet(tmp_path / "b" / str(number))
    missing = written(tmp_path / "b" / "c", pa.table({"x": [1]}))
    both = dray.data.read_parquet(sorted(map(str, missing.parent.glob("*/*"))))
    assert [None if r["data"] is None else str(r["data"].dtype) for r in both.iter_rows()] == (
        ["float64", "float64", None]
    )


@pytest.mark.filterwarnings("ignore:the values of column .* are written as pickles")
def test_what_arrow_has_no_type_for_is_written_and_read(tmp_path: Path) -> None:
    """Tensors of several sizes, say; the type that stands for them could not be compared."""
    made: list[dict[str, Any]] = [
        {"tensor": np.ones((number, 2)), "number": 1j * number, "pair": (number, "a")}
        for number in (1, 2, 3)
    ]
    dray.data.from_items(made).write_parquet(tmp_path, row_group_size=2, num_rows_per_file=3)
    (file,) = tmp_path.iterdir()
    assert pq.ParquetFile(file).num_row_groups == 2
    for rows in (made, made * 2):
        read = dray.data.read_parquet(tmp_path, allow_pickle=True).take_all()
        assert [row["tensor"].shape for row in read] == [row["tensor"].shape for row in rows]
        assert [row["pair"] for row in read] == [row["pair"] for row in rows]
        dray.data.from_items(made).write_parquet(tmp_path)


@pytest.mark.parametrize("shuffle", [None, "files"])
def test_files_of_directories_that_are_values_may_differ(tmp_path: Path, shuffle: Any) -> None:
    written(tmp_path / "kind=a", FIRST)
    written(tmp_path / "kind=b", THEN)
    written(tmp_path / "kind=c", pa.table({"id": [4], "kind": ["own"]}))
    rows = dray.data.read_parquet(tmp_path, shuffle=shuffle)
    expected = [{**row, "kind": kind} for row, kind in zip(ROWS, "aab", strict=True)]
    last: dict[str, Any] = {"id": 4, "note": None, "x": None, "more": None, "kind": "own"}
    assert sorted(rows.take_all(), key=lambda row: row["id"]) == [*expected, last]
    assert rows.random_shuffle(seed=1).count() == 4
    some = dray.data.read_parquet(tmp_path, columns=["more", "kind"], shuffle=shuffle).take_all()
    assert sorted(map(str, some)) == sorted(
        str({"more": row["more"], "kind": row["kind"]}) for row in [*expected, last]
    )


def changing(kind: str) -> Any:
    """Return ten rows, of which the second five have other columns or types."""

    def change(batch: dict[str, Any]) -> dict[str, Any]:
        ids = batch["id"]
        first = ids[0] < 5
        if kind == "null":
            return {"a": [None] * len(ids) if first else ids}
        if kind == "float":
            return {"a": ids if first else ids + 0.5}
        if kind == "text":
            return {"a": ids if first else [str(each) for each in ids]}
        return {"a": ids} if first else {"b": ids + 100, "a": ids}

    return dray.data.range(10).map_batches(change, batch_size=5)


@pytest.mark.parametrize("writer", ["parquet", "csv", "json", "partitions"])
@pytest.mark.parametrize("kind", ["null", "float", "text", "new"])
def test_rows_that_do_not_fit_a_file_begin_another(kind: str, writer: str, tmp_path: Path) -> None:
    rows = changing(kind)
    if writer == "partitions":
        rows = rows.map(lambda row: {**row, "k": "v"})
        rows.write_parquet(tmp_path, partition_cols=["k"])
    else:
        getattr(rows, f"write_{writer}")(tmp_path)
    found = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(found) == (1 if writer == "json" else 2)
    if writer in ("parquet", "partitions") and kind != "text":
        read = dray.data.read_parquet(tmp_path).take_all()
        assert len(read) == 10
        assert read[7]["a"] == (7.5 if kind == "float" else 7)
        assert kind != "new" or [row["b"] for row in read] == [None] * 5 + list(range(105, 110))
    if writer == "csv":
        assert [path.read_text().split()[0] for path in found] == (
            ['"a"', '"b","a"' if kind == "new" else '"a"']
        )
    if writer == "json":
        lines = [json.loads(line) for line in found[0].read_text().splitlines()]
        assert lines == rows.take_all()


def test_rows_that_fit_a_file_are_in_it(tmp_path: Path) -> None:
    def other_way(batch: dict[str, Any]) -> dict[str, Any]:
        ids = batch["id"]
        if ids[0] < 5:
            return {"a": ids, "b": ids + 0.5, "c": ids}
        return {"b": ids, "a": ids}

    rows = dray.data.range(10).map_batches(other_way, batch_size=5)
    for kind in ("parquet", "csv"):
        getattr(rows, f"write_{kind}")(tmp_path / kind)
        assert len(os.listdir(tmp_path / kind)) == 1
        read = getattr(dray.data, f"read_{kind}")(tmp_path / kind)
        assert read.take_all()[7] == {"a": 7, "b": 7.0, "c": None}


def test_values_that_json_has_no_words_for(tmp_path: Path) -> None:
    moment = dt.datetime(2020, 1, 1, 0, 0, 0, 1999)
    berlin = pa.array([moment], pa.timestamp("us", "Europe/Berlin"))
    table = pa.table(
        {
            "nan": [float("nan")],
            "nested": [[{"x": float("inf"), "y": 1.5}]],
            "text": ["ü"],
            "bytes": ["ü".encode()],
            "at": [moment],
            "old": [dt.datetime(1969, 12, 31, 23, 59, 59, 1)],
            "zone": berlin,
            "day": [dt.date(2020, 1, 2)],
            "time": [dt.time(1, 2)],
            "took": [dt.timedelta(seconds=1.5)],
            "price": [decimal.Decimal("1.10")],
            "big": [2**60 + 1],
        }
    )
    dray.data.from_arrow(table).write_json(tmp_path / "a")
    [file] = (tmp_path / "a").iterdir()
    assert json.loads(file.read_text()) == {
        "nan": None,
        "nested": [{"x": None, "y": 1.5}],
        "text": "ü",
        "bytes": "ü",
        "at": 1577836800001,
        "old": -1000,
        "zone": 1577836800001,
        "day": "2020-01-02",
        "time": "01:02:00",
        "took": 1500,
        "price": "1.10",
        "big": 2**60 + 1,
    }
    tensors: Any = np.array([[[0, 1], [2, 3]], [[0, 0], [0, np.nan]]])
    dray.data.from_numpy(tensors).write_json(tmp_path / "b")
    [file] = (tmp_path / "b").iterdir()
    assert file.read_text() == ('{"data":[[0.0,1.0],[2.0,3.0]]}\n{"data":[[0.0,0.0],[0.0,null]]}\n')
    with pytest.raises(ConfigError, match=r"only if they are text in UTF-8, and b'\\xff'"):
        dray.data.from_items([{"a": b"\xff"}]).write_json(tmp_path / "c")


@pytest.mark.parametrize("megabytes", [5, 20])
def test_lines_of_json_may_be_long(
    megabytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a", "b" * (megabytes << 20), "c", "d"]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "a.jsonl").write_text(lines)
    lengths = [len(text) for text in texts]
    assert [len(row["text"]) for row in dray.data.read_json(tmp_path).iter_rows()] == lengths
    monkeypatch.setattr(files, "_WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(files, "_TEXT_BLOCK_BYTES", 64)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 100 + lines)
    read = [len(row["text"]) for row in dray.data.read_json(tmp_path).iter_rows()]
    assert read == [1] * 100 + lengths


def test_each_line_of_json_is_a_row_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text, rows in (
        ('[1, "a"]\n\n[2, "b"]\n', [{"0": 1, "1": "a"}, {"0": 2, "1": "b"}]),
        ('{"x": 1}\n{"x": "a", "y": [2]}', [{"x": 1, "y": None}, {"x": "a", "y": [2]}]),
        ("1\r\n2", [{"0": 1}, {"0": 2}]),
        ('{"x": 1}\n{"x": 2.5}', [{"x": 1.0}, {"x": 2.5}]),
    ):
        path.write_text(text)
        assert dray.data.read_json(path, lines=True).take_all() == rows
    path.write_text('[{"x": 1},\n{"x": 2}]')
    assert dray.data.read_json(path).take_all() == [{"x": 1}, {"x": 2}]
    with pytest.raises(StorageError, match=r"a\.jsonl cannot be read: JSONDecodeError"):
        dray.data.read_json(path, lines=True).take_all()


def test_files_of_json_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("")
    (tmp_path / "b.json").write_text(" \n")
    assert dray.data.read_json(tmp_path, include_paths=True).take_all() == []
    (tmp_path / "c.json").write_text('\n{"x": 1}\n')
    (tmp_path / "d.json").write_text('\n [{"x": 2}]')
    rows = dray.data.read_json(tmp_path)
    assert rows.take_all() == [{"x": 1}, {"x": 2}]
    assert rows.columns() == ["x"]


def test_errors_name_the_file(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a.png").write_bytes(b"no")
    (tmp_path / "a.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "a.json").write_text('[{"x": 1}')
    np.savez(tmp_path / "a.npz", a=[1])
    with pytest.raises(
        StorageError, match=r"a\.png is not an image that Pillow can read"
    ) as raised:
        dray.data.read_images(tmp_path / "a.png").take()
    assert "UnidentifiedImageError" in repr(raised.value.__cause__)
    with pytest.raises(StorageError, match=r"a\.txt cannot be read: UnicodeDecode") as raised:
        dray.data.read_text(tmp_path / "a.txt").take()
    assert isinstance(raised.value.__cause__, UnicodeDecodeError)
    with pytest.raises(StorageError, match=r"a\.json cannot be read: JSONDecodeError"):
        dray.data.read_json(tmp_path / "a.json").take()
    with pytest.raises(ConfigError, match=r"a\.npz holds several arrays, but read_numpy\(\) reads"):
        dray.data.read_numpy(tmp_path / "a.npz")
    whole = image.fromarray(np.zeros((50, 50, 3), np.uint8))
    whole.save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:60])
    with pytest.raises(StorageError, match=r"cut\.png cannot be read: "):
        dray.data.read_images(tmp_path / "cut.png").take()


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.parquet", tmp_path / "*.parquet", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"there (is no file|are no files at)"):
            dray.data.read_parquet(str(path))
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.parquet"):
        dray.data.read_parquet(f"file://{tmp_path}/none.parquet")
    (tmp_path / "a.csv").write_text("x\n1\n")
    rows = dray.data.read_csv(tmp_path)
    (tmp_path / "a.csv").unlink()
    with pytest.raises(NoSuchFileError, match=r"there is no file .*a\.csv") as raised:
        rows.write_parquet(tmp_path / "out")
    assert isinstance(raised.value, ConfigError)
    assert isinstance(raised.value, StorageError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_options_of_readers(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image").new("L", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a")
    np.save(tmp_path / "a.npy", [1])
    for kind, name in (
        ("images", "png"),
        ("text", "txt"),
        ("binary_files", "txt"),
        ("numpy", "npy"),
    ):
        read: Any = getattr(dray.data, f"read_{kind}")
        assert read(tmp_path / f"a.{name}", override_num_blocks=2).count() == 1
        with pytest.raises(AbsentArgumentError) as raised:
            read(tmp_path, zzzzzz=1)
        assert "zzzzzz" in str(raised.value)
        assert ("allow_pickle" in str(raised.value)) == (kind == "numpy")
        assert "columns" not in str(raised.value)
    with pytest.raises(AbsentArgumentError, match=r"it takes paths, .*shuffle, .*read_options"):
        dray.data.read_csv(tmp_path, zzzzzz=1)


def test_parts_of_which_the_first_lacks_tensors_of_several_shapes() -> None:
    parts = [
        dray.data.from_items([{"id": 0}]),
        dray.data.from_items([{"id": 1, "t": np.ones((2, 2))}]),
        dray.data.from_items([{"id": 2, "t": np.ones((2, 3))}]),
    ]
    first, *others = parts
    [batch] = first.union(*others).iter_batches(batch_size=3)
    assert [getattr(each, "shape", each) for each in batch["t"]] == [None, (2, 2), (2, 3)]


def test_many_columns_are_put_together_in_time() -> None:
    """Take as long as columns there are, and not as their square."""
    names = [f"c{number}" for number in range(2000)]
    parts = [dray.data.from_arrow(pa.table({name: [n] for name in names})) for n in range(20)]
    first, *others = parts
    begun = time.process_time()
    [batch] = first.union(*others).drop_columns(names[:1000]).iter_batches(batch_size=20)
    assert time.process_time() - begun < 2
    assert len(batch) == 1000
    assert batch[names[-1]].tolist() == list(range(20))
