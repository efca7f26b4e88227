"""Marks of public names, which programs copy from Ray's own code: they change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from dray.compat.attributes import attach_getattr

__all__ = ["Deprecated", "DeveloperAPI", "PublicAPI"]

attach_getattr(__name__)

T = TypeVar("T")


@overload
def PublicAPI(marked: T, /) -> T: ...


@overload
def PublicAPI(**given: Any) -> Callable[[T], T]: ...


def PublicAPI(*marked: Any, **given: Any) -> Any:
    """Return what is marked, as it is; with options such as `stability="beta"`, a decorator.

    Example:
        >>> from dray.util.annotations import PublicAPI
        >>> @PublicAPI(stability="beta")
        ... def double(number):
        ...     return 2 * number
        >>> double(2)
        4
    """
    return marked[0] if marked else lambda decorated: decorated


DeveloperAPI = Deprecated = PublicAPI
