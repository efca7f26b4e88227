"""Allocations: the resources of a node that a bundle of a reservation holds, device by device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dray.scheduling.capacity import DeviceShare
from dray.scheduling.placement import Demand
from dray.scheduling.requests import Node


class Allocation(NamedTuple):
    """The resources that one bundle holds.

    Attributes:
        node: Its node's place in the ledger.
        parts: Of accelerators, which devices.
    """

    node: int
    quantities: tuple[tuple[str, int], ...]
    parts: Mapping[str, Sequence[DeviceShare]]

    def devices(self, nodes: Sequence[Node]) -> list[tuple[str, str]]:
        """Return the devices of which it has a part: resource name and id."""
        ids = nodes[self.node].devices
        return [(name, ids[name][p.device]) for name, parts in self.parts.items() for p in parts]


def device_ids(
    nodes: Sequence[Node], parts: Sequence[Mapping[str, Sequence[DeviceShare]]], demand: Demand
) -> list[dict[str, tuple[str, ...]]]:
    """Return for each bundle the ids of those devices held for it that it asks for."""
    devices = []
    for bundle, (node, each) in enumerate(zip(nodes, parts, strict=True)):
        spare = demand.slices.held_at(bundle) if demand.slices is not None else {}
        devices.append(
            {
                name: tuple(
                    node.devices[name][p.device] for p in taken[: len(taken) - spare.get(name, 0)]
                )
                for name, taken in each.items()
            }
        )
    return devices
