"""The session: which engine this process uses, from `init` or first use to `shutdown`."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dray.errors import ConfigError

if TYPE_CHECKING:
    from dray.engines.contract import Engine, Node

_lock = threading.RLock()
_engine: Engine | None = None
_owner = 0  # the process that started the engine: a fork of it has none


def init(
    *,
    engine: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    ignore_reinit_error: bool = False,
) -> None:
    """Starts an engine for this process. Optional: the first use starts the default one.

    Args:
        engine: "process" (workers are processes of this machine, the default) or "inline" (the
            function runs in this process, for debugging). `DRAY_ENGINE` sets the default.
        num_cpus: CPUs to offer, more or fewer than the machine has; logical, not enforced.
        num_gpus: GPUs to offer.
        resources: Further resources to offer, name to quantity; "memory" is in bytes.
        ignore_reinit_error: Keep the engine that runs, if one does, instead of raising.

    Raises:
        ConfigError: An engine runs already, or an argument is malformed.

    Example:
        >>> import dray
        >>> dray.init(num_cpus=8)
        >>> dray.cluster_resources()["CPU"]
        8
        >>> dray.shutdown()
    """
    from dray import engines
    from dray.settings import Settings

    global _engine, _owner
    with _lock:
        if is_initialized():
            if ignore_reinit_error:
                return
            raise ConfigError(
                "dray is initialised already in this process; call dray.shutdown() first, or pass "
                "ignore_reinit_error=True"
            )
        settings = Settings()
        node = local_node(num_cpus=num_cpus, num_gpus=num_gpus, resources=resources)
        _engine = engines.load(engine or settings.engine, node, settings)
        _owner = os.getpid()
        atexit.register(shutdown)


def local_node(
    *,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
) -> Node:
    """Returns this machine as a node; what is not given is read off the machine."""
    from dray import host
    from dray.engines.contract import Node
    from dray.engines.ledger import from_fixed, to_fixed

    offered = {
        "CPU": host.cpu_count() if num_cpus is None else num_cpus,
        "memory": host.memory_bytes(),
        **({} if num_gpus is None else {"GPU": num_gpus}),
        **(resources or {}),
    }
    return Node("this machine", "127.0.0.1", from_fixed(to_fixed(offered)))


def is_initialized() -> bool:
    """Returns whether this process has an engine."""
    return _engine is not None and _owner == os.getpid()


def shutdown() -> None:
    """Ends the engine and every worker of it; a second call does nothing."""
    global _engine
    with _lock:
        if is_initialized() and _engine is not None:
            _engine.close()
        _engine = None
        atexit.unregister(shutdown)


def current_engine() -> Engine:
    """Returns this process's engine, and starts the default one if there is none."""
    with _lock:
        if not is_initialized():
            init()
        assert _engine is not None
        return _engine


def cluster_resources() -> dict[str, float]:
    """Returns all resources there are, summed over the nodes."""
    total: dict[str, float] = {}
    for node in current_engine().nodes():
        for name, quantity in node.resources.items():
            total[name] = total.get(name, 0) + quantity
    return total


def available_resources() -> dict[str, float]:
    """Returns the resources that nobody holds now, summed over the nodes."""
    return current_engine().available()


def nodes() -> list[dict[str, object]]:
    """Returns the machines, each with its id, address and resources."""
    return [
        {
            "NodeID": node.node_id,
            "NodeManagerAddress": node.address,
            "Alive": True,
            "Resources": dict(node.resources),
        }
        for node in current_engine().nodes()
    ]
