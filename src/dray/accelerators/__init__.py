"""The families of accelerators that dray knows, and those that other packages add."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping

from dray.accelerators.family import Family, Found
from dray.accelerators.node_names import ACCELERATOR_TYPE

__all__ = ["Family", "Found", "check_quantities", "families", "family_named", "family_of"]

_GROUP = "dray.accelerators"
# Classes, each in a file of its name; in the order in which one is chosen where several have the
# same resource.
_OURS = (
    *("Nvidia", "Amd", "Intel", "Apple", "Metax", "Neuron", "Tpu", "Gaudi", "Ascend"),
    *("Rebellions", "Furiosa", "Mobilint", "Tenstorrent"),
)


@functools.cache
def families() -> tuple[Family, ...]:
    """Return every family: dray's own, and those of the entry points `dray.accelerators`.

    Example:
        >>> from dray.accelerators import families
        >>> sorted({family.resource for family in families()} & {"GPU", "TPU"})
        ['GPU', 'TPU']
    """
    modules = {name: f"dray.accelerators.vendors.{name.lower()}" for name in _OURS}
    ours = [getattr(importlib.import_module(path), name)() for name, path in modules.items()]
    return (*ours, *_others())


def _others() -> Iterator[Family]:
    """Yield the families of other packages: importlib, which is slow, only if there may be one."""
    archives = any(os.path.isfile(path) for path in sys.path)
    said = (text for path in sys.path for text in _entry_points_in(path))
    if archives or any(_GROUP.encode() in text for text in said):
        from importlib.metadata import entry_points

        for entry in entry_points(group=_GROUP):
            yield entry.load()()


def _entry_points_in(directory: str) -> Iterator[bytes]:
    """Yield what the packages in a directory of the import path say of their entry points."""
    with contextlib.suppress(OSError), os.scandir(directory or ".") as found:
        for package in found:
            if package.name.endswith((".dist-info", ".egg-info", "EGG-INFO")):
                with contextlib.suppress(OSError):
                    yield _content(f"{package.path}/entry_points.txt")


def _content(path: str) -> bytes:
    """Return what a file says: there are hundreds, and `open` takes four times as long."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


@functools.cache
def _by_resource() -> Mapping[str, Family]:
    return {family.resource: family for family in reversed(families())}


def family_of(resource: str, types: Iterable[str] = ()) -> Family | None:
    """Return the family that a resource stands for; None if none has it.

    Args:
        resource: Its name.
        types: The types of accelerators there, which tell families of one resource apart.

    Example:
        >>> from dray.accelerators import family_of
        >>> family_of("TPU").title, family_of("CPU")
        ('TPU chip', None)
    """
    if resource in ("CPU", "memory"):
        return None
    for family in families() if types else ():
        told = family.resource == resource and family.types
        if told and any(re.match(family.types, kind) for kind in types):
            return family
    return _by_resource().get(resource)


def families_on(resources: Mapping[str, float]) -> dict[str, Family]:
    """Return the families of the accelerators that a node offers, by resource name."""
    types = [name.removeprefix(ACCELERATOR_TYPE) for name in resources if ACCELERATOR_TYPE in name]
    return {
        name: family
        for name, quantity in resources.items()
        if quantity and (family := family_of(name, types)) is not None
    }


def family_named(name: str) -> Family:
    """Return the family with this short name, such as "nvidia".

    Example:
        >>> from dray.accelerators import family_named
        >>> family_named("nvidia").variables
        ('CUDA_VISIBLE_DEVICES',)
    """
    return next(family for family in families() if family.name == name)


def check_quantities(resources: Mapping[str, float], what: str) -> None:
    """Raise ConfigError if a quantity is one that the family of the resource does not allow.

    Args:
        resources: Name to quantity.
        what: Caller's name, for the message.

    Example:
        >>> from dray.accelerators import check_quantities
        >>> check_quantities({"CPU": 2, "GPU": 0.5}, "resources")  # a GPU can be shared
    """
    for name, quantity in resources.items():
        family = family_of(name)
        if family is not None:
            family.check(quantity, what)
