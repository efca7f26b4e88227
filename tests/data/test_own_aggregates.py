"""Aggregates of a program's own: functions, and classes."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import dray
import dray.data
from dray.data.aggregate import (
    AggregateFn,
    AggregateFnV2,
    Count,
    Max,
    Mean,
)
from dray.errors import ConfigError

FRAME = pd.DataFrame({"kind": ["b", "a", "b", "b"], "x": [1.0, -5.0, 2.0, None]})


ROWS = dray.data.from_pandas(FRAME)


def test_aggregates_of_ones_own() -> None:
    def fails(total: float, row: dict[str, Any]) -> float:
        return total / 0

    total = AggregateFn(
        init=lambda key: f"{key}:",
        merge=lambda one, other: one + other,
        name="joined",
        accumulate_row=lambda so_far, row: f"{so_far}{row['x']}",
        finalize=lambda so_far: so_far + ";",
    )
    rows = AggregateFn(lambda key: 0, max, "rows", accumulate_block=lambda n, table: n + len(table))
    made = ROWS.groupby("kind").aggregate(total, Max("x"), rows).take_all()
    assert made == [
        {"kind": "a", "joined": "a:-5.0;", "max(x)": -5.0, "rows": 1},
        {"kind": "b", "joined": "b:1.02.0None;", "max(x)": 2.0, "rows": 3},
    ]
    assert ROWS.aggregate(rows) == {"rows": 4}
    by_two = ROWS.groupby(["kind", "x"]).aggregate(total).take(1)
    assert by_two == [{"kind": "a", "x": -5.0, "joined": "('a', -5.0):-5.0;"}]
    with pytest.raises(ConfigError, match="either accumulate_row or accumulate_block"):
        AggregateFn(lambda key: 0, max, "most")
    with pytest.raises(ZeroDivisionError, match="AggregateFn 'bad' failed on the group 'b'"):
        ROWS.groupby("kind").aggregate(AggregateFn(lambda key: 0, max, "bad", fails)).take()


class Distance(AggregateFnV2[list[float], float]):
    """Between the ends of a column."""

    def __init__(
        self, on: str | None, name: str = "distance", *, ignore_nulls: bool = True
    ) -> None:
        super().__init__(name, list, on=on, ignore_nulls=ignore_nulls)

    def aggregate_block(self, block: pa.Table) -> list[float] | None:
        values = block[self.get_target_column() or "x"].drop_null().to_pylist()
        return [min(values), max(values)] if values else None

    def combine(self, current_accumulator: list[float], new: list[float]) -> list[float]:
        return [*current_accumulator, *new]

    def finalize(self, accumulator: list[float]) -> float:
        return accumulator[1] - accumulator[0]


def test_aggregates_of_a_class_of_ones_own() -> None:
    rows = dray.data.from_items([{"k": k, "x": x} for k, x in ((1, 1.0), (1, 4.0), (2, None))])
    assert rows.groupby("k").aggregate(Distance("x"), Max("x"), Distance(None, "all")).take() == [
        {"k": 1, "distance": 3.0, "max(x)": 4.0, "all": 3.0},
        {"k": 2, "distance": None, "max(x)": None, "all": None},
    ]
    assert rows.aggregate(Distance("x")) == {"distance": 3.0}
    named = Distance("x", "span(x)")
    assert (named.get_agg_name(), named.get_target_column()) == ("span", "x")
    assert (Mean("x").get_agg_name(), Count().get_target_column()) == ("mean", None)
    with pytest.raises(ConfigError, match="there is no column 'z'"):
        rows.aggregate(Distance("z"))
    with pytest.raises(ConfigError, match="needs a name"):
        Distance("x", "")
    with pytest.raises(TypeError, match="abstract"):
        AggregateFnV2("x", list, on="x", ignore_nulls=True)  # type: ignore[abstract]
    words = dray.data.from_items(["a", "b"])
    with pytest.raises(TypeError, match="AggregateFn 'distance' failed on the group None"):
        words.aggregate(Distance("item"))
