"""The request queue: requests that wait for resources, oldest first, equal ones in one line.

Requests of one shape (the same demand: bundles, strategy, selectors) form one line, because if the
first of them does not fit, none does. So a pass over the queue tries each shape once, in the order
of their oldest requests, and a thousand equal waiting tasks cost as much as one.

Younger requests may pass a shape that does not fit: a task of one CPU need not wait behind a group
of 64. Without a limit that would starve the group, since small requests take each resource that
becomes free. So a request that has waited for `STARVATION_LIMIT_S` keeps the resources that it
lacks, on the nodes where it could use them. No younger request gets one of those there until the
older one is met.

That rule alone would stop a machine for good if the missing resources do not come back: a group of
64 CPUs behind an actor that holds one of them for ever. So a request keeps resources only if it
could be met after the end of all work that ends by itself, which are tasks that wait for nobody. If
it waits for actors, groups, training, or tasks that wait for others' work (perhaps work that it
would hold up), it keeps nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from dray.scheduling.capacity import Capacity, from_fixed
from dray.scheduling.placement import Bundle, Demand
from dray.scheduling.requests import Reservation

H = TypeVar("H", bound=Reservation)

# Seconds for which a waiting request may be overtaken by those that take what it lacks.
STARVATION_LIMIT_S = 1.0

# Resources, and the nodes on which requests that have waited for long keep them, by index.
Kept: TypeAlias = Mapping[str, set[int]]
NOTHING_KEPT: Kept = MappingProxyType({})


def where_not_kept(bundle: Bundle, nodes: set[int], kept: Kept) -> set[int]:
    """Return those of some nodes on which nothing is kept that a bundle asks for."""
    return nodes.difference(*(kept.get(name, ()) for name, _ in bundle.quantities))


def lacking(nodes: Mapping[Bundle, set[int]], free: Sequence[Capacity], kept: Kept) -> Kept:
    """Return what a demand lacks, and the nodes on which it could use that.

    That is what no node has enough of for one of its bundles, or else all that it asks for.

    Args:
        nodes: Its bundles, and the nodes that each may lie on.
        kept: Resources that older requests keep.
    """
    asked = [
        (name, units, may) for bundle, may in nodes.items() for name, units in bundle.quantities
    ]
    short = {
        name
        for name, units, may in asked
        if not any(free[i].fits([(name, units)]) for i in may.difference(kept.get(name, ())))
    }
    lacks: dict[str, set[int]] = {}
    for name, _, may in asked:
        if not short or name in short:
            lacks.setdefault(name, set()).update(may)
    return lacks


class RequestQueue:
    """Requests that wait. Its owner's lock guards it."""

    def __init__(self) -> None:
        self._lines: dict[Demand, deque[tuple[float, Future[Reservation]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, demand: Demand, future: Future[Reservation]) -> None:
        self._lines.setdefault(demand, deque()).append((time.monotonic(), future))

    def clear(self) -> list[Future[Reservation]]:
        lines = list(self._lines.values())
        self._lines.clear()
        return [future for line in lines for _, future in line]

    def contended(self, demand: Demand) -> bool:
        """Return whether something else is waited for. May be called without the lock."""
        return any(other != demand for other in tuple(self._lines))

    def describe(self) -> list[tuple[dict[str, Any], Demand]]:
        """Return what waits: as JSON-compatible values (what, how many, since), and as demands."""
        now = time.monotonic()
        return [
            (
                {
                    "bundles": [from_fixed(dict(b.quantities)) for b in demand.bundles],
                    "strategy": demand.strategy,
                    "requests": len(line),
                    "seconds": round(now - line[0][0], 1),
                },
                demand,
            )
            for demand, line in self._lines.items()
            if line
        ]

    def serve(
        self,
        take: Callable[[Demand, Kept], H | None],
        give_back: Callable[[H], object],
        lacks: Callable[[Demand, Kept], Kept],
    ) -> list[tuple[Future[Reservation], H]]:
        """Return the requests that can be met now, each with what it gets.

        Args:
            take: Takes what a demand asks for; None if it does not fit beside what is kept.
            give_back: Undoes that, for a request that was cancelled meanwhile.
            lacks: Returns what a demand lacks beside what is kept; nothing if that may not come.
        """
        granted: list[tuple[Future[Reservation], H]] = []
        now = time.monotonic()
        kept: dict[str, set[int]] = {}
        for demand in sorted(self._lines, key=lambda demand: self._lines[demand][0][0]):
            line = self._lines[demand]
            while line:
                since, future = line[0]
                if future.cancelled():
                    line.popleft()
                    continue
                held = take(demand, kept)
                if held is None:
                    if now - since > STARVATION_LIMIT_S:
                        for name, nodes in lacks(demand, kept).items():
                            kept[name] = kept.get(name, set()) | nodes
                    break
                line.popleft()
                if future.set_running_or_notify_cancel():
                    granted.append((future, held))
                else:
                    give_back(held)
            if not line:
                del self._lines[demand]
        return granted
