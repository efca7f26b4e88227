"""The session: which engine this process uses, from `init` or first use to `shutdown`."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dray.errors import ConfigError

if TYPE_CHECKING:
    from dray.engines.contract import Engine

_lock = threading.RLock()
_engine: Engine | None = None
_owner = 0  # the process that started the engine: a fork of it has none


def init(
    *,
    engine: str | None = None,
    address: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    ignore_reinit_error: bool = False,
) -> None:
    """Starts an engine for this process. Optional: the first use starts the default one.

    Args:
        engine: "process" (workers are processes of this machine, the default), "ray" (workers are
            actors of a Ray cluster, the default within a Ray job), or "inline" (the function runs
            in this process, for debugging). `DRAY_ENGINE` sets the default.
        address: With the Ray engine, the cluster: "auto" (the one that `RAY_ADDRESS` names or that
            runs on this machine, the default), "host:port", or "local" (one of its own, on this
            machine, that ends with this process).
        num_cpus: CPUs to offer, more or fewer than the machine has; logical, not enforced.
        num_gpus: GPUs to offer.
        resources: Further resources to offer, name to quantity; "memory" is in bytes.
        labels: Labels of this machine, which label selectors choose by.
        namespace: With the Ray engine, the namespace of this program.
        runtime_env: What workers find around themselves: `env_vars` and `working_dir`; on the Ray
            engine also `pip`, `py_modules` and what else Ray knows.
        ignore_reinit_error: Keep the engine that runs, if one does, instead of raising.

    Raises:
        ConfigError: An engine runs already, or an argument is malformed.
        MissingDependencyError: The engine needs a package that is not installed.
        ClusterUnreachableError: There is no cluster at the address, or it does not fit.

    Example:
        >>> import dray
        >>> dray.init(num_cpus=8)
        >>> dray.cluster_resources()["CPU"]
        8
        >>> dray.shutdown()
    """
    from dray import engines
    from dray.engines.contract import Options
    from dray.engines.runtime_env import RuntimeEnv
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
        options = Options(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources or {},
            labels=labels or {},
            address=address,
            namespace=namespace,
            runtime_env=RuntimeEnv.parse(runtime_env, "runtime_env"),
        )
        _engine = engines.load(engine or settings.engine, options, settings)
        _owner = os.getpid()
        atexit.register(shutdown)


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
    """Returns the machines, each with its id, address, resources and labels."""
    return [
        {
            "NodeID": node.node_id,
            "NodeManagerAddress": node.address,
            "Alive": True,
            "Resources": dict(node.resources),
            "Labels": dict(node.labels),
        }
        for node in current_engine().nodes()
    ]
