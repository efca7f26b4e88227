"""PyTorch: the trainer, its process group, and what a train function needs for many workers."""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import random
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dray import host
from dray.errors import ConfigError, MissingDependencyError
from dray.train.backend import Backend, BackendConfig
from dray.train.config import RunConfig, ScalingConfig
from dray.train.context import TrainContext, current_seat
from dray.train.trainer import DataParallelTrainer
from dray.train.worker_group import WorkerGroup

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, Sampler

__all__ = [
    "TorchConfig",
    "TorchTrainer",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
]


@dataclass(kw_only=True)
class TorchConfig(BackendConfig):
    """How workers form their `torch.distributed` process group.

    Args:
        backend: "gloo", "nccl" or another that torch knows; default: nccl with GPUs, else gloo.
        init_method: "env" or "tcp"; both meet at a store that rank 0 opens on a free port.
        timeout_s: How long a collective may take, in seconds.

    Raises:
        ConfigError: `init_method` or `timeout_s` is malformed.
    """

    backend: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800

    def __post_init__(self) -> None:
        if self.init_method not in ("env", "tcp"):
            raise ConfigError(f"init_method must be 'env' or 'tcp', not {self.init_method!r}")
        if isinstance(self.timeout_s, bool) or not self.timeout_s > 0:
            raise ConfigError(f"timeout_s must be more than 0 seconds, not {self.timeout_s!r}")
        self.modules = (
            *BackendConfig.modules,
            "torch",
            "torch.distributed",
            "torch.nn.parallel",
            "torch.utils.data",
            __name__,
        )

    @property
    def backend_cls(self) -> type[Backend]:
        """The hooks that form the process group."""
        return TorchBackend


class TorchBackend(Backend):
    """Forms the process group before the train function, and takes it down after."""

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Opens a store on rank 0, then has every rank join at it."""
        assert isinstance(backend_config, TorchConfig)
        address = worker_group.workers[0].address
        timeout = timedelta(seconds=backend_config.timeout_s)
        port = worker_group.execute_single(0, _open_store, address, timeout)
        worker_group.execute(_join_process_group, address, port, backend_config.backend, timeout)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Takes the process group down on every rank."""
        worker_group.execute(_leave_process_group)


class TorchTrainer(DataParallelTrainer):
    """Runs a PyTorch train function on many workers that share a process group.

    Args:
        train_loop_per_worker: The function; it takes no argument, or one: the config.
        train_loop_config: What the function gets, if it takes an argument.
        torch_config: How to form the process group.
        scaling_config: How many workers, with what; default: one, with one CPU.
        run_config: The run's name, place and behaviour.

    Raises:
        ConfigError: An argument is malformed.
        MissingDependencyError: torch is not installed.

    Example:
        >>> trainer = TorchTrainer(train_loop, scaling_config=ScalingConfig(num_workers=2))
        >>> result = trainer.fit()
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        if importlib.util.find_spec("torch") is None:
            raise MissingDependencyError("torch", "torch")
        if torch_config is not None and not isinstance(torch_config, TorchConfig):
            raise ConfigError(f"torch_config must be a TorchConfig, not {torch_config!r}")
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=torch_config or TorchConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
        )


# The process group, in the worker.

_store: torch.distributed.TCPStore | None = None


def _open_store(address: str, timeout: timedelta) -> int:
    """Opens the store that ranks meet at, and returns its port.

    The listening socket is made here and handed over, so that no port is picked and then lost to
    somebody else, and so that it listens on this address alone.
    """
    from torch.distributed import TCPStore

    global _store
    _leave_process_group()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(1024)
        port: int = listener.getsockname()[1]
        fd = listener.detach()
    _store = TCPStore(
        address, port, None, True, timeout, wait_for_workers=False, master_listen_fd=fd
    )
    return port


def _join_process_group(address: str, port: int, backend: str | None, timeout: timedelta) -> None:
    """Makes this rank a member of the process group."""
    from torch import distributed

    global _store
    if distributed.is_initialized():  # with the inline engine, the user's own
        return
    assignment = current_seat("init_process_group").assignment
    _set_threads(assignment.local_world_size)
    os.environ.update(
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
        # What calls init_process_group("env://") later on meets at the same store.
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    _choose_interface(assignment.address)
    if _store is None:
        _store = distributed.TCPStore(address, port, None, False, timeout)
    if assignment.gpus:
        import torch

        torch.cuda.set_device(get_device())
    distributed.init_process_group(
        backend or ("nccl" if assignment.gpus else "gloo"),
        store=distributed.PrefixStore("dray", _store),
        rank=assignment.rank,
        world_size=assignment.world_size,
        timeout=timeout,
    )


def _choose_interface(address: str) -> None:
    """Has collectives use the interface of this node's address, unless the user has chosen one."""
    interface = host.interface_of(address)
    if interface is None and address == "127.0.0.1":
        interface = next((n for _, n in socket.if_nameindex() if n in ("lo", "lo0")), None)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if address != "127.0.0.1":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def _leave_process_group() -> None:
    """Takes down the process group that `_join_process_group` made, if it did."""
    global _store
    if _store is None:
        return
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()
    _store = None


def _set_threads(local_world_size: int) -> None:
    """Shares the node's cores among its workers, unless the user has said otherwise."""
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if not threads.isdigit():
        threads = str(max(1, host.cpu_count() // local_world_size))
        os.environ["OMP_NUM_THREADS"] = threads
    torch.set_num_threads(int(threads))


# In the train function.


def get_devices() -> list[torch.device]:
    """Returns the devices of this worker, CPU if it has no accelerator.

    Raises:
        NotInTrainingError: Called outside a train function.
    """
    import torch

    assignment = current_seat("get_devices").assignment
    if not assignment.gpus:
        return [torch.device("cpu")]
    # A worker that was given devices by an engine that knows them sees no others.
    first = 0 if assignment.own_devices else int(assignment.local_rank * assignment.gpus)
    return [torch.device("cuda", first + i) for i in range(math.ceil(assignment.gpus))]


def get_device() -> torch.device:
    """Returns the device of this worker, the first if it has several.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> def train_loop():
        ...     model = Net().to(dray.train.torch.get_device())
    """
    current_seat("get_device")
    return get_devices()[0]


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Moves a model to this worker's device, and wraps it so that ranks train one model.

    Args:
        model: The model.
        move_to_device: Whether to move it; or the device to move it to.
        parallel_strategy: "ddp" (DistributedDataParallel), "fsdp" (FullyShardedDataParallel, on
            GPUs), or None. With one worker the model is not wrapped.
        parallel_strategy_kwargs: Arguments for the wrapper.

    Returns:
        The model, wrapped or not; the original is `.module` of a wrapped one.

    Raises:
        ConfigError: The strategy does not exist, or does not work here.
        NotInTrainingError: Called outside a train function.
    """
    import torch

    world_size = current_seat("prepare_model").assignment.world_size
    if parallel_strategy not in ("ddp", "fsdp", None):
        raise ConfigError(
            f"parallel_strategy must be 'ddp', 'fsdp' or None, not {parallel_strategy!r}"
        )
    device = move_to_device if isinstance(move_to_device, torch.device) else get_device()
    if parallel_strategy == "fsdp" and device.type == "cpu":
        raise ConfigError("parallel_strategy='fsdp' needs GPUs: ScalingConfig(use_gpu=True)")
    if move_to_device:
        model = model.to(device)
    if world_size == 1 or parallel_strategy is None:
        return model
    options = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, **options)
    if device.type != "cpu" and move_to_device:
        options = {"device_ids": [device], "output_device": device, **options}
    return torch.nn.parallel.DistributedDataParallel(model, **options)


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> DataLoader[Any]:
    """Gives each rank its share of a data loader, on its device.

    Everything the loader was made with is kept: batch_sampler, num_workers, persistent_workers,
    prefetch_factor, generator, collate_fn and the rest. With more than one worker, a loader that
    shuffles or runs in order gets a `DistributedSampler`; a sampler or batch sampler of your own is
    kept, and ranks take turns in what it yields; a `DistributedSampler` and an `IterableDataset`
    are left as they are. Call `loader.sampler.set_epoch(epoch)` so that epochs are shuffled
    differently.

    Args:
        data_loader: The loader, as for one process.
        add_dist_sampler: Whether to share the data among ranks.
        move_to_device: Whether to move batches to this worker's device.
        auto_transfer: Whether to begin moving the next batch while this one is used.

    Returns:
        The loader to iterate over.

    Raises:
        NotInTrainingError: Called outside a train function.
    """
    context = TrainContext(current_seat("prepare_data_loader").assignment)
    if add_dist_sampler and context.get_world_size() > 1:
        data_loader = _shared(data_loader, context)
    device = get_device()
    if not move_to_device or device.type == "cpu":
        return data_loader
    wrapped: Any = DeviceDataLoader(data_loader, device, auto_transfer)
    return wrapped


def _shared(loader: DataLoader[Any], context: TrainContext) -> DataLoader[Any]:
    """Returns a copy of a loader that yields this rank's share."""
    from torch.utils.data import IterableDataset
    from torch.utils.data.distributed import DistributedSampler

    rank, world_size = context.get_world_rank(), context.get_world_size()
    if isinstance(loader.dataset, IterableDataset) or isinstance(
        loader.sampler, DistributedSampler
    ):
        return loader
    # A copy has all that the loader was made with; the loader's own __setattr__ forbids these.
    shared = copy.copy(loader)
    if loader.batch_sampler is not None and loader.batch_size is None:
        turns = _turns(loader.batch_sampler, rank, world_size)
        vars(shared).update(batch_sampler=turns, sampler=turns)
        return shared
    sampler = _sampler(loader, rank, world_size)
    vars(shared)["sampler"] = sampler
    if loader.batch_sampler is not None:
        batches: Any = type(loader.batch_sampler)
        vars(shared)["batch_sampler"] = batches(sampler, loader.batch_size, loader.drop_last)
    return shared


def _sampler(loader: DataLoader[Any], rank: int, world_size: int) -> Any:
    from torch.utils.data import RandomSampler, SequentialSampler
    from torch.utils.data.distributed import DistributedSampler

    sampler = loader.sampler
    shuffles = type(sampler) is RandomSampler and not sampler.replacement
    if shuffles and sampler.num_samples == len(loader.dataset):
        # The user's generator decides the order, and ranks must agree on it.
        seed = sampler.generator.initial_seed() if sampler.generator is not None else 0
        return DistributedSampler(loader.dataset, world_size, rank, shuffle=True, seed=seed)
    if type(sampler) is SequentialSampler:
        return DistributedSampler(loader.dataset, world_size, rank, shuffle=False)
    return _turns(sampler, rank, world_size)


def _turns(sampler: Sampler[Any] | Any, rank: int, world_size: int) -> Any:
    """Returns a sampler by which ranks take turns in what another one yields.

    All ranks see the same order: torch's random state is the same for all of them while the inner
    sampler draws. The last round is filled up from the beginning, so that no rank waits for a batch
    that another one does not have.
    """
    import torch
    from torch.utils.data import Sampler

    class Turns(Sampler):  # type: ignore[misc]
        def __init__(self) -> None:
            self.sampler = sampler
            self.epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch
            inner = getattr(sampler, "set_epoch", None)
            if inner is not None:
                inner(epoch)

        def __iter__(self) -> Iterator[Any]:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.epoch)
                items = list(sampler)
            missing = -len(items) % world_size
            items += (items * math.ceil(missing / len(items)))[:missing] if items else []
            return iter(items[rank::world_size])

        def __len__(self) -> int:
            return math.ceil(len(sampler) / world_size)

    return Turns()


class DeviceDataLoader:
    """A data loader whose batches are on a device; all else is the loader's own.

    Args:
        loader: The loader.
        device: Where batches go.
        ahead: Whether to begin moving the next batch before this one is handed out.
    """

    def __init__(self, loader: DataLoader[Any], device: torch.device, ahead: bool) -> None:
        self._loader = loader
        self._device = device
        self._ahead = ahead

    def __iter__(self) -> Iterator[Any]:
        """Yields batches on the device."""
        batches = iter(self._loader)
        if not self._ahead:
            for batch in batches:
                yield _move(batch, self._device)
            return
        nothing = object()
        current = next(batches, nothing)
        current = current if current is nothing else _move(current, self._device)
        while current is not nothing:
            following = next(batches, nothing)
            if following is not nothing:
                following = _move(following, self._device)
            yield current
            current = following

    def __len__(self) -> int:
        """Returns the number of batches."""
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        """Returns the loader's own attribute."""
        return getattr(self._loader, name)


def _move(batch: Any, device: torch.device) -> Any:
    """Moves every tensor in a batch; containers keep their types."""
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        moved = {key: _move(value, device) for key, value in batch.items()}
        return moved if type(batch) is dict else type(batch)(moved)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_move(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_move(value, device) for value in batch)
    if hasattr(batch, "to"):
        return batch.to(device)
    return batch


def enable_reproducibility(seed: int = 0) -> None:
    """Makes a train function give the same numbers again, at some cost in speed.

    Seeds torch, numpy and Python, has torch use deterministic algorithms only, and fixes what CUDA
    would choose by timing.

    Args:
        seed: The same on every rank.
    """
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
