"""Detection of this machine's accelerators, limited by the visibility variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dray.accelerators import Family, Found, families, family_of
from dray.accelerators.family import Variables
from dray.errors import ConfigError

# A limit, because each device takes memory for its id and its entry in the ledger.
_MOST_DEVICES = 100_000


@dataclass(frozen=True)
class Offer:
    """The devices of one kind that this machine offers.

    Attributes:
        found: The detected devices; None if the user names devices that were not detected.
        ids: Ids of the offered devices, in order.
    """

    family: Family
    found: Found | None
    ids: tuple[str, ...]

    def show(self, ids: tuple[str, ...], environ: Mapping[str, str]) -> Variables:
        """Return the variables that limit a process to some of the devices."""
        return self.family.show(ids, environ, self.found.count if self.found else 0)


def detect() -> list[tuple[Family, Found]]:
    """Return every family that has devices on this machine, with the devices."""
    return [(family, found) for family in families() if (found := family.find()) is not None]


def offers(given: Mapping[str, float], environ: Mapping[str, str]) -> dict[str, Offer]:
    """Return the accelerators that this machine offers, by resource name.

    If two families have the same resource, the first one in dray's order is offered.

    Args:
        given: Numbers of devices that the user sets, in place of the detected ones.

    Raises:
        ConfigError: A variable is malformed, or shows fewer devices than the user asks for.
    """
    chosen: dict[str, tuple[Family, Found | None]] = {}
    for family, found in detect():
        if found.count and given.get(family.resource) != 0:
            chosen.setdefault(family.resource, (family, found))
    for name in given:
        meant = family_of(name)
        if meant is not None and given[name]:
            chosen.setdefault(name, (meant, None))
    return {
        name: Offer(family, found, ids_on_offer(family, found, given.get(name), environ))
        for name, (family, found) in chosen.items()
    }


def ids_on_offer(
    family: Family, found: Found | None, given: float | None, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the ids of the devices of a family that this machine offers.

    Args:
        found: The detected devices; None if the user names devices that were not detected.
        given: Number of devices that the user sets; None offers the detected ones.

    Raises:
        ConfigError: A variable is malformed, or shows fewer devices than the user asks for.
    """
    visible = family.visible(environ)
    name = family.variable(environ)
    if given is None:
        assert found is not None
        there = tuple(found.ids or map(str, range(found.count)))
        if visible is None:
            return there
        beyond = [i for i in visible if family.from_zero and i.isdecimal() and i not in there]
        if beyond:
            raise ConfigError(
                f"{name}={environ[name or '']!r} names device {', '.join(beyond)}, but this "
                f"machine has {', '.join(there)} ({family.title}); correct or unset it"
            )
        return tuple(visible)
    if given > _MOST_DEVICES:
        raise ConfigError(
            f"a node has at most {_MOST_DEVICES:,} {family.resource}, not {given:,.0f}, because "
            "each device is accounted for separately; declare what is only counted as a "
            "resource of another name"
        )
    if visible is None:
        there = () if found is None else tuple(found.ids)
        return there[: int(given)] if given <= len(there) else (*map(str, range(int(given))),)
    if given > len(visible):
        raise ConfigError(
            f"{given:g} {family.resource} asked of this machine, but "
            f"{name}={environ[name or '']!r} shows {len(visible)}; ask for at most as many, or "
            "change the variable"
        )
    return tuple(visible[: int(given)])
