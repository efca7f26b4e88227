"""What the engines of one machine share: the machine as a node, and its resources in a ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dray import host
from dray.engines.contract import Engine, Node, Options, Request, Reservation
from dray.engines.ledger import Ledger, from_fixed, to_fixed
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ConfigError


class LocalEngine(Engine):
    """An engine of this machine alone."""

    def __init__(self, options: Options) -> None:
        if options.address is not None:
            raise ConfigError(
                f"address={options.address!r}: the {self.name} engine runs on this machine alone; "
                "dray.init(engine='ray', address=...) connects to a cluster"
            )
        self._ledger = Ledger(
            simulated(options.nodes) if options.nodes else [this_machine(options)]
        )
        self._runtime_env = options.runtime_env
        self._runtime_env.local_directory(self.name)

    def nodes(self) -> list[Node]:
        return list(self._ledger.nodes)

    def available(self) -> dict[str, float]:
        return self._ledger.available()

    def prepare(self, modules: Sequence[str]) -> None:
        return None

    def check(self, request: Request, runtime_env: RuntimeEnv) -> None:
        self._ledger.check(request)
        runtime_env.local_directory(self.name)

    def reserve(self, request: Request) -> Future[Reservation]:
        return self._ledger.reserve(request)


def this_machine(options: Options) -> Node:
    """Returns this machine as a node; what is not given is read off the machine."""
    offered = {
        "CPU": host.cpu_count() if options.num_cpus is None else options.num_cpus,
        "memory": host.memory_bytes(),
        **({} if options.num_gpus is None else {"GPU": options.num_gpus}),
        **options.resources,
    }
    return Node("this machine", "127.0.0.1", from_fixed(to_fixed(offered)), dict(options.labels))


_NODE_KEYS = ("node_id", "num_cpus", "num_gpus", "resources", "labels")


def simulated(nodes: Sequence[Mapping[str, Any]]) -> list[Node]:
    """Returns the nodes that `dray.init(nodes=[...])` asks for.

    Raises:
        ConfigError: One is malformed.
    """
    made: list[Node] = []
    for index, entry in enumerate(nodes):
        if not isinstance(entry, Mapping):
            raise ConfigError(f"nodes[{index}] must be a dict, not {entry!r}")
        for name in entry:
            if name not in _NODE_KEYS:
                raise ConfigError(
                    f"nodes[{index}] has no {name!r}; there are {', '.join(_NODE_KEYS)}"
                )
        offered = {
            "CPU": entry.get("num_cpus", host.cpu_count()),
            "memory": host.memory_bytes() // len(nodes),
            **({"GPU": entry["num_gpus"]} if entry.get("num_gpus") else {}),
            **(entry.get("resources") or {}),
        }
        node_id = entry.get("node_id") or f"node-{index}"
        if any(node.node_id == node_id for node in made):
            raise ConfigError(f"nodes[{index}]: there is a node {node_id!r} already")
        labels = dict(entry.get("labels") or {})
        made.append(Node(node_id, "127.0.0.1", from_fixed(to_fixed(offered)), labels))
    return made
