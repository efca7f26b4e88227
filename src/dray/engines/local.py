"""The base of the engines of one machine: the machine as a node, its resources in a ledger."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dray import host
from dray.accelerators import families_on, family_named
from dray.accelerators.detect import Offer, ids_on_offer, offers
from dray.accelerators.node_names import ACCELERATOR_TYPE, ACCELERATOR_TYPE_LABEL
from dray.checks import is_number, plain
from dray.engines.base import Engine, Options
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ConfigError, join_names
from dray.scheduling.capacity import from_fixed, to_fixed
from dray.scheduling.device_locks import lock_name
from dray.scheduling.labels import check_name, check_value
from dray.scheduling.ledger import Ledger
from dray.scheduling.requests import Node, PlacementPreview, Request, Reservation

if TYPE_CHECKING:
    from dray.engines.runtime import Described
    from dray.status import NodeStatus


class LocalEngine(Engine):
    """An engine of this machine alone."""

    def __init__(self, options: Options) -> None:
        if options.address is not None:
            raise ConfigError(
                f"address={options.address!r}: the {self.name} engine runs on this machine alone; "
                "dray.init(engine='ray', address=...) connects to a cluster"
            )
        super().__init__(options)
        given = {
            **options.resources,
            **({} if options.num_gpus is None else {"GPU": options.num_gpus}),
        }
        self._offers: dict[str, Offer] = {}
        if options.nodes:
            nodes = _named(simulated(options.nodes))
            self._ledger = Ledger(nodes, "declare more with dray.init({nodes})")
        else:
            self._offers = offers(given, os.environ)
            self._ledger = Ledger(_named([this_machine(options, given, self._offers)]))
        self._runtime_env = options.runtime_env
        self._runtime_env.local_directory(self.name)

    def lock_names(self) -> dict[tuple[str, str], str]:
        """Return what the devices that are really there are called in all programs."""
        return {
            (resource, device): lock_name(offer.family.name, device)
            for resource, offer in self._offers.items()
            if offer.found is not None
            for device in offer.ids
        }

    def variables(
        self,
        devices: Mapping[str, tuple[str, ...]],
        node: Node,
        env_vars: Mapping[str, str] | None = None,
    ) -> dict[str, str | None]:
        """Return the environment variables that limit a process to some devices.

        A variable that the user sets stays, and the family's other variables are unset: each would
        select among the devices that the other leaves, or describe other devices.

        Args:
            devices: Their ids, by resource name.
            env_vars: Variables that the user sets for the process, beside the session's.
        """
        own = {*self._runtime_env.env_vars, *(env_vars or ())}
        shown: dict[str, str | None] = {}
        for name, ids in devices.items():
            offer = self._offers.get(name)
            if offer is None and name in node.families:  # of a simulated node
                offer = Offer(family_named(node.families[name]), None, ids)
            if offer is None:
                continue
            limits = offer.show(ids, os.environ)
            if limits and own.intersection(offer.family.variables):
                limits = dict.fromkeys((*limits, *offer.family.variables))
            shown |= limits
        return {name: value for name, value in shown.items() if name not in own}

    def nodes(self) -> list[Node]:
        return self._ledger.alive()

    def available(self) -> dict[str, float]:
        return self._ledger.available()

    def prepare(self, modules: Sequence[str], runtime_env: RuntimeEnv) -> None:
        return None

    def check(self, request: Request, runtime_env: RuntimeEnv) -> None:
        self._ledger.check(request)
        runtime_env.local_directory(self.name)

    def preview(self, request: Request) -> PlacementPreview:
        return self._ledger.preview(request)

    def reserve(self, request: Request) -> Future[Reservation]:
        return self._ledger.reserve(request)


def _named(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes with the resources of Ray's that name them: by their address, and the first."""
    head, *others = [
        replace(node, resources={**node.resources, f"node:{node.address}": 1}) for node in nodes
    ]
    return [replace(head, resources={**head.resources, "node:__internal_head__": 1}), *others]


def this_machine(
    options: Options, given: Mapping[str, float], offered: Mapping[str, Offer]
) -> Node:
    """Return this machine as a node; what is not given is read off the machine.

    Args:
        options: The user's words on it.
        given: The resources among that.
    """
    found = [offer.found for offer in offered.values() if offer.found is not None and offer.ids]
    types = [devices.type for devices in found if devices.type]
    resources = {
        "CPU": host.cpu_count() if options.num_cpus is None else options.num_cpus,
        "memory": host.memory_bytes(),
        **{f"{ACCELERATOR_TYPE}{kind}": 1 for kind in types},
        **{name: amount for devices in found for name, amount in devices.resources.items()},
        **given,
        **{name: len(offer.ids) for name, offer in offered.items()},
    }
    return Node(
        "this machine",
        "127.0.0.1",
        from_fixed(to_fixed(resources)),
        {
            **({ACCELERATOR_TYPE_LABEL: types[0]} if types else {}),
            **{name: value for devices in found for name, value in devices.labels.items()},
            **options.labels,
        },
        {name: offer.ids for name, offer in offered.items() if offer.ids},
        {name: offer.family.name for name, offer in offered.items() if offer.ids},
    )


# Bytes that a process can map beside everything else.
_MOST_BYTES = 1 << 46
_OF_A_MACHINE = ("num_cpus", "num_gpus", "resources", "labels")


def check_machine(nodes: object, **said: Any) -> None:
    """Check what `dray.init` is told of this machine, or of nodes in its place.

    Args:
        said: Of its arguments those that describe a machine; None where nothing is said.

    Raises:
        ConfigError: One is malformed, or they exclude each other; each simulated node is looked at
            when it is made.
    """
    _check_node(said)
    if nodes is None:
        return
    if not isinstance(nodes, list | tuple):
        raise ConfigError(
            f"nodes must be a list of dicts, such as [{{'num_cpus': 4}}], not {nodes!r}"
        )
    beside = [name for name in _OF_A_MACHINE if said[name] is not None and said[name] != {}]
    if nodes and beside:
        raise ConfigError(
            f"{join_names(beside)} would describe this machine, but nodes=[...] replace it; put "
            "it into the dict of each node"
        )


def store_bytes(value: object) -> int | None:
    """Return what `dray.init` is told of the object store, as a number of bytes.

    Raises:
        ConfigError: It is none, or more than a process can see.
    """
    number = plain(value)
    if number is not None and not (
        is_number(number) and 0 <= number <= _MOST_BYTES and number % 1 == 0
    ):
        raise ConfigError(
            "object_store_memory must be a whole number of bytes, such as 2 * 2**30, from 0 to "
            f"2**{_MOST_BYTES.bit_length() - 1}, not {value!r}"
        )
    return None if number is None else int(number)


def _check_node(said: Mapping[str, Any], where: str = "{}") -> None:
    """Check the quantities and labels of a node.

    Args:
        where: Format of a field's name in messages.
    """
    for name in ("num_cpus", "num_gpus"):
        if said.get(name) is not None:
            _check_quantity(said[name], where.format(name))
    for name, meaning in (("resources", "names to quantities"), ("labels", "names to text")):
        given, what = said.get(name), where.format(name)
        if given is None:
            continue
        if not isinstance(given, Mapping):
            raise ConfigError(f"{what} must be a dict of {meaning}, not {given!r}")
        for key, value in given.items():
            if not isinstance(key, str) or not key:
                raise ConfigError(f"{what} must be a dict of {meaning}; {key!r} is not a name")
            if name == "resources":
                _check_quantity(value, f"{what}[{key!r}]", of_bytes=key == "memory")
            elif not isinstance(value, str):
                raise ConfigError(
                    f"{what}[{key!r}] must be text, which is what label selectors ask for, such as "
                    f"{str(value)!r}, not {value!r}"
                )
            else:
                check_name(key, what)
                check_value(value, f"{what}[{key!r}]")


def _check_quantity(value: object, what: str, *, of_bytes: bool = False) -> None:
    number = plain(value)
    if not is_number(number) or not 0 <= number < float("inf"):
        raise ConfigError(f"{what} must be a number, 0 or more, not {value!r}")
    if number % 1 and not of_bytes:
        raise ConfigError(
            f"{what} must be a whole number, not {value!r}; tasks may ask for fractions of what "
            "can be shared"
        )


_NODE_KEYS = ("node_id", "num_cpus", "num_gpus", "resources", "labels", "accelerator_type")


def nodes_of(ledger: Ledger) -> list[NodeStatus]:
    """Return the nodes of a ledger, with what is free of each."""
    from dray.status import DeviceStatus, NodeStatus

    return [
        NodeStatus.of(
            describe_node(node, alive=index in ledger.living),
            available=ledger.free_of(index),
            devices=[DeviceStatus(**device) for device in ledger.devices_of(index)]
            if index in ledger.living
            else [],
        )
        for index, node in enumerate(ledger.nodes)
    ]


def simulated(nodes: Sequence[Mapping[str, Any]]) -> list[Node]:
    """Return the nodes that `dray.init(nodes=[...])` asks for."""
    made: list[Node] = []
    taken: set[str] = set()
    memory, cores = host.memory_bytes() // len(nodes), host.cpu_count()
    for index, entry in enumerate(nodes):
        if not isinstance(entry, Mapping):
            raise ConfigError(f"nodes[{index}] must be a dict, not {entry!r}")
        for name in entry:
            if name not in _NODE_KEYS:
                raise ConfigError(
                    f"nodes[{index}] has no {name!r}; there are {', '.join(_NODE_KEYS)}"
                )
        _check_node(entry, f"nodes[{index}]['{{}}']")
        kind = entry.get("accelerator_type")
        if kind is not None:
            from dray.accelerators.type_names import check_type  # rarely needed

            check_type(kind, f"nodes[{index}]['accelerator_type']")
        offered = {
            "CPU": cores if entry.get("num_cpus") is None else entry["num_cpus"],
            "memory": memory,
            **({"GPU": entry["num_gpus"]} if entry.get("num_gpus") else {}),
            **(entry.get("resources") or {}),
            **({f"{ACCELERATOR_TYPE}{kind}": 1} if kind else {}),
        }
        node_id = entry.get("node_id") or f"node-{index}"
        if node_id in taken:
            raise ConfigError(f"nodes[{index}]: there is a node {node_id!r} already")
        taken.add(node_id)
        labels = {**({ACCELERATOR_TYPE_LABEL: kind} if kind else {}), **(entry.get("labels") or {})}
        kinds = families_on(offered)
        ids = {
            name: ids_on_offer(family, None, offered[name], {}) for name, family in kinds.items()
        }
        names = {name: family.name for name, family in kinds.items()}
        made.append(Node(node_id, "127.0.0.1", from_fixed(to_fixed(offered)), labels, ids, names))
    return made


def describe_node(node: Node, *, alive: bool = True) -> Described:
    """Return a node as `dray.nodes` shows it, under the names that Ray uses.

    Its processes listen at no ports, and its store is no socket: these are 0 and empty.
    """
    return {
        "NodeID": node.node_id,
        "NodeManagerAddress": node.address,
        "NodeManagerHostname": socket.gethostname(),
        "NodeManagerPort": 0,
        "NodeName": node.title,
        "ObjectManagerPort": 0,
        "ObjectStoreSocketName": "",
        "RayletSocketName": "",
        "MetricsExportPort": 0,
        "RuntimeEnvAgentPort": 0,
        "DeathReason": 0,
        "DeathReasonMessage": "",
        "Alive": alive,
        "alive": alive,
        "Resources": dict(node.resources) if alive else {},
        "Labels": node.all_labels,
    }


def describe_worker(worker_id: str, pid: int, node: Node, *, is_driver: bool = False) -> Described:
    """Return a living process under the names that Ray uses."""
    return {
        "worker_id": worker_id,
        "is_alive": True,
        "worker_type": "DRIVER" if is_driver else "WORKER",
        "node_id": node.node_id,
        "ip": node.address,
        "pid": pid,
    }


def describe_job(job_id: str) -> Described:
    """Return this program under the names that Ray uses."""
    words = " ".join(sys.orig_argv)
    return {"job_id": job_id, "type": "DRIVER", "status": "RUNNING", "entrypoint": words}
