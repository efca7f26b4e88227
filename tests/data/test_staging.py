"""Rows that are written down once, so that each can be found by its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dray.data
from dray.data.sources import staging
from dray.errors import DataFunctionError


@pytest.fixture(autouse=True)
def _in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all rows that are staged in files, as large ones are."""
    monkeypatch.setattr(staging, "IN_MEMORY_BYTES", 0)


def of_json(path: Path, *values: Any) -> dray.data.Dataset:
    """Return a file of JSON for each row as a dataset."""
    for number, value in enumerate(values):
        (path / f"{number}.json").write_text(json.dumps(value))
    return dray.data.read_json(path)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"x": 1}, {"x": 2, "error": "boom"}),
        ({"x": 1, "note": "a"}, {"x": 2}),
        ({"x": None}, {"x": "text"}),
        ({"x": 1}, {"x": 1.5}),
        ({"x": [1, 2]}, {"x": [0.5], "y": {"z": 1}}),
    ],
    ids=str,
)
def test_rows_whose_columns_differ_have_those_of_all(
    first: Any, later: Any, tmp_path: Path
) -> None:
    rows = of_json(tmp_path, first, later, first)
    names = {**first, **later}
    whole = [{name: row.get(name) for name in names} for row in (first, later, first)]
    staged = rows.materialize()
    assert staged.count() == 3
    assert list(staged.iter_rows()) == whole
    for name in names:
        assert staged.select_columns([name]).take_all() == [{name: row[name]} for row in whole]
    tables = list(staged.iter_batches(batch_size=1, batch_format="pyarrow"))
    schema = staged.schema()
    assert schema is not None
    assert all(table.schema == schema.base_schema for table in tables)
    shuffled = list(rows.random_shuffle(seed=0).iter_rows())
    assert all(shuffled.count(row) == whole.count(row) for row in whole)
    shared = [row for share in rows.streaming_split(3) for row in share.iter_rows()]
    assert shared == whole


@pytest.mark.parametrize("in_memory", [0, 1 << 20], ids=["in a file", "in memory"])
@pytest.mark.parametrize("later", ["0012", True, [1]])
def test_values_that_no_type_holds_together_are_an_error(
    later: Any, in_memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "IN_MEMORY_BYTES", in_memory)
    rows = of_json(tmp_path, {"x": 1}, {"x": later})
    with pytest.raises(
        DataFunctionError,
        match=r"rows of 2 files do not have the same types: .*x has incompatible types",
    ):
        rows.materialize()
    with pytest.raises(
        DataFunctionError, match=r"rows do not have the same types: .*x has incompatible types"
    ):
        rows.take_batch(2)


def test_tensors_of_several_shapes_are_staged() -> None:
    def made(batch: dict[str, Any]) -> dict[str, Any]:
        number = int(batch["id"][0])
        return {"x": np.ones((1, number + 1, 2)), "n": [(1, 0.5)[number % 2]]}

    rows = dray.data.range(4).map_batches(made, batch_size=1)
    numbers = [batch["n"].dtype for batch in rows.materialize().iter_batches(batch_size=1)]
    assert numbers == [np.float64] * 4
    shapes = [row["x"].shape for row in rows.materialize().iter_rows()]
    assert shapes == [(1, 2), (2, 2), (3, 2), (4, 2)]
    assert sorted(row["x"].shape for row in rows.random_shuffle(seed=0).iter_rows()) == shapes
