"""What a Ray cluster offers, now and perhaps later, in dray's terms."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
import ray.experimental.internal_kv
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

from dray.engines.contract import Node, Request
from dray.engines.ledger import Ledger
from dray.errors import InfeasibleError

# Ray's own bookkeeping, which no program asks for.
_INTERNAL = ("node:__internal_head__", "object_store_memory")

_PATIENCE_S = 1.0


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


def all_nodes() -> list[dict[str, Any]]:
    """Returns all nodes as `dray.nodes` shows them, dead ones included."""
    shown = ("NodeID", "NodeManagerAddress", "Alive")
    return [
        {
            **{key: entry[key] for key in shown},
            "Resources": {
                name: amount for name, amount in entry["Resources"].items() if name not in _INTERNAL
            },
            "Labels": dict(entry.get("Labels") or {}),
        }
        for entry in ray.nodes()
    ]


def unreachable(node_ids: Iterable[str]) -> set[str]:
    """Returns those of some nodes that are gone: dead for Ray, or not there when called.

    Ray itself takes a quarter of a minute to find that a node is dead.
    """
    entries = {entry["NodeID"]: entry for entry in ray.nodes() if entry["Alive"]}
    wanted = list(node_ids)
    with ThreadPoolExecutor(max_workers=max(1, min(32, len(wanted)))) as pool:
        answers = pool.map(lambda node_id: _answers(entries.get(node_id)), wanted)
        return {node_id for node_id, answer in zip(wanted, answers, strict=True) if not answer}


def _answers(entry: Mapping[str, Any] | None) -> bool:
    if entry is None:
        return False
    try:
        address = (entry["NodeManagerAddress"], entry["NodeManagerPort"])
        with socket.create_connection(address, timeout=_PATIENCE_S):
            return True
    except OSError:
        return False


def lacking(request: Request, present: Sequence[Node]) -> InfeasibleError | None:
    """Returns why nodes cannot hold a request, if they cannot, even if all were free."""
    if not present:
        return InfeasibleError("the cluster has no nodes", asked={}, available={})
    try:
        Ledger(present, "add nodes to the cluster").check(request)
    except InfeasibleError as error:
        return error
    return None


def autoscales() -> bool:
    """Returns whether an autoscaler may add nodes to this cluster.

    Ray's newer autoscaler puts its state beside the cluster's. The older one publishes a report, in
    which a cluster without one shows every node as a type of its own.
    """
    reply = GetClusterStatusReply()
    client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    reply.ParseFromString(client.get_cluster_status(timeout_s=_PATIENCE_S))
    if reply.HasField("autoscaling_state"):
        return True
    status = ray.experimental.internal_kv._internal_kv_get("__autoscaling_status") or "{}"
    report = json.loads(status).get("autoscaler_report") or {}  # it comes a little later
    types = report.get("node_type_mapping") or {}
    return any(not name.startswith("node_") for name in types.values())
