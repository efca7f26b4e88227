"""The free capacity of a node, with the share of each device: whole and fractional accelerators."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dray.checks import is_number, plain
from dray.errors import ArgumentTypeError, ConfigError

UNIT = 10_000  # of a quantity; fixed point, so that thirds and tenths add up and come back whole

# No cluster has as much of anything, not even bytes.
_MOST = 1e30

_turns = itertools.count(1)

Quantities = dict[str, int]


def to_fixed(resources: Mapping[str, float]) -> Quantities:
    """Return quantities in units of 1/10000, zeros dropped.

    Raises:
        ConfigError: A quantity is negative, not a number, finer than 1/10000 or beyond 1e30.
    """
    fixed: Quantities = {}
    for name, given in resources.items():
        quantity = plain(given)
        if not is_number(quantity):
            raise ArgumentTypeError(f"the quantity of {name} must be a number, not {quantity!r}")
        if not 0 <= quantity < float("inf"):
            raise ConfigError(f"the quantity of {name} must be 0 or more, not {quantity!r}")
        if quantity > _MOST:
            raise ConfigError(f"the quantity of {name} must be at most {_MOST:g}, not {quantity!r}")
        units = round(quantity * UNIT)
        if quantity and not units:
            raise ConfigError(f"the quantity of {name} must be at least 1/{UNIT}, not {quantity!r}")
        if units:
            fixed[name] = units
    return fixed


def from_fixed(quantities: Mapping[str, int]) -> dict[str, float]:
    """Return quantities as plain numbers: whole ones as int."""
    return {k: v // UNIT if v % UNIT == 0 else v / UNIT for k, v in quantities.items()}


class DeviceShare(NamedTuple):
    """A share of a device, by its place among those of its node."""

    device: int
    units: int


class DevicePool:
    """The free share of each device of one kind.

    Fractions are packed: they go to the device with the least that is still enough, so that whole
    devices stay whole. Whole devices are taken in order. Both take logarithmic time.

    Args:
        capacities: Capacity of each device, at most `UNIT`.
    """

    __slots__ = ("_free", "_levels", "_with")

    def __init__(self, capacities: Iterable[int]) -> None:
        self._free = list(capacities)
        self._with: dict[int, list[int]] = {}  # how much is free -> those devices, in order
        for device, free in enumerate(self._free):
            self._with.setdefault(free, []).append(device)
        self._levels = sorted(self._with)

    @classmethod
    def of(cls, units: int) -> DevicePool:
        """Return the devices that make up a quantity: whole ones, then a part of one."""
        whole, part = divmod(units, UNIT)
        return cls([UNIT] * whole + ([part] if part else []))

    def choose(self, units: int) -> list[DeviceShare] | None:
        """Return what would be taken, or None if there is not enough."""
        if not self.fits(units):
            return None
        if units >= UNIT:
            return [DeviceShare(device, UNIT) for device in self._with[UNIT][: units // UNIT]]
        enough = self._levels[bisect.bisect_left(self._levels, units)]
        return [DeviceShare(self._with[enough][0], units)]

    def fits(self, units: int) -> bool:
        if units >= UNIT:
            return len(self._with.get(UNIT, ())) >= units // UNIT
        return self.largest >= units

    def times(self, units: int) -> int:
        """Return how many times that much, which is not 0, can be taken."""
        if units >= UNIT:
            return len(self._with.get(UNIT, ())) // (units // UNIT)
        return sum(free // units * len(devices) for free, devices in self._with.items())

    @property
    def largest(self) -> int:
        """The free share of the device that has most."""
        return self._levels[-1] if self._levels else 0

    def free_of(self, device: int) -> int:
        return self._free[device]

    def add(self, parts: Iterable[DeviceShare], sign: int) -> None:
        """Take parts, if the sign is -1, or give them back."""
        for device, units in parts:
            self._move(device, self._free[device] + sign * units)

    def _move(self, device: int, free: int) -> None:
        before = self._free[device]
        same = self._with[before]
        same.pop(bisect.bisect_left(same, device))
        if not same:
            del self._with[before]
            self._levels.pop(bisect.bisect_left(self._levels, before))
        if free not in self._with:
            self._with[free] = []
            bisect.insort(self._levels, free)
        bisect.insort(self._with[free], device)
        self._free[device] = free

    def copy(self) -> DevicePool:
        other = DevicePool.__new__(DevicePool)
        other._free = self._free.copy()
        other._with = {free: same.copy() for free, same in self._with.items()}
        other._levels = self._levels.copy()
        return other


class Capacity:
    """The free capacity of one node.

    Attributes:
        quantities: Name to units; of devices the sum.
        last_taken: Turn in which something was last taken, be it nothing at all; 0 is never.

    Args:
        devices: The names among these whose quantities are devices.
    """

    __slots__ = ("devices", "last_taken", "quantities")

    def __init__(self, quantities: Mapping[str, int], devices: Iterable[str] = ()) -> None:
        self.quantities: Quantities = dict(quantities)
        self.devices = {name: DevicePool.of(quantities[name]) for name in devices}
        self.last_taken = 0

    def fits(self, wanted: Iterable[tuple[str, int]]) -> bool:
        free, devices = self.quantities, self.devices
        for name, units in wanted:
            if free.get(name, 0) < units:
                return False
            if name in devices and not devices[name].fits(units):
                return False
        return True

    def times(self, wanted: Iterable[tuple[str, int]], most: int) -> int:
        """Return how many times it fits, at most so many."""
        free, devices = self.quantities, self.devices
        for name, units in wanted:
            there = free.get(name, 0)
            if there < units:
                return 0
            if units:
                most = min(most, there // units)
                if name in devices:
                    most = min(most, devices[name].times(units))
        return most

    def usable(self, wanted: Iterable[tuple[str, int]] = ()) -> Quantities:
        """Return the free quantities; of devices, the part usable in steps of the wanted quantity.

        The rests of several devices are no whole device, whatever their sum. A quantity that is
        lent and used again is negative for a while; of that nothing is free.
        """
        free = {name: max(0, units) for name, units in self.quantities.items()}
        for name, units in wanted:
            if name in self.devices:
                step = min(units, UNIT)
                free[name] = self.devices[name].times(step) * step
        return free

    def choose(self, wanted: Iterable[tuple[str, int]]) -> dict[str, list[DeviceShare]]:
        """Return the devices that would be taken; it must fit."""
        if not self.devices:
            return {}
        return {
            name: self.devices[name].choose(units) or []
            for name, units in wanted
            if name in self.devices
        }

    def add(
        self,
        quantities: Iterable[tuple[str, int]],
        parts: Mapping[str, Sequence[DeviceShare]],
        sign: int,
    ) -> None:
        """Take quantities and parts of devices, if the sign is -1, or give them back."""
        if sign < 0:
            self.last_taken = next(_turns)
        for name, units in quantities:
            self.quantities[name] = self.quantities.get(name, 0) + sign * units
        for name, chosen in parts.items():
            self.devices[name].add(chosen, sign)

    def take(self, wanted: Sequence[tuple[str, int]]) -> dict[str, list[DeviceShare]]:
        """Take as much as wanted, which must fit; return the devices."""
        parts = self.choose(wanted)
        self.add(wanted, parts, -1)
        return parts

    def copy(self) -> Capacity:
        capacity = Capacity(self.quantities)
        capacity.devices = {name: devices.copy() for name, devices in self.devices.items()}
        capacity.last_taken = self.last_taken
        return capacity
