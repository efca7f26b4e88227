"""The request queue: requests that wait for resources, oldest first, equal ones in one line.

Requests of one shape (the same demand: bundles, strategy, selectors) stand in one line, for if the
first of them does not fit, none does. So a pass over the queue tries each shape once, in the order
of their oldest requests, and a thousand equal tasks that wait cost as much as one.

A shape that does not fit lets younger ones pass: a task of one CPU need not wait behind a group of
64. That alone would starve the group, since small requests take whatever becomes free. So a request
that has waited for `STARVATION_LIMIT_S` keeps what it lacks: from then on nothing younger that asks
for one of those resources is met, until it is its turn.

That in turn would stop a machine for good where what is lacking does not come back: a group of 64
CPUs behind an actor that holds one of them for ever. So only a request that may come keeps
anything, one that would fit if all had ended that ends by itself, which are tasks. Behind actors,
groups and training it waits without holding anybody up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from dray.scheduling.capacity import from_fixed
from dray.scheduling.placement import Demand
from dray.scheduling.requests import Reservation

H = TypeVar("H", bound=Reservation)

# Seconds for which a waiting request may be overtaken by those that take what it lacks.
STARVATION_LIMIT_S = 1.0


class RequestQueue:
    """Requests that wait. Its owner's lock guards it."""

    def __init__(self) -> None:
        self._lines: dict[Demand, deque[tuple[float, Future[Reservation]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, demand: Demand, future: Future[Reservation]) -> None:
        """Take a request; its future gets the reservation."""
        self._lines.setdefault(demand, deque()).append((time.monotonic(), future))

    def clear(self) -> list[Future[Reservation]]:
        """Forget all requests; return their futures."""
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
        take: Callable[[Demand], H | None],
        give_back: Callable[[H], object],
        lacks: Callable[[Demand], set[str]],
    ) -> list[tuple[Future[Reservation], H]]:
        """Return the requests that can be met now, each with what it gets.

        Args:
            take: Takes what a demand asks for; None if it does not fit.
            give_back: Undoes that, for a request that was cancelled meanwhile.
            lacks: Returns the resources that a demand lacks; none if they may not come.
        """
        granted: list[tuple[Future[Reservation], H]] = []
        now = time.monotonic()
        kept: set[str] = set()  # resources that an older request has waited for long enough
        for demand in sorted(self._lines, key=lambda demand: self._lines[demand][0][0]):
            line = self._lines[demand]
            while line:
                since, future = line[0]
                if future.cancelled():
                    line.popleft()
                    continue
                held = take(demand) if not kept or not kept.intersection(demand.names()) else None
                if held is None:
                    if now - since > STARVATION_LIMIT_S:
                        kept.update(lacks(demand))
                    break
                line.popleft()
                if future.set_running_or_notify_cancel():
                    granted.append((future, held))
                else:
                    give_back(held)
            if not line:
                del self._lines[demand]
        return granted
