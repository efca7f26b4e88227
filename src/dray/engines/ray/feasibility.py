"""The feasibility of requests in a cluster, queried so rarely that submitting stays cheap."""

from __future__ import annotations

import math
import time

from dray.engines.ray import cluster
from dray.engines.runtime import WorkOptions
from dray.errors import InfeasibleError
from dray.scheduling.placement import Demand, demand_of
from dray.scheduling.requests import Node, Request

# For how long what the nodes offer is taken as known.
_FRESH_S = 5.0


class Capacity:
    """The total resources of a cluster's nodes. Safe to use from several threads.

    Args:
        patience_s: For how long nodes may yet come that can hold what none can now.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._nodes: list[Node] = []
        self._asked_at = -math.inf
        self._fits: set[tuple[Demand, str]] = set()

    def check(self, what: str, request: Request, node_id: str = "") -> None:
        """Return if the cluster can hold a request, now or later.

        Args:
            node_id: The one node that will do; empty is any.

        Raises:
            InfeasibleError: It never can, and no autoscaler will add nodes.
        """
        key = (demand_of(request), node_id)
        if time.monotonic() - self._asked_at > _FRESH_S:
            self._ask()
        if key in self._fits:
            return
        if self._lacking(request, node_id) is not None:

            def lacking() -> InfeasibleError | None:
                self._ask()  # a node may have come in the last seconds
                return self._lacking(request, node_id)

            error = cluster.still_lacking(lacking, self._patience_s)
            if error is not None:
                raise _named(what, error) from None
        self._fits.add(key)

    def _ask(self) -> None:
        self._nodes = cluster.nodes()
        self._fits = set()
        self._asked_at = time.monotonic()

    def _lacking(self, request: Request, node_id: str) -> InfeasibleError | None:
        nodes = [node for node in self._nodes if node_id in ("", node.node_id)]
        if node_id and not nodes:
            return InfeasibleError(f"no node has the id {node_id}", asked={}, available={})
        return cluster.lacking(request, nodes)


def check_bundle(what: str, options: WorkOptions) -> None:
    """Return if the one bundle that is asked for can hold something; Ray looks at all of them."""
    place = options.placement
    assert place.group is not None
    asked = options.placement_resources
    bundle = place.group.bundles[place.bundle]
    short = [name for name, quantity in asked.items() if bundle.get(name, 0) < quantity]
    if short:
        raise InfeasibleError(
            f"{what} can never run: it asks for {dict(asked)}, and bundle {place.bundle} of its "
            f"placement group has {dict(bundle)}",
            asked=asked,
            available=bundle,
        )


def _named(what: str, error: InfeasibleError) -> InfeasibleError:
    """Return the error with a name."""
    text = f"{what} can never run: {error}"
    return InfeasibleError(
        text, asked=error.asked, available=error.available, shortfall=error.shortfall
    )
