"""Data loaders that resume in the middle of an epoch, with any number of ranks."""

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

    from dray.train.worker.session import TrainSession


def changed_loader(loader: DataLoader[Any], **attributes: object) -> DataLoader[Any]:
    """Return a copy of a loader with some attributes changed."""
    changed = copy.copy(loader)
    # The loader's own __setattr__ forbids these; its workers, if any, use the old attributes.
    vars(changed).update(attributes, _iterator=None)
    return changed


def resumable_loader(loader: DataLoader[Any], session: TrainSession) -> DataLoader[Any]:
    """Return a loader of this rank's share whose position is stored in each checkpoint.

    It must be read through a `ResumableLoader`, which counts the batches.

    Raises:
        ConfigError: The loader has a sampler of its own, or an IterableDataset.
    """
    from torch.utils.data import IterableDataset

    from dray.data.numbering.position import Bookmark
    from dray.train.torch.samplers import InterleavedSampler, ResumableBatches, sampler_of_share

    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            "an IterableDataset has no rows by number: give it to the trainer as datasets={...}, "
            "and read get_dataset_shard(...).iter_torch_batches(), which goes on amid an epoch"
        )
    rank, ranks = session.assignment.rank, session.assignment.world_size
    share = sampler_of_share(loader, rank, ranks)
    if isinstance(share, InterleavedSampler) or loader.batch_size is None:
        raise ConfigError(
            "resumable=True takes a loader with a batch_size that shuffles all rows or runs in "
            f"order, and this one has a {type(loader.sampler).__name__} of its own"
        )
    rows = len(loader.sampler)
    name = f"loader {len(session.positions)}"
    bookmark = Bookmark(positions_of(session, name), rows)
    session.positions[name] = lambda: bookmark.position.to_json()
    batches = ResumableBatches(
        bookmark,
        rows,
        loader.batch_size,
        drop_last=loader.drop_last,
        seed=share.seed if share.shuffle else None,
        rank=rank,
        ranks=ranks,
    )
    return changed_loader(loader, sampler=batches, batch_sampler=batches)


class ResumableLoader(WrappedLoader):
    """A data loader that records each batch that it yields; all else is the loader's own.

    It is the outermost loader, so that it does not count a batch that is only copied ahead.

    Args:
        loader: A loader from `resumable_loader`, or a loader around that.
    """

    _counts_all: bool

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader, _counts_all=False)

    def count_all(self) -> int:
        """Make the length that of a whole epoch; return how many batches are already read."""
        vars(self)["_counts_all"] = True
        return len(self) - len(self._loader)

    def __len__(self) -> int:
        """Return the number of batches that are left of the epoch, or after `count_all` of all."""
        return len(self.batch_sampler.sizes()) if self._counts_all else super().__len__()

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches that are left of the epoch."""
        bookmark = self.batch_sampler.bookmark
        position = bookmark.begin()
        seen = position.seen.count()
        sizes = self.batch_sampler.sizes(seen)
        if not sizes and not seen:
            why = self.batch_sampler.why_none()
            warn_user(f"an epoch of this loader has no batches: {why}")
        for batch, size in zip(self._loader, sizes, strict=True):
            bookmark.take(size)
            yield batch
        bookmark.end()
