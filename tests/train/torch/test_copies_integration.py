"""Batches on their way to a device: through pinned memory, and beside the work that uses others."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dray
import dray.train
from dray.train import RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer, get_device, prepare_data_loader
from dray.train.torch.data import DeviceDataLoader, SideStream
from tests.support.gpus import on_a_gpu
from tests.support.torch_runs import fit

META = torch.device("meta")  # needs no hardware: its tensors know where they are, and no values

Pair = namedtuple("Pair", "x y")


# What the loader is, and what it pins.


@pytest.fixture
def simulated_gpu() -> Iterator[None]:
    dray.shutdown()
    dray.init(nodes=[{"num_cpus": 4, "num_gpus": 1}])
    yield
    dray.shutdown()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_pins_if_it_was_made_to(
    simulated_gpu: None, storage: Path, num_workers: int
) -> None:
    """Its data may be on the device, where nothing can be pinned."""

    def train() -> Any:
        def pins(asked: bool, ahead: bool) -> bool:
            loader = DataLoader(range(4), num_workers=num_workers, pin_memory=asked)
            return prepare_data_loader(loader, auto_transfer=ahead).pin_memory

        return [pins(asked, ahead) for asked in (False, True) for ahead in (False, True)]

    found = fit(train, storage, num_workers=1, use_gpu=True).return_value
    assert found == [False, False, True, True]


class OwnLoader(DataLoader[Any]):
    """Has a method of its own."""

    def first(self) -> Any:
        return next(iter(self))


def test_a_loader_on_a_device_is_of_its_own_kind(simulated_gpu: None, storage: Path) -> None:
    def train() -> Any:
        prepared = prepare_data_loader(DataLoader(range(4)))
        return isinstance(prepared, DataLoader), type(prepared) is DeviceDataLoader

    assert fit(train, storage, num_workers=1, use_gpu=True).return_value == (True, True)
    moving: Any = DeviceDataLoader(OwnLoader([7]), META, ahead=True)
    for loader in (moving, copy.copy(moving), pickle.loads(pickle.dumps(moving))):
        assert isinstance(loader, OwnLoader)
        assert isinstance(loader, DeviceDataLoader)
        assert loader.first() == 7
    assert not isinstance(DeviceDataLoader(DataLoader([7]), META, ahead=True), OwnLoader)


def test_a_batch_that_is_only_copied_ahead_comes_after_a_restart(
    simulated_gpu: None, storage: Path
) -> None:
    def train() -> Any:
        DeviceDataLoader._side_stream = SideStream(META, Streams())  # type: ignore[assignment]
        loader = DataLoader(range(8), batch_size=2, collate_fn=list)
        loader = prepare_data_loader(loader, resumable=True)
        assert isinstance(loader, DataLoader)
        checkpoint = dray.train.get_checkpoint()
        seen = checkpoint.get_metadata()["seen"] if checkpoint else []
        for batch in loader:
            seen += batch
            with dray.train.checkpoint_dir() as directory:
                checkpoint = dray.train.Checkpoint(directory)
                checkpoint.set_metadata({"seen": seen})
                dray.train.report({}, checkpoint)
            if batch == [2, 3]:
                raise FloatingPointError
        return seen

    retries = dray.train.FailureConfig(max_failures=1)
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(storage_path=storage, failure_config=retries),
    )
    assert trainer.fit().return_value == [*range(8)]


def test_dense_tensors_of_the_cpu_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an accelerator there is no memory to pin: what is asked for is written down."""
    asked = []

    def empty_like(tensor: torch.Tensor, pin_memory: bool) -> torch.Tensor:
        asked.append((tensor, pin_memory))
        return torch.zeros_like(tensor)

    monkeypatch.setattr(torch, "empty_like", empty_like)
    here, there, sparse = torch.ones(2), torch.empty(2, device=META), torch.eye(2).to_sparse()
    (batch,) = SideStream(META, Streams()).copy_ahead([{"x": [here, sparse], "y": Pair(there, 1)}])
    assert [(tensor is here, pin) for tensor, pin in asked] == [(True, True)]
    assert [tensor.device for tensor in batch["x"]] == [META] * 2
    assert batch["y"].x is there  # it is handed out as it is
    list(DeviceDataLoader(DataLoader([here], batch_size=None), META, ahead=False))
    assert len(asked) == 1


# The copies beside the work.


# Where the name is that of a method.
_Stream: TypeAlias = "Stream"


class Streams:
    """Stands in for a module such as torch.cuda: writes down what streams are told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.main = self.current = Stream(self, "main")

    def Stream(self, device: torch.device) -> _Stream:
        return Stream(self, "side")

    def current_stream(self, device: torch.device) -> _Stream:
        return self.current

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
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


def expanded(numbers: list[torch.Tensor]) -> torch.Tensor:
    """A batch whose elements share memory, in which nothing can be written."""
    return numbers[0].expand(2)


@pytest.mark.usefixtures("process_engine")
class TestOnAGpu:
    pytestmark = on_a_gpu()

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
        assert result.return_value == ([(i, i, i) for i in range(60)], False, False)

    @pytest.mark.parametrize("ahead", [True, False])
    def test_data_that_are_there_stay_there(self, storage: Path, ahead: bool) -> None:
        def train() -> Any:
            x = torch.arange(10.0, device=get_device())
            loader = DataLoader(TensorDataset(x, -x), batch_size=4)
            whole = DataLoader([x, -x], batch_size=None)
            batches = list(prepare_data_loader(loader, auto_transfer=ahead))
            first, _ = prepare_data_loader(whole, auto_transfer=ahead)
            return (
                [(str(a.device), a.tolist(), b.tolist()) for a, b in batches],
                first is x,
            )

        batches, same = fit(train, storage, num_workers=1, use_gpu=True).return_value
        numbers = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert batches == [("cuda:0", a, [-number for number in a]) for a in numbers]
        assert same

    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_what_is_copied_is_pinned(self, storage: Path, num_workers: int) -> None:
        def train() -> Any:
            pinned = []
            copy_to = torch.Tensor.to

            def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
                pinned.append((tensor.is_pinned(), kwargs))
                return copy_to(tensor, *args, **kwargs)

            loader = prepare_data_loader(
                DataLoader(torch.arange(3.0), num_workers=num_workers, collate_fn=expanded)
            )
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch.Tensor, "to", to)
                batches = [batch.tolist() for batch in loader]
            return batches, pinned

        batches, pinned = fit(train, storage, num_workers=1, use_gpu=True).return_value
        assert batches == [[0, 0], [1, 1], [2, 2]]
        assert pinned == [(True, {"non_blocking": True})] * 3

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
