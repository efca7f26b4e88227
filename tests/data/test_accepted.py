"""Kinds of data that become datasets, each read in shares and gone on with; what is none."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import dray.data
from dray.data.accepted import dataset_of
from dray.data.iterator import DataIterator
from dray.errors import ConfigError, StorageError

ROWS = [{"x": number, "name": f"n{number % 3}"} for number in range(10)]
FRAME = pd.DataFrame(ROWS)


class Squares:
    """A dataset whose rows are had by number, as torch's are."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, int]:
        if index > 9:
            raise IndexError
        return {"x": index}


class Stream:
    """A dataset whose rows come one after another, with no end that is known."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        return ({"x": number} for number in range(10))


def of_hugging_face(_: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_pandas(pd.concat([FRAME, FRAME])).select(range(10))


def streamed_by_hugging_face(_: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_pandas(FRAME).to_iterable_dataset()


def of_polars(_: Path) -> Any:
    return pytest.importorskip("polars").DataFrame(ROWS)  # here: it has a thread from the start


def streamed_by_torch(_: Path) -> Any:
    streams: Any = pytest.importorskip("torch.utils.data").IterableDataset
    members = {"__iter__": lambda _: iter(ROWS), "__len__": lambda _: len(ROWS)}
    return type("Rows", (streams,), members)()


def parquet(folder: Path) -> str:
    pq.write_table(pa.Table.from_pandas(FRAME), folder / "a.parquet", row_group_size=3)
    return str(folder / "*.parquet")


def csv(folder: Path) -> str:
    FRAME.to_csv(folder / "a.csv", index=False)
    return f"file://{folder}/a.csv"


def json_lines(folder: Path) -> Path:
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return folder / "a.jsonl"


def json_list(folder: Path) -> Path:
    (folder / "a.json").write_text(json.dumps(ROWS))
    return folder / "a.json"


@pytest.mark.parametrize(
    "make",
    [
        lambda _: ROWS,
        lambda _: FRAME,
        lambda _: pa.Table.from_pandas(FRAME),
        lambda _: pa.dataset.dataset(pa.Table.from_pandas(FRAME)),
        lambda _: Squares(),
        lambda _: Stream(),
        of_hugging_face,
        streamed_by_hugging_face,
        streamed_by_torch,
        lambda folder: dray.data.from_torch(streamed_by_torch(folder)),
        of_polars,
        parquet,
        csv,
        json_lines,
        json_list,
    ],
)
def test_every_kind_of_data_is_shared_and_goes_on(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    dataset = dataset_of(make(tmp_path), "train")
    assert [row["x"] for row in dataset.take(3)] == [0, 1, 2]
    assert dataset.count() == 10
    shares = dataset.to_ship().streaming_split(3, equal=True)
    parts = [[row["x"] for row in share.iter_rows()] for share in shares]
    assert [len(part) for part in parts] == [3, 3, 3]
    assert len(set(itertools.chain(*parts))) == 9
    begun = iter(shares[1].iter_rows())
    first = [next(begun)["x"], next(begun)["x"]]
    positions = [share.position for share in shares]
    again = DataIterator(dataset, positions=positions)
    assert shares[0].position.epoch == 1
    assert sorted([row["x"] for row in again.iter_rows()] + first) == list(range(10))


@pytest.mark.parametrize("ending", [".tsv", ".tsv.gz", ".csv.gz", ".jsonl.gz"])
def test_paths_say_what_files_are(ending: str, tmp_path: Path) -> None:
    path = str(tmp_path / f"a{ending}")
    if "json" in ending:
        FRAME.to_json(path, orient="records", lines=True)
    else:
        FRAME.to_csv(path, index=False, sep="\t" if "tsv" in ending else ",")
    assert dataset_of(path, "train").take_all() == ROWS


def test_matrices_without_columns_are_rows_all_the_same() -> None:
    rows = dray.data.from_numpy(np.zeros((3, 0)))
    assert [list(row["data"]) for row in rows.iter_rows()] == [[], [], []]


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"datasets\['train'\] is a int, from which dray cannot read rows"
    ):
        dataset_of(3, "train")
    with pytest.raises(ConfigError, match="dict of datasets: pass one of 'train', 'test'"):
        dray.data.from_huggingface({"train": 1, "test": 2})
    with pytest.raises(ConfigError, match=r"is a dict: give its columns as pyarrow.table"):
        dataset_of({"x": [1, 2]}, "train")
    with pytest.raises(ConfigError, match="there is no file"):
        dray.data.read_parquet(str(tmp_path / "nothing.parquet"))
    with pytest.raises(ConfigError, match="there are no files at"):
        dray.data.read_csv(str(tmp_path))
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(StorageError, match=r"bad\.parquet is not a Parquet file"):
        dray.data.read_parquet(str(tmp_path))
    with pytest.raises(ConfigError, match="there is no column 'y'; the columns are x, name"):
        dray.data.from_items(ROWS).select_columns(["y"]).take(1)
