"""Data loaders: each rank its share, on its device before it is needed."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import cached_property
from types import MethodType
from typing import TYPE_CHECKING, Any

from dray.train.context import TrainContext, current_seat
from dray.train.torch_devices import get_device

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, Sampler

# The types of device on which copies can run beside the work, on a stream of their own.
_TYPES_WITH_STREAMS = ("cuda", "xpu", "npu", "hpu")


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

    On an accelerator with streams (CUDA, ROCm, XPU, NPU, HPU) batches go through pinned memory, and
    the next one is copied while this one is used; one batch and no more is ahead. On others, such
    as MPS and XLA, each batch is copied when its turn comes. Tensors are found in lists, tuples,
    mappings and dataclasses; other objects are asked to move themselves, by their method `to`.

    Args:
        data_loader: The loader, as for one process.
        add_dist_sampler: Whether to share the data among ranks.
        move_to_device: Whether to move batches to this worker's device.
        auto_transfer: Whether to copy the next batch while this one is used.

    Returns:
        The loader to iterate over.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> def train_loop():
        ...     loader = prepare_data_loader(DataLoader(dataset, batch_size=32, shuffle=True))
        ...     for batch in loader:  # this rank's share, on its device
        ...         ...
    """
    context = TrainContext(current_seat("prepare_data_loader").assignment)
    if add_dist_sampler and context.get_world_size() > 1:
        data_loader = _shared(data_loader, context)
    device = get_device()
    if not move_to_device or device.type == "cpu":
        return data_loader
    if device.type in _TYPES_WITH_STREAMS and not getattr(data_loader, "pin_memory", True):
        data_loader = _changed(data_loader, pin_memory=True)
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
    if loader.batch_sampler is not None and loader.batch_size is None:
        turns = _turns(loader.batch_sampler, rank, world_size)
        return _changed(loader, batch_sampler=turns, sampler=turns)
    sampler = _sampler(loader, rank, world_size)
    if loader.batch_sampler is None:
        return _changed(loader, sampler=sampler)
    batches: Any = type(loader.batch_sampler)
    batch_sampler = batches(sampler, loader.batch_size, loader.drop_last)
    return _changed(loader, sampler=sampler, batch_sampler=batch_sampler)


def _changed(loader: DataLoader[Any], **attributes: Any) -> DataLoader[Any]:
    """Returns a copy of a loader, with all that it was made with but for some attributes."""
    changed = copy.copy(loader)
    # The loader's own __setattr__ forbids these; its workers, if it has some, follow the old ones.
    vars(changed).update(attributes, _iterator=None)
    return changed


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
        ahead: Whether to copy the next batch while this one is used, if the device can.
    """

    def __init__(self, loader: DataLoader[Any], device: torch.device, ahead: bool) -> None:
        self._loader = loader
        self._device = device
        self._ahead = ahead and device.type in _TYPES_WITH_STREAMS

    def __iter__(self) -> Iterator[Any]:
        """Yields batches on the device."""
        if self._ahead:
            return self._side_stream.copy_ahead(self._loader)
        return (_move(batch, self._device) for batch in self._loader)

    @cached_property
    def _side_stream(self) -> SideStream:
        import torch

        return SideStream(self._device, getattr(torch, self._device.type))

    def __len__(self) -> int:
        """Returns the number of batches."""
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        """Returns the loader's own attribute."""
        return getattr(self._loader, name)


class SideStream:
    """A stream of a device that copies the next batch while another stream uses this one.

    No batch is handed out before it is whole: the stream that uses it waits for its copy. No copy
    takes memory that is still read: it waits for what was started before it. That is enough for
    any object, where `Tensor.record_stream` would have to know each tensor inside, and it costs no
    time: what is waited for is the step before the one that the copy runs beside.

    Args:
        device: The device.
        streams: The module of its streams, such as `torch.cuda`.
    """

    def __init__(self, device: torch.device, streams: Any) -> None:
        self._device = device
        self._streams = streams
        self._stream = streams.Stream(device)

    def copy_ahead(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields batches on the device, each when the copy of the next one has begun."""
        copies: deque[tuple[Any, Any]] = deque()
        for batch in batches:
            copies.append(self._begin(batch))
            if len(copies) == 2:
                yield self._finish(*copies.popleft())
        if copies:
            yield self._finish(*copies.popleft())

    def _begin(self, batch: Any) -> tuple[Any, Any]:
        self._stream.wait_stream(self._streams.current_stream(self._device))
        with self._streams.stream(self._stream):
            return _move(batch, self._device), self._stream.record_event()

    def _finish(self, batch: Any, copied: Any) -> Any:
        self._streams.current_stream(self._device).wait_event(copied)
        return batch


def _move(batch: Any, device: torch.device) -> Any:
    """Moves every tensor in a batch; containers keep their types."""
    import torch
    from torch.nn.utils.rnn import PackedSequence

    if isinstance(batch, torch.Tensor | PackedSequence):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, MutableMapping):
        moved = copy.copy(batch)
        moved.update({key: _move(value, device) for key, value in batch.items()})
        return moved
    if isinstance(batch, Mapping):
        return type(batch)({key: _move(value, device) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_move(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_move(value, device) for value in batch)
    if hasattr(batch, "to"):
        return batch.to(device, **_non_blocking(batch.to))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _move_fields(batch, device)
    return batch


def _non_blocking(to: Any) -> dict[str, bool]:
    takes = isinstance(to, MethodType) and "non_blocking" in inspect.signature(to).parameters
    return {"non_blocking": True} if takes else {}


def _move_fields(batch: Any, device: torch.device) -> Any:
    moved = copy.copy(batch)
    for field in dataclasses.fields(batch):
        value = _move(getattr(batch, field.name), device)
        object.__setattr__(moved, field.name, value)  # of frozen ones too
    return moved
