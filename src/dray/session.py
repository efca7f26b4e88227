"""The session of this process: its engine, from `init` or its first use to `shutdown`."""

from __future__ import annotations

import atexit
import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dray.checks import check_namespace, is_number
from dray.compat.init_arguments import chosen_of_a_cluster, say_without_meaning, set_log_level
from dray.compat.init_context import Context
from dray.errors import AlreadyInitializedError, ConfigError, EngineError
from dray.errors.base import of_end

if TYPE_CHECKING:
    from dray.engines.base import Engine, Options
    from dray.engines.runtime import Runtime
    from dray.engines.runtime_env import RuntimeEnv

_lock = threading.RLock()
_engine: Engine | None = None
_options: Options | None = None  # the options of that engine; None in a worker
_runtime: Runtime | None = None  # a worker's; a driver's is in its engine
_join: Callable[[], Runtime] | None = None  # a worker's: connects it with its session
_ahead = False  # the engine was started by `prepare`, and nothing has used it yet
_over = False  # the program is ending, and its engine has ended
_owner = 0  # the process that these belong to; they are not valid in a fork of it


def init(
    address: str | None = None,
    *,
    engine: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str | None = None,
    runtime_env: Mapping[str, object] | None = None,
    nodes: Sequence[Mapping[str, object]] | None = None,
    object_store_memory: int | None = None,
    ignore_reinit_error: bool = False,
    local_mode: bool = False,
    log_to_driver: bool | None = None,
    logging_level: int | str | None = None,
    logging_format: str | None = None,
    configure_logging: bool = True,
    wait_for_nodes_s: float | None = None,
    **of_a_cluster: Any,
) -> Context:
    """Start an engine for this process. This is optional: the first use starts the default engine.

    Args:
        address: The cluster: "auto" (the cluster that `RAY_ADDRESS` names or that runs on this
            machine) or "host:port" selects the Ray engine. If `engine` or `DRAY_ENGINE` names
            another engine, "auto" is this machine. "local" is this machine; on the Ray engine, it
            is a new cluster that ends with this process. Without an address, the Ray engine uses
            the running cluster, or starts its own.
        engine: "process" (workers are processes of this machine, the default), "ray" (workers are
            actors of a Ray cluster, the default within a Ray job and with an address), or "inline"
            (the function runs in this process, for debugging). `DRAY_ENGINE` sets the default.
        num_cpus: CPUs to offer. The number is logical: it may differ from the machine's, and it is
            not enforced.
        num_gpus: GPUs to offer.
        resources: Further resources to offer, name -> quantity; "memory" is in bytes.
        labels: Labels of this machine, for label selectors.
        namespace: The namespace of this program; Ray engine only.
        runtime_env: The environment of workers: `env_vars` and `working_dir`; also `pip`, `uv` and
            `py_modules`, which the Ray engine installs, and the other engines look for. The Ray
            engine takes Ray's other fields as well.
        nodes: Simulated nodes instead of this machine; process engine only. Each node is a dict
            with `num_cpus`, `num_gpus`, `accelerator_type`, `resources`, `labels` and `node_id`,
            all optional.
        object_store_memory: Bytes of memory for stored objects; further objects go to the disk.
            Default: 30 % of this machine's memory.
        ignore_reinit_error: If an engine runs already, keep it instead of raising.
        local_mode: Run everything in this process: the same as `engine="inline"`.
        log_to_driver: If False, do not show the workers' output here; it is in a run's log files.
        logging_level: Level of dray's own logging; None leaves it as it is.
        logging_format: No effect: dray logs through `logging`, whose handlers you set.
        configure_logging: If False, `logging_level` has no effect.
        wait_for_nodes_s: Seconds for which a request that no node can hold waits for new nodes; Ray
            engine only. By default (or as `DRAY_WAIT_FOR_NODES_S` says) such a request is refused
            at once, and on one machine always. If the cluster has an autoscaler, the request waits
            anyway. Requests of code that runs in the cluster wait equally long.
        **of_a_cluster: Arguments for a Ray cluster that this call starts, such as
            `include_dashboard`. On other engines they have no effect, which is logged at debug
            level.

    Returns:
        The session, which can be used in a `with` statement.

    Raises:
        AlreadyInitializedError: An engine runs already.
        ConfigError: An argument is malformed or unknown.
        MissingDependencyError: The engine needs a package that is not installed.
        ClusterUnreachableError: There is no cluster at the address, or the cluster does not fit
            this program.

    Example:
        >>> import dray
        >>> context = dray.init(num_cpus=8)
        >>> dray.cluster_resources()["CPU"]
        8
        >>> dray.shutdown()
    """
    from dray.engines.base import Options
    from dray.engines.local import check_machine, store_bytes
    from dray.engines.runtime_env import RuntimeEnv

    check_namespace(namespace)
    further = dict(of_a_cluster)
    memory = further.pop("_memory", None)
    of_ray = chosen_of_a_cluster(further, _INIT)
    with _lock:
        if is_initialized():
            if ignore_reinit_error:
                return Context(_begun_runtime, shutdown)
            hint = "call dray.shutdown() first"
            if _options is None:
                hint = (
                    "it is a worker, which joined its session as it started. If a module calls "
                    "dray.init() as it is imported, move the call into a function of the program"
                )
            raise AlreadyInitializedError(
                f"dray is initialised already in this process; {hint}, or pass "
                "ignore_reinit_error=True"
            )
        engine, address = _engine_at(address, engine, local_mode)
        if memory is not None:
            resources = {"memory": memory, **(resources or {})}
        check_machine(
            nodes, num_cpus=num_cpus, num_gpus=num_gpus, resources=resources, labels=labels
        )
        options = Options(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources or {},
            labels=labels or {},
            address=address,
            namespace=namespace,
            runtime_env=RuntimeEnv.parse(runtime_env, "runtime_env"),
            nodes=nodes or (),
            object_store_memory=store_bytes(object_store_memory),
            wait_for_nodes_s=_patience(wait_for_nodes_s),
            log_to_driver=log_to_driver is not False,
            of_a_cluster=of_ray,
        )
        if configure_logging:
            set_log_level(logging_level)
        without_meaning = [] if engine == "ray" else [*of_ray]
        if logging_format:
            without_meaning.append("logging_format")
        say_without_meaning(without_meaning, engine)
        shutdown()  # the engine that a trainer has started ahead
        _start(engine, options)
        return Context(_begun_runtime, shutdown)


_INIT = tuple(name for name in inspect.signature(init).parameters if name != "of_a_cluster")


def _patience(seconds: float | None) -> float:
    from dray.settings import Settings

    if seconds is None:
        return Settings().wait_for_nodes_s
    if not is_number(seconds) or not seconds >= 0:
        raise ConfigError(
            f"wait_for_nodes_s must be a number of seconds, 0 or more, not {seconds!r}"
        )
    return seconds


def _engine_at(address: str | None, engine: str | None, local_mode: bool) -> tuple[str, str | None]:
    """Return the engine that the arguments of `init` select, and its address."""
    from dray.settings import Settings

    if address is not None and not isinstance(address, str):
        raise ConfigError(f"address must be a string, not {address!r}")
    if (address or "").startswith("ray://"):
        raise ConfigError(
            f"address={address!r}: Ray Client is not supported, because workers could not reach "
            "this process; run the program on a node of the cluster, best with `ray job submit`"
        )
    if local_mode:
        if engine not in (None, "inline"):
            raise ConfigError(f"local_mode=True is the inline engine; engine={engine!r} is another")
        engine = "inline"
    if engine is None:
        of_cluster = address not in (None, "local") and "DRAY_ENGINE" not in os.environ
        engine = "ray" if of_cluster else Settings().engine
    # For an engine of this machine, "auto" and "local" are this machine.
    return engine, None if address in ("local", "auto") and engine != "ray" else address


def _start(name: str | None, options: Options) -> Engine:
    from dray import engines
    from dray.settings import Settings, is_rays_worker

    global _engine, _options, _owner
    _refuse_at_end()
    if _owner and (_join is not None or is_rays_worker()):
        refuse_forks(_owner)
    settings = Settings()
    name = name or settings.engine
    if options.nodes and name == "inline":
        raise ConfigError("nodes=...: the inline engine is this process, and simulates no nodes")
    _engine = engines.load(name, options, settings)
    _options, _owner = options, os.getpid()
    _end_at_exit()
    return _engine


def _end_at_exit() -> None:
    atexit.unregister(_end)
    atexit.register(_end)  # so that it runs before all functions registered earlier


def _end() -> None:
    """End the engine for good: threads and exit functions that still run cannot start another."""
    global _over
    with _lock:
        _over = True
        shutdown()


def has_ended() -> bool:
    """Return whether the program is ending, and its engine with all actors has ended."""
    return _over


def _refuse_at_end() -> None:
    if _over:
        why = "this program is ending: dray has shut down already, and cannot start again"
        raise of_end(EngineError(why))


def refuse_forks(pid: int) -> None:
    """Raise EngineError in a fork of a worker, because only the worker itself is connected."""
    if os.getpid() != pid:
        raise EngineError(
            f"this process ({os.getpid()}) is a fork of worker process {pid} and cannot use "
            "dray: call dray in the worker itself, and pass the values to the fork"
        )


def _renew_lock() -> None:
    """Replace the lock in a fork, because another thread of the parent may have held it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _is_owner() -> bool:
    return _owner == os.getpid()


def is_initialized() -> bool:
    """Return whether this process is a driver that has an engine, or a worker of one.

    Building a trainer initialises nothing, as long as it has not run.

    Example:
        >>> import dray
        >>> context = dray.init()
        >>> dray.is_initialized()
        True
        >>> dray.shutdown()
    """
    if _over:
        return False
    from dray.settings import is_rays_worker

    begun = (_engine or _join) is not None and not _ahead
    return is_rays_worker() or (_is_owner() and begun)


def shutdown(*, wait_for_processes: bool = False, _exiting_interpreter: bool = False) -> None:
    """End the engine and every worker of it; a second call does nothing.

    A `fit()` that runs or waits in another thread ends with a `ControllerError`.

    Args:
        wait_for_processes: No effect: this function always waits until the workers have ended.
        _exiting_interpreter: No effect.

    Example:
        >>> import dray
        >>> context = dray.init()
        >>> dray.shutdown()
        >>> dray.is_initialized()
        False
    """
    global _engine, _options, _ahead
    with _lock:
        engine = _engine if _is_owner() else None
        try:
            if engine is not None:
                engine.close()
        finally:  # also after Ctrl-C; but not if the engine refuses to end
            if engine is None or engine.closed:
                _engine, _options, _ahead = None, None, False


def current_engine() -> Engine:
    """Return this process's engine; if there is none, start the default one."""
    global _engine, _ahead
    if _engine is not None and not (_ahead or _engine.lost) and _is_owner():  # the usual case
        return _engine
    _refuse_at_end()  # before the imports, which fail at Python's end
    from dray import engines
    from dray.engines.base import Options

    with _lock:
        _ahead = False
        if _is_owner() and _engine is not None:
            return _start_again(_engine) if _engine.lost else _engine
        if not _is_owner() or _join is None:
            return _start(None, Options(wait_for_nodes_s=_patience(None)))
        _engine = engines.load_nested(current_runtime())
        _end_at_exit()
        return _engine


def _start_again(lost: Engine) -> Engine:
    """Close a lost engine, and start one like it; if that fails, the next use tries again."""
    assert _options is not None
    lost.close()
    return _start(lost.name, _options)


def prepare(modules: Sequence[str], runtime_env: RuntimeEnv) -> None:
    """Start an engine that imports the workers' modules; a later `init` may still replace it."""
    global _ahead
    with _lock:
        ahead = not is_initialized()
        engine = current_engine()
        _ahead = ahead
        engine.prepare(modules, runtime_env)


def local_options() -> Options:
    """Return the options of `init` that are valid for an engine of this process alone."""
    from dray.engines.base import Options

    with _lock:
        if not _is_owner() or _options is None:
            return Options()
        return replace(_options, address=None, runtime_env=_options.runtime_env.here())


def current_runtime() -> Runtime:
    """Return the runtime that runs tasks and actors of this process: a worker's or an engine's."""
    global _runtime
    if _is_owner():
        if _runtime is None and _join is not None:
            with _lock:
                _runtime = _runtime or _join()
        if _runtime is not None:
            return _runtime
        if _engine is not None and not (_ahead or _engine.lost):  # the usual case
            return _engine.runtime
    return current_engine().runtime


def _begun_runtime() -> Runtime:
    """Return the current runtime, but start no engine."""
    if not is_initialized():
        raise EngineError("the session has ended: read its context before that")
    return current_runtime()


def enter_worker(join: Callable[[], Runtime]) -> None:
    """Make this process a worker of the session that has started it.

    Args:
        join: Function that returns this process's runtime; it is called once, at first use.
    """
    global _engine, _options, _runtime, _join, _ahead, _over, _owner
    _engine, _options, _runtime, _join, _ahead = None, None, None, join, False
    _over = False
    _owner = os.getpid()


def cluster_resources() -> dict[str, float]:
    """Return the resources of all nodes, summed.

    Example:
        >>> import dray
        >>> dray.cluster_resources()["CPU"] > 0
        True
    """
    return current_runtime().cluster_resources()


def available_resources() -> dict[str, float]:
    """Return the free resources of all nodes, summed; like Ray, without resources that are zero.

    Example:
        >>> import dray
        >>> dray.available_resources().get("CPU", 0) <= dray.cluster_resources()["CPU"]
        True
    """
    free = current_runtime().available_resources()
    return {name: quantity for name, quantity in free.items() if quantity}


def nodes() -> list[dict[str, Any]]:
    """Return the nodes, each with its id, address, resources and labels.

    Example:
        >>> import dray
        >>> [node["Alive"] for node in dray.nodes()]
        [True]
    """
    return current_runtime().nodes()
