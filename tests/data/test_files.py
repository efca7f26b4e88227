"""Files that are read and written: their names, their number, what is in them."""

from __future__ import annotations

import gzip
import os
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import dray.data
from dray.data.accepted import dataset_of
from dray.data.sources import files
from dray.errors import AbsentError, ConfigError, NoSuchFileError, StorageError

ROWS = [{"x": number, "name": f"n{number % 3}"} for number in range(10)]


def test_files_whose_endings_do_not_say_how_they_are_packed(tmp_path: Path) -> None:
    for name, text in (("rows.csv", b"x\n1\n2\n"), ("rows.json", b'{"x": 1}\n{"x": 2}\n')):
        (tmp_path / name).write_bytes(gzip.compress(text))
    packed = {"compression": "gzip"}
    of_csv = dray.data.read_csv(tmp_path / "rows.csv", arrow_open_stream_args=packed)
    of_json = dray.data.read_json(tmp_path / "rows.json", arrow_open_stream_args=packed)
    assert of_csv.take_all() == of_json.take_all() == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_what_is_written_is_read(kind: str, tmp_path: Path) -> None:
    dataset = dray.data.from_items(ROWS)
    getattr(dataset, f"write_{kind}")(tmp_path / "out")
    read = getattr(dray.data, f"read_{kind}")(tmp_path / "out")
    assert read.take_all() == ROWS
    [name] = os.listdir(tmp_path / "out")
    assert name.endswith(f"-000000.{kind}")


def test_files_that_are_rows(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(3):
        image.fromarray(np.full((4, 6, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "lines.txt").write_text("a\n\nb\n")
    images = dray.data.read_images(str(tmp_path), size=(2, 3), mode="RGB")
    assert images.count() == 3
    assert images.take_batch(3)["image"].shape == (3, 2, 3, 3)
    assert dray.data.read_text(tmp_path / "lines.txt").take_all() == [{"text": "a"}, {"text": "b"}]
    [row] = dray.data.read_binary_files(tmp_path / "lines.txt", include_paths=True).take_all()
    assert row == {"bytes": b"a\n\nb\n", "path": str(tmp_path / "lines.txt")}
    dray.data.from_items([{"path": "a", "x": 1}]).write_parquet(tmp_path / "rows")
    [row] = dray.data.read_parquet(tmp_path / "rows", include_paths=True).take_all()
    assert row["path"].startswith(str(tmp_path / "rows"))


def test_what_is_written_is_added_or_takes_the_place_of_what_was(tmp_path: Path) -> None:
    rows = dray.data.range(3)
    rows.write_parquet(tmp_path)
    rows.write_parquet(tmp_path, concurrency=2)
    assert dray.data.read_parquet(tmp_path).count() == 6
    rows.write_parquet(tmp_path, mode="ignore")
    assert dray.data.read_parquet(tmp_path).count() == 6
    rows.write_parquet(tmp_path, mode=dray.data.SaveMode.OVERWRITE)
    assert dray.data.read_parquet(tmp_path).count() == 3
    for mode in ("create", "error"):
        with pytest.raises(StorageError, match=f"mode='{mode}' does not allow"):
            rows.write_csv(tmp_path, mode=mode)
    with pytest.raises(ConfigError, match="mode must be one of 'append'"):
        rows.write_json(tmp_path, mode="add")
    with pytest.raises(ConfigError, match="must be a FilenameProvider, not 3"):
        rows.write_parquet(tmp_path, filename_provider=3)  # type: ignore[arg-type]
    with pytest.raises(AbsentError, match="write the batches of iter_batches"):
        rows.write_parquet(tmp_path, arrow_parquet_args_fn=dict)
    with pytest.raises(AbsentError, match="'compressed'; did you mean compression"):
        rows.write_parquet(tmp_path, compressed="zstd")
    with pytest.raises(ConfigError, match="the number of rows in a file must be"):
        rows.write_json(tmp_path, num_rows_per_file=0)


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_have_as_many_rows_as_is_said(kind: str, tmp_path: Path) -> None:
    rows = dray.data.range(10)
    filesystem = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())
    getattr(rows, f"write_{kind}")("out", num_rows_per_file=4, filesystem=filesystem)
    files = sorted(os.listdir(tmp_path / "out"))
    read = getattr(dray.data, f"read_{kind}")
    assert [read(tmp_path / "out" / file).count() for file in files] == [4, 4, 2]


@pytest.mark.parametrize("place", ["", "memory://hidden"])
def test_what_lies_beside_data_is_not_read(place: str, tmp_path: Path) -> None:
    root = place or str(tmp_path)
    rows = dray.data.from_items(ROWS)
    for inside in ("", "/_delta_log", "/.ipynb_checkpoints", "/part/_temporary", "/_kind=1"):
        rows.write_parquet(root + inside)
    assert dray.data.read_parquet(root).count() == 2 * len(ROWS)


def test_directories_that_are_named_are_read_whatever_they_are_called(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    places = [f"file://{tmp_path}/shown", f"file://{tmp_path}/.cache/_data"]
    for place in places:
        dray.data.range(3).write_parquet(place)
    for filesystem in (None, fsspec.filesystem("file"), pa.fs.LocalFileSystem()):
        assert dray.data.read_parquet(places, filesystem=filesystem).count() == 6


def test_options_of_arrow(tmp_path: Path) -> None:
    dray.data.range(3).write_parquet(tmp_path / "a", compression="gzip")
    [file] = os.listdir(tmp_path / "a")
    assert pq.read_metadata(tmp_path / "a" / file).row_group(0).column(0).compression == "GZIP"
    no_names = pa.csv.WriteOptions(include_header=False)
    dray.data.range(3).write_csv(tmp_path / "b", write_options=no_names)
    [file] = os.listdir(tmp_path / "b")
    assert (tmp_path / "b" / file).read_text() == "0\n1\n2\n"
    with pytest.raises(ConfigError, match=r"CSV cannot hold column 'item', which is list<"):
        dray.data.from_items([[1], [2, 3]]).write_csv(tmp_path / "c")
    assert not os.listdir(tmp_path / "c")


def test_values_of_columns_become_directories(tmp_path: Path) -> None:
    rows = dray.data.from_items(ROWS)
    rows.write_parquet(tmp_path, partition_cols=["name"], compression="zstd")
    rows.write_parquet(tmp_path, partition_cols=["name"])
    assert sorted(os.listdir(tmp_path)) == ["name=n0", "name=n1", "name=n2"]
    read = dray.data.read_parquet(tmp_path).sort("x").take_all()
    assert read == [row for row in ROWS for _ in range(2)]
    rows.filter(lambda row: row["x"] < 1).write_parquet(
        tmp_path, partition_cols=["name"], mode="overwrite", max_rows_per_file=3
    )
    assert os.listdir(tmp_path) == ["name=n0"]
    with pytest.raises(ConfigError, match="there is no column 'kind'"):
        rows.write_parquet(tmp_path, partition_cols=["kind"])
    some: list[dict[str, Any]] = [{"x": 0, "kind": None}, {"x": 1, "kind": "é/=%"}]
    dray.data.from_items(some).write_parquet(tmp_path / "some", partition_cols=["kind"])
    kept = dray.data.read_parquet(tmp_path / "some")
    assert kept.sort("x").take_all() == some
    assert kept.materialize().filter(expr="kind is None").columns() == ["x", "kind"]
    many = dray.data.range(1025).add_column("x", lambda frame: 1)  # more than Arrow writes untold
    memory = pytest.importorskip("fsspec").filesystem("memory")
    many.write_parquet("memory://many", partition_cols=["id"])
    assert len(memory.ls("many")) == 1025
    memory.rm("many", recursive=True)


def test_arrays_are_written_and_read(tmp_path: Path) -> None:
    rows = dray.data.range_tensor(5, shape=(2, 2))
    rows.write_numpy(tmp_path, column="data", num_rows_per_file=2)
    assert len(os.listdir(tmp_path)) == 3
    read = dray.data.read_numpy(str(tmp_path), include_paths=True)
    assert read.take_batch(5)["data"][:, 1, 1].tolist() == [0, 1, 2, 3, 4]
    assert read.take(1)[0]["path"].endswith("-000000.npy")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], object))
    with pytest.raises(StorageError, match=r"objects\.npy cannot be read: .*allow_pickle"):
        dray.data.read_numpy(tmp_path / "objects.npy").take()
    loaded = dray.data.read_numpy(tmp_path / "objects.npy", allow_pickle=True).take()
    assert loaded == [{"data": {"a": 1}}]
    with pytest.raises(ConfigError, match="there is no column 'x'"):
        rows.write_numpy(tmp_path, column="x")


def test_damaged_files_are_named_and_advise_nothing_unsafe(tmp_path: Path) -> None:
    def said(read: Callable[..., dray.data.Dataset], name: str, **options: object) -> str:
        with pytest.raises(StorageError, match=rf"{name} cannot be read: ") as raised:
            read(tmp_path / name, **options).take()
        assert raised.type is StorageError
        return str(raised.value)

    np.save(tmp_path / "short.npy", np.arange(10))
    os.truncate(tmp_path / "short.npy", 150)
    np.savez(tmp_path / "several", a=np.arange(3))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(1))
    (tmp_path / "deep.json").write_text('[{"a":' + "[" * 200_000 + "]" * 200_000 + "}]")
    assert "allow_pickle" not in said(dray.data.read_numpy, "short.npy")
    assert said(dray.data.read_numpy, "several.npy").endswith("it is not an .npy file")
    for allowed in (False, True):
        text = said(dray.data.read_numpy, "pickle.npy", allow_pickle=allowed)
        assert text.endswith("it is not an .npy file")
    said(dray.data.read_json, "deep.json")


def test_messages_show_no_secrets_of_urls() -> None:
    url = "memory://me:sEcReT@nowhere/x.{}?X-Amz-Signature=sEcReT"
    for read in (dray.data.read_csv, dray.data.read_parquet, dray.data.read_numpy):
        with pytest.raises(NoSuchFileError, match=r"memory://nowhere/x.a\?\.\.\.") as raised:
            read([url.format("a"), url.format("b")]).take()
        assert "sEcReT" not in str(raised.value)


def test_images_are_written(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    pixels: Any = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    dray.data.from_numpy(pixels).write_images(tmp_path, column="data")
    assert [name[-10:] for name in sorted(os.listdir(tmp_path))] == ["000000.png", "000001.png"]
    read = dray.data.read_images(str(tmp_path)).take_batch(2)
    assert np.array_equal(read["image"], pixels)


def test_rows_of_a_database(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "rows.db")

    with connect() as connection:
        connection.execute("create table kept (x int, name text)")
        connection.executemany("insert into kept values (:x, :name)", ROWS)
    connection.close()
    assert dray.data.read_sql("select * from kept", connect).take_all() == ROWS
    with pytest.raises(ConfigError, match="read_sql gives several columns the name x"):
        dray.data.read_sql("select x, x + 1 as x from kept", connect).take(1)
    few = dray.data.read_sql("select x from kept where x > ?", connect, sql_params=[7])
    assert few.take_all() == [{"x": 8}, {"x": 9}]


def test_lines_without_text_are_kept_if_asked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n\nb\n")
    rows = dray.data.read_text(tmp_path / "a.txt", drop_empty_lines=False).take_all()
    assert [row["text"] for row in rows] == ["a", "", "b"]


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_lines_end_at_the_same_places_in_files_of_any_size(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WHOLE_BYTES", most)
    (tmp_path / "a.txt").write_bytes("a\x0cb\u2028c\r\n\r\nd\x85\re".encode())
    rows = dray.data.read_text(tmp_path / "a.txt", drop_empty_lines=False).take_all()
    assert [row["text"] for row in rows] == ["a", "b", "c", "", "d", "", "e"]


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "text", "numpy", "images"])
def test_files_come_in_another_order_in_each_epoch(kind: str, tmp_path: Path) -> None:
    files_of_two_rows(kind, tmp_path)
    read = getattr(dray.data, f"read_{kind}")
    config = dray.data.FileShuffleConfig(seed=3)
    first, again = (epochs(read(str(tmp_path), shuffle=config)) for _ in range(2))
    assert first == again
    assert len({tuple(epoch) for epoch in first}) == 4
    assert {tuple(sorted(epoch)) for epoch in first} == {tuple(range(24))}
    fixed = dray.data.FileShuffleConfig(seed=3, reseed_after_execution=False)
    [same] = {tuple(epoch) for epoch in epochs(read(str(tmp_path), shuffle=fixed))}
    assert list(same) != sorted(same)
    assert len({tuple(epochs(read(str(tmp_path), shuffle="files"))[0]) for _ in range(3)}) == 3
    with pytest.raises(ConfigError, match="shuffle must be"):
        read(str(tmp_path), shuffle="rows")
    for seed in ("a", -1, 1.5):
        with pytest.raises(ConfigError, match="seed must be a whole number, 0 or more, not"):
            read(str(tmp_path), shuffle=dray.data.FileShuffleConfig(seed=seed))  # type: ignore[arg-type]


def files_of_two_rows(kind: str, path: Path) -> None:
    """Write 12 files with the numbers to 23, two in each; 24 images with a number each."""
    for file in range(12):
        pair = [2 * file, 2 * file + 1]
        if kind == "text":
            (path / f"{file:02}.txt").write_text("\n".join(map(str, pair)))
        elif kind == "numpy":
            np.save(path / f"{file:02}.npy", pair)
        elif kind == "images":
            image = pytest.importorskip("PIL.Image")
            for number in pair:
                image.fromarray(np.full((1, 1), number, np.uint8)).save(path / f"{number:02}.png")
        else:
            rows = dray.data.from_items([{"x": number} for number in pair])
            getattr(rows, f"write_{kind}")(path / f"{file:02}")


def epochs(dataset: Any) -> list[list[int]]:
    """Return the numbers of four epochs, as two ranks take them."""
    shares = dataset.streaming_split(2)
    taken = [
        [next(iter(row.values())) for share in shares for row in share.iter_rows()]
        for _ in range(4)
    ]
    return [[int(np.asarray(value).reshape(-1)[0]) for value in epoch] for epoch in taken]


def test_parts_of_shuffled_files_are_the_same_rows_in_each_epoch(tmp_path: Path) -> None:
    files_of_two_rows("csv", tmp_path)
    shuffled = dray.data.read_csv(tmp_path, shuffle="files")
    train, test = shuffled.map(lambda row: {"x": row["x"]}).train_test_split(0.25)
    assert sorted(epochs(train)[3] + epochs(test)[2]) == list(range(24))
    both = shuffled.union(dray.data.read_csv(tmp_path, shuffle="files"))
    ordered = epochs(both.filter(lambda row: row["x"] % 2 == 0))
    assert len({tuple(epoch) for epoch in ordered}) == 4
    assert sorted(ordered[0]) == sorted([*range(0, 24, 2)] * 2)


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl"])
@pytest.mark.parametrize("codec", ["gz/gzip", "bz2/bz2", "br/brotli", "lz4/lz4", "zst/zstd"])
def test_files_of_text_may_be_packed(ending: str, codec: str, tmp_path: Path) -> None:
    packed, codec = codec.split("/")
    text = b"x\n1\n2\n" if ending == "csv" else b'{"x": 1}\n{"x": 2}\n'
    for number, name in enumerate((f"{ending}.{packed}", f"{ending.upper()}.{packed.upper()}")):
        with pa.CompressedOutputStream(str(tmp_path / f"{number}.{name}"), codec) as file:
            file.write(text)
    read = getattr(dray.data, f"read_{ending.removesuffix('l')}")
    assert read(tmp_path).take_all() == [{"x": 1}, {"x": 2}] * 2
    assert dataset_of(str(tmp_path / f"1.{name}"), "train").take_all() == [{"x": 1}, {"x": 2}]


def test_lists_of_json_may_begin_with_a_mark_of_their_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"x": 1}]', "utf-8-sig")
    assert dray.data.read_json(tmp_path).take_all() == [{"x": 1}]


def test_endings_of_files_ignore_case(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "B.CSV").write_text("x\n2\n")
    assert dray.data.read_csv(tmp_path, file_extensions=["csv"]).count() == 2
    assert dray.data.read_csv(tmp_path, file_extensions=["CSV"]).count() == 2
    (tmp_path / "c.txt").write_text("x\n3\n")
    (tmp_path / "part-0").write_text("x\n4\n")
    assert sorted(row["x"] for row in dray.data.read_csv(tmp_path).take_all()) == [1, 2, 3, 4]
    with pytest.raises(NoSuchFileError, match=r"there are no files at .* that end in \.parquet, "):
        dray.data.read_parquet(tmp_path)


@pytest.mark.parametrize("remote", [False, True])
def test_directories_that_a_glob_names_are_read(remote: bool, tmp_path: Path) -> None:
    dray.data.from_items([{"k": n % 3, "x": n} for n in range(6)]).write_parquet(
        tmp_path, partition_cols=["k"]
    )
    (tmp_path / "k=0" / "_SUCCESS").write_text("")
    place = f"file://{tmp_path}" if remote else str(tmp_path)
    for pattern in ("k=*", "*", "k=*/**/*.parquet"):
        rows = dray.data.read_parquet(f"{place}/{pattern}").take_all()
        assert sorted(row["x"] for row in rows) == list(range(6))
        assert all(row["k"] == str(row["x"] % 3) for row in rows)
    (tmp_path / "k=0" / "_SUCCESS").unlink()
    assert dray.data.read_parquet(f"{place}/**").count() == 6
    some = dray.data.read_parquet(f"{place}/k=[01]")
    assert sorted(row["x"] for row in some.take_all()) == [0, 1, 3, 4]
