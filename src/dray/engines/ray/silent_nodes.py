"""Nodes of a Ray cluster that do not answer when called, long before Ray gives them up."""

from __future__ import annotations

import time
from collections.abc import Iterable

from dray.engines.ray import cluster
from dray.scheduling.requests import Node

# Ray itself needs longer than this to find that a node is dead.
_SUSPICION_S = 60.0


class SilentNodes:
    """The nodes that did not answer of late; they are left out for a while."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def any_gone(self, node_ids: Iterable[str]) -> bool:
        """Call nodes, and return whether one does not answer."""
        gone = cluster.unreachable(node_ids)
        self._since.update(dict.fromkeys(gone, time.monotonic()))
        return bool(gone)

    def ids(self) -> set[str]:
        """Return those that are left out."""
        now = time.monotonic()
        return {node for node, since in self._since.items() if now - since < _SUSPICION_S}

    def others(self) -> list[Node]:
        silent = self.ids()
        return [node for node in cluster.nodes() if node.node_id not in silent]
