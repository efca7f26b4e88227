"""Real Ray clusters of several nodes, all on this machine: a GCS, and a raylet for each node."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import psutil
import ray
import ray.cluster_utils


class Cluster:
    """A head without CPUs to give, and worker nodes.

    Args:
        nodes: For each worker node, what it offers, as `ray start` would be told.
    """

    def __init__(self, nodes: tuple[dict[str, Any], ...] | None = None) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns
        self._cluster = ray.cluster_utils.Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        if nodes is None:
            nodes = (
                {"num_cpus": 4, "labels": {"zone": "a"}},
                {"num_cpus": 4, "labels": {"zone": "b"}},
            )
        self.nodes = [self.add(**node) for node in nodes]

    @property
    def address(self) -> str:
        """What `dray.init(address=...)` takes."""
        address: str = self._cluster.address
        return address

    def add(self, **node: Any) -> Any:
        """Starts one more node."""
        return self._cluster.add_node(**node)

    def kill(self, node: Any) -> None:
        """Ends a node as a power cut would: nobody is told."""
        (raylet,) = node.all_processes["raylet"]
        victims = psutil.Process(raylet.process.pid).children(recursive=True)
        raylet.process.kill()
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()

    def shutdown(self) -> None:
        """Ends every process of the cluster."""
        self._cluster.shutdown()
