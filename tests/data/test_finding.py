"""Files to read: those that are there, those that pass a filter, and those of a dataset."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import dray.data
from dray.data.sources.partitions import Partitioning, PathPartitionFilter, PathPartitionParser
from dray.errors import ConfigError, NoSuchFileError, StorageError

data: Any = dray.data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of numbers in directories that are named after a year and a kind."""
    for year, kind in itertools.product((2023, 2024), "ab"):
        place = tmp_path / f"year={year}" / f"kind={kind}"
        place.mkdir(parents=True)
        (place / "1.csv").write_text(f"x\n{year}\n")
    (tmp_path / "none.csv").write_text("x\n0\n")
    return tmp_path


def test_files_are_chosen_by_the_values_of_their_paths(folder: Path) -> None:
    chosen = PathPartitionFilter.of(lambda values: values.get("kind") == "a")
    rows = dray.data.read_csv(str(folder), partition_filter=chosen)
    assert rows.take_all() == [{"x": year, "year": f"{year}", "kind": "a"} for year in (2023, 2024)]
    outside = PathPartitionFilter.of(lambda values: not values)
    assert dray.data.read_csv(str(folder), partition_filter=outside).take_all() == [{"x": 0}]
    typed = PathPartitionFilter.of(
        lambda values: values.get("year", 0) > 2023,  # type: ignore[operator]
        style="dir",
        base_dir=str(folder),
        field_names=["year", "kind"],
        field_types={"year": lambda text: int(text.removeprefix("year="))},
    )
    assert dray.data.read_csv(str(folder), partition_filter=typed).count() == 2
    with pytest.raises(NoSuchFileError, match=r"no files at .* that pass partition_filter"):
        dray.data.read_csv(str(folder), partition_filter=PathPartitionFilter.of(lambda values: 0))
    parser = PathPartitionParser(Partitioning("dir", "/base", ["kind"]))
    assert (parser("/base/a/1.csv"), parser("/base/1.csv"), parser("/else/a/1.csv")) == (
        {"kind": "a"},
        {},
        {},
    )
    assert PathPartitionFilter(parser, bool).apply("/base/a/1.csv")


READERS: list[tuple[Callable[..., Any], bytes]] = [
    (data.read_csv, b"x\n1\n"),
    (data.read_json, b'{"x": 1}\n'),
    (data.read_text, b"1\n"),
    (data.read_binary_files, b"1"),
]


@pytest.mark.parametrize(("read", "content"), READERS)
def test_paths_without_a_file_are_left_out(
    read: Callable[..., Any], content: bytes, tmp_path: Path
) -> None:
    paths = [str(tmp_path / name) for name in ("there.json", "gone.json")]
    Path(paths[0]).write_bytes(content)
    with pytest.raises(NoSuchFileError, match=r"gone\.json"):
        read(paths)
    made = read(paths, ignore_missing_paths=True)
    assert (made.count(), made.input_files()) == (1, paths[:1])
    with pytest.raises(NoSuchFileError, match=r"no files at .*gone\.json"):
        read(paths[1:], ignore_missing_paths=True)


def test_paths_without_a_file_far_away_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("x\n1\n")
    paths = [f"file://{tmp_path}/{name}.csv" for name in ("there", "gone")]
    on = fsspec.filesystem("file")
    assert dray.data.read_csv(paths, ignore_missing_paths=True, filesystem=on).count() == 1


def test_the_files_of_a_dataset(folder: Path) -> None:
    every = sorted(map(str, folder.rglob("*.csv")))
    rows = dray.data.read_csv(str(folder))
    for made in (
        rows,
        rows.filter(lambda row: row["x"]),
        rows.sort("x"),
        rows.groupby("x").count(),
        rows.materialize(),
        rows.materialize().split(2)[1],
        rows.split(2)[0],
        rows.random_shuffle(seed=0).limit(2),
        rows.add_column("y", lambda frame: frame["x"]).limit(2),
        dray.data.read_csv(str(folder), shuffle="files"),
        dray.data.range(4).zip(rows),
        rows.join(rows, "inner", on="x"),
        rows.union(rows, dray.data.range(1)),
        rows.map(dict).union(rows),
    ):
        assert sorted(made.input_files()) == every
    (folder / "p").mkdir()
    rows.write_parquet(folder / "p")
    written = sorted(map(str, (folder / "p").iterdir()))
    parquet = dray.data.read_parquet(folder / "p", include_paths=True)
    assert parquet.input_files() == parquet.select_columns(["x"]).input_files() == written
    np.save(folder / "1.npy", np.ones(2))
    arrays = dray.data.read_numpy(str(folder / "1.npy"))
    assert arrays.input_files() == [str(folder / "1.npy")]
    assert dray.data.range(3).input_files() == []


def test_a_partition_filter_needs_names_of_directories() -> None:
    with pytest.raises(ConfigError, match="needs field_names"):
        PathPartitionFilter.of(bool, style="dir")


def test_a_directory_that_cannot_be_listed_is_not_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, scandir = str(folder / "year=2024"), os.scandir

    def refuse(path: str) -> Any:
        if os.fspath(path) == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)  # as root may list all
    with pytest.raises(StorageError, match=f"cannot be read: .*{closed}"):
        dray.data.read_csv(str(folder)).take_all()
