"""The process group of a PyTorch run: its backend, the rendezvous of its ranks, and its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from dray.accelerators import Family, family_named
from dray.accelerators.vendors.nvidia import is_slice
from dray.engines.torch_store import open_store
from dray.errors import ConfigError
from dray.train.planning.ranks import RankAssignment, family_at, shares_devices
from dray.train.torch.devices import devices_of, unusable
from dray.train.worker.current_session import current_session
from dray.train.worker.network_env import choose_interface, tell_slices

if TYPE_CHECKING:
    import torch

    from dray.train.run.worker_group import WorkerGroup


# A communicator of these backends cannot have two ranks on one device.
_ONE_RANK_A_DEVICE = ("nccl", "xccl", "hccl")
# Devices whose tensors gloo can send: torch.distributed.Backend.backend_capability["gloo"].
_OF_GLOO = ("cpu", "cuda")


def form_process_group(worker_group: WorkerGroup, asked: str | None, timeout: timedelta) -> None:
    """Open a store on rank 0, and make every rank join the group at this store.

    Args:
        asked: Name of the collective backend that the user asked for.
    """
    backend = _choose_backend(worker_group, asked)
    worker_group.collectives = backend
    address = worker_group.workers[0].address
    port = worker_group.execute_single(0, _open_store, address, timeout)
    worker_group.execute(_join_process_group, address, port, backend, timeout)


def _choose_backend(worker_group: WorkerGroup, asked: str | None) -> str:
    """Return the backend that fits the workers' devices; warn of its limits."""
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
        ConfigError: Workers have accelerators of different families.
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
    """Return the collective backend of a run, and a warning about it for the user, or "".

    Args:
        positions: The workers, by rank.

    Raises:
        ConfigError: The settings cannot work together.
    """
    _check_slices(positions)
    family, sharing = family_of_all(positions), shares_devices(positions)
    unshared = next((one for one in _ONE_RANK_A_DEVICE if one in (asked or "")), None)
    if sharing and unshared is not None:
        raise ConfigError(
            f"TorchConfig(backend={asked!r}): {unshared.upper()} cannot connect two ranks that "
            "share a device, and each worker has less than one; leave the backend to dray, or "
            "set 'gloo', or give each worker a whole device"
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
    """Return why gloo cannot send tensors of a family's devices; "" if it can."""
    if family is None or family.torch_device in _OF_GLOO:
        return ""
    return f"gloo cannot carry {family.torch_device} tensors between {family.title}s"


def _check_slices(positions: Sequence[RankAssignment]) -> None:
    for position in positions:
        slices = [i for ids in position.place.devices.values() for i in ids if is_slice(i)]
        if len(slices) > 1:
            raise ConfigError(
                f"rank {position.rank} has the MIG slices {', '.join(slices)}, but a process can "
                "see only one; ask for one per worker, and for more workers"
            )


# The functions below run in the worker.


def _prepare_device(slices: Sequence[str], address: str) -> str:
    """Make this worker's device PyTorch's current one; return why that is not possible, or ""."""
    import torch

    assignment = current_session("init_process_group").assignment
    if assignment.family == "tpu":  # before PyTorch/XLA reads the variables
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
# Kept until the process ends. Otherwise, if a train function destroys the group, its model holds
# the last reference, and freeing it deadlocks: it holds the GIL while it waits for a thread of the
# group, which needs the GIL.
_group: torch.distributed.ProcessGroup | None = None


def _open_store(address: str, timeout: timedelta) -> int:
    global _store
    current_session("init_process_group").clean_ups.callback(leave_process_group)
    _store = open_store(address, timeout)
    port: int = _store.port
    return port


def _join_process_group(address: str, port: int, backend: str, timeout: timedelta) -> None:
    from torch import distributed

    global _store, _group
    if distributed.is_initialized():  # the user's own, on the inline engine
        _store = None
        return
    session = current_session("init_process_group")
    assignment = session.assignment
    device = devices_of(assignment)[0]
    if device.type == "cpu":  # otherwise Accelerate and Transformers train without the others
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    if device.index not in (None, assignment.local_rank):  # Accelerate would use that index
        os.environ.setdefault("ACCELERATE_BYPASS_DEVICE_MAP", "true")
    os.environ.update(
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
        ACCELERATE_TORCH_DEVICE=str(device),
        # A later call of init_process_group("env://") uses the same store.
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    choose_interface(assignment.address)
    if _store is None:
        _store = distributed.TCPStore(address, port, None, False, timeout)
    if "nccl" in backend:
        # A collective that times out ends its process; otherwise it would hang.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    # init_process_group sets an excepthook that prefixes errors with the rank, and never resets it.
    session.clean_ups.callback(setattr, sys, "excepthook", sys.excepthook)
    distributed.init_process_group(
        backend,
        store=distributed.PrefixStore("dray", _store),
        rank=assignment.rank,
        world_size=assignment.world_size,
        timeout=timeout,
    )
    _group = distributed.group.WORLD
    session.clean_ups.callback(_release_group)  # its threads would stay in the user's process


def _release_group() -> None:
    global _group
    _group = None


def leave_process_group() -> None:
    """Destroy the process group if `_join_process_group` made one."""
    global _store
    if _store is None:
        return
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()
    _store = None
