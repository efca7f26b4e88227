"""Datasets and an NVIDIA GPU: pools of workers that predict on it, and batches that lie on it."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dray
import dray.data
import dray.train
from dray.train import RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer, get_device
from tests.support.gates import until
from tests.support.gpus import MEBIBYTE, on_a_gpu, used_memory

torch = pytest.importorskip("torch")
pytestmark = [*on_a_gpu(), pytest.mark.usefixtures("own_session")]

DEVICE = "cuda"
USE_GPU = True


class Doubler:
    """Doubles a column on the device, as models predict."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.two = torch.tensor(2.0, device=DEVICE)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        ids = torch.as_tensor(np.array(batch["id"]), device=DEVICE)
        doubled = ids * self.two
        forms = {"numpy": lambda: doubled.cpu().numpy(), "torch": lambda: doubled}
        if self.form == "cupy":
            cupy = importlib.import_module("cupy")

            forms["cupy"] = lambda: cupy.from_dlpack(doubled)
        if self.form == "rows":
            forms["rows"] = lambda: list(torch.stack([doubled, doubled], 1))
        pids = np.full(len(ids), os.getpid())
        return {"id": batch["id"], "doubled": forms[self.form](), "pid": pids}


@pytest.mark.parametrize("form", ["numpy", "torch", "rows", "cupy"])
def test_a_pool_on_a_gpu_takes_batches_in_whatever_form(form: str) -> None:
    if form == "cupy" and importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    before = used_memory()
    doubled = dray.data.range(100).map_batches(
        Doubler, fn_constructor_args=(form,), batch_size=16, concurrency=1, num_gpus=1
    )
    rows = doubled.take_all()
    assert [row["id"] for row in rows] == [*range(100)]
    found = [np.asarray(row["doubled"]).tolist() for row in rows]
    assert found == [[2.0 * i] * 2 if form == "rows" else 2.0 * i for i in range(100)]
    assert {row["pid"] for row in rows} != {os.getpid()}
    until(lambda: used_memory() < before + 256 * MEBIBYTE)
    whole = dray.cluster_resources()["GPU"]
    until(lambda: dray.available_resources().get("GPU") == whole)


def test_two_workers_share_a_gpu() -> None:
    doubled = dray.data.range(400).map_batches(
        Doubler, fn_constructor_args=("numpy",), batch_size=10, concurrency=2, num_gpus=0.5
    )
    rows = doubled.take_all()
    assert [row["doubled"] for row in rows] == [2.0 * i for i in range(400)]
    assert 1 <= len({row["pid"] for row in rows}) <= 2


def fit(storage: Path, function: Any, workers: int = 1, **given: Any) -> Any:
    gpu = {"GPU": 1 / workers} if USE_GPU else {}
    return TorchTrainer(
        function,
        train_loop_config=given,
        scaling_config=ScalingConfig(
            num_workers=workers, use_gpu=USE_GPU, resources_per_worker=gpu or None
        ),
        run_config=RunConfig(storage_path=storage),
        datasets={
            "train": dray.data.from_items(
                [{"x": [float(i), float(-i)], "y": i, "ok": i % 2 == 0} for i in range(50)]
            )
        },
    ).fit()


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_lie_on_the_device_of_their_worker(storage: Path, pin: bool, prefetch: int) -> None:
    def read(config: dict[str, Any]) -> Any:
        shard = dray.train.get_dataset_shard("train")
        found = []
        for batch in shard.iter_torch_batches(
            batch_size=8,
            dtypes={"x": torch.bfloat16, "y": torch.int32, "ok": torch.bool},
            pin_memory=config["pin"],
            prefetch_batches=config["prefetch"],
        ):
            types = {name: (str(t.dtype), t.device == get_device()) for name, t in batch.items()}
            found.append((types, batch["y"].tolist(), batch["x"].float().tolist()))
        return found, str(get_device())

    found, device = fit(storage, read, pin=pin, prefetch=prefetch).return_value
    assert torch.device(device).type == DEVICE
    types = {"x": ("torch.bfloat16", True), "y": ("torch.int32", True), "ok": ("torch.bool", True)}
    assert [each[0] for each in found] == [types] * 7
    assert [y for _, ys, _ in found for y in ys] == [*range(50)]
    assert [x for _, _, xs in found for x in xs] == [[float(i), float(-i)] for i in range(50)]


def test_many_pinned_batches_arrive_whole(storage: Path) -> None:
    """A copy that is not waited for must not read what the next batch has written over."""

    def read(config: dict[str, Any]) -> Any:
        large = dray.data.range_tensor(64, shape=(1 << 16,)).iterator()
        sums = []
        for batch in large.iter_torch_batches(
            batch_size=2, pin_memory=True, prefetch_batches=4, device=get_device()
        ):
            sums += batch["data"].sum(1).tolist()
        return sums

    found = fit(storage, read).return_value
    assert found == [i << 16 for i in range(64)]


def test_two_ranks_on_a_gpu_share_the_rows(storage: Path) -> None:
    def read(config: dict[str, Any]) -> Any:
        from torch import distributed

        shard = dray.train.get_dataset_shard("train")
        ys, devices = [], set()
        for batch in shard.iter_torch_batches(batch_size=5, collate_fn=None):
            ys += batch["y"].tolist()
            devices.add(batch["y"].device.type)
        every: list[Any] = [None, None]
        distributed.all_gather_object(every, (ys, sorted(devices)))
        return every

    every = fit(storage, read, workers=2).return_value
    assert sorted(y for ys, _ in every for y in ys) == [*range(50)]
    assert [devices for _, devices in every] == [[DEVICE]] * 2


def test_a_collate_fn_may_make_what_it_likes(storage: Path) -> None:
    def read(config: dict[str, Any]) -> Any:
        shard = dray.train.get_dataset_shard("train")

        def pair(batch: dict[str, Any]) -> Any:
            return torch.as_tensor(np.stack(list(batch["x"]))), [torch.as_tensor(batch["y"])]

        batches = shard.iter_torch_batches(batch_size=25, collate_fn=pair, pin_memory=USE_GPU)
        return [(x.device.type, tuple(x.shape), y.device.type) for x, (y,) in batches]

    assert fit(storage, read).return_value == [(DEVICE, (25, 2), DEVICE)] * 2
