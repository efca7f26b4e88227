"""Names that a function's code uses, found without calling the function."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING

from dray import host

if TYPE_CHECKING:
    from dray.engines.runtime import Function

# A function that is spread over more functions is looked at in part.
_MOST_FUNCTIONS = 200


def of_code(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a code object, and in those within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from of_code(constant)


def of_function(function: Function) -> set[str]:
    """Return the names that a function uses, and those of the program's functions below it.

    Calls through an object or a module are not followed, nor calls of an installed package.
    """
    found: set[str] = set()
    known: dict[FunctionType, None] = {}
    look = [*_functions_in(function)]
    while look and len(known) < _MOST_FUNCTIONS:
        part = look.pop()
        if part in known:
            continue
        known[part] = None
        names = set(of_code(part.__code__))
        found |= names
        cells = [cell.cell_contents for cell in part.__closure__ or () if _is_filled(cell)]
        for value in (*cells, *(part.__globals__.get(name) for name in names)):
            look += [inner for inner in _functions_in(value) if not _is_installed(inner)]
    return found


def _functions_in(value: object) -> Iterator[FunctionType]:
    """Yield the functions that a value is, below `partial`, decorators and methods."""
    while isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__func__", value) if callable(value) else value
    if isinstance(value, FunctionType):
        yield value
        yield from _functions_in(getattr(value, "__wrapped__", None))


def _is_installed(function: FunctionType) -> bool:
    file = function.__code__.co_filename
    return file.startswith("<frozen") or host.is_installed(file)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (an empty one raises)
    except ValueError:
        return False
    return True
