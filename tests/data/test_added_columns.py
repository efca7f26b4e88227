"""Columns that functions of batches add, before rows are put into another order or cut."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import dray.data
from dray.errors import ConfigError


def before(frame: pd.DataFrame) -> Any:
    """Return the number of the row before."""
    return frame["id"].shift(1, fill_value=-1)


def after(frame: pd.DataFrame) -> Any:
    """Return the number of the row after."""
    return frame["id"].shift(-1, fill_value=-1)


def test_columns_are_added_before_a_later_shuffle() -> None:
    rows = dray.data.range(8).add_column("n", before)
    once = rows.random_shuffle(seed=0)
    twice = once.map(lambda row: {**row, "m": row["n"]}).random_shuffle(seed=1)
    for shuffled in (once, twice, twice.materialize()):
        made = [(row["id"], row["n"]) for row in shuffled.take_all()]
        assert made != sorted(made)
        assert sorted(made) == [(number, number - 1) for number in range(8)]
    assert once.count() == 8
    assert once.columns() == ["id", "n"]
    epochs = once.iterator()
    assert len({tuple(row["id"] for row in epochs.iter_rows()) for _ in range(3)}) == 3


def test_columns_are_added_in_the_order_that_rows_have_then() -> None:
    shuffled = dray.data.range(8).random_shuffle(seed=0)
    order = [row["id"] for row in shuffled.take_all()]
    rows = shuffled.add_column("n", before).random_shuffle(seed=1)
    pairs = dict(zip(order, [-1, *order], strict=False))
    assert {row["id"]: row["n"] for row in rows.take_all()} == pairs


def test_columns_are_added_before_rows_are_cut() -> None:
    rows = dray.data.range(8).add_column("n", after)
    assert rows.limit(2).take_all() == [{"id": 0, "n": 1}, {"id": 1, "n": 2}]
    whole = [{"id": number, "n": number + 1 if number < 7 else -1} for number in range(8)]
    for parts in (
        rows.split(2),
        rows.split_at_indices([3]),
        rows.train_test_split(0.25),
        rows.split_proportionately([0.5]),
    ):
        assert [row for part in parts for row in part.take_all()] == whole
    train, test = rows.train_test_split(2, shuffle=True, seed=0)
    made = [*train.take_all(), *test.take_all()]
    assert sorted(made, key=lambda row: row["id"]) == whole


def test_columns_of_the_first_rows_are_made_of_their_block_alone() -> None:
    calls: list[int] = []

    def counted(frame: pd.DataFrame) -> Any:
        calls.append(len(frame))
        return frame["id"]

    rows = dray.data.range(200_000).add_column("n", counted).limit(2)
    assert not calls
    assert rows.count() == 2
    assert len(calls) == 1


def test_a_table_of_one_column_is_added_as_that_column() -> None:
    rows = dray.data.range(4)
    expected = [{"id": number, "rest": number % 3} for number in range(4)]
    for added in (
        rows.add_column("rest", lambda frame: frame % 3),
        rows.add_column(
            "rest",
            lambda table: pa.table({"x": [number % 3 for number in table["id"].to_pylist()]}),
            batch_format="pyarrow",
        ),
    ):
        assert added.take_all() == expected
        assert added.groupby("rest").sum("id").take(1) == [{"rest": 0, "sum(id)": 3}]
    two = rows.add_column("rest", lambda frame: frame.assign(x=1))
    with pytest.raises(ConfigError, match="one column, not a table of the 2 columns id, x"):
        two.take_all()
