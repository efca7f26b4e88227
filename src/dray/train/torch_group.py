"""The process group of a PyTorch run: which backend, where its ranks meet, how it ends."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from dray import host
from dray.errors import ConfigError
from dray.train.backend import Backend, BackendConfig
from dray.train.context import current_seat
from dray.train.torch_devices import get_device
from dray.train.worker_group import WorkerGroup

if TYPE_CHECKING:
    import torch


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
            "dray.train.torch",
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


# In the worker.

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
