"""Writes that fail, end in the middle, or replace what they read: no row is lost, none is half."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.fs
import pytest

import dray.data
from dray.errors import NoSuchFileError, StorageError

KINDS = ["parquet", "csv", "json"]


@pytest.fixture(params=["local", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A directory."""
    if request.param == "local":
        yield str(tmp_path / "out")
        return
    yield "memory://failed-writes"
    fsspec.filesystem("memory").rm("failed-writes", recursive=True)


def _files(place: str) -> list[str]:
    on, path = fsspec.core.url_to_fs(place)
    return sorted(os.path.basename(name) for name in on.find(path))


def _failing(rows: int = 100) -> dray.data.Dataset:
    """Rows of which the last one cannot be calculated."""

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][-1] == rows - 1:
            raise ZeroDivisionError("the last one")
        return batch

    return dray.data.range(rows).map_batches(fail, batch_size=10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows_a_file", [None, 25])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_write_that_fails_leaves_what_was_there_and_no_more(
    kind: str, rows_a_file: int | None, mode: str, place: str
) -> None:
    options = {"num_rows_per_file": rows_a_file} if rows_a_file else {}
    getattr(dray.data.range(3), f"write_{kind}")(place)
    before = _files(place)
    with pytest.raises(ZeroDivisionError, match="the last one"):
        getattr(_failing(), f"write_{kind}")(place, mode=mode, **options)
    assert _files(place) == before
    assert getattr(dray.data, f"read_{kind}")(place).count() == 3


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_partitions_of_a_write_that_fails_are_not_there(mode: str, place: str) -> None:
    def with_kind(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "kind": batch["id"] % 3}

    dray.data.range(6).map_batches(with_kind).write_parquet(place, partition_cols=["kind"])
    before = _files(place)
    failing = _failing().map_batches(with_kind)
    with pytest.raises(ZeroDivisionError, match="the last one"):
        failing.write_parquet(place, partition_cols=["kind"], mode=mode, max_rows_per_file=2)
    assert _files(place) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_takes_the_place_of_the_files_that_it_is_read_from(kind: str, place: str) -> None:
    read, rows = getattr(dray.data, f"read_{kind}"), dray.data.range(100)
    getattr(rows, f"write_{kind}")(place, num_rows_per_file=30)
    doubled = read(place).map_batches(lambda batch: {"id": 2 * np.asarray(batch["id"])})
    getattr(doubled, f"write_{kind}")(place, mode="overwrite")
    assert len(_files(place)) == 1
    assert sorted(row["id"] for row in read(place).take_all()) == list(range(0, 200, 2))


def test_partitions_take_the_place_of_others(place: str) -> None:
    rows = dray.data.from_items([{"x": x, "kind": f"k{x % 3}"} for x in range(9)])
    rows.write_parquet(place, partition_cols=["kind"])
    some = dray.data.read_parquet(place).filter(lambda row: row["kind"] != "k1")
    some.write_parquet(place, partition_cols=["kind"], mode="overwrite")
    found = sorted(row["x"] for row in dray.data.read_parquet(place).take_all())
    assert found == [0, 2, 3, 5, 6, 8]
    on, path = fsspec.core.url_to_fs(place)
    assert sorted(os.path.basename(name) for name in on.ls(path, detail=False)) == [
        "kind=k0",
        "kind=k2",
    ]


def test_what_a_link_leads_to_is_not_overwritten(tmp_path: Path) -> None:
    other, out = tmp_path / "other", tmp_path / "out"
    dray.data.range(3).write_parquet(other)
    out.mkdir()
    (out / "link").symlink_to(other)
    dray.data.range(2).write_parquet(out, mode="overwrite")
    assert dray.data.read_parquet(out).count() == 2
    assert dray.data.read_parquet(other).count() == 3


KILLED = """
import os, signal, sys
import dray.data

def die(batch):
    if batch["id"][-1] == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch

rows = dray.data.range(100).map_batches(die, batch_size=10)
rows.write_parquet(sys.argv[1], mode="overwrite", num_rows_per_file=25)
"""


def test_a_killed_write_leaves_nothing_that_can_be_read(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")], check=False)
    assert ended.returncode == -signal.SIGKILL
    out, on = str(tmp_path / "out"), pyarrow.fs.LocalFileSystem()
    assert os.listdir(out)  # where it had begun to write
    for filesystem in (None, on):
        with pytest.raises(NoSuchFileError):
            dray.data.read_parquet(out, filesystem=filesystem)
    dray.data.range(3).write_parquet(out, mode="create")
    assert dray.data.read_parquet(out, filesystem=on).count() == 3
    with pytest.raises(StorageError, match="does not allow"):
        dray.data.range(3).write_parquet(out, mode="create")
    dray.data.range(3).write_parquet(out, mode="overwrite")
    assert len(os.listdir(out)) == 1
