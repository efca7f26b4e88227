"""Rank assignment: the ranks of each worker, and the other workers of its node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from dray.accelerators import Family, family_named
from dray.accelerators.vendors.nvidia import is_slice
from dray.scheduling.requests import Node
from dray.scheduling.tpu_slices import host_order, slice_of

Devices = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class WorkerPlacement:
    """The node and devices of one worker.

    Attributes:
        devices: The ids of its accelerators, by resource name.
    """

    node: Node
    devices: Devices

    @property
    def slice_name(self) -> str:
        """The TPU slice of its node; "" if the node is in no slice."""
        return slice_of(self.node)


@dataclass(frozen=True)
class RankAssignment:
    """The ranks of one worker.

    Attributes:
        bundle: The number of its bundle in the request.
        local_rank: Its rank on its node.
        local_world_size: Number of workers on its node.
        node_rank: The rank of its node.
        node_devices: The ids of the accelerators of all workers of its node, by resource name.
    """

    place: WorkerPlacement
    bundle: int
    rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node_devices: Mapping[str, tuple[str, ...]]


def assign_ranks(places: Sequence[WorkerPlacement]) -> list[RankAssignment]:
    """Assign ranks to workers: node by node, on a node by device, then in the order of the request.

    The hosts of a TPU slice come one after another, in the slice's order.

    Args:
        places: Place of each worker, in the order of the request.

    Returns:
        The workers, by rank.
    """
    by_node: dict[str, list[int]] = {}
    for bundle, place in enumerate(places):
        by_node.setdefault(place.node.node_id, []).append(bundle)
    slices = {name: i for i, name in enumerate(dict.fromkeys(p.slice_name for p in places))}
    nodes = sorted(
        by_node.values(),
        key=lambda bundles: (
            slices[places[bundles[0]].slice_name],
            host_order(places[bundles[0]].node) if places[bundles[0]].slice_name else 0,
        ),
    )
    positions: list[RankAssignment] = []
    for node_rank, bundles in enumerate(nodes):
        order = _order(places[bundles[0]].node)
        devices = _devices_of([places[bundle] for bundle in bundles], order)
        bundles = sorted(bundles, key=lambda bundle: (_first(places[bundle], order), bundle))
        first, size = len(positions), len(bundles)
        positions += [
            RankAssignment(places[bundle], bundle, first + i, i, size, node_rank, devices)
            for i, bundle in enumerate(bundles)
        ]
    return positions


def family_at(place: WorkerPlacement) -> Family | None:
    """Return the family of a worker's accelerators; None if it has none."""
    for resource, ids in place.devices.items():
        name = place.node.families.get(resource)
        if ids and name is not None:
            return family_named(name)
    return None


def shares_devices(positions: Sequence[RankAssignment]) -> bool:
    """Return whether two workers of a node have the same device.

    MIG slices of a node count as one device: NCCL identifies ranks by the GPU (NVIDIA/nccl, issue
    1716), and the name of a slice does not contain its GPU.
    """
    nodes = [list(local) for _, local in groupby(positions, attrgetter("node_rank"))]
    return any(
        sum(len(position.place.devices.get(name, ())) for position in local)
        > len({"MIG" if is_slice(i) else i for i in ids})
        for local in nodes
        for name, ids in local[0].node_devices.items()
    )


def _devices_of(
    places: Sequence[WorkerPlacement], order: Mapping[tuple[str, str], int]
) -> dict[str, tuple[str, ...]]:
    """Return all devices of a node's workers, in the node's order, then by number and name."""
    found: dict[str, set[str]] = {}
    for place in places:
        for name, ids in place.devices.items():
            found.setdefault(name, set()).update(ids)
    return {
        name: tuple(sorted(ids, key=lambda i: _key(name, i, order))) for name, ids in found.items()
    }


def _order(node: Node) -> dict[tuple[str, str], int]:
    return {(name, i): at for name, ids in node.devices.items() for at, i in enumerate(ids)}


def _key(name: str, device: str, order: Mapping[tuple[str, str], int]) -> tuple[int, str]:
    at = order.get((name, device))
    if at is not None:
        return at, ""
    return (int(device), "") if device.isdecimal() else (len(order), device)


def _first(place: WorkerPlacement, order: Mapping[tuple[str, str], int]) -> tuple[int, str]:
    keys = [_key(name, i, order) for name, ids in place.devices.items() for i in ids]
    return min(keys, default=(0, ""))
