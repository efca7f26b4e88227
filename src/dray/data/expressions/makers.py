"""Functions that create expressions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dray.data.columns import generators
from dray.data.columns.kernels import LateInstance, UserKernel
from dray.data.expressions.tree import (
    Call,
    ColumnExpr,
    Expr,
    Generated,
    LiteralExpr,
    UnnestExpr,
    checked,
)
from dray.data.forms.blocks import Column, Value
from dray.data.sources.base import Filesystem
from dray.data.sources.downloads import downloaded


def col(name: str) -> ColumnExpr:
    """Return an expression for the values of a column.

    Args:
        name: The name of the column.

    Example:
        >>> import dray.data
        >>> from dray.data.expressions import col
        >>> dray.data.range(3).with_column("double", col("id") * 2).take(1)
        [{'id': 0, 'double': 0}]
    """
    return ColumnExpr(name)


def lit(value: Value) -> LiteralExpr:
    """Return an expression for a constant, the same for all rows.

    Args:
        value: A number, a string, None or the like.

    Example:
        >>> import dray.data
        >>> from dray.data.expressions import lit
        >>> dray.data.range(3).with_column("split", lit("train")).take(1)
        [{'id': 0, 'split': 'train'}]
    """
    return LiteralExpr(value)


def udf(return_dtype: object = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a function on columns usable in expressions.

    The function gets the Arrow columns of a block. It returns equally many values, as an Arrow,
    NumPy or pandas column. A class is instantiated in the process that calls it.

    Args:
        return_dtype: Ignored, because the values determine the type; for compatibility with Ray.

    Example:
        >>> import dray.data
        >>> import pyarrow.compute as pc
        >>> from dray.data.datatype import DataType
        >>> from dray.data.expressions import col, udf
        >>> @udf(return_dtype=DataType.int64())
        ... def plus(values, other):
        ...     return pc.add(values, other)
        >>> dray.data.range(3).with_column("more", plus(col("id"), 5) * 2).take(1)
        [{'id': 0, 'more': 10}]
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.isclass(function):
            return _expressed(function)
        return lambda *arguments, **named: _expressed(LateInstance(function, arguments, named))

    return decorate


pyarrow_udf = udf


def _expressed(function: Callable[..., Value]) -> Callable[..., Expr]:
    @functools.wraps(function)
    def call(*arguments: object, **named: object) -> Expr:
        return Call(UserKernel(function), arguments, named)

    return call


def download(uri_column_name: str, *, filesystem: Filesystem | None = None) -> Expr:
    """Return the contents of the files whose addresses are in a column; null for unreadable files.

    Args:
        uri_column_name: The column of paths and URLs.
        filesystem: A filesystem of Arrow or fsspec; default: the one that each address names.

    Example:
        >>> import dray.data
        >>> from dray.data.expressions import download
        >>> rows = dray.data.from_items([{"path": "/etc/hostname"}, {"path": "/no/such/file"}])
        >>> rows.with_column("bytes", download("path")).take_all()[1]
        {'path': '/no/such/file', 'bytes': None}
    """

    def download(uris: Column) -> Column:
        return pa.array(downloaded(uris.to_pylist(), filesystem), pa.binary())

    return Call(download, (col(uri_column_name),), {})


def unnest(expr: Expr) -> UnnestExpr:
    """Return the fields of records as separate columns, for `with_columns`.

    Args:
        expr: An expression whose values are records.

    Example:
        >>> import dray.data
        >>> from dray.data.expressions import col, unnest
        >>> rows = dray.data.from_items([{"user": {"name": "ada", "age": 36}}])
        >>> rows.with_columns(unnest(col("user"))).columns()
        ['user', 'name', 'age']
    """
    return UnnestExpr(checked(expr, "unnest"))


def random(*, seed: int | None = None, reseed_after_execution: bool = True) -> Expr:
    """Return random numbers from 0 to below 1.

    A seed determines them together with the rows of their block. The same rows in the same blocks
    get the same numbers in any process.

    Args:
        seed: The seed; None draws one.
        reseed_after_execution: Whether rows get new numbers each time that they are read; if False,
            they always get the same ones.

    Example:
        >>> import dray.data
        >>> from dray.data.expressions import random
        >>> part = dray.data.range(1000).filter(expr=random(seed=1) < 0.1)
        >>> 50 < part.count() < 150
        True
    """
    return Generated(generators.RandomNumbers(seed, reseed_after_execution), "random()")


def uuid() -> Expr:
    """Return a unique string for each row, such as `2899f7bd-8716-4b98-a774-df730a99c8b3`.

    Example:
        >>> import dray.data
        >>> from dray.data.expressions import uuid
        >>> len(dray.data.range(3).with_column("key", uuid()).unique("key"))
        3
    """
    return Generated(generators.uuids, "uuid()")


def monotonically_increasing_id() -> Expr:
    """Return integers that increase within each process and are unique for each row.

    They are not row numbers, and they differ each time that rows are read.

    Example:
        >>> import dray.data
        >>> from dray.data.expressions import monotonically_increasing_id
        >>> rows = dray.data.range(3).with_column("key", monotonically_increasing_id())
        >>> len(rows.unique("key"))
        3
    """
    return Generated(generators.RisingNumbers(), "monotonically_increasing_id()")
