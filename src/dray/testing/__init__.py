"""Helpers for tests of programs: lost nodes, TPU slices and simulated hosts."""

from __future__ import annotations

import time
from typing import Any

from dray import session
from dray.accelerators import family_of
from dray.accelerators.node_names import ACCELERATOR_TYPE_LABEL
from dray.accelerators.tpu_topology import Slice, host_labels, host_resources
from dray.errors import ConfigError
from dray.testing.fake_host import FakeHost

__all__ = ["FakeHost", "drain_node", "kill_node", "tpu_slice"]


def drain_node(node_id: str, deadline_s: float | None = None) -> None:
    """Announce that a simulated node will be taken away; call `kill_node` to take it away.

    No new work is placed on the node. Tasks and actors that run there continue. A training on the
    node continues until its time is over, and its train functions can call
    `dray.train.get_preemption_info()`.

    Args:
        node_id: Id of a node of `dray.init(nodes=[...])`.
        deadline_s: Seconds until the node is taken away; None announces no time.

    Raises:
        ConfigError: There is no such node, or the nodes of the engine are real.

    Example:
        >>> import dray, dray.testing
        >>> context = dray.init(nodes=[{"node_id": "a"}, {"node_id": "b"}])
        >>> dray.testing.drain_node("b", deadline_s=30)
        >>> dray.shutdown()
    """
    at = None if deadline_s is None else time.time() + deadline_s
    _engine_of_simulated("drain_node").announce_loss(node_id, at)


def kill_node(node_id: str) -> None:
    """Kill every process of a simulated node, and place no more work on it.

    Stored objects survive, because all simulated nodes share the memory of this machine.

    Args:
        node_id: Id of a node of `dray.init(nodes=[...])`.

    Raises:
        ConfigError: There is no such node, or the nodes of the engine are real.

    Example:
        >>> import dray, dray.testing
        >>> context = dray.init(nodes=[{"node_id": "a"}, {"node_id": "b"}])
        >>> dray.testing.kill_node("b")
        >>> [node["Alive"] for node in dray.nodes()]
        [True, False]
        >>> dray.shutdown()
    """
    _engine_of_simulated("kill_node").lose_node(node_id)


def _engine_of_simulated(caller: str) -> Any:
    engine = session.current_engine()
    if not hasattr(engine, "lose_node"):
        raise ConfigError(
            f"the nodes of the {engine.name} engine are not simulated; {caller}() is for "
            "dray.init(nodes=[...]) on the process engine"
        )
    return engine


def tpu_slice(
    topology: str,
    accelerator_type: str,
    *,
    name: str = "slice-0",
    num_cpus: float = 8,
    chips_per_host: int | None = None,
) -> list[dict[str, Any]]:
    """Return the hosts of a TPU slice as simulated nodes, with resources and labels of real hosts.

    Args:
        topology: Layout of the chips, such as "4x4".
        accelerator_type: Type of the chips, such as "TPU-V6E".
        name: Name of the slice. Each host offers 1 of a resource of this name, and the id of its
            node begins with it. For several slices, add the lists of several names.
        num_cpus: Number of CPUs that each host offers.
        chips_per_host: Number of chips of each host. Default: the number on the hosts that Google
            Cloud makes for the topology.

    Returns:
        A list of nodes for `dray.init(nodes=...)`.

    Raises:
        ConfigError: There is no such slice, or the name or the number of chips is invalid.

    Example:
        >>> import dray, dray.testing
        >>> context = dray.init(nodes=dray.testing.tpu_slice("4x4", "TPU-V6E"))
        >>> dray.cluster_resources()["TPU"]
        16
        >>> dray.shutdown()
    """
    slice = Slice.parse(topology, accelerator_type)
    if name in ("", "CPU", "memory") or family_of(name):
        raise ConfigError(f"name={name!r}: a slice needs a name that no resource has")
    chips = _chips_per_host(slice, chips_per_host)
    workers = [str(worker) for worker in range(slice.chips // chips)]
    return [
        {
            "node_id": f"{name}-{worker}",
            "num_cpus": num_cpus,
            "resources": {"TPU": chips, **host_resources(name, worker, slice.pod_type)},
            "labels": {
                ACCELERATOR_TYPE_LABEL: accelerator_type,
                **host_labels(name, worker, slice.topology, slice.pod_type),
            },
            "accelerator_type": accelerator_type,
        }
        for worker in workers
    ]


def _chips_per_host(slice: Slice, given: int | None) -> int:
    if given is None:
        return slice.chips_per_host
    valid = [size for size in (1, 2, 4, 8) if slice.chips % size == 0]
    if given not in valid:
        raise ConfigError(
            f"chips_per_host={given!r}: hosts of a slice with {slice.chips} chips have "
            f"{' or '.join(map(str, valid))}"
        )
    return given
