"""Functions whose errors pass through Ray's pickler.

Unpickling calls an error's class with `args`, which may not be the arguments that it takes. In that
case Ray would keep only the text of the error.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any

from dray.engines.rpc import wire
from dray.engines.runtime import NOT_METHODS, Function


class _Portable:
    """Makes what is raised within it portable, and leaves the frame there out of its traceback."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and trace is not None:
            error.__traceback__ = trace.tb_next
        if isinstance(error, Exception):
            wire.make_portable(error)


def with_portable_errors(function: Function) -> Function:
    """Return a function of the same kind around one.

    Ray sends a value into a generator for each item, which fails below `yield from` a plain
    iterator such as a range: that has no `send`. A generator around it takes what is sent.
    """
    if inspect.isasyncgenfunction(function):

        async def run_async_generator(*args: object, **kwargs: Any) -> AsyncIterator[Any]:
            with _Portable():
                async with contextlib.aclosing(function(*args, **kwargs)) as items:
                    async for item in items:
                        yield item

        return functools.wraps(function)(run_async_generator)
    if inspect.iscoroutinefunction(function):

        async def run_async(*args: object, **kwargs: Any) -> Any:
            with _Portable():
                return await function(*args, **kwargs)

        return functools.wraps(function)(run_async)
    if inspect.isgeneratorfunction(function):

        def run_generator(*args: object, **kwargs: Any) -> Iterator[Any]:
            with _Portable():
                for item in function(*args, **kwargs):  # noqa: UP028 (it cannot be sent to)
                    yield item

        return functools.wraps(function)(run_generator)

    def run(*args: object, **kwargs: Any) -> Any:
        with _Portable():
            return function(*args, **kwargs)

    return functools.wraps(function)(run)


def with_portable_methods(kind: type) -> type:
    """Return a class with such methods."""
    methods = {
        name: with_portable_errors(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if inspect.isfunction(inspect.getattr_static(kind, name)) and name not in NOT_METHODS
    }
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind)(kind.__name__, (kind,), {**methods, **named, "__doc__": kind.__doc__})
