"""Data loaders that give each rank its share, and copy batches to its device ahead of use."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cached_property, partial
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeAlias

from dray.train.torch.devices import get_device
from dray.train.torch.resumable import ResumableLoader, changed_loader, resumable_loader
from dray.train.torch.wrapped_loader import WrappedLoader
from dray.train.worker.current_session import current_session

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

# A batch of a data loader: tensors, and collections of them.
Batch: TypeAlias = Any

# The types of device that can copy on one stream while they compute on another.
_TYPES_WITH_STREAMS = ("cuda", "xpu", "npu", "hpu")


def prepare_data_loader(
    data_loader: DataLoader[Batch],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
    *,
    resumable: bool = False,
) -> DataLoader[Batch]:
    """Give each rank its share of a data loader, on its device.

    The loader keeps all its options: batch_sampler, num_workers, persistent_workers,
    prefetch_factor, generator, collate_fn and the rest. With more than one worker, the sampler
    decides how ranks share the data:

    - A loader that shuffles or runs in order gets a `DistributedSampler`.
    - A sampler or batch sampler of your own is kept, endless or not, and ranks take turns in its
      items.
    - A sampler that already shares the data is left as it is: a `DistributedSampler`, or any
      sampler with an attribute `num_replicas`, also within a batch sampler.
    - An `IterableDataset` is left as it is.

    Call `loader.sampler.set_epoch(epoch)` so that each epoch is shuffled differently.

    A sampler of your own draws the same numbers on all ranks, if it draws with torch on the CPU,
    numpy or Python. If it has a generator of its own, seed that alike on all ranks.

    On an accelerator with streams (CUDA, ROCm, XPU, NPU, HPU) batches go through pinned memory, and
    the next batch is copied while the current one is used; at most one batch is copied ahead. On
    others, such as MPS and XLA, each batch is copied when its turn comes. Batches that are already
    on the device are not moved. Objects with a method `to` are moved by it; tensors are also found
    in lists, tuples, mappings and dataclasses. A loader made with `pin_memory=True` pins whole
    batches itself, in a background thread if it has workers.

    Args:
        data_loader: The loader, as for one process.
        add_dist_sampler: Whether to share the data among ranks.
        move_to_device: Whether to move batches to this worker's device.
        auto_transfer: Whether to copy the next batch, through pinned memory, while the current one
            is used.
        resumable: Whether each checkpoint of the run records which rows of the epoch the ranks have
            seen. A run that resumes from it reads the remaining rows, also with another number of
            ranks. The loader must shuffle or run in order. No row is seen twice. Because all ranks
            get the same number of rows, an epoch may leave out the last rows, fewer than there are
            ranks.

    Returns:
        The loader to iterate over.

    Raises:
        ConfigError: `resumable` is set for a loader with a sampler of its own or an
            IterableDataset.
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from dray.train import ScalingConfig
        >>> from dray.train.torch import TorchTrainer, prepare_data_loader
        >>> def train_loop():
        ...     loader = prepare_data_loader(DataLoader(range(8), batch_size=2))
        ...     return [batch.tolist() for batch in loader]  # this rank's share, on its device
        >>> scaling = ScalingConfig(num_workers=2)
        >>> TorchTrainer(train_loop, scaling_config=scaling).fit().return_value
        [[0, 2], [4, 6]]
    """
    session = current_session("prepare_data_loader")
    rank, ranks = session.assignment.rank, session.assignment.world_size
    if resumable:
        data_loader = resumable_loader(data_loader, session)
    elif add_dist_sampler and ranks > 1:
        data_loader = _shared(data_loader, rank, ranks)
    prepared: Any = data_loader
    device = get_device()
    if move_to_device and device.type != "cpu":
        prepared = DeviceDataLoader(prepared, device, auto_transfer)
    return ResumableLoader(prepared) if resumable else prepared


def _shared(loader: DataLoader[Batch], rank: int, world_size: int) -> DataLoader[Batch]:
    """Return a copy of a loader that yields this rank's share."""
    from torch.utils.data import IterableDataset

    from dray.train.torch.samplers import InterleavedSampler, nested, sampler_of_share

    samplers = (*nested(loader.sampler), *nested(loader.batch_sampler))
    is_shared = any(hasattr(sampler, "num_replicas") for sampler in samplers)
    if is_shared or isinstance(loader.dataset, IterableDataset):
        return loader
    if loader.batch_sampler is not None and loader.batch_size is None:
        turns = InterleavedSampler(loader.batch_sampler, world_size, rank)
        return changed_loader(loader, batch_sampler=turns, sampler=turns)
    sampler = sampler_of_share(loader, rank, world_size)
    if loader.batch_sampler is None:
        return changed_loader(loader, sampler=sampler)
    batches: Any = type(loader.batch_sampler)
    batch_sampler = batches(sampler, loader.batch_size, loader.drop_last)
    return changed_loader(loader, sampler=sampler, batch_sampler=batch_sampler)


class DeviceDataLoader(WrappedLoader):
    """A data loader whose batches are on a device; all else is as in the wrapped loader.

    Args:
        ahead: Whether to copy the next batch while this one is used, if the device can.
    """

    _device: torch.device
    _ahead: bool

    def __init__(self, loader: DataLoader[Batch], device: torch.device, ahead: bool) -> None:
        super().__init__(loader, _device=device, _ahead=ahead)

    def __iter__(self) -> Iterator[Batch]:
        if self._ahead and self._device.type in _TYPES_WITH_STREAMS:
            return self._side_stream.copy_ahead(self._loader)
        return (_move(batch, self._device) for batch in self._loader)

    @cached_property
    def _side_stream(self) -> SideStream:
        import torch

        return SideStream(self._device, getattr(torch, self._device.type))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._loader, self._device, self._ahead)  # a stream cannot be pickled


class SideStream:
    """A stream of a device that copies the next batch while another stream uses this one.

    The stream that uses a batch waits for its copy, so the batch is complete. A copy waits for all
    work that was started before it, so it does not overwrite memory that is still read. This works
    for any object, whereas `Tensor.record_stream` needs each tensor inside. It costs no time: the
    copy runs beside one step, and waits for the step before that.

    Args:
        streams: The module with the device's streams, such as `torch.cuda`.
    """

    def __init__(self, device: torch.device, streams: Any) -> None:
        self._device = device
        self._streams = streams
        self._stream = streams.Stream(device)

    def copy_ahead(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches on the device, each after the copy of the next one has begun."""
        copies: deque[tuple[Batch, Batch]] = deque()
        for batch in batches:
            copies.append(self._begin(batch))
            if len(copies) == 2:
                yield self._finish(*copies.popleft())
        if copies:
            yield self._finish(*copies.popleft())

    def _begin(self, batch: Batch) -> tuple[Batch, Batch]:
        self._stream.wait_stream(self._streams.current_stream(self._device))
        with self._streams.stream(self._stream):
            return _move(batch, self._device, pin=True), self._stream.record_event()

    def _finish(self, batch: Batch, copied: Batch) -> Batch:
        self._streams.current_stream(self._device).wait_event(copied)
        return batch


def _move(batch: Batch, device: torch.device, pin: bool = False) -> Batch:
    """Move every tensor in a batch; containers keep their types."""
    if callable(getattr(type(batch), "to", None)):
        batch = _pinned(batch, device) if pin else batch
        return batch.to(device, **_non_blocking(batch, device))
    move = partial(_move, device=device, pin=pin)
    if isinstance(batch, MutableMapping):
        moved = copy.copy(batch)
        moved.update({key: move(value) for key, value in batch.items()})
        return moved
    if isinstance(batch, Mapping):
        return type(batch)({key: move(value) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(move, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(move, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _move_fields(batch, move)
    return batch


def _move_fields(batch: Batch, move: Callable[[Batch], Batch]) -> Batch:
    moved = copy.copy(batch)
    for field in dataclasses.fields(batch):
        value = move(getattr(batch, field.name))
        object.__setattr__(moved, field.name, value)  # also if it is frozen
    return moved


def _pinned(item: Batch, device: torch.device) -> Batch:
    """Return a CPU tensor in pinned memory, from which a copy can run beside other work.

    Other objects are returned as they are. The loader's own `pin_memory` is not used instead,
    because it fails if a tensor is on a device, or if elements of a tensor share memory.
    """
    import torch

    if type(item) is not torch.Tensor or not item.is_cpu or item.layout is not torch.strided:
        return item
    # Before torch 2.6, memory could be pinned for CUDA only.
    can_pin = device.type == "cuda" or hasattr(torch, "accelerator")
    if not can_pin or item.is_pinned():
        return item
    return torch.empty_like(item, pin_memory=True).copy_(item)


def _non_blocking(batch: Batch, device: torch.device) -> dict[str, bool]:
    """Return `non_blocking=True` if the batch's `to` takes it and its memory outlives the copy.

    Otherwise the memory may be freed too early: https://github.com/pytorch/pytorch/issues/189690.
    """
    import torch
    from torch.nn.utils.rnn import PackedSequence

    if device.type not in _TYPES_WITH_STREAMS:
        return {}
    takes = isinstance(batch, torch.Tensor | PackedSequence) or (
        isinstance(batch.to, MethodType)
        and "non_blocking" in inspect.signature(batch.to).parameters
    )
    return {"non_blocking": True} if takes else {}
