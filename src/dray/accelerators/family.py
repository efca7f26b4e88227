"""The base of families of accelerators; each one is a subclass in a file of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from dray.errors import ConfigError

# The value of a visibility variable that vendors' tools leave in a container without devices.
_NO_DEVICES = "NoDevFiles"

Variables = dict[str, str | None]  # of a process's environment; None is to be unset


@dataclass(frozen=True, kw_only=True)
class Found:
    """The devices of one family on this machine.

    Attributes:
        count: Number of devices, whatever the visibility variables say; 0 if something is wrong
            with all of them.
        ids: Ids of the devices; empty is by numbers from 0.
        type: Their type, as `accelerator_type=` asks for it; None if that cannot be told.
        resources: Further resources that a node with them offers.
        labels: Labels that a node with them has.
        driver: The driver's version, for people.
        memory_bytes: Of one device.
        names: The vendor's name of each, for people; also UUIDs where there are such.
        trouble: Problem of the devices, in a sentence; "" if there is none.

    Example:
        >>> from dray.accelerators import Found
        >>> Found(count=2, type="A100").ids  # empty: they are called 0 and 1
        ()
    """

    count: int
    ids: Sequence[str] = ()
    type: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    driver: str | None = None
    memory_bytes: int | None = None
    names: Sequence[str] = ()
    trouble: str = ""


class Family(ABC):
    """One family of accelerators: how it is found, asked for, and shown to a process.

    Attributes:
        name: Short and lower case, such as "nvidia".
        title: A device's name in messages, such as "NVIDIA GPU".
        resource: Resource name, such as "GPU".
        variables: The environment variables that limit which devices a process sees. The first one
            that is set is read, and written in workers; if none is, the first one is written.
        also_set: Further variables that `show` sets, as Ray does; none of them names devices.
        opt_outs: Variables of which each, at "1" or "true", keeps dray from writing the others.
        from_zero: Whether the ids of what is there are numbers from 0, and others make no sense.
        fractions: Whether tasks may share a device.
        sizes: The whole quantities that may be asked for; empty is any.
        types: A regular expression of how the types of its devices begin, where another family has
            the same resource.
        shared: Whether the workers of a node that train together are shown each other's devices,
            as libraries expect that take the device of the local rank.
        torch_device: PyTorch's name of such a device; default: the CPU, where it has none.
        torch_modules: Modules to import before PyTorch knows such devices and their backend.
        backend: PyTorch's usual collective backend for it.
        collective_variables: Environment variables for collectives, unless the environment says
            something else.
        jax_platform: JAX's name of it; None if JAX does not know it.

    Example:
        >>> from dray.accelerators import Family, Found
        >>> class Abacus(Family):
        ...     name, title, resource = "abacus", "abacus", "abacus"
        ...     variables = ("ABACUS_VISIBLE",)
        ...     def find(self):
        ...         return Found(count=2)
        >>> Abacus().show(["1"], environ={}, count=2)
        {'ABACUS_VISIBLE': '1'}
    """

    name: ClassVar[str]
    title: ClassVar[str]
    resource: ClassVar[str]
    variables: ClassVar[tuple[str, ...]] = ()
    also_set: ClassVar[tuple[str, ...]] = ()
    opt_outs: ClassVar[tuple[str, ...]] = ()
    from_zero: ClassVar[bool] = True
    fractions: ClassVar[bool] = False
    sizes: ClassVar[tuple[int, ...]] = ()
    types: ClassVar[str] = ""
    shared: ClassVar[bool] = True
    torch_device: ClassVar[str] = "cpu"
    torch_modules: ClassVar[tuple[str, ...]] = ()
    backend: ClassVar[str] = "gloo"
    collective_variables: ClassVar[Mapping[str, str]] = MappingProxyType({})
    jax_platform: ClassVar[str | None] = None

    @abstractmethod
    def find(self) -> Found | None:
        """Return the devices of this machine, or None if there are none. Quick; never raises."""

    def variable(self, environ: Mapping[str, str]) -> str | None:
        """Return the variable that is read here, and written in workers."""
        given = [name for name in self.variables if name in environ]
        known = (*given, *self.variables)
        return known[0] if known else None

    def visible(self, environ: Mapping[str, str]) -> list[str] | None:
        """Return the ids that the environment limits this machine to; None is no limit.

        Raises:
            ConfigError: The variable makes no sense.
        """
        name = self.variable(environ)
        if name is None or name not in environ:
            return None
        ids = self.parse(environ[name])
        twice = sorted({i for i in ids if ids.count(i) > 1})
        if twice:
            raise ConfigError(
                f"{name}={environ[name]!r} names device {', '.join(twice)} twice; name each once"
            )
        return ids

    def parse(self, text: str) -> list[str]:
        """Return the ids in a visibility variable.

        Raises:
            ConfigError: It makes no sense.
        """
        if text.strip() in ("", _NO_DEVICES):
            return []
        ids = [part.strip() for part in text.split(",")]
        if not all(ids):
            raise ConfigError(f"{text!r} names devices with a gap in between; remove the comma")
        return ids

    def show(self, ids: Sequence[str], environ: Mapping[str, str], count: int) -> Variables:
        """Return the variables that limit a process to some devices; None is to be unset.

        Args:
            ids: The devices' ids, in the node's order.
            environ: The node's environment.
            count: Number of devices, on offer or not; 0 if that is not known.
        """
        name = self.variable(environ)
        if name is None or self.is_opted_out(environ):
            return {}
        return {name: ",".join(ids)}

    def is_opted_out(self, environ: Mapping[str, str]) -> bool:
        """Return whether the environment says that workers' variables are not to be written."""
        return any(environ.get(name, "").lower() in ("1", "true") for name in self.opt_outs)

    def check(self, quantity: float, what: str) -> None:
        """Raise ConfigError if nobody may ask for so many devices.

        Args:
            quantity: Number of devices, 0 or more.
            what: Caller and argument, for the message.
        """
        if quantity == 0 or (self.fractions and quantity < 1):
            return
        whole = float(quantity).is_integer()
        if whole and (not self.sizes or quantity in self.sizes):
            return
        raise ConfigError(f"{what}: {quantity:g} {self.resource} is invalid; {self._allowed()}")

    def _allowed(self) -> str:
        if self.sizes:
            return f"ask for {', '.join(map(str, self.sizes))}"
        if self.fractions:
            return f"ask for a whole number, or for less than 1 to share a {self.resource}"
        return "devices of this kind cannot be shared: ask for a whole number"
