"""Data loaders that go on amid an epoch, with any number of ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dray.errors import ConfigError
from dray.train.datasets import positions_of
from dray.train.torch.wrapped_loader import WrappedLoader
from dray.user_warnings import warn_user

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from dray.data.numbering.position import Bookmark, Position
    from dray.train.worker.session import TrainSession


def changed_loader(loader: DataLoader[Any], **attributes: object) -> DataLoader[Any]:
    """Return a copy of a loader, with all that it was made with but for some attributes."""
    changed = copy.copy(loader)
    # The loader's own __setattr__ forbids these; its workers, if it has some, follow the old ones.
    vars(changed).update(attributes, _iterator=None)
    return changed


def resumable_loader(loader: DataLoader[Any], session: TrainSession) -> Any:
    """Return a loader of this rank's share whose position is a part of each checkpoint.

    Raises:
        ConfigError: The order of its rows cannot be told from their number.
    """
    from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

    from dray.data.numbering.position import Bookmark

    sampler = loader.sampler
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            "an IterableDataset has no rows by number: give it to the trainer as datasets={...}, "
            "and read get_dataset_shard(...).iter_torch_batches(), which goes on amid an epoch"
        )
    shuffles = (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    ordered = type(sampler) is SequentialSampler
    if not (shuffles or ordered) or loader.batch_size is None:
        raise ConfigError(
            "resumable=True takes a loader with a batch_size that shuffles all rows or runs in "
            f"order, and this one has a {type(sampler).__name__} of its own"
        )
    rows = len(sampler)
    name = f"loader {len(session.positions)}"
    bookmark = Bookmark(positions_of(session, name), rows)
    session.positions[name] = lambda: bookmark.position.to_json()
    generator = getattr(sampler, "generator", None)
    seed = 0 if generator is None else generator.initial_seed()
    batches = ResumableBatches(
        bookmark,
        rows,
        loader.batch_size,
        drop_last=loader.drop_last,
        seed=seed if shuffles else None,
        rank=session.assignment.rank,
        ranks=session.assignment.world_size,
    )
    return ResumableLoader(changed_loader(loader, sampler=batches, batch_sampler=batches), batches)


class ResumableBatches:
    """A batch sampler of one rank that goes on where a bookmark is.

    Args:
        bookmark: The place of the rank.
        rows: The number of rows.
        batch_size: Rows of a batch.
        drop_last: Whether to leave out a batch that has fewer.
        seed: Decides the order, together with the epoch; None is in order.
        rank: The rank whose share it is.
        ranks: The number of ranks.
    """

    def __init__(
        self,
        bookmark: Bookmark,
        rows: int,
        batch_size: int,
        *,
        drop_last: bool,
        seed: int | None,
        rank: int,
        ranks: int,
    ) -> None:
        self.bookmark = bookmark
        self.batch_size, self.drop_last = batch_size, drop_last
        self.num_replicas, self.rank = ranks, rank
        self._rows, self._seed = rows, seed

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; the one that was interrupted goes on."""
        self.bookmark.set_epoch(epoch)

    def sizes(self, position: Position) -> list[int]:
        """Return the sizes of the batches that are left of an epoch."""
        from dray.data.numbering.position import batch_sizes, share

        left = self._rows - position.seen.count()
        own = share(left, self.rank, self.num_replicas, equal=True)
        return batch_sizes(own, self.batch_size, drop_last=self.drop_last)

    def why_none(self) -> str:
        """Return why a whole epoch has no batches for this rank."""
        share = self._rows // self.num_replicas
        if share:
            return f"drop_last leaves out {share} rows, fewer than {self.batch_size}"
        return f"{self._rows} rows are fewer than the {self.num_replicas} ranks"

    def __iter__(self) -> Iterator[list[int]]:
        import numpy as np

        position = self.bookmark.position
        order = self._order(position.epoch)
        begin = 0
        for size in self.sizes(position):
            places: Any = np.arange(begin, begin + size) * self.num_replicas + self.rank
            yield order[position.seen.number(places)].tolist()
            begin += size

    def __len__(self) -> int:
        """Return the number of batches that are left of the epoch."""
        return len(self.sizes(self.bookmark.position))

    def _order(self, epoch: int) -> Any:
        """Return the rows of an epoch in their order, which is a DistributedSampler's."""
        import torch

        if self._seed is None:
            return torch.arange(self._rows).numpy()
        generator = torch.Generator().manual_seed(self._seed + epoch)
        return torch.randperm(self._rows, generator=generator).numpy()


class ResumableLoader(WrappedLoader):
    """A data loader that takes note of each batch it gives; all else is the loader's own.

    Args:
        loader: The loader.
        batches: Its batch sampler.
    """

    _batches: ResumableBatches

    def __init__(self, loader: DataLoader[Any], batches: ResumableBatches) -> None:
        super().__init__(loader, _batches=batches)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches that are left of the epoch."""
        bookmark = self._batches.bookmark
        position = bookmark.begin()
        sizes = self._batches.sizes(position)
        if not sizes and not position.seen.count():
            warn_user(f"an epoch of this loader has no batches: {self._batches.why_none()}")
        for batch, size in zip(self._loader, sizes, strict=True):
            bookmark.take(size)
            yield batch
        bookmark.end()

    def __len__(self) -> int:
        return len(self._batches)
