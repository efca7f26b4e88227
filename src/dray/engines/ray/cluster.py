"""What a Ray cluster offers, now and perhaps later, in dray's terms."""

from __future__ import annotations

from collections.abc import Sequence

import ray

from dray.engines.contract import Node, Request
from dray.engines.ledger import Ledger
from dray.errors import InfeasibleError

# Ray's own bookkeeping, which no program asks for.
_INTERNAL = ("node:__internal_head__", "object_store_memory")


def nodes() -> list[Node]:
    """Returns the nodes that are alive."""
    return [
        Node(
            entry["NodeID"],
            entry["NodeManagerAddress"],
            {name: amount for name, amount in entry["Resources"].items() if name not in _INTERNAL},
            entry.get("Labels") or {},
        )
        for entry in ray.nodes()
        if entry["Alive"]
    ]


def lacking(request: Request, present: Sequence[Node]) -> InfeasibleError | None:
    """Returns why nodes cannot hold a request, if they cannot, even if all were free."""
    if not present:
        return InfeasibleError("the cluster has no nodes", asked={}, available={})
    try:
        Ledger(present, "add nodes to the cluster").check(request)
    except InfeasibleError as error:
        return error
    return None


def may_come(bundles: int) -> list[Node]:
    """Returns the nodes that the cluster's autoscaler could add, if it has one.

    Args:
        bundles: More than this many of a kind are of no use.
    """
    try:
        config = ray._private.state.state.get_cluster_config()
    except AttributeError:  # a release of Ray that does not tell
        return []
    if config is None:
        return []
    return [
        Node(f"a new {group.name}", "", dict(group.resources), dict(getattr(group, "labels", {})))
        for group in config.node_group_configs
        for _ in range(min(group.max_count, bundles) if group.max_count > 0 else bundles)
    ]
