"""Columns and their types, told before all rows are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dray.data


def test_columns_are_known_where_the_first_rows_do_not_pass() -> None:
    late = dray.data.range(100).filter(lambda row: row["id"] > 50)
    made = late.map(lambda row: {"a": row["id"]})
    schema = made.schema()
    assert schema is not None
    assert schema.names == made.columns() == ["a"]
    assert made.sum() == sum(range(51, 100))
    assert made.groupby(None).max().take_all() == [{"max(a)": 99}]
    assert late.filter(lambda row: False).columns() == ["id"]
    assert made.columns(fetch_if_missing=False) is None
    assert made.schema(fetch_if_missing=False) is None
    assert dray.data.range(1).columns(fetch_if_missing=False) == ["id"]


def test_columns_and_types_that_come_later_are_known() -> None:
    def late(row: dict[str, Any]) -> dict[str, Any]:
        number = row["id"]
        return {"x": number / 2 if number > 50 else None, **({"y": "a"} if number > 60 else {})}

    known = pa.schema([("x", pa.float64()), ("y", pa.string())])
    rows = dray.data.range(100).map(late)
    for made in (rows, rows.map_batches(lambda batch: batch, batch_size=8)):
        schema = made.schema()
        assert schema is not None
        assert schema.base_schema == known
    assert str(rows.schema()).startswith("Column  Type\n------  ----\nx       double")
    unlike = dray.data.range(9).map(lambda row: {"x": row["id"] or "a"})
    assert unlike.map_batches(lambda batch: batch, batch_size=1).columns() == ["x"]


def test_rows_of_which_none_pass_are_made_once_to_be_kept() -> None:
    seen: list[int] = []

    def passes(row: dict[str, Any]) -> bool:
        seen.append(row["id"])
        return False

    rows = dray.data.range(100).filter(passes).map(lambda row: {"a": row["id"]})
    assert rows.materialize().count() == 0
    assert len(seen) < 110


def test_rows_that_are_none_keep_their_columns(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "0.parquet")
    assert dray.data.from_pandas([]).take_all() == dray.data.from_arrow([]).take_all() == []
    for rows in (
        dray.data.range(0),
        dray.data.range(5).limit(0),
        dray.data.read_parquet(tmp_path),
        dray.data.from_pandas(pandas.DataFrame({"id": pandas.Series([], dtype=int)})),
    ):
        assert rows.to_arrow().schema == pa.schema([("id", pa.int64())])
        assert list(rows.to_pandas().columns) == ["id"]
        assert list(rows.random_shuffle().to_pandas().columns) == ["id"]
        assert rows.materialize().columns() == ["id"]
