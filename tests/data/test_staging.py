"""Rows that are written down once, so that each can be found by its number."""

from __future__ import annotations

import json
from collections.abc import Iterable
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
def test_rows_whose_columns_differ_stay_as_they_are(first: Any, later: Any, tmp_path: Path) -> None:
    rows = of_json(tmp_path, first, later, first)
    names = {**first, **later}
    whole = [{name: row.get(name) for name in names} for row in (first, later, first)]

    def filled(made: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: row.get(name) for name in names} for row in made]

    assert filled(rows.iter_rows()) == whole
    staged = rows.materialize()
    assert staged.count() == 3
    assert filled(staged.iter_rows()) == whole
    schema = staged.schema()
    assert schema is not None
    assert set(schema.names) == set(names)
    shuffled = filled(rows.random_shuffle(seed=0).iter_rows())
    assert all(shuffled.count(row) == whole.count(row) for row in whole)
    shared = [row for share in rows.streaming_split(3) for row in share.iter_rows()]
    assert filled(shared) == whole


@pytest.mark.parametrize("later", ["0012", True, [1]])
def test_values_that_no_type_holds_together_are_an_error(later: Any, tmp_path: Path) -> None:
    with pytest.raises(
        DataFunctionError, match="rows of 2 files are not alike: the first ones have x int64"
    ):
        of_json(tmp_path, {"x": 1}, {"x": later}).materialize()


def test_tensors_of_several_shapes_are_staged() -> None:
    rows = dray.data.range(4).map_batches(
        lambda batch: {"x": np.ones((1, int(batch["id"][0]) + 1, 2))}, batch_size=1
    )
    shapes = [row["x"].shape for row in rows.materialize().iter_rows()]
    assert shapes == [(1, 2), (2, 2), (3, 2), (4, 2)]
    assert sorted(row["x"].shape for row in rows.random_shuffle(seed=0).iter_rows()) == shapes
