"""Tables that keep their earlier states, where the libraries that read them are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dray.data
from dray.errors import ConfigError

ROWS = pa.table({"x": [1, 2, 3], "text": ["a", None, "é"], "kind": ["u", "v", "u"]})


@pytest.fixture
def rows() -> Any:
    return dray.data.from_arrow(ROWS)


def test_tables_of_delta_lake(tmp_path: Path, rows: Any) -> None:
    pytest.importorskip("deltalake")
    place = tmp_path / "table"
    rows.write_delta(place, partition_by=["kind"])
    read = dray.data.read_delta(str(place))
    rows.map(lambda row: {**row, "new": 0.5}).write_delta(place)
    for _ in range(2):
        assert read.sort("x").take_all() == ROWS.to_pylist()
    assert read.columns() == ["x", "text", "kind"]
    assert read.random_shuffle(seed=0).count() == 3
    newest = dray.data.read_delta(place)
    assert (newest.count(), newest.sum("new")) == (6, 1.5)
    assert newest.columns() == ["x", "text", "kind", "new"]
    few = dray.data.read_delta(
        place, 0, columns=["text"], include_paths=True, filter=pa.compute.field("x") > 2
    )
    [row] = few.take_all()
    assert (row["text"], Path(row["path"]).parent) == ("é", place / "kind=u")
    assert row["path"] in few.input_files()
    shuffled = dray.data.read_delta(place, shuffle="files")
    assert sorted(shuffled.iterator().materialize().unique("x")) == [1, 2, 3]

    with pytest.raises(Exception, match=r"[Ss]chema"):
        rows.map(lambda row: {"newer": 1}).write_delta(place, schema_mode="error")
    with pytest.raises(Exception, match="exists"):
        rows.write_delta(place, mode="create")
    rows.write_delta(place, mode="ignore")
    assert dray.data.read_delta(place).count() == 6
    few = rows.limit(1).select_columns(["kind", "x"])
    few.write_delta(place, mode="overwrite")
    assert dray.data.read_delta(place).take_all() == [{"kind": "u", "x": 1}]
    with pytest.raises(ConfigError, match=r"Delta Lake cannot hold column 'data', of .*tensor"):
        dray.data.range_tensor(2).write_delta(tmp_path / "none")
    with pytest.raises(ConfigError, match="there is no column 'z'"):
        dray.data.read_delta(place, columns=["z"])
    with pytest.raises(ConfigError, match="one table"):
        dray.data.read_delta([str(place)])  # type: ignore[arg-type]
    for wrong in ({"mode": "replace"}, {"schema_mode": "none"}):
        with pytest.raises(ConfigError, match="mode must be"):
            rows.write_delta(place, **wrong)


def test_datasets_of_lance(tmp_path: Path, rows: Any) -> None:
    pytest.importorskip("lance")
    place = tmp_path / "rows.lance"
    rows.write_lance(place)
    read = dray.data.read_lance(str(place))
    rows.write_lance(place, mode="append")
    for _ in range(2):
        assert read.take_all() == ROWS.to_pylist()
    assert read.columns() == ["x", "text", "kind"]
    assert read.random_shuffle(seed=0).count() == 3
    few = dray.data.read_lance(place, columns=["text"], filter="x > 2")
    assert (few.columns(), few.take_all()) == (["text"], [{"text": "é"}] * 2)
    assert dray.data.read_lance([place, place], version=1).count() == 6
    with pytest.raises(OSError, match="exists"):
        rows.write_lance(place)
    dray.data.range_tensor(2, shape=(2, 2)).write_lance(place, mode="overwrite")
    tensors = dray.data.read_lance(place).take_batch()["data"]
    assert np.array_equal(tensors, [np.full((2, 2), n) for n in range(2)])
    with pytest.raises(ConfigError, match="Lance cannot hold column 'item'"):
        dray.data.from_items([1j]).write_lance(tmp_path / "none")
    with pytest.raises(ConfigError, match="mode must be one of 'create', 'append', 'overwrite'"):
        rows.write_lance(place, mode="ignore")
    with pytest.raises(ConfigError, match="the path of a dataset"):
        dray.data.read_lance([])
