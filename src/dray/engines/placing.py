"""Where bundles of resources go: which node takes which, under a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dray.engines.room import Room

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

Selector = tuple[tuple[str, str], ...]


class Bundle(NamedTuple):
    """What one bundle asks for: quantities in fixed point, and labels of its node."""

    quantities: tuple[tuple[str, int], ...]
    selector: Selector = ()


class Demand(NamedTuple):
    """The shape of a request; requests of one shape are met in turn."""

    bundles: tuple[Bundle, ...]
    strategy: str
    lasting: bool = True


def place(demand: Demand, rooms: Sequence[Room], allowed: Sequence[set[int]]) -> list[int] | None:
    """Returns a node's index for each bundle, or None if they do not fit together.

    Args:
        demand: The bundles.
        rooms: What is free on each node.
        allowed: For each bundle the nodes that it may lie on.
    """
    strategy, nodes = demand.strategy, range(len(rooms))
    if len(demand.bundles) == 1 and not strategy.endswith("SPREAD"):
        wanted = demand.bundles[0].quantities
        for index in nodes:
            if index in allowed[0] and rooms[index].fits(wanted):
                return [index]
        return None
    if strategy == "STRICT_PACK":
        for index in nodes:
            if _fill(demand, [index], rooms, allowed, spread=False):
                return [index] * len(demand.bundles)
        return None
    spread, once = strategy.endswith("SPREAD"), strategy == "STRICT_SPREAD"
    if once and len(demand.bundles) > len(rooms):
        return None
    return _fill(demand, nodes, rooms, allowed, spread=spread, once=once)


def _fill(
    demand: Demand,
    nodes: Sequence[int],
    rooms: Sequence[Room],
    allowed: Sequence[set[int]],
    *,
    spread: bool,
    once: bool = False,
) -> list[int] | None:
    left = {index: rooms[index] for index in nodes}  # copied before it is changed
    used = dict.fromkeys(nodes, 0)

    def turn(index: int) -> tuple[int, int]:
        """Whose turn it is when bundles are spread: the emptier node's."""
        return used[index], -left[index].quantities.get("CPU", 0)

    chosen = [-1] * len(demand.bundles)
    # Bundles that few nodes may take go first, or freer ones would take their places.
    for position in sorted(range(len(chosen)), key=lambda p: len(allowed[p])):
        wanted = demand.bundles[position].quantities
        for index in sorted(nodes, key=lambda i: turn(i) if spread else (-used[i], 0)):
            if index not in allowed[position] or (once and used[index]):
                continue
            if left[index].fits(wanted):
                break
        else:
            return None
        if not used[index]:
            left[index] = left[index].copy()
        left[index].add(wanted, left[index].choose(wanted), -1)
        used[index] += 1
        chosen[position] = index
    return chosen
