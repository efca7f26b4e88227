"""Columns that functions of batches add, before rows are put into another order or cut."""

from __future__ import annotations

from typing import Any

import pandas as pd

import dray.data


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
