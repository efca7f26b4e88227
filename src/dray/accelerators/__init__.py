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
# Classes, each in a file of its name. If several families have the same resource, the first one of
# this list that has devices is used.
_OURS = (
    *("Nvidia", "Amd", "Intel", "Apple", "Metax", "Neuron", "Tpu", "Gaudi", "Ascend"),
    *("Rebellions", "Furiosa", "Mobilint", "Tenstorrent"),
)


@functools.cache
def families() -> tuple[Family, ...]:
    """Return all families: dray's own, and those of the entry point group `dray.accelerators`.

    Example:
        >>> from dray.accelerators import families
        >>> sorted({family.resource for family in families()} & {"GPU", "TPU"})
        ['GPU', 'TPU']
    """
    modules = {name: f"dray.accelerators.vendors.{name.lower()}" for name in _OURS}
    ours = [getattr(importlib.import_module(path), name)() for name, path in modules.items()]
    return (*ours, *_others())


def _others() -> Iterator[Family]:
    """Yield the families of other packages; import importlib.metadata, slow, only if needed."""
    archives = any(os.path.isfile(path) for path in sys.path)
    said = (text for path in sys.path for text in _entry_points_in(path))
    if archives or any(_GROUP.encode() in text for text in said):
        from importlib.metadata import entry_points

        for entry in entry_points(group=_GROUP):
            yield entry.load()()


def _entry_points_in(directory: str) -> Iterator[bytes]:
    """Yield the contents of the entry point files in a directory of the import path."""
    with contextlib.suppress(OSError), os.scandir(directory or ".") as found:
        for package in found:
            if package.name.endswith((".dist-info", ".egg-info", "EGG-INFO")):
                with contextlib.suppress(OSError):
                    yield _content(f"{package.path}/entry_points.txt")


def _content(path: str) -> bytes:
    """Return a file's content. There are hundreds of files, and `open` takes four times as long."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


@functools.cache
def _by_resource() -> Mapping[str, Family]:
    return {family.resource: family for family in reversed(families())}


def family_of(resource: str, types: Iterable[str] = ()) -> Family | None:
    """Return the family that has a resource; None if no family has it.

    Args:
        resource: Name of the resource.
        types: The types of accelerators on the node. If several families have the same resource,
            the types tell which one it is.

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
    """Raise ConfigError if a resource's family does not allow its quantity.

    Args:
        resources: Name -> quantity.
        what: The caller's name, for the message.

    Example:
        >>> from dray.accelerators import check_quantities
        >>> check_quantities({"CPU": 2, "GPU": 0.5}, "resources")  # a GPU can be shared
    """
    for name, quantity in resources.items():
        family = family_of(name)
        if family is not None:
            family.check(quantity, what)
