"""Generators as Ray can run them.

Ray sends a value into a generator for each item, which fails below `yield from` a plain iterator
such as a range: that has no `send`. A generator around it takes what is sent, and keeps it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

from dray.engines.runtime import Function


def iterable(function: Function) -> Function:
    """Return a generator function with such a generator around it, any other as it is."""
    if not inspect.isgeneratorfunction(function):
        return function

    @functools.wraps(function)
    def items(*args: object, **kwargs: Any) -> Iterator[Any]:
        for item in function(*args, **kwargs):  # noqa: UP028 (which is what cannot be sent to)
            yield item

    return items


def with_iterable_methods(kind: type) -> type:
    """Return a class whose methods that are generators are `iterable`; itself if it has none."""
    methods = {
        name: iterable(method)
        for name, method in inspect.getmembers(kind, inspect.isgeneratorfunction)
        if inspect.isfunction(inspect.getattr_static(kind, name))
    }
    if not methods:
        return kind
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind)(kind.__name__, (kind,), {**methods, **named, "__doc__": kind.__doc__})
