"""Data loaders of PyTorch, shared among ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from dray.train.torch import prepare_data_loader
from tests.support.torch_runs import fit_workers as fit
from tests.support.torch_runs import gather

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True),
]


def shares(make_loader: Any, storage: Path, epochs: int = 1, workers: int = 2) -> list[Any]:
    """Return, per epoch, what each rank's loader yields, batch by batch."""

    def train() -> Any:
        loader = prepare_data_loader(make_loader())
        seen = []
        for epoch in range(epochs):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            batches = [b[0].tolist() if isinstance(b, list) else b.tolist() for b in loader]
            seen.append(gather(batches))
        return seen

    seen: list[Any] = fit(train, storage, workers).return_value
    return seen


NUMBERS = torch.arange(10)


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def test_shuffled_loader_is_shared(storage: Path) -> None:
    epochs = shares(
        lambda: DataLoader(TensorDataset(NUMBERS), batch_size=2, shuffle=True), storage, epochs=2
    )
    for ranks in epochs:
        assert sorted(flat(ranks[0]) + flat(ranks[1])) == list(range(10))
    assert epochs[0] != epochs[1]  # set_epoch shuffles anew


def test_order_is_kept_without_shuffle(storage: Path) -> None:
    ((first, second),) = shares(lambda: DataLoader(TensorDataset(NUMBERS), batch_size=2), storage)
    assert flat(first) == [0, 2, 4, 6, 8]
    assert flat(second) == [1, 3, 5, 7, 9]


def test_the_users_generator_decides_the_order(storage: Path) -> None:
    def loader(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(TensorDataset(NUMBERS), shuffle=True, generator=generator)

    one, again, two = (shares(lambda s=s: loader(s), storage) for s in (1, 1, 2))
    assert one == again
    assert one != two


def test_a_sampler_of_ones_own_is_kept(storage: Path) -> None:
    def loader() -> Any:
        sampler = WeightedRandomSampler([0.0] * 5 + [1.0] * 5, num_samples=7)
        return DataLoader(TensorDataset(NUMBERS), batch_size=3, sampler=sampler)

    first, second = shares(loader, storage, epochs=2)
    for ranks in (first, second):
        drawn = flat(ranks[0]) + flat(ranks[1])
        assert len(drawn) == 8  # 7, filled up so that both ranks have 4
        assert all(number >= 5 for number in drawn)
    assert first != second


def test_a_batch_sampler_of_ones_own_is_kept(storage: Path) -> None:
    def loader() -> Any:
        batches = BatchSampler(SequentialSampler(range(10)), batch_size=4, drop_last=False)
        return DataLoader(TensorDataset(NUMBERS), batch_sampler=batches)

    ((first, second),) = shares(loader, storage)
    assert first == [[0, 1, 2, 3], [8, 9]]
    assert second == [[4, 5, 6, 7], [0, 1, 2, 3]]  # the last round is filled up


def test_what_is_left_alone(storage: Path) -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(torch.arange(4))

    def train() -> Any:
        own = DistributedSampler(range(10), num_replicas=2, rank=0)
        with_own = DataLoader(range(10), sampler=own)
        stream = DataLoader(Stream())
        random = DataLoader(range(10), sampler=RandomSampler(range(10)))
        return [
            prepare_data_loader(with_own) is with_own,
            prepare_data_loader(stream) is stream,
            prepare_data_loader(random, add_dist_sampler=False) is random,
        ]

    assert fit(train, storage).return_value == [True, True, True]


def test_every_argument_of_the_loader_is_kept(storage: Path) -> None:
    def collate(items: Any) -> Any:
        return torch.stack([item[0] for item in items]) * 10

    def train() -> Any:
        import inspect

        generator = torch.Generator().manual_seed(3)
        loader = DataLoader(
            TensorDataset(NUMBERS),
            batch_size=2,
            shuffle=True,
            num_workers=2,
            collate_fn=collate,
            drop_last=True,
            timeout=60,
            worker_init_fn=print,
            multiprocessing_context="fork",
            generator=generator,
            prefetch_factor=3,
            persistent_workers=True,
        )
        prepared = prepare_data_loader(loader)
        names = set(inspect.signature(DataLoader.__init__).parameters) & set(dir(loader))
        names -= {"self", "sampler", "batch_sampler"}
        kept = {name: getattr(prepared, name) == getattr(loader, name) for name in names}
        values = sorted(v for _ in range(2) for batch in prepared for v in batch.tolist())
        return kept, values, len(prepared)

    kept, values, length = fit(train, storage).return_value
    assert len(kept) >= 12
    assert all(kept.values()), kept
    assert length == 2  # 10 items, 5 for each rank, in twos, the last one dropped
    assert len(values) == 8  # in each of two epochs two batches of two
    assert all(value % 10 == 0 for value in values)
