"""Which TPU slices a request gets: whole ones, a bundle a host, in the order of the hosts."""

from __future__ import annotations

from collections.abc import Sequence

from dray.accelerators.topology import SLICE_NAME_LABEL, WORKER_ID_LABEL
from dray.engines.contract import Node
from dray.engines.placing import Demand
from dray.engines.room import UNIT, Room


def host_order(node: Node) -> int:
    """Returns a host's place in its slice."""
    worker = node.labels.get(WORKER_ID_LABEL, "")
    return int(worker) if worker.isdecimal() else 0


def place_on_slices(
    demand: Demand, rooms: Sequence[Room], allowed: Sequence[set[int]], nodes: Sequence[Node]
) -> list[int] | None:
    """Returns a node's index for each bundle, or None if there are not enough free slices.

    Args:
        demand: The bundles; `demand.slices` says how many of the first ones make up a slice.
        rooms: What is free on each node.
        allowed: For each bundle the nodes that it may lie on.
        nodes: What there is.
    """
    assert demand.slices is not None
    count, size = demand.slices.count, demand.slices.hosts
    wanted = [bundle.quantities for bundle in demand.bundles]
    chosen: list[int] = []
    for hosts in _slices(nodes):
        if len(chosen) == count * size:
            break
        first = len(chosen)
        places = range(first, first + size)
        # Of a slice all chips must be free, though a worker may use fewer.
        if len(hosts) == size and all(
            host in allowed[place]
            and rooms[host].fits(wanted[place])
            and rooms[host].quantities.get("TPU", 0) >= nodes[host].resources["TPU"] * UNIT
            for place, host in zip(places, hosts, strict=True)
        ):
            chosen += hosts
    if len(chosen) < count * size:
        return None
    return _add_rest(chosen, wanted, rooms, allowed)


def _slices(nodes: Sequence[Node]) -> list[list[int]]:
    """Returns the hosts of each slice, in order, by their index."""
    slices: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        name = node.labels.get(SLICE_NAME_LABEL)
        if name:
            slices.setdefault(name, []).append(index)
    return [sorted(hosts, key=lambda i: host_order(nodes[i])) for hosts in slices.values()]


def _add_rest(
    chosen: list[int],
    wanted: Sequence[Sequence[tuple[str, int]]],
    rooms: Sequence[Room],
    allowed: Sequence[set[int]],
) -> list[int] | None:
    """Places the bundles that need no slice beside those that do."""
    if len(chosen) == len(wanted):
        return chosen
    left = list(rooms)
    for place, host in enumerate(chosen):
        left[host] = left[host].copy()
        left[host].add(wanted[place], left[host].choose(wanted[place]), -1)
    for place in range(len(chosen), len(wanted)):
        fitting = (i for i in allowed[place] if left[i].fits(wanted[place]))
        host = min(fitting, default=-1)
        if host < 0:
            return None
        left[host] = left[host].copy()
        left[host].add(wanted[place], left[host].choose(wanted[place]), -1)
        chosen.append(host)
    return chosen
