"""Samplers of one rank's share; other libraries recognize their base class and keep them."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from dray.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from dray.data.numbering.position import Bookmark


def nested(sampler: object) -> Iterator[object]:
    """Yield a sampler, the sampler that it draws from, and so on."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def sampler_of_share(loader: DataLoader[Any], rank: int, world_size: int) -> Any:
    """Return a sampler of a rank's share of the rows that a loader draws, in the same order."""
    sampler = loader.sampler
    shuffles = type(sampler) is RandomSampler and not sampler.replacement
    if shuffles and sampler.num_samples == len(sampler.data_source):
        # The user's generator decides the order, and ranks must agree on it.
        seed = sampler.generator.initial_seed() if sampler.generator is not None else 0
        return DistributedSampler(sampler.data_source, world_size, rank, shuffle=True, seed=seed)
    if type(sampler) is SequentialSampler:
        return DistributedSampler(sampler.data_source, world_size, rank, shuffle=False)
    return InterleavedSampler(sampler, world_size, rank, at_once=loader.batch_size or 1)


class InterleavedSampler(DistributedSampler):  # type: ignore[misc]
    """A sampler that gives each rank every n-th item of another sampler, for n ranks.

    All ranks draw the items in the same order. The last round is filled up from the beginning, so
    that all ranks have the same number of items. Each iteration is another epoch, unless
    `set_epoch` sets the epoch.

    Args:
        sampler: The other sampler; it may be endless.
        at_once: Number of turns drawn together. Each draw takes the time to swap random states.
    """

    def __init__(self, sampler: Any, num_replicas: int, rank: int, at_once: int = 1) -> None:
        self.sampler = sampler
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self._at_once = at_once
        self._counts_epochs = True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterations, also in the samplers within."""
        self.epoch = epoch
        self._counts_epochs = False
        for sampler in nested(self.sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        ranks = self.num_replicas
        same_for_all = SameRandomness(self.epoch)
        self.epoch += self._counts_epochs
        with same_for_all:
            items = iter(self.sampler)
        first: list[Any] = []
        while True:
            with same_for_all:
                drawn = list(islice(items, ranks * self._at_once))
            if not drawn:
                return
            first = first or drawn[:ranks]
            drawn += islice(cycle(first), -len(drawn) % ranks)
            yield from drawn[self.rank :: ranks]

    def __len__(self) -> int:
        """Return the number of turns, if the other sampler has a length."""
        return math.ceil(len(self.sampler) / self.num_replicas)


class SameRandomness:
    """A context in which random numbers are the same on all ranks; outside, they are the program's.

    Both sequences continue where they were left. Only the generators of the CPU are swapped:
    samplers of torch do not draw on an accelerator.

    Args:
        seed: The seed, which is the same on all ranks.
    """

    def __init__(self, seed: int) -> None:
        self._generators: list[tuple[Any, Any]] = [
            (torch.get_rng_state, torch.set_rng_state),
            (random.getstate, random.setstate),
        ]
        self._other: list[Any] = [
            torch.Generator().manual_seed(seed).get_state(),
            random.Random(seed).getstate(),
        ]
        numpy = sys.modules.get("numpy")  # a sampler that draws with it has imported it
        if numpy is not None:
            self._generators.append((numpy.random.get_state, numpy.random.set_state))
            self._other.append(numpy.random.RandomState(seed % 2**32).get_state())

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *error: object) -> None:
        self._swap()

    def _swap(self) -> None:
        here = [get() for get, _ in self._generators]
        for (_, set_), state in zip(self._generators, self._other, strict=True):
            set_(state)
        self._other = here


class ResumableBatches(DistributedSampler):  # type: ignore[misc]
    """A batch sampler of one rank that continues at the position of a bookmark.

    Args:
        drop_last: Whether to leave out an incomplete last batch.
        seed: Seed of the order, together with the epoch; None keeps the rows in order.
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
        """Set the next epoch; an epoch that was interrupted continues."""
        self.bookmark.set_epoch(epoch)

    def sizes(self, seen: int = 0) -> list[int]:
        """Return the sizes of this rank's batches in an epoch, after `seen` rows of all ranks."""
        from dray.data.numbering.position import batch_sizes, share

        own = share(self._rows - seen, self.rank, self.num_replicas, equal=True)
        return batch_sizes(own, self.batch_size, drop_last=self.drop_last)

    def why_none(self) -> str:
        """Return why a whole epoch has no batches for this rank."""
        share = self._rows // self.num_replicas
        if share:
            return f"drop_last leaves out {share} rows, fewer than {self.batch_size}"
        return f"{self._rows} rows are fewer than the {self.num_replicas} ranks"

    def __iter__(self) -> Iterator[list[int]]:
        import numpy as np

        if not self.bookmark.begun:
            raise ConfigError(
                "another library reads the batches of a resumable loader by itself, so that "
                "checkpoints would not say which; with Accelerate, prepare() the rest without it"
            )
        position = self.bookmark.position
        order = self._order(position.epoch)
        begin = 0
        for size in self.sizes(position.seen.count()):
            places: Any = np.arange(begin, begin + size) * self.num_replicas + self.rank
            yield order[position.seen.number(places)].tolist()
            begin += size

    def __len__(self) -> int:
        """Return the number of batches that are left of the epoch."""
        return len(self.sizes(self.bookmark.position.seen.count()))

    def _order(self, epoch: int) -> Any:
        """Return the rows of an epoch in the order of a DistributedSampler."""
        if self._seed is None:
            return torch.arange(self._rows).numpy()
        generator = torch.Generator().manual_seed(self._seed + epoch)
        return torch.randperm(self._rows, generator=generator).numpy()
