"""Choice of TPU slices for a request: whole slices, a bundle on each host, in the hosts' order."""

from __future__ import annotations

from collections.abc import Sequence

from dray.accelerators.node_names import POD_TYPE_LABEL, SLICE_NAME_LABEL, WORKER_ID_LABEL
from dray.scheduling.capacity import Capacity
from dray.scheduling.placement import BundlePlacement, Demand
from dray.scheduling.requests import Node


def slice_of(node: Node) -> str:
    """Return the name of the TPU slice that a node is a part of; "" if it is of none.

    A slice of one host need not have a name: Kubernetes gives it none.
    """
    labels = node.labels
    return labels.get(SLICE_NAME_LABEL) or (node.node_id if POD_TYPE_LABEL in labels else "")


def host_order(node: Node) -> int:
    """Return a host's place in its slice."""
    worker = node.labels.get(WORKER_ID_LABEL, "")
    return int(worker) if worker.isdecimal() else 0


def place_on_slices(
    demand: Demand,
    capacities: Sequence[Capacity],
    allowed: Sequence[set[int]],
    nodes: Sequence[Node],
) -> list[BundlePlacement] | None:
    """Return a placement for each bundle, or None if there are not enough free slices.

    Args:
        demand: The bundles; `demand.slices` says how many of the first ones make up a slice.
        allowed: For each bundle the nodes that it may lie on.
    """
    assert demand.slices is not None
    count, size = demand.slices.count, demand.slices.hosts
    wanted = [bundle.quantities for bundle in demand.bundles]
    chosen: list[int] = []
    for hosts in hosts_of_slices(nodes).values():
        if len(chosen) == count * size:
            break
        first = len(chosen)
        places = range(first, first + size)
        if len(hosts) == size and all(
            host in allowed[place] and capacities[host].fits(wanted[place])
            for place, host in zip(places, hosts, strict=True)
        ):
            chosen += hosts
    if len(chosen) < count * size:
        return None
    left: dict[int, Capacity] = {}
    placements: list[BundlePlacement] = []
    for place, each in enumerate(wanted):
        may = [chosen[place]] if place < len(chosen) else sorted(allowed[place])
        host = next((i for i in may if (left.get(i) or capacities[i]).fits(each)), None)
        if host is None:
            return None
        left[host] = left.get(host) or capacities[host].copy()
        placements.append(BundlePlacement(host, left[host].take(each)))
    return placements


def hosts_of_slices(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Return the hosts of each slice by its name, in order, by their index."""
    slices: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        name = slice_of(node)
        if name:
            slices.setdefault(name, []).append(index)
    return {
        name: sorted(hosts, key=lambda i: host_order(nodes[i])) for name, hosts in slices.items()
    }
