"""Expressions applied to tables: columns to add, rows to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from dray.data.expressions import Expr, UnnestExpr
from dray.data.expressions.tree import checked
from dray.data.forms.blocks import Column, Table, put_column
from dray.errors import ConfigError


class Columns:
    """Columns that expressions compute from a table; they are added to it or replace its columns.

    Args:
        parts: Expressions by the names of their columns, and `unnest(...)`.
        taker: The method that received the expressions, for messages.
    """

    def __init__(self, parts: Sequence[Mapping[str, Expr] | UnnestExpr], taker: str) -> None:
        for part in parts:
            if not isinstance(part, UnnestExpr):
                if not isinstance(part, Mapping):
                    raise ConfigError(f"{taker} takes {{name: expression}}, not {part!r}")
                for expr in part.values():
                    checked(expr, taker)
        self._parts = parts
        self.__name__ = ", ".join(
            "unnest" if isinstance(part, UnnestExpr) else ", ".join(part) for part in parts
        )

    def __call__(self, table: Table) -> Table:
        """Return the table with the columns."""
        made: dict[str, Column] = {}
        for part in self._parts:
            made |= (
                part.columns(table)
                if isinstance(part, UnnestExpr)
                else {name: expr.column(table) for name, expr in part.items()}
            )
        for name, values in made.items():
            table = put_column(table, name, values)
        return table


@dataclass(frozen=True)
class Condition:
    """A filter for the rows of a table for which an expression is true."""

    expr: Expr | pc.Expression

    @property
    def __name__(self) -> str:
        return repr(self.expr)

    def __call__(self, table: Table) -> Table:
        """Return the rows that pass."""
        expr = self.expr
        return table.filter(expr.column(table) if isinstance(expr, Expr) else expr)
