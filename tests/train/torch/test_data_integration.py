"""Data loaders: each rank's share, containers on devices, and copies that work hides on a GPU."""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dray.errors import ConfigError
from dray.train.torch import prepare_data_loader
from dray.train.torch.data import DeviceDataLoader
from tests.support.torch_runs import fit

META = torch.device("meta")  # needs no hardware: its tensors know where they are, and no values


# What each rank's share is.


class Shuffled(Sampler[int]):
    """All ten items, in an order drawn with one of the libraries that samplers draw with."""

    def __init__(self, library: str) -> None:
        self.library = library

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[int]:
        if self.library == "torch":
            return iter(torch.randperm(10).tolist())
        if self.library == "numpy":
            return iter(np.random.permutation(10).tolist())
        return iter(random.sample(range(10), 10))


class Endless(Sampler[int]):
    """Draws for ever, as step-based training does it."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(torch.randint(1 << 40, ()))


class EndlessOfALength(Endless):
    def __len__(self) -> int:
        return 10


class Epoch(Sampler[int]):
    """Says what epoch it was told."""

    epoch = 0

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * 2)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Identity(Dataset[int]):
    """Has any item, and no length."""

    def __getitem__(self, i: int) -> int:
        return i


def loader_of(sampler: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(Identity(), batch_size=2, sampler=sampler, **options)


def shares(
    make_loader: Any, storage: Path, epochs: int = 1, batches: int | None = None
) -> list[list[list[int]]]:
    """Return, for each epoch, the items of each of two ranks, in up to so many batches."""

    def train() -> Any:
        loader = prepare_data_loader(make_loader())
        seen = []
        for _ in range(epochs):
            items = [item for batch in islice(loader, batches) for item in batch.tolist()]
            gathered: list[Any] = [None] * 2
            torch.distributed.all_gather_object(gathered, items)
            seen.append(gathered)
        return seen

    return fit(train, storage, num_workers=2).return_value


@pytest.mark.usefixtures("process_engine")
class TestShares:
    def test_a_loader_that_is_shared_already_is_left_alone(self, storage: Path) -> None:
        class OfAnotherLibrary(SequentialSampler):
            num_replicas, rank = 2, 0

        def train() -> Any:
            own = BatchSampler(DistributedSampler(range(8), 2, 0), 2, False)
            of_own = BatchSampler(RandomSampler(range(8)), 2, False)
            loaders = [
                DataLoader(range(8), batch_sampler=own),
                DataLoader(range(8), batch_sampler=BatchSampler(own, 1, False)),
                DataLoader(range(8), sampler=OfAnotherLibrary(range(8))),
                prepare_data_loader(DataLoader(range(8), shuffle=True)),
                prepare_data_loader(DataLoader(range(8), batch_sampler=of_own)),
            ]
            return [prepare_data_loader(loader) is loader for loader in loaders]

        assert fit(train, storage, num_workers=2).return_value == [True] * 5

    @pytest.mark.parametrize("sampler", [SequentialSampler, RandomSampler])
    def test_a_sampler_of_part_of_the_data_stays_there(self, storage: Path, sampler: Any) -> None:
        ((first, second),) = shares(lambda: loader_of(sampler(range(4))), storage)
        assert sorted(first + second) == [0, 1, 2, 3]

    @pytest.mark.parametrize("library", ["torch", "numpy", "random"])
    def test_ranks_agree_whatever_a_sampler_draws_with(self, storage: Path, library: str) -> None:
        epochs = shares(lambda: loader_of(Shuffled(library)), storage, epochs=2)
        for first, second in epochs:
            assert sorted(first + second) == list(range(10))
        assert epochs[0] != epochs[1]  # as with one worker, though no one called set_epoch

    @pytest.mark.parametrize("sampler", [Endless(), EndlessOfALength()])
    def test_an_endless_sampler_is_read_as_it_goes(self, storage: Path, sampler: Any) -> None:
        own = BatchSampler(sampler, 2, False)
        for loader in (
            lambda: loader_of(sampler),
            lambda: loader_of(sampler, num_workers=1, persistent_workers=True),
            lambda: DataLoader(Identity(), batch_sampler=own),
        ):
            epochs = shares(loader, storage, epochs=2, batches=5)
            drawn = [item for ranks in epochs for items in ranks for item in items]
            assert len(drawn) == len(set(drawn)) == 40
            assert shares(loader, storage, epochs=2, batches=5) == epochs

    def test_a_sampler_of_no_length_is_filled_up_too(self, storage: Path) -> None:
        assert shares(lambda: loader_of(iter(range(3))), storage) == [[[0, 2], [1, 0]]]
        assert shares(lambda: loader_of(iter(range(1))), storage) == [[[0], [0]]]
        assert shares(lambda: loader_of(iter(())), storage) == [[[], []]]

    def test_no_more_is_drawn_than_a_batch_needs(self, storage: Path) -> None:
        def train() -> Any:
            numbers = count()
            batches = iter(prepare_data_loader(loader_of(numbers)))
            return next(batches).tolist(), next(numbers)

        assert fit(train, storage, num_workers=2).return_value == ([0, 2], 4)

    def test_set_epoch_decides_what_is_drawn(self, storage: Path) -> None:
        def train() -> Any:
            def batches(epoch: int | None = None) -> list[list[int]]:
                if epoch is not None:
                    loader.sampler.set_epoch(epoch)
                return [batch.tolist() for batch in loader]

            sampler = WeightedRandomSampler([1.0] * 1000, num_samples=40)
            loader = prepare_data_loader(loader_of(sampler))
            counted = [batches() for _ in range(3)]
            return counted, [batches(1), batches(), batches(2), batches(0)]

        (zero, one, two), told = fit(train, storage, num_workers=2).return_value
        assert zero != one != two != zero
        assert told == [one, one, two, zero]

    def test_samplers_within_a_batch_sampler_are_told_the_epoch(self, storage: Path) -> None:
        def train() -> Any:
            own = BatchSampler(BatchSampler(Epoch(), 1, False), 1, False)
            loader = prepare_data_loader(DataLoader([*range(9)], None, sampler=own))
            loader.sampler.set_epoch(7)
            return list(loader.sampler)

        assert fit(train, storage, num_workers=2).return_value == [[[7]]]

    @pytest.mark.parametrize("sampler", [Shuffled("random"), Endless()])
    def test_the_programs_own_draws_are_left_as_they_are(self, storage: Path, sampler: Any) -> None:
        def train() -> Any:
            def draws() -> Iterator[Any]:
                torch.manual_seed(1), np.random.seed(1), random.seed(1)
                while True:
                    yield torch.rand(()).item(), np.random.randn(), random.gauss(0, 1)

            turns = prepare_data_loader(loader_of(sampler)).sampler
            undisturbed, alone = list(islice(draws(), 6)), list(islice(turns, 4))
            turns.set_epoch(0)
            own, items = draws(), []
            disturbed = [next(own)]
            with pytest.MonkeyPatch.context() as patch:
                patch.delattr(torch.cuda, "manual_seed_all")  # an accelerator is not seeded
                for item in islice(turns, 4):
                    items.append(item)
                    disturbed.append(next(own))
            disturbed.append(next(own))
            return disturbed == undisturbed, items == alone

        assert fit(train, storage, num_workers=2).return_value == (True, True)


@pytest.mark.parametrize("drawn", [4, 30])
def test_a_sampler_that_draws_another_number_of_rows_does_not_resume(
    process_engine: None, storage: Path, drawn: int
) -> None:
    def train_loop() -> None:
        rows = TensorDataset(torch.arange(20))
        loader = DataLoader(rows, 5, sampler=RandomSampler(rows, num_samples=drawn))
        with pytest.raises(ConfigError, match="has a RandomSampler of its own"):
            prepare_data_loader(loader, resumable=True)

    fit(train_loop, storage, num_workers=1)


def test_a_loader_without_batches_says_why(process_engine: None, storage: Path) -> None:
    def train_loop() -> list[str]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for rows, drop_last in ((1, False), (7, True), (9, False)):
                loader = DataLoader(range(rows), batch_size=4, drop_last=drop_last)
                loader = prepare_data_loader(loader, resumable=True)
                read = sum(len(batch) for batch in loader)
                assert read == (4 if rows == 9 else 0)
        return [str(each.message) for each in told]

    why = "an epoch of this loader has no batches: "
    assert fit(train_loop, storage, num_workers=2).return_value == [
        why + "1 rows are fewer than the 2 ranks",
        why + "drop_last leaves out 3 rows, fewer than 4",
    ]


# What a batch may be.

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str
    size: int = field(init=False, default=3)


class Own:
    """Moves itself, and says how it was asked to."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Any:
        return device.type, non_blocking


class OwnMapping(UserDict[str, Any]):
    """Knows best how its values move, as a TensorDict does."""

    def to(self, device: torch.device) -> str:
        return device.type


class OldOwn:
    def to(self, device: torch.device) -> str:
        return device.type


def moved(batch: Any) -> Any:
    loader = DataLoader([batch], batch_size=None, collate_fn=lambda item: item)
    (found,) = DeviceDataLoader(loader, META, ahead=True)
    return found


def test_containers_keep_their_types() -> None:
    x = torch.ones(2)
    numbers: Any = defaultdict(list, {"x": x})
    batches: list[tuple[Any, Callable[[Any], Any]]] = [
        (x, lambda b: b),
        ((x, 1), lambda b: b[0]),
        ([[x], "text"], lambda b: b[0][0]),
        (Pair(1, (x,)), lambda b: b.y[0]),
        ({"a": {"b": x}}, lambda b: b["a"]["b"]),
        (OrderedDict(x=x), lambda b: b["x"]),
        (UserDict(x=x), lambda b: b["x"]),
        (numbers, lambda b: b["x"]),
        (Sample(x, "text"), lambda b: b.image),
    ]
    for batch, inner in batches:
        found = moved(batch)
        assert type(found) is type(batch)
        assert inner(found).device == META
        assert inner(batch).device.type == "cpu"  # the batch itself is left as it was
    assert moved(numbers).default_factory is list
    assert moved(Sample(x, "text")).name == "text"
    assert moved(Sample(x, "text")).size == 3


def test_what_is_no_tensor_passes_through_or_moves_itself() -> None:
    assert moved(None) is None
    assert moved("text") == "text"
    assert moved(Sample) is Sample
    assert moved(Own()) == ("meta", False)
    assert moved(OldOwn()) == "meta"
    assert moved(OwnMapping()) == "meta"
    assert moved({"to": 1, "from": 2}) == {"to": 1, "from": 2}
    packed = moved(pack_sequence([torch.ones(2), torch.ones(1)]))
    assert type(packed) is PackedSequence
    assert packed.data.device == META
    assert packed.batch_sizes.device.type == "cpu"  # as PyTorch wants it


def test_loader_is_the_users_own_but_for_the_device() -> None:
    loader = DataLoader(TensorDataset(torch.arange(5)), batch_size=2)
    for ahead in (True, False):
        moving = DeviceDataLoader(loader, META, ahead)
        assert [len(batch[0]) for batch in moving] == [2, 2, 1]
        assert len(moving) == 3
        assert moving.dataset is loader.dataset
        assert moving.batch_size == 2


def test_only_devices_with_streams_copy_beside_the_work() -> None:
    """Elsewhere a batch may be gone before it is copied: pytorch/pytorch#189690, on MPS."""
    for name, non_blocking in (("cuda", True), ("xpu", True), ("mps", False), ("xla", False)):
        loader = DataLoader([Own()], batch_size=None, collate_fn=lambda item: item)
        moving = DeviceDataLoader(loader, torch.device(name), ahead=False)
        assert list(moving) == [(name, non_blocking)]


def test_a_loader_on_a_device_can_be_copied() -> None:
    loader = DeviceDataLoader(DataLoader(TensorDataset(torch.arange(3))), META, ahead=True)
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(other) is DeviceDataLoader
        assert [batch[0].device for batch in other] == [META] * 3
    with pytest.raises(AttributeError, match="no_such"):
        _ = loader.no_such


def test_what_is_set_is_set_on_the_loader() -> None:
    moving = DeviceDataLoader(DataLoader([1, 2]), META, ahead=True)
    moving.collate_fn = str
    assert list(moving) == ["[1]", "[2]"]


@pytest.mark.usefixtures("process_engine")
def test_workers_of_a_loader_that_was_used_before_follow_the_new_sampler(storage: Path) -> None:
    def train() -> Any:
        loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
        before = [batch.item() for batch in loader]
        return before, [batch.item() for batch in prepare_data_loader(loader)]

    assert fit(train, storage, num_workers=2).return_value == ([0, 1, 2, 3], [0, 2])
