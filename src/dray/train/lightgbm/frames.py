"""Conversion of pandas DataFrames to types that LightGBM accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def normalize_pandas_for_lightgbm(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame for LightGBM, with Arrow's and nullable number types converted to NumPy's.

    Args:
        frame: A frame such as `shard.materialize().to_pandas()`; it is not changed.

    Example:
        >>> import pandas as pd
        >>> from dray.train.lightgbm import normalize_pandas_for_lightgbm
        >>> frame = pd.DataFrame({"x": pd.array([1, None], "Int64")})
        >>> normalize_pandas_for_lightgbm(frame)["x"].tolist()
        [1.0, nan]
    """
    from pandas.api.types import is_extension_array_dtype, is_numeric_dtype

    made = frame.copy(deep=False)
    for name, column in frame.items():
        kind: Any = column.dtype
        if is_extension_array_dtype(kind) and is_numeric_dtype(kind):
            wanted = "float64" if column.hasnans else kind.numpy_dtype
            made[name] = column.to_numpy(wanted, na_value=float("nan"))
    return made
