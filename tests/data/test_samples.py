"""Formats of samples and of tables that other tools write: WebDataset, TFRecord, ORC, databases."""

from __future__ import annotations

import contextlib
import importlib
import io
import sqlite3
import struct
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import dray.data
from dray.data.sources import tf_records
from dray.errors import AbsentArgumentError, ConfigError, StorageError


def packed(path: Path, members: Mapping[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def array(values: list[int]) -> bytes:
    made = io.BytesIO()
    np.save(made, np.array(values))
    return made.getvalue()


SAMPLES = {
    "d/1.txt": b"one",
    "d/1.cls": b"1",
    "d/1.json": b'{"a": 1, "cls": 7}',
    "d/1.x.npy": array([1, 2]),
    "d/2.txt": b"two",
    "d/2.cls": b"2",
    "d/2.json": b'{"a": 2}',
    "d/2.x.npy": array([3, 4]),
    "no_ending": b"",
}


@pytest.mark.parametrize(("name", "mode"), [("a.tar", "w"), ("a.tar.gz", "w:gz")])
def test_archives_of_samples(name: str, mode: str, tmp_path: Path) -> None:
    path = str(packed(tmp_path / name, SAMPLES, mode))
    one, two = dray.data.read_webdataset(path, include_paths=True).take_all()
    assert (one.pop("x.npy").tolist(), two.pop("x.npy").tolist()) == ([1, 2], [3, 4])
    assert one == {
        "__key__": "d/1",
        "txt": "one",
        "cls": 1,
        "json": {"a": 1, "cls": 7},
        "__url__": path,
        "path": path,
    }
    raw = dray.data.read_webdataset(path, decoder=None, suffixes=["txt", "*.npy"]).take(1)
    assert raw == [
        {"__key__": "d/1", "txt": b"one", "x.npy": SAMPLES["d/1.x.npy"], "__url__": path}
    ]
    chosen = dray.data.read_webdataset(
        path,
        decoder=[True, lambda sample: {**sample, "n": len(sample["txt"])}],
        fileselect=lambda name: not name.endswith("npy"),
        filerename=[str.upper, str.lower, lambda name: name.removeprefix("d/")],
        expand_json=True,
    )
    assert chosen.drop_columns(["json", "__url__"]).take_all() == [
        {"__key__": "1", "txt": "one", "cls": 1, "n": 3, "a": 1},
        {"__key__": "2", "txt": "two", "cls": 2, "n": 3, "a": 2},
    ]
    assert dray.data.read_webdataset(path).input_files() == [path]


def test_archives_that_cannot_be_read(tmp_path: Path) -> None:
    apart = packed(tmp_path / "apart.tar", {"1.txt": b"", "2.txt": b"", "1.cls": b"1"})
    with pytest.raises(
        StorageError, match=r"apart\.tar has the files of '1' in several places.*sort"
    ):
        dray.data.read_webdataset(str(apart)).take_all()
    with tarfile.open(tmp_path / "twice.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("1.txt"))
        archive.addfile(tarfile.TarInfo("1.txt"))
    with pytest.raises(StorageError, match=r"twice\.tar has 1\.txt twice"):
        dray.data.read_webdataset(str(tmp_path / "twice.tar")).take_all()
    (tmp_path / "no.tar").write_bytes(b"no archive")
    with pytest.raises(StorageError, match=r"no\.tar cannot be read"):
        dray.data.read_webdataset(str(tmp_path / "no.tar")).take_all()
    pickled = packed(tmp_path / "pickled.tar", {"1.pkl": b"x"})
    with pytest.raises(ConfigError, match="'pkl' is pickled, and loading it may run any code"):
        dray.data.read_webdataset(str(pickled)).take_all()


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"
# Records of IPTC: a number, a size, and the value; the last one is an image of any format.
_RECORDS = [(3, 60, b"\1\0"), (3, 20, b"\0\x09"), (3, 30, b"\0\x09"), (3, 120, b"\5")]
IPTC = b"".join(
    struct.pack(">BBBH", 0x1C, *number, len(value)) + value
    for *number, value in [*_RECORDS, (8, 10, POSTSCRIPT)]
)


@pytest.mark.parametrize(("kind", "content"), [("EPS", POSTSCRIPT), ("IPTC", IPTC)])
def test_images_that_pillow_would_run_are_refused(
    kind: str, content: bytes, tmp_path: Path
) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(StorageError, match=rf"a\.png .* in {kind}, and to show it may run"):
        dray.data.read_images(tmp_path / "a.png").take()
    archive = packed(tmp_path / "a.tar", {"1.png": content})
    with pytest.raises(StorageError, match=rf"a\.tar .* in {kind}, and to show it may run"):
        dray.data.read_webdataset(str(archive)).take()


def test_images_of_too_many_pixels_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    content = b"P5 100000 100000 255\n"
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(StorageError, match=r"a\.png cannot be read: .* decompression bomb"):
        dray.data.read_images(tmp_path / "a.png").take()
    archive = packed(tmp_path / "a.tar", {"1.png": content})
    with pytest.raises(StorageError, match=r"a\.tar cannot be read: .* decompression bomb"):
        dray.data.read_webdataset(str(archive)).take()


def test_samples_that_cannot_be_made_or_taken_apart_are_named(tmp_path: Path) -> None:
    path = str(packed(tmp_path / "a.tar", {"1.txt": b"one", "1.json": b"[1]", "2.txt": b"two"}))
    for options, kind, said in (
        ({"decoder": lambda sample: sample["cls"]}, KeyError, r"failed on sample '1': KeyError"),
        (
            {"decoder": [True, lambda sample: None]},
            ConfigError,
            r"read_webdataset\(<lambda>\) must return a dict",
        ),
        ({"expand_json": True}, StorageError, r"a\.tar .*sample '1' has no JSON object"),
        (
            {"expand_json": True, "fileselect": lambda name: "2" in name},
            StorageError,
            "sample '2' has no JSON object",
        ),
    ):
        untyped: Any = options
        with pytest.raises(kind, match=said):
            dray.data.read_webdataset(path, **untyped).take_all()
    rows = dray.data.from_items([{"__key__": n, "txt": "a"} for n in (0, 1)])
    with pytest.raises(KeyError, match=r"write_webdataset\(<lambda>\) failed on sample 0"):
        rows.write_webdataset(tmp_path / "b", encoder=lambda row: row["cls"])
    rows.write_webdataset(tmp_path / "b")
    assert dray.data.read_webdataset(str(tmp_path / "b")).unique("__key__") == ["0", "1"]
    for keys in (["a.1", "a.2"], [""], ["d/"], ["a", "b", "a"]):
        with pytest.raises(ConfigError, match="__key__ is '"):
            dray.data.from_items([{"__key__": key, "txt": ""} for key in keys]).write_webdataset(
                tmp_path / "c"
            )


def test_rows_become_samples(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    pixels: Any = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    rows = [
        {
            "__key__": f"{n}",
            "txt": f"é{n}",
            "cls": n,
            "json": {"n": [n]},
            "npy": pixels,
            "png": pixels,
        }
        for n in range(3)
    ]
    rows[1]["txt"] = None
    dray.data.from_items(rows).write_webdataset(tmp_path / "a", num_rows_per_file=2)
    assert [path.suffix for path in (tmp_path / "a").iterdir()] == [".tar"] * 2
    read = dray.data.read_webdataset(str(tmp_path / "a")).drop_columns(["__url__"]).take_all()
    for made, row in zip(read, rows, strict=True):
        for name in ("npy", "png"):
            assert made.pop(name).tolist() == row.pop(name).tolist()
        assert made == row
    random = dray.data.from_items([{"n": 1}, {"n": 2}])
    with pytest.raises(ConfigError, match="column 'n' is of int, which dray cannot write"):
        random.write_webdataset(tmp_path / "b")
    assert not list((tmp_path / "b").iterdir())
    random.write_webdataset(tmp_path / "b", encoder=lambda row: {"n": f"{row['n']}"})
    keys = {row["__key__"] for row in dray.data.read_webdataset(str(tmp_path / "b")).take()}
    assert len(keys) == 2


def test_records_of_tensorflow(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "i": n - 1,
            "many": [2**62 + n, -(2**63), 300][: n + 1],
            "f": n / 2,
            "text": f"é{n}",
            "bytes": b"\xff",
            "texts": ["a", "b"],
            "flag": n > 1,
            "some": 1 if n else None,
        }
        for n in range(3)
    ]
    dray.data.from_items(rows).write_tfrecords(tmp_path / "a", num_rows_per_file=2)
    assert [path.suffix for path in (tmp_path / "a").iterdir()] == [".tfrecords"] * 2
    read = dray.data.read_tfrecords(str(tmp_path / "a"))
    assert read.take_all() == [
        {**row, "text": row["text"].encode(), "texts": [b"a", b"b"], "flag": int(row["flag"])}
        for row in rows
    ]
    schema = read.schema()
    assert schema is not None
    kinds = dict(zip(schema.names, schema.types, strict=True))
    assert (kinds["f"], kinds["many"]) == (pa.float32(), pa.list_(pa.int64()))
    tensors = dray.data.range_tensor(2, shape=(2, 2))
    with pytest.raises(ConfigError, match="TFRecord cannot hold column 'data'"):
        tensors.write_tfrecords(tmp_path / "b")
    untyped: Any = read
    with pytest.raises(AbsentArgumentError, match="tf_schema"):
        untyped.write_tfrecords(tmp_path / "b", tf_schema=1)


def test_records_that_differ_are_put_together(tmp_path: Path) -> None:
    kinds: list[list[dict[str, Any]]] = [
        [{"n": 1, "text": None, "none": None}, {"n": None, "text": None, "none": None}],
        [{"n": [2, 3], "text": "é", "none": None}],
    ]
    for number, rows in enumerate(kinds):
        dray.data.from_items(rows).write_tfrecords(tmp_path / f"{number}")
    read = dray.data.read_tfrecords([str(tmp_path / "0"), str(tmp_path / "1")])
    expected = [{"n": [1]}, {"n": []}, {"n": [2, 3]}]
    assert [{"n": row["n"]} for row in read.iter_rows()] == expected
    by_epoch = dray.data.read_tfrecords(str(tmp_path), shuffle="files").take_all()
    assert sorted(row["n"] for row in by_epoch) == [[], [1], [2, 3]]
    together = read.random_shuffle(seed=1).sort("text").materialize().repartition(1)
    assert sorted(together.unique("text"), key=str) == [None, "é".encode()]
    assert read.take_batch(3, batch_format="pyarrow").select(["n"]).to_pylist() == expected
    numbers = dray.data.from_items([{"x": 1}]).union(dray.data.from_items([{"x": 2.5}]))
    numbers.write_tfrecords(tmp_path / "numbers")
    assert dray.data.read_tfrecords(str(tmp_path / "numbers")).unique("x") == [1, 2.5]
    for value in (pa.array([[1, None]]), pa.array([1 << 63], pa.uint64())):
        with pytest.raises(ConfigError, match=r"TFRecord cannot hold .*column 'x'"):
            dray.data.from_arrow(pa.table({"x": value})).write_tfrecords(tmp_path / "c")


class Feature(NamedTuple):
    """A feature of a schema, with the names and numbers of tensorflow_metadata."""

    name: str
    type: int


def test_features_are_lists_in_all_records_or_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf_records, "_RECORDS", 2)
    for number, values in enumerate(([[1], [1, 2], [3], []], [[4], [5, 6]])):
        rows: list[dict[str, Any]] = [{"n": value, "f": 0.5, "t": "a"} for value in values]
        rows[-1]["late"] = [b"x", b"y"]
        dray.data.from_items(rows).write_tfrecords(tmp_path / f"{number}")
    read = dray.data.read_tfrecords(str(tmp_path))
    for _ in range(2):
        assert [row["n"] for row in read.iter_rows()] == [[1], [1, 2], [3], [], [4], [5, 6]]
    assert read.to_pandas()["late"][3].tolist() == [b"x", b"y"]
    dray.data.from_items([{"n": 1, "f": 1.0, "t": "b"}] * 2).write_tfrecords(tmp_path / "begin")
    both = [str(tmp_path / "begin"), str(tmp_path / "0")]
    for asked in (dray.data.read_tfrecords(both), dray.data.read_tfrecords(both, shuffle="files")):
        with pytest.raises(StorageError, match=r"0.*feature 'n' has several values.* tf_schema="):
            asked.take_all()
    features = [Feature("n", 2), Feature("f", 3), Feature("t", 1), Feature("late", 1)]
    all_lists = dray.data.read_tfrecords(both, tf_schema=SimpleNamespace(feature=features))
    rows = all_lists.take_all()
    assert [row["n"] for row in rows] == [[1], [1], [1], [1, 2], [3], []]
    assert rows[0] == {"n": [1], "f": [1.0], "t": [b"b"], "late": None}
    wrong: list[tuple[list[Feature], str]] = [
        (features[1:], "feature 'n' is in a record, but not in tf_schema="),
        (
            [Feature("n", 1), *features[1:]],
            "feature 'n' is bytes in tf_schema=, but a record has integers",
        ),
    ]
    for given, message in wrong:
        with pytest.raises(StorageError, match=message):
            dray.data.read_tfrecords(both, tf_schema=SimpleNamespace(feature=given)).take_all()
    with pytest.raises(ConfigError, match="tf_schema must be a Schema of tensorflow_metadata"):
        dray.data.read_tfrecords(both, tf_schema={"n": "int"})


# As the format is: Example(features={"a": int64_list([1, -1]), "b": float_list([0.5])}),
# and one whose features have no values.
OF_TENSORFLOW = (
    "2700000000000000bbe1b1460a250a140a0161120f1a0d0a0b01ffffffffffffffffff010a0d0a01"
    "62120812060a040000003f95e931f51200000000000000241f64250a100a070a016112021a000a05"
    "0a01621200878bd54f"
)


def test_a_file_of_tensorflow(tmp_path: Path) -> None:
    path = tmp_path / "1.tfrecords"
    path.write_bytes(bytes.fromhex(OF_TENSORFLOW))
    assert dray.data.read_tfrecords(str(path)).take_all() == [
        {"a": [1, -1], "b": 0.5},
        {"a": [], "b": None},
    ]
    whole = path.read_bytes()
    endless = bytes(7) + b"\x10\xc4#N\x8e"  # a record of 2**60 bytes, and no memory for it
    broken = (whole[:-6], whole[:5], b"x" * 40, whole[:8] + b"0000" + whole[12:], endless)
    for damaged in broken:
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"1\.tfrecords cannot be read"):
            dray.data.read_tfrecords(str(path)).take_all()


def test_checksums_are_made_by_a_package_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = SimpleNamespace(value=lambda content: 0)
    monkeypatch.setitem(sys.modules, "google_crc32c", package)
    monkeypatch.setattr(tf_records, "_crc32c", tf_records._crc32c.__wrapped__)
    dray.data.from_items([{"a": 1}]).write_tfrecords(tmp_path)
    [path] = tmp_path.iterdir()
    assert path.read_bytes()[8:12] == path.read_bytes()[-4:] == struct.pack("<I", 0xA282EAD8)


def test_files_of_avro(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    fields = [{"name": "n", "type": ["null", "long"]}, {"name": "tags", "type": "string"}]
    schema = {"type": "record", "name": "row", "fields": fields}
    rows = [{"n": None if number == 300 else number, "tags": "é"} for number in range(600)]
    for name, codec in (("a", "null"), ("b", "deflate")):
        with (tmp_path / f"{name}.avro").open("wb") as file:
            fastavro.writer(file, schema, rows, codec=codec)
    read = dray.data.read_avro(str(tmp_path), include_paths=True)
    assert read.drop_columns(["path"]).take_all() == rows * 2
    assert [Path(file).name for file in read.input_files()] == ["a.avro", "b.avro"]
    whole = (tmp_path / "a.avro").read_bytes()
    for damaged in (b"nothing", whole[:-30], b""):
        (tmp_path / "a.avro").write_bytes(damaged)
        with pytest.raises(StorageError, match=r"a\.avro cannot be read"):
            dray.data.read_avro(str(tmp_path / "a.avro")).take_all()


@pytest.fixture
def catalogs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return pyiceberg's module of catalogs; its threads end with the test."""
    pytest.importorskip("sqlalchemy")
    imported = pytest.importorskip("pyiceberg.catalog")
    threads = importlib.import_module("pyiceberg.utils.concurrent").ExecutorFactory
    monkeypatch.setattr(threads, "_instance", None)
    yield imported
    threads.get_or_create().shutdown()


def test_tables_of_iceberg(tmp_path: Path, catalogs: Any) -> None:
    where = {
        "name": "local",
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}",
    }
    catalog = catalogs.load_catalog(**where)
    catalog.create_namespace("shop")
    rows = pa.table({"x": [1, 2, 3], "text": ["a", None, "é"]})
    table = catalog.create_table("shop.kept", schema=rows.schema)
    named: Any = {"table_identifier": "shop.kept", "catalog_kwargs": where}
    assert dray.data.read_iceberg(**named).columns() == ["x", "text"]
    table.append(rows)
    read = dray.data.read_iceberg(**named)
    table.append(rows)
    for _ in range(2):
        assert read.sort("x").take_all() == rows.to_pylist()
    assert read.random_shuffle(seed=0).count() == 3
    few = dray.data.read_iceberg(**named, row_filter="x > 2", selected_fields=("text",))
    assert few.take_all() == [{"text": "é"}] * 2
    first = table.history()[0].snapshot_id
    assert dray.data.read_iceberg(**named, snapshot_id=first).count() == 3


def test_files_of_orc(tmp_path: Path) -> None:
    rows = dray.data.from_items([{"x": n, "texts": ["a"] * n} for n in range(5)])
    rows.write_orc(tmp_path, num_rows_per_file=2, compression="zstd")
    paths = sorted(tmp_path.iterdir())
    assert [path.suffix for path in paths] == [".orc"] * 3
    assert dray.data.read_orc(str(tmp_path)).take_all() == rows.take_all()
    named = dray.data.read_orc(str(paths[-1]), include_paths=True)
    assert named.take_all() == [{"x": 4, "texts": ["a"] * 4, "path": str(paths[-1])}]
    with pytest.raises(ConfigError, match="ORC cannot hold column 'data'"):
        dray.data.range_tensor(2).write_orc(tmp_path)
    for values in (pa.nulls(1), pa.array([1], pa.uint64()), pa.array([[{"a": None}]])):
        with pytest.raises(
            ConfigError, match=r"ORC cannot hold column 'x', which is .*(null|uint)"
        ):
            dray.data.from_arrow(pa.table({"x": values})).write_orc(tmp_path / "none")
    paths[0].write_bytes(b"none")
    with pytest.raises(StorageError, match="cannot be read"):
        dray.data.read_orc(str(paths[0])).take_all()


def test_rows_into_a_database(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "rows.db")

    def fails(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if row["id"] == 299:
            raise KeyError("label")
        yield row

    with contextlib.closing(connect()) as database:
        database.execute("create table numbers (id, text)")
    numbers = dray.data.range(300).map(lambda row: {**row, "text": "a"})
    numbers.write_sql("insert into numbers values (?, ?)", connect)
    told = dray.data.read_sql(
        "select count(*) as n, sum(id) as s, max(text) as t from numbers", connect
    )
    assert told.take_all() == [{"n": 300, "s": 44850, "t": "a"}]
    with pytest.raises(KeyError, match="label"):
        numbers.materialize().flat_map(fails).write_sql(
            "insert into numbers values (?, ?)", connect
        )
    other = dray.data.from_items([{"text": "b", "id": 1}]).union(dray.data.from_items([{"id": 2}]))
    numbers.limit(1).union(other).write_sql("insert into numbers values (?, ?)", connect)
    last = dray.data.read_sql("select * from numbers order by rowid desc limit 2", connect)
    assert last.take_all() == [{"id": 2, "text": None}, {"id": 1, "text": "b"}]
    with pytest.raises(ConfigError, match="there is no column 'z'; the columns are id, text"):
        numbers.limit(1).union(dray.data.from_items([{"id": 1, "z": 1}])).write_sql(
            "insert into numbers values (?, ?)", connect
        )
    with pytest.raises(sqlite3.Error):
        numbers.write_sql("insert into letters values (?, ?)", connect)
    assert told.take(1)[0]["n"] == 303
