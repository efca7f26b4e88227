"""Data loaders: each rank its share, on its device before it is needed."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dray.train.context import TrainContext, current_seat
from dray.train.torch_devices import get_device

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, Sampler


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
