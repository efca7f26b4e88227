"""Checks of arguments that many functions share: numbers, times, arrays, optional packages."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from dray.errors import ArgumentTypeError, ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_FOR_EVER_S = 1e9


def plain(number: object) -> Any:
    """Return a number of any library, such as NumPy's, as int or float; other values unchanged."""
    if isinstance(number, int | float) or not isinstance(number, numbers.Real):
        return number
    return int(number) if isinstance(number, numbers.Integral) else float(number)


def is_whole(value: object, least: int | None = None) -> TypeGuard[int]:
    """Return whether a value is an int, no bool, and at least a minimum, if there is one."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and (least is None or value >= least)  # type: ignore[operator] # it is an int


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def seed_of(seed: object, called: str = "seed") -> int:
    """Check a seed and return it as int; None gives a random seed."""
    chosen = plain(seed)
    if chosen is None:
        import random

        return random.getrandbits(32)
    if not is_whole(chosen, 0):
        raise ConfigError(f"{called} must be a whole number, 0 or more, not {seed!r}")
    return chosen


def seconds(timeout: Any) -> float | None:
    """Check a timeout and return it in seconds; None, and more than 1e9 s, are no limit."""
    if timeout is None:
        return None
    number = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    if not number or not timeout >= 0:  # also refuses NaN
        raise ConfigError(f"timeout must be a number of seconds, 0 or more, not {timeout!r}")
    return None if timeout > _FOR_EVER_S else float(timeout)


def check_namespace(namespace: object) -> None:
    """Raise ConfigError if a namespace is neither None nor a text that is not empty."""
    if namespace is not None and not (isinstance(namespace, str) and namespace):
        raise ArgumentTypeError(
            f"namespace must be a non-empty string, not {namespace!r}; None means the program's "
            "own namespace"
        )


def check_flags(config: object, *names: str) -> None:
    """Raise ConfigError if one of these fields of a config is neither True nor False."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, not {value!r}")


def fields_of(config: object) -> dict[str, object]:
    """Return the values of a dataclass's fields; other attributes are left out."""
    known = fields(config) if is_dataclass(config) else ()
    return {field.name: getattr(config, field.name) for field in known}


def refuse_arrays(given: Mapping[str, object]) -> None:
    """Refuse arguments that are arrays or tensors, because later checks cannot compare them.

    Raises:
        ConfigError: An argument is an array. An array without dimensions, a number, passes.
    """
    for name, value in given.items():
        if getattr(type(value), "__array__", None) is not None and getattr(value, "ndim", 0) > 0:
            raise ConfigError(f"{name} must not be an array, but is a {type(value).__name__}")


def require(package: str, requirement: str) -> None:
    """Raise MissingDependencyError if a package is not installed.

    Args:
        package: Name of the module to import.
        requirement: Name of the package for pip.
    """
    if spec_of(package) is None:
        raise MissingDependencyError(package, requirement)


def spec_of(package: str) -> ModuleSpec | None:
    """Return a package's spec, or None; a module that a program has made gets an empty spec."""
    import importlib.machinery
    import importlib.util

    try:
        return importlib.util.find_spec(package)
    except ValueError:  # the module is imported, and has no spec
        return importlib.machinery.ModuleSpec(package, None)
