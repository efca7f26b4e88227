"""Datasets: rows from files and memory, lazily, for programs and for the workers of a training."""

from dray.answers import answer_for
from dray.checks import require

require("numpy", "dray[data]")
require("pyarrow", "dray[data]")

from dray.data.dataset import Dataset  # noqa: E402
from dray.data.grouped import GroupedData  # noqa: E402
from dray.data.iterator import DataIterator  # noqa: E402
from dray.data.pipeline import Schema  # noqa: E402
from dray.data.read_api import (  # noqa: E402
    from_arrow,
    from_huggingface,
    from_items,
    from_numpy,
    from_pandas,
    from_polars,
    from_torch,
    range,
    range_tensor,
    read_csv,
    read_json,
    read_parquet,
)
from dray.data.workers import ActorPoolStrategy  # noqa: E402

__all__ = [
    "ActorPoolStrategy",
    "DataIterator",
    "Dataset",
    "GroupedData",
    "Schema",
    "from_arrow",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_pandas",
    "from_polars",
    "from_torch",
    "range",
    "range_tensor",
    "read_csv",
    "read_json",
    "read_parquet",
]

answer_for(__name__, later=("preprocessors",))
