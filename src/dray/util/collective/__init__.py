"""Collectives between actors: tensors are exchanged in groups, under the names of Ray."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from dray import session
from dray.checks import is_whole
from dray.compat.attributes import attach_getattr
from dray.core.actor import ActorHandle
from dray.core.objects import get
from dray.errors import ConfigError
from dray.util import get_node_ip_address
from dray.util.collective.group import Group, all_changed, as_torch, changed, reduction
from dray.util.collective.types import Backend, ReduceOp

__all__ = [
    "Backend",
    "ReduceOp",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "create_collective_group",
    "destroy_collective_group",
    "get_collective_group_size",
    "get_group_handle",
    "get_rank",
    "gloo_available",
    "init_collective_group",
    "is_backend_available",
    "is_group_initialized",
    "nccl_available",
    "recv",
    "reduce",
    "reducescatter",
    "send",
]

attach_getattr(__name__)

# The groups of this process, by the actor that is in them (on the inline engine a process has
# several) and their name.
_groups: dict[tuple[str, str], Group] = {}


def init_collective_group(
    world_size: int,
    rank: int,
    backend: str = "nccl",
    group_name: str = "default",
    gloo_timeout: int = 30000,
) -> None:
    """Join a group; return when all its ranks have.

    Call it in each actor. A group is of PyTorch's collectives, beside any process group that
    `torch.distributed` has. Actors that hold a group keep it until `destroy_collective_group()` or
    their end.

    Args:
        world_size: Number of ranks.
        rank: Rank of this actor, from 0.
        backend: "nccl" for tensors on GPUs, "gloo" for those in memory.
        group_name: Name of the group.
        gloo_timeout: Milliseconds after which a rank that does not come is an error, here and in
            every operation.

    Raises:
        ConfigError: This is no actor or task, it is in the group already, or the backend cannot
            be used here (also a ValueError).
        MissingDependencyError: PyTorch is not installed (also an ImportError).
        CollectiveError: A rank did not come in time (also a RuntimeError).

    Example:
        >>> import dray, numpy
        >>> from dray.util import collective
        >>> @dray.remote
        ... class Adder:
        ...     def add(self, rank: int, value: float) -> float:
        ...         collective.init_collective_group(2, rank, "gloo")
        ...         numbers = numpy.array([value])
        ...         collective.allreduce(numbers)
        ...         return float(numbers[0])
        >>> adders = [Adder.remote() for _ in range(2)]
        >>> dray.get([adder.add.remote(i, i + 1.0) for i, adder in enumerate(adders)])
        [3.0, 3.0]
    """
    key = _key(group_name)
    if key in _groups:
        raise ConfigError(
            f"this actor is in a collective group {group_name!r} already: give the other group "
            "another name, or call destroy_collective_group() first"
        )
    if not (is_whole(world_size) and is_whole(rank) and 0 <= rank < world_size):
        raise ConfigError(
            f"world_size={world_size!r}, rank={rank!r}: ranks are 0 to world_size - 1"
        )
    timeout = timedelta(milliseconds=gloo_timeout)
    address = get_node_ip_address()
    _groups[key] = Group(group_name, int(rank), int(world_size), Backend(backend), address, timeout)


def create_collective_group(
    actors: Sequence[ActorHandle],
    world_size: int,
    ranks: Sequence[int],
    backend: str = "nccl",
    group_name: str = "default",
    gloo_timeout: int = 30000,
) -> None:
    """Make actors the ranks of a group; return when all of them are in it.

    Args:
        actors: The actors, which must run at the same time.
        world_size: Their number.
        ranks: Rank of each.
        backend: "nccl" for tensors on GPUs, "gloo" for those in memory.
        group_name: Name of the group.
        gloo_timeout: Milliseconds after which a rank that does not come is an error, here and in
            every operation.

    Raises:
        ConfigError: Ranks and actors do not go together (also a ValueError).
        TaskError: An actor could not join; also of the type of its error.

    Example:
        >>> import dray, numpy
        >>> from dray.util import collective
        >>> @dray.remote
        ... class Rank:
        ...     def gather(self) -> list[float]:
        ...         found = [numpy.zeros(1) for _ in range(2)]
        ...         collective.allgather(found, numpy.array([float(collective.get_rank())]))
        ...         return [float(each[0]) for each in found]
        >>> ranks = [Rank.remote(), Rank.remote()]
        >>> collective.create_collective_group(ranks, 2, [0, 1], backend="gloo")
        >>> dray.get([rank.gather.remote() for rank in ranks])
        [[0.0, 1.0], [0.0, 1.0]]
    """
    if not len(actors) == len(ranks) == world_size or sorted(ranks) != [*range(world_size)]:
        raise ConfigError(
            f"{len(actors)} actors, world_size={world_size!r}, ranks={[*ranks]!r}: a group needs "
            "each rank from 0 to world_size - 1 once, and an actor for each"
        )
    name = Backend(backend).value
    get(
        [
            actor.__ray_call__.remote(_join, world_size, rank, name, group_name, gloo_timeout)
            for actor, rank in zip(actors, ranks, strict=True)
        ]
    )


def _join(actor: object, *arguments: Any) -> None:
    init_collective_group(*arguments)


def destroy_collective_group(group_name: str = "default") -> None:
    """Leave a group; do nothing if this actor is in no such group."""
    group = _groups.pop(_key(group_name), None)
    if group is not None:
        group.close()


def is_group_initialized(group_name: str = "default") -> bool:
    """Return whether this actor is in a group."""
    return _key(group_name) in _groups


def get_rank(group_name: str = "default") -> int:
    """Return the rank of this actor in a group; -1 if it is not in it."""
    group = _groups.get(_key(group_name))
    return -1 if group is None else group.rank


def get_collective_group_size(group_name: str = "default") -> int:
    """Return the number of ranks of a group; -1 if this actor is not in it."""
    group = _groups.get(_key(group_name))
    return -1 if group is None else group.world_size


def get_group_handle(group_name: str = "default") -> Group:
    """Return this actor's membership in a group, with its `rank` and `world_size`.

    Raises:
        ConfigError: This actor is not in it.
    """
    group = _groups.get(_key(group_name))
    if group is None:
        raise ConfigError(
            f"this actor is in no collective group {group_name!r}: call init_collective_group() "
            "in it, or create_collective_group() in the driver, first"
        )
    return group


def allreduce(tensor: object, group_name: str = "default", op: ReduceOp = ReduceOp.SUM) -> None:
    """Reduce a tensor of each rank, and put the result into all of them.

    Every operation of a group changes tensors in place, and must be called by all its ranks, with
    tensors of the same shape and type: arrays of NumPy or CuPy, or tensors of PyTorch.

    Args:
        tensor: The tensor of this rank, of any shape.
        group_name: Name of the group.
        op: Way to reduce.

    Raises:
        ConfigError: This actor is not in the group, or the tensor is none, or read-only.
        CollectiveError: A rank has died, did not come in time, or came with another shape.
    """
    group = get_group_handle(group_name)
    with group.failing("allreduce()"), changed(tensor) as own:
        group.processes.allreduce(own, reduction(op)).wait()


def barrier(group_name: str = "default") -> None:
    """Wait until all ranks of a group have called this."""
    group = get_group_handle(group_name)
    with group.failing("barrier()"):
        group.processes.barrier().wait()


def reduce(
    tensor: object,
    dst_rank: int = 0,
    group_name: str = "default",
    op: ReduceOp = ReduceOp.SUM,
) -> None:
    """Reduce a tensor of each rank into that of `dst_rank`; the others stay as they are."""
    group = get_group_handle(group_name)
    group.check_rank(dst_rank)
    if group.rank != dst_rank:
        tensor = as_torch(tensor).clone()  # which gets partial results
    with group.failing("reduce()"), changed(tensor) as own:
        group.processes.reduce(own, dst_rank, reduction(op)).wait()


def broadcast(tensor: object, src_rank: int = 0, group_name: str = "default") -> None:
    """Copy the tensor of `src_rank` into those of all ranks."""
    group = get_group_handle(group_name)
    group.check_rank(src_rank)
    if group.rank == src_rank:
        tensor = as_torch(tensor)  # which may be read-only
    with group.failing("broadcast()"), changed(tensor) as own:
        group.processes.broadcast(own, src_rank).wait()


def allgather(tensor_list: Sequence[object], tensor: object, group_name: str = "default") -> None:
    """Copy the tensors of all ranks into each rank's list.

    Args:
        tensor_list: As many tensors as there are ranks, which take the copies, by rank.
        tensor: The tensor of this rank.
        group_name: Name of the group.
    """
    group = get_group_handle(group_name)
    group.check_number(tensor_list)
    with group.failing("allgather()"), all_changed(tensor_list) as own:
        group.processes.allgather(own, as_torch(tensor).contiguous()).wait()


def reducescatter(
    tensor: object,
    tensor_list: Sequence[object],
    group_name: str = "default",
    op: ReduceOp = ReduceOp.SUM,
) -> None:
    """Reduce lists of tensors of all ranks; each rank gets the result at its place.

    Args:
        tensor: The tensor that takes this rank's result.
        tensor_list: As many tensors as there are ranks.
        group_name: Name of the group.
        op: Way to reduce.
    """
    group = get_group_handle(group_name)
    group.check_number(tensor_list)
    parts = [as_torch(part).contiguous() for part in tensor_list]
    with group.failing("reducescatter()"), changed(tensor) as own:
        group.processes.reduce_scatter(own, parts, reduction(op)).wait()


def send(tensor: object, dst_rank: int, group_name: str = "default") -> None:
    """Send a tensor to a rank, which must call `recv()`."""
    group = get_group_handle(group_name)
    group.check_other(dst_rank)
    with group.failing(f"send() to rank {dst_rank}"):
        group.processes.send([as_torch(tensor).contiguous()], dst_rank, 0).wait()


def recv(tensor: object, src_rank: int, group_name: str = "default") -> None:
    """Take a tensor that a rank sends into one of the same shape and type."""
    group = get_group_handle(group_name)
    group.check_other(src_rank)
    with group.failing(f"recv() from rank {src_rank}"), changed(tensor) as own:
        group.processes.recv([own], src_rank, 0).wait()


def is_backend_available(backend: str) -> bool:
    """Return whether this process can use a backend."""
    try:
        import torch
        from torch import distributed
    except ImportError:
        return False
    if Backend(backend) is Backend.NCCL:
        return bool(torch.cuda.is_available() and distributed.is_nccl_available())
    return bool(distributed.is_gloo_available())


def gloo_available() -> bool:
    """Return whether this process can use Gloo, for tensors in memory."""
    return is_backend_available("gloo")


def nccl_available() -> bool:
    """Return whether this process can use NCCL, for tensors on NVIDIA GPUs."""
    return is_backend_available("nccl")


def _key(group_name: str) -> tuple[str, str]:
    here = session.current_runtime().execution_context()
    if here.task_id is None and here.actor_id is None:
        raise ConfigError(
            "collectives are for actors and tasks, which have ranks; the driver calls "
            "create_collective_group() for actors"
        )
    return here.actor_id or here.worker_id, group_name
