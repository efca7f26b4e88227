"""Data loaders on devices: containers, order of the copies, and on a GPU the time they hide."""

from __future__ import annotations

import weakref
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dray.accelerators.nvidia import Nvidia
from dray.train import Result, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer, get_device, prepare_data_loader
from dray.train.torch_data import DeviceDataLoader, SideStream

META = torch.device("meta")  # needs no hardware: its tensors know where they are, and no values


def fit(function: Any, storage: Path, **scaling: Any) -> Result:
    return TorchTrainer(
        function,
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(storage_path=storage),
    ).fit()


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
    for batch, inner in (
        (x, lambda b: b),
        ((x, 1), lambda b: b[0]),
        ([[x], "text"], lambda b: b[0][0]),
        (Pair(1, (x,)), lambda b: b.y[0]),
        ({"a": {"b": x}}, lambda b: b["a"]["b"]),
        (OrderedDict(x=x), lambda b: b["x"]),
        (UserDict(x=x), lambda b: b["x"]),
        (numbers, lambda b: b["x"]),
        (Sample(x, "text"), lambda b: b.image),
    ):
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
    assert moved(Own()) == ("meta", True)
    assert moved(OldOwn()) == "meta"
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


@pytest.mark.usefixtures("process_engine")
def test_workers_of_a_loader_that_was_used_before_follow_the_new_sampler(storage: Path) -> None:
    def train() -> Any:
        loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
        before = [batch.item() for batch in loader]
        return before, [batch.item() for batch in prepare_data_loader(loader)]

    assert fit(train, storage, num_workers=2).return_value == ([0, 1, 2, 3], [0, 2])


# The copies beside the work.


class Streams:
    """Stands in for a module such as torch.cuda: writes down what streams are told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.main = self.current = Stream(self, "main")

    def Stream(self, device: torch.device) -> Stream:
        return Stream(self, "side")

    def current_stream(self, device: torch.device) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.main


@dataclass
class Stream:
    streams: Streams
    name: str

    def wait_stream(self, other: Stream) -> None:
        self.streams.told.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: str) -> None:
        self.streams.told.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        return self.streams.told[-1]  # the event is the last thing that was told


@dataclass
class Copied:
    """A batch that writes down on which stream it is copied."""

    number: int
    streams: Streams

    def to(self, device: torch.device) -> Copied:
        self.streams.told.append(f"copy {self.number} on {self.streams.current.name}")
        return self


def test_order_of_the_copies() -> None:
    streams = Streams()
    batches = (Copied(number, streams) for number in range(3))
    for batch in SideStream(META, streams).copy_ahead(batches):
        streams.told.append(f"step {batch.number} on {streams.current.name}")
    assert streams.told == [
        "side waits for main",
        "copy 0 on side",
        "side waits for main",
        "copy 1 on side",
        "main waits for copy 0 on side",
        "step 0 on main",
        "side waits for main",  # copy 2 may take the memory of batch 0
        "copy 2 on side",
        "main waits for copy 1 on side",
        "step 1 on main",
        "main waits for copy 2 on side",
        "step 2 on main",
    ]


def test_no_more_than_one_batch_is_ahead() -> None:
    drawn = 0

    def batches() -> Iterator[int]:
        nonlocal drawn
        for number in range(1, 6):
            drawn = number
            yield number

    ahead = SideStream(META, Streams()).copy_ahead(batches())
    assert drawn == 0
    assert [(batch, drawn) for batch in ahead] == [(1, 2), (2, 3), (3, 4), (4, 5), (5, 5)]


@pytest.mark.parametrize("batches", [[], [7], [None], [None, 1, None]])
def test_few_batches_and_empty_ones(batches: list[Any]) -> None:
    assert list(SideStream(META, Streams()).copy_ahead(batches)) == batches


def test_batches_are_let_go() -> None:
    streams = Streams()
    ahead = SideStream(META, streams).copy_ahead(Copied(n, streams) for n in range(3))
    first = weakref.ref(next(ahead))
    assert first() is None


# On a GPU.


@pytest.mark.gpu
@pytest.mark.skipif(
    torch.version.cuda is None or Nvidia().find() is None, reason="no NVIDIA GPU, or none for torch"
)
@pytest.mark.usefixtures("process_engine")
class TestOnAGpu:
    def test_batches_are_what_they_were(self, storage: Path) -> None:
        """Each is read late, after work that copies of later batches run beside."""

        class Numbers(Dataset[Any]):
            def __len__(self) -> int:
                return 60

            def __getitem__(self, i: int) -> Any:
                return {"x": torch.full((1 << 20,), float(i))}, Pair(i, None)

        def train() -> Any:
            weight = torch.eye(4096, device=get_device())
            own = DataLoader(Numbers(), batch_size=None)
            loader = prepare_data_loader(own)
            seen = []
            for batch, pair in loader:
                for _ in range(5):
                    weight = weight @ weight
                seen.append((batch["x"].amin(), batch["x"].amax(), pair.x))
                del batch
            numbers = [(low.item(), high.item(), i) for low, high, i in seen]
            return numbers, own.pin_memory, loader.pin_memory

        result = fit(train, storage, num_workers=1, use_gpu=True)
        assert result.return_value == ([(i, i, i) for i in range(60)], False, True)

    def test_copies_are_hidden_by_work(self, storage: Path) -> None:
        steps = 40

        class Same(Dataset[Any]):
            def __init__(self) -> None:
                self.batch = torch.ones(1 << 26).pin_memory()  # 256 MiB

            def __len__(self) -> int:
                return steps

            def __getitem__(self, i: int) -> Any:
                return self.batch

        def milliseconds(run: Any) -> float:
            run()  # the memory is there after this one
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / steps

        def train() -> Any:
            data = Same()
            matrix = torch.eye(2048, device=get_device())

            def copy() -> None:
                for _ in range(steps):
                    data.batch.to(get_device(), non_blocking=True)

            def multiply(times: int = 1) -> None:
                for _ in range(times):
                    torch.mm(matrix, matrix)

            copying = milliseconds(copy)
            times = round(2 * copying / milliseconds(lambda: multiply(steps)))

            def epoch(loader: Any) -> None:
                for batch in loader:
                    batch[:1].add_(1)
                    multiply(times)

            loaders = (
                prepare_data_loader(DataLoader(data, batch_size=None), auto_transfer=ahead)
                for ahead in (False, True)
            )
            return copying, *(milliseconds(lambda to=to: epoch(to)) for to in loaders)

        result = fit(train, storage, num_workers=1, use_gpu=True)
        copying, one_after_the_other, ahead = result.return_value
        assert copying / one_after_the_other == pytest.approx(1 / 3, abs=0.08)
        assert one_after_the_other - ahead >= 0.8 * copying
