"""Values that Arrow has no type for: pickled in memory, and read from files on request alone."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import dray.data
from dray.data.sources import staging
from dray.errors import ConfigError


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> Any:
        return Path.write_text, (Path(self._path), "caught")


@pytest.fixture(params=["dray.pickled", "ray.data.arrow_pickled_object"])
def by_a_stranger(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file whose values run code when they are unpickled."""
    told = {"ARROW:extension:name": request.param, "ARROW:extension:metadata": ""}
    kind = pa.field("x", pa.large_binary(), metadata=told)
    values = [pa.array([pickle.dumps(Trap(tmp_path / "caught"))], pa.large_binary()), pa.array([1])]
    schema = pa.schema([kind, pa.field("id", pa.int64())])
    pq.write_table(pa.table(values, schema=schema), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


def test_files_of_strangers_run_no_code(by_a_stranger: Path, tmp_path: Path) -> None:
    for read in (dray.data.read_parquet, lambda path: dray.data.read_parquet([path, path])):
        with pytest.raises(ConfigError, match=r"a\.parquet.*'x'.*any code.*allow_pickle=True"):
            read(by_a_stranger)
    assert dray.data.read_parquet(by_a_stranger, columns=["id"]).take_all() == [{"id": 1}]
    assert not (tmp_path / "caught").exists()
    dray.data.read_parquet(by_a_stranger, allow_pickle=True).take_all()
    assert (tmp_path / "caught").exists()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("read", [pq.read_table, pyarrow.dataset.dataset], ids=["table", "dataset"])
def test_what_pyarrow_reads_runs_no_code(
    read: Callable[[Path], Any],
    staged: bool,
    by_a_stranger: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if staged:
        monkeypatch.setattr(staging, "IN_MEMORY_BYTES", 0)
    table = read(by_a_stranger)
    whole = table if isinstance(table, pa.Table) else table.to_table()
    rows = dray.data.from_arrow(whole)
    made = rows.map(lambda row: row).materialize()
    sent = pickle.loads(pickle.dumps(made.source))
    for source in (rows, dray.data.Dataset(sent)):
        assert isinstance(source.take(1)[0]["x"], bytes)
        source.write_parquet(tmp_path / "again")
        source.random_shuffle(seed=0).to_pandas()
    assert not (tmp_path / "caught").exists()


VALUES = [{"a", "b"}, None, complex(1, 2)]


@pytest.mark.parametrize("staged", [False, True])
def test_values_without_a_type_stay_as_they_are(
    staged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if staged:
        monkeypatch.setattr(staging, "IN_MEMORY_BYTES", 0)
    rows = dray.data.from_items([{"x": value} for value in VALUES]).map(lambda row: row)
    made = rows.materialize()
    sent = dray.data.Dataset(pickle.loads(pickle.dumps(made.source)))
    for source in (made, sent):
        assert [row["x"] for row in source.take_all()] == VALUES
    with pytest.warns(UserWarning, match=r"column 'x' are written as pickles, .*allow_pickle=True"):
        made.write_parquet(tmp_path / "out")
    again = dray.data.read_parquet(tmp_path / "out", allow_pickle=True)
    assert [row["x"] for row in again.take_all()] == VALUES


def test_complex_numbers_of_pandas() -> None:
    rows = dray.data.from_pandas(pd.DataFrame({"x": [1 + 2j], "y": [1]}))
    assert rows.take_all() == [{"x": 1 + 2j, "y": 1}]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.bool_, np.int64])
def test_tensors_of_several_shapes_are_written_without_pickles(dtype: Any, tmp_path: Path) -> None:
    shapes: list[Any] = [(2, 3), None, (1, 4), (0, 2), (3, 1)]
    tensors = [None if shape is None else np.ones(shape, dtype) for shape in shapes]
    rows = dray.data.from_items([{"id": n, "x": tensor} for n, tensor in enumerate(tensors)])
    rows.write_parquet(tmp_path / "out")
    rows.write_parquet(tmp_path / "parts", partition_cols=["id"])
    for folder in ("out", "parts"):
        read = [row["x"] for row in dray.data.read_parquet(tmp_path / folder).take_all()]
        assert [getattr(each, "shape", None) for each in read] == shapes
        assert {each.dtype for each in read if each is not None} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    ("value", "dtype"), [(1, np.float64), (np.float32("nan"), np.float64), (2**53 + 1, None)]
)
def test_tensors_of_several_types_are_written_as_one_that_holds_them(
    value: Any, dtype: Any, tmp_path: Path
) -> None:
    tensors = [np.full((2, 3), value), np.full((1, 4), 0.5)]
    rows = dray.data.from_items([{"x": tensor} for tensor in tensors])
    if dtype is None:
        with pytest.warns(UserWarning, match="are written as pickles"):
            rows.write_parquet(tmp_path)
        return
    rows.write_parquet(tmp_path)
    read = [row["x"] for row in dray.data.read_parquet(tmp_path).take_all()]
    assert [each.dtype for each in read] == [dtype, dtype]
    assert all(map(functools.partial(np.array_equal, equal_nan=True), read, tensors))
