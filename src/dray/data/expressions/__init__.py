"""Calculations on columns, such as `col("price") * 2`, for `with_column` and `filter`.

An expression is a tree. Evaluated on a block, it returns Arrow columns by `pyarrow.compute`.
"""

from __future__ import annotations

from dray.checks import require
from dray.compat.attributes import attach_getattr

require("pyarrow", "dray[data]")

from dray.data.expressions.makers import (  # noqa: E402 (after the check for pyarrow)
    col,
    download,
    lit,
    monotonically_increasing_id,
    pyarrow_udf,
    random,
    udf,
    unnest,
    uuid,
)
from dray.data.expressions.tree import (  # noqa: E402
    AliasExpr,
    ColumnExpr,
    Expr,
    LiteralExpr,
    UnnestExpr,
)

__all__ = [
    "AliasExpr",
    "ColumnExpr",
    "Expr",
    "LiteralExpr",
    "UnnestExpr",
    "col",
    "download",
    "lit",
    "monotonically_increasing_id",
    "pyarrow_udf",
    "random",
    "udf",
    "unnest",
    "uuid",
]

attach_getattr(__name__)
