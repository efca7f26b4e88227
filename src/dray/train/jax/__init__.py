"""JAX: the trainer, and the hooks that connect its workers as one JAX program."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import math
import mmap
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dray.accelerators import family_named
from dray.checks import require
from dray.compat.arguments import checked_arguments
from dray.compat.attributes import attach_getattr
from dray.errors import ConfigError
from dray.train.backend import Backend, BackendConfig, check_seconds
from dray.train.config import RunConfig
from dray.train.data_config import DataConfig
from dray.train.jax.rendezvous import RendezvousInfo, join_rendezvous, open_rendezvous
from dray.train.planning.ranks import RankAssignment, family_at, shares_devices
from dray.train.run.worker_group import WorkerGroup
from dray.train.scaling import ScalingConfig
from dray.train.trainer import DataParallelTrainer, checked
from dray.train.validation import ValidationConfig
from dray.train.worker.cpu_affinity import asked_threads
from dray.train.worker.current_session import current_session
from dray.train.worker.network_env import choose_interface, hold_port, host_port, tell_slices

__all__ = ["JaxConfig", "JaxTrainer"]

_GPU_PLATFORMS = ("cuda", "rocm")
# JAX's own time limit for the other processes.
_RENDEZVOUS_S = 300.0
# The time limit of collectives on CPUs; jaxlib 0.8.2 has this flag, 0.8.0 does not.
_LIMIT_FLAG = "xla_cpu_collective_timeout_seconds"
# JAX needs one of these packages to use a platform.
_PLUGINS = {
    "cuda": ("jax_cuda13_plugin", "jax_cuda12_plugin"),
    "rocm": ("jax_rocm7_plugin", "jax_rocm60_plugin"),
    "tpu": ("libtpu",),
}
# Seconds between attempts to connect to a coordinator that does not listen yet.
_RETRY_S = 0.005
# Seconds. dray waits longer for the shutdown than JAX, so that JAX's error comes first. JAX waits
# longer for the start than dray, so that dray's error, which names the missing ranks, comes first.
_SLACK_S = 10


class JaxBackend(Backend):
    """The hooks that set each worker's platform, and connect the workers."""

    def collectives(
        self,
        positions: Sequence[RankAssignment],
        backend_config: BackendConfig,
        environ: Mapping[str, str],
    ) -> tuple[str, str]:
        """Return the platform that JAX would run on."""
        assert isinstance(backend_config, JaxConfig)
        family = family_at(positions[0].place)
        platforms = _platforms(None if family is None else family.name, backend_config)
        chosen = environ.get("JAX_PLATFORMS") or platforms or "its default"
        _check_sharing(chosen, sharing=shares_devices(positions))
        return f"JAX on {chosen}", ""

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Prepare JAX on every worker; if there are several, connect them through rank 0."""
        assert isinstance(backend_config, JaxConfig)
        workers = worker_group.workers
        slices = [position.place.slice_name for position in worker_group.positions]
        address = workers[0].address
        sharing = shares_devices(worker_group.positions)
        answers = worker_group.execute(
            _prepare, backend_config, slices, address, sharing, _this_process()
        )
        for rank, trouble in enumerate(answers):
            if trouble and (backend_config.use_gpu or backend_config.use_tpu):
                raise ConfigError(f"rank {rank}: {trouble}")
            if trouble:
                worker_group.warn(f"rank {rank}: {trouble}, so it runs on the CPU")
                break
        if len(workers) > 1:
            rendezvous = worker_group.execute_single(
                0, open_rendezvous, address, backend_config.timeout_s or _RENDEZVOUS_S
            )
            port = worker_group.execute_single(0, _hold_port, address)
            worker_group.execute(_join, backend_config, rendezvous, port)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Disconnect the workers."""
        assert isinstance(backend_config, JaxConfig)
        if len(worker_group) > 1:  # JAX's own limit comes first, and its error says more
            limit_s = backend_config.shutdown_timeout_s + _SLACK_S
            worker_group.execute(_shutdown_distributed, timeout_s=limit_s)


@dataclass
class JaxConfig(BackendConfig):
    """Options of the JAX program that the workers form.

    JAX runs on the GPUs or TPU chips of each worker, or on its CPUs if it has neither. The
    environment variable `JAX_PLATFORMS`, on the driver or in `worker_runtime_env`, overrides this.

    Args:
        use_tpu: Whether JAX runs on TPUs; default: if the workers have some.
        use_gpu: Whether JAX runs on GPUs; default: if the workers have some.
        timeout_s: Time limit in seconds for the connection of the workers, and on CPUs for each
            collective; default: JAX's own limits, 300 for the connection and 1800 for a collective.
        shutdown_timeout_s: Time limit in seconds for the disconnection of the workers.

    Raises:
        ConfigError: A value is malformed, or both `use_tpu` and `use_gpu` are true.

    Example:
        >>> from dray.train.jax import JaxConfig
        >>> JaxConfig(timeout_s=60).timeout_s
        60
    """

    backend_cls = JaxBackend
    framework = "jax"
    modules = (
        *BackendConfig.modules,
        "jax",
        "jax.experimental.multihost_utils",
        "jaxlib.mlir.dialects.mhlo",  # imported by the first jitted function
        "dray.train.jax",
    )

    use_tpu: bool | None = None
    use_gpu: bool | None = None
    timeout_s: float | None = None
    shutdown_timeout_s: float = 60
    modules_of_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "linen": ("flax.linen",),
        "nnx": ("flax.nnx",),
        "optax": ("optax",),
        **dict.fromkeys(("ocp", "orbax", "orbax.checkpoint"), ("orbax.checkpoint",)),
    }

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ConfigError if an option is malformed; options may be set after construction."""
        for name in ("use_tpu", "use_gpu"):
            if not isinstance(getattr(self, name), bool | None):
                raise ConfigError(
                    f"{name} must be True, False, or None (if the workers have some), not "
                    f"{getattr(self, name)!r}"
                )
        if self.timeout_s is not None:
            self.timeout_s = check_seconds(self.timeout_s, "timeout_s")
        self.shutdown_timeout_s = check_seconds(self.shutdown_timeout_s, "shutdown_timeout_s")
        if self.use_tpu and self.use_gpu:
            raise ConfigError("use_tpu=True and use_gpu=True exclude each other; drop one")


@checked_arguments("JaxTrainer")
class JaxTrainer(DataParallelTrainer):
    """A trainer that runs a JAX train function on many workers: the processes of one JAX program.

    In the function, `jax.devices()` lists the devices of all workers, `jax.local_devices()` the
    worker's own, and `jax.process_index()` is its rank. CPU workers are connected in the same way.

    Args:
        train_loop_per_worker: The train function. It takes no argument, or one: the config.
        train_loop_config: Argument of the function, if it takes one.
        jax_config: Settings of JAX.
        scaling_config: Number of workers, and resources of each; default: one with one CPU.
        dataset_config: Options for sharing the datasets among ranks.
        run_config: The run's name, place and behaviour.
        datasets: Name -> a `dray.data.Dataset`, or data to make one of. `get_dataset_shard` gives
            each rank its share.
        validation_config: The function that `report(validation=...)` runs, and its options.

    Raises:
        ConfigError: An argument is malformed.
        MissingDependencyError: jax is not installed.

    Example:
        >>> from dray.train import ScalingConfig, report
        >>> from dray.train.jax import JaxTrainer
        >>> def train_loop():
        ...     import jax
        ...     report({"processes": jax.process_count()})
        >>> trainer = JaxTrainer(train_loop, scaling_config=ScalingConfig(num_workers=2))
        >>> trainer.fit().metrics
        {'processes': 2}
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], object] | Callable[[dict[str, Any]], object],
        *,
        train_loop_config: Mapping[str, object] | None = None,
        jax_config: JaxConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: DataConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        validation_config: ValidationConfig | None = None,
    ) -> None:
        require("jax", "jax>=0.4.36")
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=checked(jax_config, JaxConfig, "jax_config"),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
        )


def _this_process() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _check_sharing(platforms: str, *, sharing: bool) -> None:
    """Raise ConfigError if two workers would use one GPU: JAX has only NCCL (or RCCL) for GPUs."""
    if sharing and not {*_GPU_PLATFORMS, "gpu"}.isdisjoint(platforms.split(",")):
        raise ConfigError(
            "workers share a GPU, but JAX connects them with NCCL, which cannot connect two "
            "ranks on one GPU; give each worker a whole GPU, or have JAX run on CPUs with "
            "JaxConfig(use_gpu=False) or JAX_PLATFORMS=cpu"
        )


# The functions below run in the worker.


def _prepare(
    config: JaxConfig, slices: Sequence[str], address: str, sharing: bool, driver: tuple[str, int]
) -> str:
    """Set the variables that JAX reads, before this worker uses JAX.

    Returns:
        The reason why JAX cannot use the worker's accelerator, or "".

    Raises:
        ConfigError: Two workers would use one GPU.
    """
    if _this_process() == driver:  # on the inline engine, JAX is the user's own
        return ""
    assignment = current_session("JaxTrainer").assignment
    platforms = _platforms(assignment.family, config)
    _check_sharing(os.environ.get("JAX_PLATFORMS") or platforms or "", sharing=sharing)
    trouble = ""
    if platforms is not None and "JAX_PLATFORMS" not in os.environ:
        os.environ["JAX_PLATFORMS"] = platforms
        trouble = _lacks_plugin(platforms.partition(",")[0])
    os.environ.setdefault("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo")
    os.environ.setdefault("NPROC", str(asked_threads(os.environ)))  # XLA's thread count
    if os.environ.get("JAX_PLATFORMS", "").startswith((*_GPU_PLATFORMS, "gpu")):
        choose_interface(assignment.address)
    if assignment.world_size > 1 and config.timeout_s is not None:
        _limit_collectives(config.timeout_s)
    on_tpu = assignment.family == "tpu"
    if on_tpu:
        tell_slices(slices, assignment.rank, address)
    _take_variables(on_tpu=on_tpu)
    return trouble


def _limit_collectives(timeout_s: float) -> None:
    """Set a time limit for collectives on CPUs, if this version of JAX has one.

    The other platforms have no such limit. Their own libraries end the process if `XLA_FLAGS` has a
    flag that they do not know.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    in_a_file = bool(flags) and not flags.startswith("-")
    if in_a_file or _LIMIT_FLAG in flags or os.environ.get("JAX_PLATFORMS") != "cpu":
        return
    if _knows(_LIMIT_FLAG):
        os.environ["XLA_FLAGS"] = f"{flags} --{_LIMIT_FLAG}={math.ceil(timeout_s)}".lstrip()


def _knows(flag: str) -> bool:
    """Return whether jaxlib has a flag; any call that lists the flags would parse `XLA_FLAGS`."""
    import jaxlib

    for library in Path(jaxlib.__file__).parent.glob("libjax_common.*"):
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if content.find(flag.encode()) >= 0:
                return True
    return False


def _lacks_plugin(platform: str) -> str:
    """Return a message if JAX lacks the package for a platform; JAX itself falls back silently."""
    from importlib.metadata import entry_points

    packages = _PLUGINS.get(platform)
    if packages is None:
        return ""
    there = any(importlib.util.find_spec(package) is not None for package in packages)
    if there or any(platform in plugin.name for plugin in entry_points(group="jax_plugins")):
        return ""
    return (
        f"JAX has no support for {platform} here; install it on every node, for example with "
        f"pip install 'jax[{platform}]'"
    )


def _platforms(family: str | None, config: JaxConfig) -> str | None:
    """Return the value of `JAX_PLATFORMS`; None lets JAX decide, which may have a plugin.

    The CPU is always included beside the accelerator, as in JAX's default: it runs callbacks, and
    computations that are too small for the accelerator.
    """
    platform = family_named(family).jax_platform if family else "cpu"
    if config.use_tpu:
        platform = "tpu"
    elif config.use_gpu and platform not in _GPU_PLATFORMS:
        platform = "cuda"
    elif (config.use_tpu is False and platform == "tpu") or (
        config.use_gpu is False and platform in _GPU_PLATFORMS
    ):
        platform = "cpu"
    return platform if platform in ("cpu", None) else f"{platform},cpu"


def _take_variables(*, on_tpu: bool) -> None:
    """Make JAX read the environment again: the fork server has imported it with another one."""
    imported = "jax" in sys.modules
    import jax

    if imported:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # the import of JAX sets it, too
        if on_tpu:  # the import has set libtpu's variables, but only in the fork server
            from jax._src.cloud_tpu_init import cloud_tpu_init

            cloud_tpu_init()
    parsers: dict[object, Callable[[str], object]] = {bool: _to_bool, int: int, float: float}
    for name, (kind, *_) in jax.config.meta.items():
        text = os.environ.get(name.upper())
        if text is not None:
            jax.config.update(name, parsers.get(kind, str)(text))


def _to_bool(text: str) -> bool:
    return text.lower() in ("y", "yes", "t", "true", "on", "1")


_held_port: socket.socket | None = None


def _hold_port(address: str) -> int:
    global _held_port
    _held_port = hold_port(address)
    port: int = _held_port.getsockname()[1]
    return port


def _join(config: JaxConfig, rendezvous: RendezvousInfo, port: int) -> None:
    """Make this worker a process of the JAX program."""
    import jax

    global _held_port
    assignment = current_session("JaxTrainer").assignment
    _keep_collectives_at(assignment.address)
    address, timeout_s = rendezvous.address, rendezvous.timeout_s
    join_rendezvous(rendezvous, assignment.rank, assignment.world_size)
    if assignment.rank > 0:
        _wait_for_coordinator(address, port, timeout_s)
    coordinator = host_port(address, port)
    options = {
        "shutdown_timeout_seconds": math.ceil(config.shutdown_timeout_s),
        # Otherwise JAX selects devices by variables of Slurm and other launchers.
        "cluster_detection_method": "deactivate",
    }
    known = inspect.signature(jax.distributed.initialize).parameters
    with _without_proxies():
        jax.distributed.initialize(
            coordinator,
            assignment.world_size,
            assignment.rank,
            coordinator_bind_address=coordinator,
            # JAX aborts the process without a rank's name, so dray's own limit is shorter.
            initialization_timeout=math.ceil(timeout_s) + _SLACK_S,
            **{name: value for name, value in options.items() if name in known},
        )
    if _held_port is not None:
        _held_port.close()
        _held_port = None


def _wait_for_coordinator(address: str, port: int, timeout_s: float) -> None:
    """Wait until rank 0 listens, because gRPC waits a second after a refused connection.

    Raises:
        TimeoutError: Rank 0 cannot be reached.
    """
    deadline = time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((address, port), left).close()
        except ConnectionRefusedError:
            time.sleep(_RETRY_S)  # there is no event for a port that begins to listen
        except TimeoutError:
            break
        else:
            return
    raise TimeoutError(
        f"rank 0 did not answer at {address}:{port} within {timeout_s:g} s; check that nodes can "
        "connect to each other at any port, or raise JaxConfig(timeout_s=...)"
    )


@contextlib.contextmanager
def _without_proxies() -> Iterator[None]:
    """Hide proxy variables from gRPC, which would connect to the other workers through a proxy."""
    hidden = {k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def _keep_collectives_at(address: str) -> None:
    """Make collectives on CPUs listen at this node's address.

    By default JAX listens at the address that the host's name resolves to, if any, and it has no
    option for another one.
    """
    from jax._src import distributed, xla_bridge
    from jax._src.lib import xla_client
    from jax.extend import backend

    make_client = getattr(xla_bridge, "make_cpu_client", None)
    make_gloo = getattr(getattr(xla_client, "_xla", None), "make_gloo_tcp_collectives", None)
    if make_client is None or make_gloo is None:  # JAX has moved these internal functions
        return

    def make() -> object:
        program = distributed.global_state.client
        chosen = os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"]
        gloo = make_gloo(program, hostname=address) if program and chosen == "gloo" else None
        return make_client(gloo)

    backend.register_backend_factory("cpu", make, priority=0, fail_quietly=False)


def _shutdown_distributed() -> None:
    """Disconnect this worker from the JAX program, if the train function has not done so."""
    import jax

    jax.distributed.shutdown()


attach_getattr(__name__)
