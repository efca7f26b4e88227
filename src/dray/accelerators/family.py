"""The base class of families of accelerators; each family is a subclass in a file of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from dray.errors import ConfigError

# In a container without devices, vendors' tools set the visibility variable to this value.
_NO_DEVICES = "NoDevFiles"

Variables = dict[str, str | None]  # for a process's environment; None unsets a variable


@dataclass(frozen=True, kw_only=True)
class Found:
    """The devices of one family on this machine.

    Attributes:
        count: Number of devices, regardless of the visibility variables; 0 if none of them works.
        ids: Ids of the devices; empty if they are the numbers from 0.
        type: Type of the devices, as in `accelerator_type=`; None if it is unknown.
        resources: Further resources that a node with these devices offers.
        labels: Labels that a node with these devices has.
        driver: Version of the driver, for display.
        memory_bytes: Memory of one device.
        names: The vendor's name of each device, for display; with its UUIDs, if any.
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
    """One family of accelerators: its detection, its resource, and its visibility variables.

    Attributes:
        name: Short name in lower case, such as "nvidia".
        title: Name of a device in messages, such as "NVIDIA GPU".
        resource: Resource name, such as "GPU".
        variables: The environment variables that limit which devices a process sees. dray reads the
            first one that is set, and writes it in workers. If none is set, it writes the first.
        also_set: Further variables that `show` sets, as Ray does; none of them names devices.
        opt_outs: Variables that keep dray from writing `variables`, if one of them is "1" or
            "true".
        from_zero: Whether devices always have the numbers from 0, so that other numbers are errors.
        fractions: Whether tasks may share a device.
        sizes: The whole quantities that a request may have; empty allows all.
        types: A regular expression for the beginning of the types of its devices, if another family
            has the same resource.
        shared: Whether workers that train together on a node see each other's devices. Libraries
            that use the device of the local rank expect this.
        torch_device: PyTorch's name of the device; default: the CPU, if PyTorch has none.
        torch_modules: Modules to import so that PyTorch supports the devices and their backend.
        backend: PyTorch's usual collective backend for the devices.
        collective_variables: Environment variables for collectives; the environment overrides them.
        jax_platform: JAX's name of the platform; None if JAX does not support it.

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
        """Return the devices of this machine, or None. Implementations are fast and never raise."""

    def variable(self, environ: Mapping[str, str]) -> str | None:
        """Return the variable that dray reads on this machine and writes in workers."""
        given = [name for name in self.variables if name in environ]
        known = (*given, *self.variables)
        return known[0] if known else None

    def visible(self, environ: Mapping[str, str]) -> list[str] | None:
        """Return the ids that the environment limits this machine to; None is no limit.

        Raises:
            ConfigError: The variable is malformed.
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
            ConfigError: The text is malformed.
        """
        if text.strip() in ("", _NO_DEVICES):
            return []
        ids = [part.strip() for part in text.split(",")]
        if not all(ids):
            raise ConfigError(f"{text!r} names devices with a gap in between; remove the comma")
        return ids

    def show(self, ids: Sequence[str], environ: Mapping[str, str], count: int) -> Variables:
        """Return the variables that limit a process to some devices; None unsets a variable.

        Args:
            ids: Ids of the devices, in the node's order.
            environ: The node's environment.
            count: Number of all devices of the node, also of those that it does not offer; 0 if it
                is unknown.
        """
        name = self.variable(environ)
        if name is None or self.is_opted_out(environ):
            return {}
        return {name: ",".join(ids)}

    def is_opted_out(self, environ: Mapping[str, str]) -> bool:
        """Return whether the environment tells dray not to write visibility variables."""
        return any(environ.get(name, "").lower() in ("1", "true") for name in self.opt_outs)

    def check(self, quantity: float, what: str) -> None:
        """Raise ConfigError if the family does not allow this quantity.

        Args:
            quantity: Number of devices, 0 or more.
            what: The caller and its argument, for the message.
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
