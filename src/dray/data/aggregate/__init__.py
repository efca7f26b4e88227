"""Aggregates of groups, given as classes: `rows.groupby("kind").aggregate(Mean("x"))`."""

from __future__ import annotations

from dray.checks import require
from dray.compat.attributes import attach_getattr

require("numpy", "dray[data]")
require("pyarrow", "dray[data]")

from dray.data.aggregate.base import AggregateFn, AggregateFnV2  # noqa: E402 (see above)
from dray.data.aggregate.counts import (  # noqa: E402
    ApproximateQuantile,
    ApproximateTopK,
    MissingValuePercentage,
    ValueCounter,
    ZeroPercentage,
)
from dray.data.aggregate.of_columns import (  # noqa: E402
    AbsMax,
    AsList,
    Count,
    CountDistinct,
    Max,
    Mean,
    Min,
    Quantile,
    Std,
    Sum,
    Unique,
)

__all__ = [
    "AbsMax",
    "AggregateFn",
    "AggregateFnV2",
    "ApproximateQuantile",
    "ApproximateTopK",
    "AsList",
    "Count",
    "CountDistinct",
    "Max",
    "Mean",
    "Min",
    "MissingValuePercentage",
    "Quantile",
    "Std",
    "Sum",
    "Unique",
    "ValueCounter",
    "ZeroPercentage",
]

attach_getattr(__name__)
