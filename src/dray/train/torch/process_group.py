"""The process group of a PyTorch run: which backend, where its ranks meet, how it ends."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from dray.accelerators import Family, family_named
from dray.accelerators.vendors.nvidia import is_slice
from dray.errors import ConfigError
from dray.settings import Settings
from dray.train.backend import Backend, BackendConfig, check_seconds
from dray.train.planning.ranks import RankAssignment, family_at, shares_devices
from dray.train.run.worker_group import WorkerGroup
from dray.train.torch.devices import devices_of, unusable
from dray.train.worker.network_env import choose_interface, tell_slices
from dray.train.worker.session import current_session

if TYPE_CHECKING:
    import torch


# Imports of making an optimizer, or a model of many ranks: 800 modules, a second.
_OF_THE_FIRST_STEP = ("torch._dynamo",)
# Names of `lightning.pytorch`, or of `pytorch_lightning`, and of dray for it.
_OF_LIGHTNING = (
    *("lightning", "LightningModule", "RayDDPStrategy", "RayFSDPStrategy", "RayDeepSpeedStrategy"),
    *("DrayDDPStrategy", "DrayFSDPStrategy", "DrayDeepSpeedStrategy"),
    *("RayLightningEnvironment", "DrayLightningEnvironment"),
)
_OF_TRANSFORMERS = ("transformers", "TrainingArguments", "Seq2SeqTrainingArguments")
# A device can be a member of one communicator once only.
_ONE_RANK_A_DEVICE = ("nccl", "xccl", "hccl")
# Devices whose tensors gloo carries: torch.distributed.Backend.backend_capability["gloo"].
_OF_GLOO = ("cpu", "cuda")


@dataclass
class TorchConfig(BackendConfig):
    """Options of the workers' `torch.distributed` process group.

    Args:
        backend: "gloo", "nccl" or another that torch knows. Default: the one of the workers'
            accelerators (nccl, xccl, hccl or xla), gloo without any, and gloo where workers share
            a GPU that is `cuda` to PyTorch.
        init_method: "env" or "tcp"; both meet at a store that rank 0 opens on a free port.
        timeout_s: Seconds for a collective.

    Raises:
        ConfigError: `init_method` or `timeout_s` is malformed.

    Example:
        >>> from dray.train.torch import TorchConfig, TorchTrainer
        >>> trainer = TorchTrainer(print, torch_config=TorchConfig(backend="gloo", timeout_s=120))
        >>> trainer.plan().backend
        'gloo'
    """

    backend: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800
    modules_of_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(
            (
                *("optim", "SGD", "Adam", "AdamW", "prepare_model", "compile"),
                *("DistributedDataParallel", "DDP", "FullyShardedDataParallel", "fully_shard"),
            ),
            _OF_THE_FIRST_STEP,
        ),
        **dict.fromkeys(_OF_LIGHTNING, (*_OF_THE_FIRST_STEP, "lightning.pytorch")),
        "pytorch_lightning": (*_OF_THE_FIRST_STEP, "pytorch_lightning"),
        "Accelerator": (*_OF_THE_FIRST_STEP, "accelerate"),
        **dict.fromkeys(_OF_TRANSFORMERS, (*_OF_THE_FIRST_STEP, "transformers.trainer")),
    }

    def __post_init__(self) -> None:
        if self.init_method not in ("env", "tcp"):
            raise ConfigError(f"init_method must be 'env' or 'tcp', not {self.init_method!r}")
        self.timeout_s = check_seconds(self.timeout_s, "timeout_s")
        if self.backend is not None:
            if not isinstance(self.backend, str) or not self.backend:
                raise ConfigError(f"backend must be a name such as 'gloo', not {self.backend!r}")
            self.backend = self.backend.lower()  # as PyTorch itself takes it
        self.modules = (
            *BackendConfig.modules,
            "torch",
            "torch.distributed",
            "torch.nn.parallel",
            "torch.utils.data",
            "dray.train.torch",
        )

    def modules_for(self, function: Callable[..., Any]) -> tuple[str, ...]:
        """Return what to import before workers start; of Lightning the package in use alone."""
        modules = super().modules_for(function)
        other = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
        if "lightning.pytorch" not in modules or not (other or "pytorch_lightning" in modules):
            return modules
        rest = (module for module in modules if module != "lightning.pytorch")
        return tuple(dict.fromkeys((*rest, "pytorch_lightning")))

    @property
    def backend_cls(self) -> type[Backend]:
        """The hooks that form the process group."""
        return TorchBackend

    @property
    def framework(self) -> str:
        """PyTorch."""
        return "torch"


class TorchBackend(Backend):
    """Forms the process group before the train function, and takes it down after."""

    share_cuda_visible_devices = True

    def collectives(
        self,
        positions: Sequence[RankAssignment],
        backend_config: BackendConfig,
        environ: Mapping[str, str],
    ) -> tuple[str, str]:
        """Return the collective backend of a run, and what the user should know of it."""
        assert isinstance(backend_config, TorchConfig)
        return choose_backend(positions, backend_config.backend)

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Open a store on rank 0, then have every rank join at it."""
        assert isinstance(backend_config, TorchConfig)
        backend = _choose_backend(worker_group, backend_config.backend)
        worker_group.collectives = backend
        address = worker_group.workers[0].address
        timeout = timedelta(seconds=backend_config.timeout_s)
        port = worker_group.execute_single(0, _open_store, address, timeout)
        worker_group.execute(_join_process_group, address, port, backend, timeout)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Take the process group down on every rank."""
        # A communicator that is stuck never lets go.
        worker_group.execute(_leave_process_group, timeout_s=Settings().parting_s)


def _choose_backend(worker_group: WorkerGroup, asked: str | None) -> str:
    """Return the backend that fits what the workers have."""
    backend, why = choose_backend(worker_group.positions, asked)
    trouble = ""
    if family_of_all(worker_group.positions) is not None:
        slices = [position.place.slice_name for position in worker_group.positions]
        address = worker_group.workers[0].address
        found = enumerate(worker_group.execute(_prepare_device, slices, address))
        trouble = next((f"rank {rank}: {said}" for rank, said in found if said), "")
    if trouble and asked is None:
        backend, trouble = "gloo", f"{trouble}; collectives use gloo"
    for warning in filter(None, (why, trouble)):
        worker_group.warn(warning)
    return backend


def family_of_all(positions: Sequence[RankAssignment]) -> Family | None:
    """Return the family of the workers' accelerators; None if they have none.

    Raises:
        ConfigError: Workers have different ones.
    """
    found = {position.rank: family_at(position.place) for position in positions}
    different = {None if family is None else family.name: family for family in found.values()}
    if len(different) > 1:
        which = ", ".join(
            f"rank {rank} has {'none' if family is None else f'{family.title}s'}"
            for rank, family in found.items()
        )
        raise ConfigError(
            f"workers have different accelerators ({which}), which cannot form one process group; "
            "choose nodes of one kind with accelerator_type=... or label_selector=..."
        )
    return next(iter(different.values()), None)


def choose_backend(positions: Sequence[RankAssignment], asked: str | None) -> tuple[str, str]:
    """Return the collective backend of a run, and what the user should know about it.

    Args:
        positions: The workers, by rank.
        asked: Settings that the user asks for.

    Raises:
        ConfigError: The settings cannot work together.
    """
    _check_slices(positions)
    family, sharing = family_of_all(positions), shares_devices(positions)
    unshared = next((one for one in _ONE_RANK_A_DEVICE if one in (asked or "")), None)
    if sharing and unshared is not None:
        raise ConfigError(
            f"TorchConfig(backend={asked!r}): {unshared.upper()} cannot connect two ranks that "
            "share a device, and workers have less than one each; leave the backend to dray, or "
            "set 'gloo', or give each worker a whole one"
        )
    usual = "gloo" if family is None else family.backend
    shared = sharing and usual in _ONE_RANK_A_DEVICE
    backend = asked if asked is not None else "gloo" if shared else usual
    lacking = _beyond_gloo(family) if backend == "gloo" and len(positions) > 1 else ""
    if lacking and asked is None:
        why = f"workers share devices, which {usual} cannot connect, and " if shared else ""
        instead = "give each worker a whole device" if shared else "use one worker"
        raise ConfigError(
            f"{why}{lacking}; {instead}, or set TorchConfig(backend='gloo') if workers exchange "
            "tensors on the CPU alone"
        )
    if lacking:
        return backend, f"{lacking}, only those on the CPU"
    if shared and asked is None:
        return backend, (
            f"workers share devices, which {usual} cannot connect; collectives use gloo. It is "
            "slower: for more speed give each worker a whole device"
        )
    return backend, ""


def _beyond_gloo(family: Family | None) -> str:
    """Return what gloo cannot do for a family's devices; "" if that is nothing."""
    if family is None or family.torch_device in _OF_GLOO:
        return ""
    return f"gloo carries no {family.torch_device} tensors between {family.title}s"


def _check_slices(positions: Sequence[RankAssignment]) -> None:
    """Raise ConfigError if a worker has several MIG slices."""
    for position in positions:
        slices = [i for ids in position.place.devices.values() for i in ids if is_slice(i)]
        if len(slices) > 1:
            raise ConfigError(
                f"rank {position.rank} has the MIG slices {', '.join(slices)}, of which a process "
                "sees one only; ask for one for each worker, and for more workers"
            )


# In the worker.


def _prepare_device(slices: Sequence[str], address: str) -> str:
    """Make this worker's device the one that PyTorch uses; return why that cannot be, or ""."""
    import torch

    assignment = current_session("init_process_group").assignment
    if assignment.family == "tpu":  # before PyTorch/XLA looks
        tell_slices(slices, assignment.rank, address)
    device = devices_of(assignment)[0]
    if assignment.family is not None:
        for name, value in family_named(assignment.family).collective_variables.items():
            os.environ.setdefault(name, value)
    trouble = unusable(assignment)
    if not trouble and device.index is not None and device.type != "xla":
        torch.get_device_module(device).set_device(device)
    return trouble


_store: torch.distributed.TCPStore | None = None


def _open_store(address: str, timeout: timedelta) -> int:
    """Open the store that ranks meet at, and return its port.

    The listening socket is made here and handed over, so that no port is picked and then lost to
    somebody else, and so that it listens on this address alone.
    """
    from torch.distributed import TCPStore

    global _store
    current_session("init_process_group").clean_ups.callback(_leave_process_group)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=1024) as listener:
        port: int = listener.getsockname()[1]
        fd = listener.detach()
    _store = TCPStore(
        address, port, None, True, timeout, wait_for_workers=False, master_listen_fd=fd
    )
    return port


def _join_process_group(address: str, port: int, backend: str, timeout: timedelta) -> None:
    """Make this rank a member of the process group."""
    from torch import distributed

    global _store
    if distributed.is_initialized():  # with the inline engine, the user's own
        _store = None
        return
    session = current_session("init_process_group")
    assignment = session.assignment
    device = devices_of(assignment)[0]
    if device.type == "cpu":  # without it, Accelerate and Transformers would train alone here
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    os.environ.update(
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
        ACCELERATE_TORCH_DEVICE=str(device),
        # What calls init_process_group("env://") later on meets at the same store.
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    choose_interface(assignment.address)
    if _store is None:
        _store = distributed.TCPStore(address, port, None, False, timeout)
    if "nccl" in backend:
        # A collective that times out ends its process, rather than leave it waiting.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    # torch puts the rank before what this process shows of errors, for ever.
    session.clean_ups.callback(setattr, sys, "excepthook", sys.excepthook)
    distributed.init_process_group(
        backend,
        store=distributed.PrefixStore("dray", _store),
        rank=assignment.rank,
        world_size=assignment.world_size,
        timeout=timeout,
    )


def _leave_process_group() -> None:
    """Take down the process group that `_join_process_group` made, if it did."""
    global _store
    if _store is None:
        return
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()
    _store = None
