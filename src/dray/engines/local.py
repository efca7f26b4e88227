"""What the engines of one machine share: the machine as a node, and its resources in a ledger."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dray import host
from dray.accelerators import family_named
from dray.accelerators.detect import Offer, ids_on_offer, offers
from dray.accelerators.topology import ACCELERATOR_TYPE_LABEL
from dray.engines.claims import claim_name
from dray.engines.contract import Engine, Node, Options, Rehearsal, Request, Reservation
from dray.engines.ledger import Ledger
from dray.engines.room import from_fixed, to_fixed
from dray.engines.runtime_env import RuntimeEnv
from dray.engines.shortfall import ACCELERATOR_TYPE, families_on
from dray.errors import ConfigError


class LocalEngine(Engine):
    """An engine of this machine alone."""

    def __init__(self, options: Options) -> None:
        if options.address is not None:
            raise ConfigError(
                f"address={options.address!r}: the {self.name} engine runs on this machine alone; "
                "dray.init(engine='ray', address=...) connects to a cluster"
            )
        given = {
            **options.resources,
            **({} if options.num_gpus is None else {"GPU": options.num_gpus}),
        }
        self._offers: dict[str, Offer] = {}
        if options.nodes:
            nodes = simulated(options.nodes)
        else:
            self._offers = offers(given, os.environ)
            nodes = [this_machine(options, given, self._offers)]
        self._ledger = Ledger(nodes)
        self._runtime_env = options.runtime_env
        self.env_vars = options.runtime_env.env_vars
        self._runtime_env.local_directory(self.name)

    def claim_names(self) -> dict[tuple[str, str], str]:
        """Returns what the devices that are really there are called in all programs."""
        return {
            (resource, device): claim_name(offer.family.name, device)
            for resource, offer in self._offers.items()
            if offer.found is not None
            for device in offer.ids
        }

    def variables(
        self, devices: Mapping[str, tuple[str, ...]], node: Node
    ) -> dict[str, str | None]:
        """Returns the environment variables that limit a process to some devices.

        Args:
            devices: Their ids, by resource name.
            node: Where they are.
        """
        shown: dict[str, str | None] = {}
        for name, ids in devices.items():
            offer = self._offers.get(name)
            if offer is not None:
                shown.update(offer.show(ids, os.environ))
            elif name in node.families:  # of a simulated node
                shown.update(family_named(node.families[name]).show(ids, os.environ, 0))
        # What the user sets for all workers is as it is.
        return {k: v for k, v in shown.items() if k not in self._runtime_env.env_vars}

    def nodes(self) -> list[Node]:
        return self._ledger.alive()

    def available(self) -> dict[str, float]:
        return self._ledger.available()

    def prepare(self, modules: Sequence[str], runtime_env: RuntimeEnv) -> None:
        return None

    def check(self, request: Request, runtime_env: RuntimeEnv) -> None:
        self._ledger.check(request)
        runtime_env.local_directory(self.name)

    def rehearse(self, request: Request) -> Rehearsal:
        return self._ledger.rehearse(request)

    def reserve(self, request: Request) -> Future[Reservation]:
        return self._ledger.reserve(request)


def this_machine(
    options: Options, given: Mapping[str, float], offered: Mapping[str, Offer]
) -> Node:
    """Returns this machine as a node; what is not given is read off the machine.

    Args:
        options: What the user says of it.
        given: The resources among that.
        offered: Its accelerators.
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


_NODE_KEYS = ("node_id", "num_cpus", "num_gpus", "resources", "labels", "accelerator_type")


def simulated(nodes: Sequence[Mapping[str, Any]]) -> list[Node]:
    """Returns the nodes that `dray.init(nodes=[...])` asks for.

    Raises:
        ConfigError: One is malformed.
    """
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
        offered = {
            "CPU": entry.get("num_cpus", cores),
            "memory": memory,
            **({"GPU": entry["num_gpus"]} if entry.get("num_gpus") else {}),
            **(entry.get("resources") or {}),
            **({f"{ACCELERATOR_TYPE}{kind}": 1} if (kind := entry.get("accelerator_type")) else {}),
        }
        node_id = entry.get("node_id") or f"node-{index}"
        if node_id in taken:
            raise ConfigError(f"nodes[{index}]: there is a node {node_id!r} already")
        taken.add(node_id)
        labels = dict(entry.get("labels") or {})
        kinds = families_on(offered)
        ids = {
            name: ids_on_offer(family, None, offered[name], {}) for name, family in kinds.items()
        }
        names = {name: family.name for name, family in kinds.items()}
        made.append(Node(node_id, "127.0.0.1", from_fixed(to_fixed(offered)), labels, ids, names))
    return made
