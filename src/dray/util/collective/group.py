"""A group of ranks in several processes, over a process group of PyTorch."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dray.checks import require
from dray.core.actor import ActorHandle
from dray.core.objects import get
from dray.core.remote import remote
from dray.engines.torch_store import open_store
from dray.errors import ActorDiedError, CollectiveError, ConfigError, DrayError
from dray.util.collective.types import Backend, ReduceOp

if TYPE_CHECKING:
    import torch


class Group:
    """This process's membership in a group.

    Attributes:
        name: Name of the group.
        rank: Rank of this process.
        world_size: Number of ranks.
        backend: Library that carries the tensors.
        processes: Process group of PyTorch.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        world_size: int,
        backend: Backend,
        address: str,
        timeout: timedelta,
    ) -> None:
        self.name = name
        self.rank = rank
        self.world_size = world_size
        self.backend = backend
        _check_backend(backend)
        with self.failing("the start"):
            self._store = _meet(name, rank, world_size, address, timeout)
            self.processes = _new_process_group(self, address, self._store, timeout)

    def close(self) -> None:
        """Free the backend's resources of the group; those of Gloo are freed with the object."""
        if self.backend is Backend.NCCL:
            processes = self.processes
            close = getattr(processes, "shutdown", None) or processes._shutdown  # of PyTorch 2.4
            with self.failing("the end"):
                close()

    def check_rank(self, rank: int) -> None:
        """Raise ConfigError if there is no such rank."""
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"collective group {self.name!r} has no rank {rank}: {self._size()}")

    def check_other(self, rank: int) -> None:
        """Raise ConfigError if there is no such rank, or it is this process."""
        self.check_rank(rank)
        if rank == self.rank:
            raise ConfigError(f"rank {rank} of collective group {self.name!r} is this process")

    def check_number(self, tensors: Sequence[object]) -> None:
        """Raise ConfigError if these are not as many tensors as there are ranks."""
        if len(tensors) != self.world_size:
            raise ConfigError(f"{len(tensors)} tensors were given, and {self._size()}")

    def _size(self) -> str:
        return f"it has {self.world_size} ranks, from 0 to {self.world_size - 1}"

    @contextlib.contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Say in which group and on which rank something has failed."""
        try:
            yield
        except DrayError:
            raise
        except RuntimeError as error:
            raise CollectiveError(
                f"{what} of collective group {self.name!r} failed on rank {self.rank} of "
                f"{self.world_size}: {_reason(error)}",
                group_name=self.name,
                rank=self.rank,
            ) from error


def _reason(error: RuntimeError) -> str:
    """Return why an operation has failed, and what to do about it."""
    if "Duplicate GPU" in str(error):
        return (
            "NCCL cannot connect two ranks on one GPU: give each actor a whole one "
            f"(num_gpus=1), or use backend='gloo' ({str(error).strip().splitlines()[-1]})"
        )
    return (
        f"{error}; every rank must make the same calls with tensors of the same shape and type, "
        "and all of them must be alive"
    )


def _check_backend(backend: Backend) -> None:
    require("torch", "torch")
    import torch

    if backend is Backend.NCCL and not torch.cuda.is_available():
        raise ConfigError(
            "backend='nccl' needs an NVIDIA GPU and a PyTorch with CUDA in each actor: give the "
            "actors num_gpus=1, or use backend='gloo'"
        )


def _new_process_group(
    group: Group, address: str, store: torch.distributed.Store, timeout: timedelta
) -> Any:
    from torch.distributed import distributed_c10d

    if group.backend is Backend.NCCL:
        return distributed_c10d.ProcessGroupNCCL(store, group.rank, group.world_size, timeout)
    kind: Any = distributed_c10d.ProcessGroupGloo
    options = kind._Options()
    options._timeout = timeout
    options._devices = [kind.create_device(hostname=address)]  # listens at this address alone
    return kind(store, group.rank, group.world_size, options)


def reduction(op: ReduceOp) -> Any:
    """Return PyTorch's own name for a way to reduce."""
    from torch.distributed import ReduceOp as TorchReduceOp

    return getattr(TorchReduceOp, ReduceOp(op).name)


def as_torch(tensor: Any) -> torch.Tensor:
    """Return a tensor of PyTorch in the same memory.

    Raises:
        ConfigError: It is of another kind.
    """
    import torch

    if isinstance(tensor, torch.Tensor):
        return tensor.detach()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        # PyTorch warns of memory that it cannot write.
        return torch.from_numpy(tensor if tensor.flags.writeable else tensor.copy())
    if type(tensor).__module__.partition(".")[0] == "cupy":
        return torch.from_dlpack(tensor)
    raise ConfigError(
        f"a {type(tensor).__name__} is not a tensor: pass arrays of NumPy or CuPy, or tensors of "
        "PyTorch"
    )


@contextlib.contextmanager
def changed(tensor: Any) -> Iterator[torch.Tensor]:
    """Return dense memory for a tensor, from which it gets its new values."""
    if not getattr(getattr(tensor, "flags", None), "writeable", True):
        raise ConfigError(
            "a read-only array, such as one that get() returned, cannot take a result: pass a "
            "copy of it"
        )
    own = as_torch(tensor)
    dense = own.contiguous()
    yield dense
    if dense.data_ptr() != own.data_ptr():
        own.copy_(dense)


@contextlib.contextmanager
def all_changed(tensors: Sequence[object]) -> Iterator[list[torch.Tensor]]:
    """Do what `changed` does for several tensors."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(changed(tensor)) for tensor in tensors]


class _Meeting:
    """Tells the other ranks where the store of rank 0 is."""

    def __init__(self) -> None:
        self._told = asyncio.Condition()
        self._port: tuple[str, int] | None = None
        self._left = 0  # how many ranks have not asked yet

    async def tell(self, address: str, port: int, others: int) -> None:
        async with self._told:
            self._port, self._left = (address, port), others
            self._told.notify_all()

    async def ask(self, limit_s: float) -> tuple[str, int] | None:
        """Return the address; None if it was not told in time."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until_told(), limit_s)
            self._left -= 1
            return self._port
        return None

    async def _until_told(self) -> None:
        async with self._told:
            await self._told.wait_for(lambda: self._left > 0)


def _meet(
    name: str, rank: int, world_size: int, address: str, timeout: timedelta
) -> torch.distributed.Store:
    """Return the store of rank 0, once all ranks have come to it.

    Raises:
        CollectiveError: Another rank did not come in time.
    """
    from torch.distributed import TCPStore

    options = {"name": f"collective group {name}", "get_if_exists": True, "num_cpus": 0}
    while True:
        meeting: ActorHandle = remote(_Meeting).options(**options).remote()
        try:
            if rank == 0:
                store = open_store(address, timeout)
                get(meeting.tell.remote(address, store.port, world_size - 1))
            else:
                told = get(meeting.ask.remote(timeout.total_seconds()))
                if told is None:
                    raise _absent(name, rank, [0], timeout)
                store = TCPStore(*told, None, False, timeout)
        except ActorDiedError:  # it was that of an earlier group of this name, and has just ended
            continue
        break
    store.set(str(rank), "here")
    everybody = [str(each) for each in range(world_size)]
    try:
        store.wait(everybody, timeout)  # as long as that, the meeting lives
    except RuntimeError:
        absent = [each for each in range(world_size) if not store.check([str(each)])]
        raise _absent(name, rank, absent, timeout) from None
    return store


def _absent(name: str, rank: int, absent: Sequence[int], timeout: timedelta) -> CollectiveError:
    ranks = ", ".join(map(str, absent))
    return CollectiveError(
        f"rank{'s' * (len(absent) > 1)} {ranks} of collective group {name!r} did not come to rank "
        f"{rank} within {timeout.total_seconds():g} s: all ranks must join at the same time, each "
        "in an actor of its own that has the resources to run (on the inline engine actors take "
        "turns, and a group has one rank)",
        group_name=name,
        rank=rank,
    )
