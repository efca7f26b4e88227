"""The resources of a Ray cluster, now and perhaps later, in dray's terms."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import ray
import ray.experimental.internal_kv
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

from dray.accelerators import families_on
from dray.engines.ray import leaving_nodes
from dray.engines.runtime import Described
from dray.errors import InfeasibleError
from dray.scheduling.ledger import Ledger
from dray.scheduling.requests import Node, PlacementPreview, Request

# Ray's own bookkeeping, which no program asks for.
_INTERNAL = ("object_store_memory",)

_PATIENCE_S = 1.0
# A loaded head may take long for what it knows at once as a rule.
_STALL_S = 30.0
_LOOK_AGAIN_S = 0.5
# Ray itself needs longer than this to find that a node is dead.
_SUSPICION_S = 60.0


def nodes() -> list[Node]:
    """Return the nodes that are alive."""
    leaving = leaving_nodes.leaving()
    return [
        Node(
            entry["NodeID"],
            entry["NodeManagerAddress"],
            offered := entry["Resources"],
            entry["Labels"],
            families={name: family.name for name, family in families_on(offered).items()},
            leaves=entry["NodeID"] in leaving,
            leaves_at=leaving.get(entry["NodeID"], 0) / 1000 or None,
        )
        for entry in all_nodes()
        if entry["Alive"]
    ]


def all_nodes() -> list[Described]:
    """Return all nodes as `dray.nodes` shows them, dead ones included."""
    return [
        {
            **entry,
            "Resources": {
                name: amount for name, amount in entry["Resources"].items() if name not in _INTERNAL
            },
            "Labels": dict(entry.get("Labels") or {}),
        }
        for entry in ray.nodes()
    ]


def _unreachable(node_ids: Iterable[str]) -> set[str]:
    """Return those of some nodes that are gone: dead for Ray, or not there when called.

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


class SilentNodes:
    """The nodes that did not answer of late; they are left out for a while."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def any_gone(self, node_ids: Iterable[str]) -> bool:
        """Call nodes, and return whether one does not answer."""
        gone = _unreachable(node_ids)
        self._since.update(dict.fromkeys(gone, time.monotonic()))
        return bool(gone)

    def ids(self) -> set[str]:
        """Return those that are left out."""
        now = time.monotonic()
        return {node for node, since in self._since.items() if now - since < _SUSPICION_S}

    def others(self) -> list[Node]:
        silent = self.ids()
        return [node for node in nodes() if node.node_id not in silent]


def lacking(request: Request, present: Sequence[Node]) -> InfeasibleError | None:
    """Return why nodes cannot hold a request, if they cannot, even if all were free."""
    if not present:
        return InfeasibleError(
            "no node of the cluster answers; see `ray status`.", asked={}, available={}
        )
    try:
        Ledger([_device_by_device(n) for n in present], "add nodes to the cluster").check(request)
    except InfeasibleError as error:
        return error
    return None


def preview(request: Request, present: Sequence[Node]) -> PlacementPreview:
    """Return where a request's bundles would lie, by what is free on nodes now.

    Which of its devices a node would give out, Ray does not tell.
    """
    left = ray._private.state.available_resources_per_node()
    staying = [node for node in present if not node.leaves]
    free = []
    for node in staying:
        there = left.get(node.node_id, {})
        unused = {name: there.get(name, 0) for name in node.resources}
        free.append(_device_by_device(replace(node, resources=unused)))
    found = Ledger(free).preview(request)
    whole = {node.node_id: node for node in staying}
    return PlacementPreview(
        None if found.nodes is None else [whole[node.node_id] for node in found.nodes],
        found.devices,
        [(whole[node.node_id], quantities) for node, quantities in found.free],
        chooser="Ray",
    )


def _device_by_device(node: Node) -> Node:
    """Return a node whose devices have made-up ids, so that no two are taken for one."""
    counts = {name: math.ceil(node.resources[name]) for name in node.families}
    ids = {name: [*map(str, range(count))] for name, count in counts.items() if count}
    return replace(node, devices=ids)


def still_lacking(
    lacking: Callable[[], InfeasibleError | None], patience_s: float
) -> InfeasibleError | None:
    """Return what nodes lack, at the end of some patience, if no autoscaler will bring it.

    Args:
        patience_s: For how long somebody may add nodes.
    """
    deadline = time.monotonic() + patience_s
    error = lacking()
    if error is None or autoscales():
        return None
    while error is not None and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_AGAIN_S))  # Ray tells nobody that a node has come
        error = lacking()
    return error


def somebody_waits() -> bool:
    """Return whether anybody waits for resources of the cluster, as far as Ray knows."""
    state = _cluster_status().cluster_resource_state
    return bool(state.pending_resource_requests or state.pending_gang_resource_requests)


def autoscales() -> bool:
    """Return whether an autoscaler may add nodes to this cluster.

    Ray's newer autoscaler puts its state beside the cluster's. The older one publishes a report, in
    which a cluster without one shows every node as a type of its own.
    """
    if _cluster_status().HasField("autoscaling_state"):
        return True
    status = ray.experimental.internal_kv._internal_kv_get("__autoscaling_status") or "{}"
    report = json.loads(status).get("autoscaler_report") or {}  # it comes a little later
    types = report.get("node_type_mapping") or {}
    return any(not name.startswith("node_") for name in types.values())


def _cluster_status() -> GetClusterStatusReply:
    reply = GetClusterStatusReply()
    client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    reply.ParseFromString(client.get_cluster_status(timeout_s=_STALL_S))
    return reply
