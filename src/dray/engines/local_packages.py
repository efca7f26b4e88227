"""Packages and modules that a runtime environment asks for and that this Python already has."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from types import ModuleType
from typing import Any

from dray.errors import ConfigError


def missing_packages(asked: object, what: str) -> list[str]:
    """Return the packages that are not installed here, as messages name them.

    Args:
        asked: Value of `pip` or `uv`: requirements, a dict with `packages`, or the path of a
            requirements file.
    """
    packages = asked.get("packages", ()) if isinstance(asked, Mapping) else asked
    if isinstance(packages, str | os.PathLike):
        packages = _lines(os.fspath(packages), what)
    if not isinstance(packages, Iterable):
        raise ConfigError(f"{what} must be a list of packages, a dict or a path, not {asked!r}")
    return [said for line in packages if (said := _unmet(str(line), what))]


def missing_modules(asked: object, what: str) -> list[str]:
    """Return the modules that cannot be imported here, as messages name them.

    Args:
        asked: Value of `py_modules`: modules, and paths of packages.
    """
    if isinstance(asked, str) or not isinstance(asked, Iterable):
        raise ConfigError(f"{what} must be a list of modules and paths, not {asked!r}")
    return [str(module) for module in asked if not _is_importable(module)]


def _lines(path: str, what: str) -> Iterator[str]:
    """Give the requirements of a file; those that others or hashes hang on are one line each."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            text = file.read()
    except OSError as e:
        raise ConfigError(f"{what} names {path!r}, which cannot be read: {e}") from e
    for line in text.replace("\\\n", " ").splitlines():
        requirement = line.partition(" #")[0].partition(" --hash")[0].strip()
        if requirement and not requirement.startswith("#"):
            yield requirement


def _unmet(line: str, what: str) -> str:
    """Return what of a requirement is not there; empty if it is met, or not for this machine."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement as e:
        raise ConfigError(f"{what} has {line!r}, which is not a requirement: {e}") from e
    if requirement.marker is not None and not requirement.marker.evaluate():
        return ""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return line
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{line} ({version} is installed)"


def _is_importable(module: Any) -> bool:
    """Return whether the import path leads to a module, or to just the package of a path."""
    if isinstance(module, ModuleType):
        return True  # workers have the driver's import path
    path = os.path.realpath(os.path.expanduser(os.fspath(module)))
    spec = importlib.util.find_spec(os.path.basename(path).partition(".")[0])
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    return path in [os.path.realpath(place) for place in places if place]
