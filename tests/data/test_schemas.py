"""Columns and their types, told before all rows are read."""

from __future__ import annotations

from typing import Any

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


def test_rows_of_which_none_pass_are_made_once_to_be_kept() -> None:
    seen: list[int] = []

    def passes(row: dict[str, Any]) -> bool:
        seen.append(row["id"])
        return False

    rows = dray.data.range(100).filter(passes).map(lambda row: {"a": row["id"]})
    assert rows.materialize().count() == 0
    assert len(seen) < 110
