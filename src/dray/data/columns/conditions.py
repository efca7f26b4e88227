"""Conditions as strings, such as `"age > 30 and name in ['Ada']"`, parsed to expressions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from dray.data.expressions import Expr, LiteralExpr, col, lit
from dray.errors import ConfigError

Two = Callable[[Expr, Expr], Expr]

_COMPARED: Mapping[type[ast.cmpop], Two] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: Expr.is_in,
    ast.NotIn: Expr.not_in,
}
_CALCULATED: Mapping[type[ast.operator], Two] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def parsed(text: str) -> Expr:
    """Return the expression for a condition in Python syntax.

    Args:
        text: Column names (also with dots, as in `a.b`), numbers, strings and lists of them,
            comparisons, `in`, `is None`, `and`, `or`, `not`, and `+ - * /`.

    Raises:
        ConfigError: `text` contains anything else, or is not a condition.
    """
    try:
        meant = _of(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ConfigError(f"expr={text!r} is not an expression: {error.msg}") from error
    if isinstance(meant, LiteralExpr):
        raise ConfigError(f"expr={text!r} names no column")
    return meant


def _of(node: ast.expr) -> Expr:
    match node:
        case ast.Constant(value=value):
            return lit(value)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return lit([ast.literal_eval(item) for item in items])
        case ast.Name() | ast.Attribute():
            return col(ast.unparse(node))
        case ast.BoolOp(op=op, values=values):
            joined = operator.and_ if isinstance(op, ast.And) else operator.or_
            every = [_of(value) for value in values]
            meant = every[0]
            for each in every[1:]:
                meant = joined(meant, each)
            return meant
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_of(operand)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return lit(-value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _CALCULATED:
            return _CALCULATED[type(op)](_of(left), _of(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            return _COMPARED[type(op)](_of(left), _of(right))
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            return _of(left).is_null()
        case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return _of(left).is_not_null()
        case ast.Compare(left=left, ops=[op, *rest], comparators=[middle, *others]) if rest:
            first = _of(ast.Compare(left, [op], [middle]))
            return first & _of(ast.Compare(middle, rest, others))
    raise ConfigError(
        f"expr cannot hold {ast.unparse(node)!r}: it may have columns, values, comparisons, in, "
        "is None, and, or, not, + - * /; use filter(lambda row: ...) for anything else"
    )
