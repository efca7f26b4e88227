"""Sources and places of a program's own, and names of files, as programs for Ray have them."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dray.data
from dray.data import (
    BlockBasedFileDatasink,
    Datasink,
    Datasource,
    FileShuffleConfig,
    ReadTask,
    RowBasedFileDatasink,
)
from dray.data.forms.accessor import BlockAccessor, BlockMetadata
from dray.data.sources.datasink import TaskContext, WriteResult
from dray.data.sources.datasource import FileBasedDatasource
from dray.data.sources.filenames import FilenameProvider
from dray.data.sources.partitions import Partitioning
from dray.errors import ConfigError, StorageError


class Numbers(Datasource):
    """The numbers from 0, in as many tasks as are asked for, each in two blocks."""

    def __init__(self, rows: int, size: int | None = None) -> None:
        self.rows, self.size = rows, size
        self.asked: list[int] = []

    def estimate_inmemory_data_size(self) -> int | None:
        return self.size

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        self.asked.append(parallelism)
        ends = np.linspace(0, self.rows, parallelism + 1).astype(int).tolist()
        return [
            ReadTask(functools.partial(self.read, *part), BlockMetadata(part[1] - part[0], None))
            for part in itertools.pairwise(ends)
        ]

    def read(self, begin: int, end: int) -> Iterator[Any]:
        if end > 90:
            raise OverflowError("too large")
        yield pa.table({"x": range(begin, end)})
        yield pd.DataFrame({"x": [end * 100]})


def test_a_source_of_ones_own() -> None:
    source = Numbers(6)
    rows = dray.data.read_datasource(source, override_num_blocks=3)
    assert [row["x"] for row in rows.take_all()] == [0, 1, 200, 2, 3, 400, 4, 5, 600]
    assert rows.map_batches(lambda batch: batch).sort("x").count() == 9
    assert [len(part) for part in (rows.split(3), rows.input_files())] == [3, 0]
    for made, asked in ((Numbers(6), 12), (Numbers(6, 200 << 20), 4), (Numbers(6, 0), 1)):
        dray.data.read_datasource(made, concurrency=2).take_all()
        assert set(made.asked) == {asked}
    dray.data.read_datasource(made, parallelism=2).take_all()
    assert made.asked[-1] == 2
    with pytest.raises(OverflowError, match=r"read task 1 of Numbers failed on its rows: .*large"):
        dray.data.read_datasource(Numbers(99), parallelism=2).take_all()
    untyped: Any = dray.data.read_datasource
    with pytest.raises(ConfigError, match=r"takes a dray\.data\.Datasource, not 'x'"):
        untyped("x")
    with pytest.raises(NotImplementedError, match="has no get_read_tasks"):
        dray.data.read_datasource(Datasource()).take_all()
    limited = ReadTask(lambda: source.read(0, 4), BlockMetadata(5, None), per_task_row_limit=3)
    assert [block.num_rows for block in limited()] == [3]
    assert limited.metadata.num_rows == 5


class Words(FileBasedDatasource):
    """Files of words."""

    _FILE_EXTENSIONS = (".words",)

    def _read_stream(self, file: pa.NativeFile, path: str) -> Iterator[Any]:
        yield {"word": file.read().decode().split()}


def test_files_of_a_kind_of_ones_own(tmp_path: Path) -> None:
    for kind in "ab":
        (tmp_path / f"kind={kind}").mkdir()
        (tmp_path / f"kind={kind}" / "1.words").write_text(f"{kind} {kind}")
    (tmp_path / "not.txt").write_text("no")
    source = Words(str(tmp_path), partitioning=Partitioning("hive"), include_paths=True)
    paths = [f"{tmp_path}/kind={kind}/1.words" for kind in "ab"]
    rows = dray.data.read_datasource(source)
    assert rows.take_all() == [
        {"word": kind, "kind": kind, "path": path}
        for kind, path in zip("ab", paths, strict=True)
        for _ in range(2)
    ]
    assert rows.input_files() == paths
    orders = set()
    for seed in range(9):
        some = Words(str(tmp_path), shuffle=FileShuffleConfig(seed=seed))
        orders.add("".join(r["word"] for r in dray.data.read_datasource(some).iter_rows()))
    assert orders == {"aabb", "bbaa"}
    Path(paths[0]).write_bytes(b"\xff")
    with pytest.raises(StorageError, match=r"read task 0 of Words .*1\.words cannot be read"):
        rows.take_all()


class Kept(Datasink[int]):
    """A list of what has happened."""

    def __init__(self, fails: bool = False, least: int | None = None) -> None:
        self.events: list[Any] = []
        self.fails, self.least = fails, least

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        self.events.append(schema and schema.names)

    def write(self, blocks: Iterable[pa.Table], ctx: TaskContext) -> int:
        rows = sum(block.num_rows for block in blocks)
        self.events.append((ctx.task_idx, rows))
        if self.fails:
            raise ValueError("full")
        return rows

    def on_write_complete(self, write_result: WriteResult[int]) -> None:
        self.events.append((write_result.num_rows, write_result.write_returns))

    def on_write_failed(self, error: Exception) -> None:
        self.events.append(str(error))

    @property
    def min_rows_per_write(self) -> int | None:
        return self.least


def test_a_place_of_ones_own() -> None:
    rows = dray.data.range(10).map_batches(lambda batch: batch, batch_size=2)
    kept = Kept()
    rows.write_datasink(kept, concurrency=2)
    assert kept.events == [["id"], (0, 10), (10, [10])]
    kept = Kept(least=3)
    rows.write_datasink(kept)
    assert kept.events[1:] == [(0, 4), (1, 4), (2, 2), (10, [4, 4, 2])]
    kept = Kept(fails=True)
    with pytest.raises(ValueError, match="full"):
        rows.write_datasink(kept)
    assert kept.events == [["id"], (0, 10), "full"]
    kept = Kept()
    with pytest.raises(ZeroDivisionError):
        rows.map(lambda row: {"x": 1 / 0}).write_datasink(kept)
    assert "division by zero" in kept.events[-1]
    kept = Kept()
    rows.limit(0).write_datasink(kept)
    assert kept.events == [None, (0, [])]
    with pytest.raises(ConfigError, match=r"takes a dray\.data\.Datasink"):
        rows.write_datasink("x")  # type: ignore[arg-type]
    assert (kept.get_name(), kept.supports_distributed_writes) == ("Kept", True)


def test_files_of_rows_that_are_not_alike(tmp_path: Path) -> None:
    class Items(RowBasedFileDatasink):
        def write_row_to_file(self, row: dict[str, Any], file: pa.NativeFile) -> None:
            file.write(str(row["item"]).encode())

    rows = dray.data.from_items([1]).union(dray.data.from_items(["a"]))
    rows.write_datasink(Items(tmp_path))
    assert dray.data.read_text(tmp_path).unique("text") == ["1", "a"]


def test_an_interrupted_write_leaves_no_file(tmp_path: Path) -> None:
    class Interrupted(RowBasedFileDatasink):
        def write_row_to_file(self, row: dict[str, Any], file: pa.NativeFile) -> None:
            file.write(b"begun")
            if row["id"]:
                raise KeyboardInterrupt

    memory = pytest.importorskip("fsspec").filesystem("memory")
    for folder in (str(tmp_path), "memory://interrupted"):
        with pytest.raises(KeyboardInterrupt):
            dray.data.range(2).write_datasink(Interrupted(folder))
    assert list(tmp_path.iterdir()) == memory.find("interrupted") == []


class Texts(RowBasedFileDatasink):
    """A file for each row."""

    def write_row_to_file(self, row: dict[str, Any], file: pa.NativeFile) -> None:
        file.write(str(10 // (5 - row["id"])).encode())


class Tables(BlockBasedFileDatasink):
    """A file of CSV for many rows."""

    def write_block_to_file(self, block: BlockAccessor, file: pa.NativeFile) -> None:
        file.write(block.to_pandas().to_csv(index=False).encode())


def test_files_of_ones_own_for_rows(tmp_path: Path) -> None:
    rows = dray.data.range(5).map_batches(lambda batch: batch, batch_size=2)
    rows.write_datasink(Texts(tmp_path / "rows", file_format="txt", dataset_uuid="d"))
    names = sorted(path.name for path in (tmp_path / "rows").iterdir())
    assert [name[:2] for name in names] == ["d_"] * 5
    assert [name[-18:] for name in names] == [f"_000000_00000{n}.txt" for n in range(5)]
    texts = dray.data.read_text(tmp_path / "rows").take()
    assert [row["text"] for row in texts] == ["2", "2", "3", "5", "10"]
    sink = Tables(tmp_path / "tables", min_rows_per_file=2, file_format="csv")
    rows.write_datasink(sink)
    assert len(list((tmp_path / "tables").iterdir())) == 3
    assert dray.data.read_csv(tmp_path / "tables").sort("id").take_all() == rows.take_all()
    rows.write_datasink(Tables(tmp_path / "tables", file_format="csv", mode="overwrite"))
    assert [path.suffix for path in (tmp_path / "tables").iterdir()] == [".csv"]
    rows.write_datasink(Tables(tmp_path / "tables", mode="ignore"))
    with pytest.raises(StorageError, match="does not allow"):
        rows.write_datasink(Tables(tmp_path / "tables", mode="error"))
    assert len(list((tmp_path / "tables").iterdir())) == 1
    with pytest.raises(ZeroDivisionError):
        dray.data.range(9).write_datasink(Texts(tmp_path / "failed"))
    assert list((tmp_path / "failed").iterdir()) == []


class Named(FilenameProvider):
    """Names with the numbers of files."""

    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        return f"n{task_index}" + ("" if self.file_format is None else f".{self.file_format}")


def test_names_of_files(tmp_path: Path) -> None:
    rows = dray.data.range(5)

    def names(folder: str = "") -> list[str]:
        return sorted(path.name for path in (tmp_path / folder).iterdir())

    rows.write_csv(tmp_path, filename_provider=Named(None, "csv"), num_rows_per_file=2)
    assert names() == ["n0.csv", "n1.csv", "n2.csv"]
    rows.write_json(tmp_path, filename_provider=Named(None, "json"), mode="overwrite")
    assert names() == ["n0.json"]
    fails = dray.data.range(5).map(lambda row: {"x": 1 // (4 - row["id"])})
    with pytest.raises(ZeroDivisionError):
        fails.write_json(tmp_path, filename_provider=Named(None, "json"), num_rows_per_file=1)
    assert dray.data.read_json(tmp_path).take_all() == rows.take_all()
    rows.write_parquet(
        tmp_path / "p", filename_provider=Named(None, "parquet"), partition_cols=["id"]
    )
    rows.limit(1).write_parquet(
        tmp_path / "p",
        filename_provider=Named(None, "pq"),
        partition_cols=["id"],
        mode="overwrite",
    )
    assert names("p") == ["id=0"]
    assert names("p/id=0") == ["n0-0.pq"]
    rows.write_parquet(tmp_path / "q", filename_provider=Named(), partition_cols=["id"])
    assert names("q/id=0") == ["n0-0"]
    pixels = dray.data.from_numpy(np.zeros((2, 2, 2), np.uint8))
    pixels.write_images(tmp_path / "i", "data", filename_provider=Named(None, "png"))
    assert names("i") == ["n0_000000_000000.png", "n0_000000_000001.png"]
    for name, said in (
        ("a/b", "must return the name of a file, not 'a/b'"),
        ("a", "two files the name 'a'"),
    ):
        same = FilenameProvider()
        same.get_filename_for_task = lambda *given, name=name: name  # type: ignore[method-assign]
        with pytest.raises(ConfigError, match=said):
            rows.write_csv(tmp_path / "c", filename_provider=same, num_rows_per_file=2)
    assert names("c") == []


def test_blocks_in_other_forms() -> None:
    block = BlockAccessor.for_block(pd.DataFrame({"x": [1, 2], "y": ["a", "b"]}))
    assert (block.num_rows(), block.size_bytes() > 0, block.schema().names) == (2, True, ["x", "y"])
    assert list(block.iter_rows(public_row_format=True)) == block.to_arrow().to_pylist()
    assert block.to_numpy("x").tolist() == [1, 2]  # type: ignore[union-attr]
    assert list(block.to_numpy(["y"])) == ["y"]
    assert list(block.to_numpy()) == list(block.to_batch_format("pandas").columns) == ["x", "y"]
    assert block.slice(1, 2).to_pylist() == [{"x": 2, "y": "b"}]


@pytest.mark.parametrize(
    ("module", "name", "kind"),
    [
        ("block", "BlockAccessor", BlockAccessor),
        ("datasource", "FileBasedDatasource", FileBasedDatasource),
        ("datasource.datasink", "Datasink", Datasink),
        ("datasource.filename_provider", "FilenameProvider", FilenameProvider),
        ("datasource.partitioning", "Partitioning", Partitioning),
    ],
)
def test_modules_of_ray(module: str, name: str, kind: type) -> None:
    assert getattr(importlib.import_module(f"dray.data.{module}"), name) is kind
