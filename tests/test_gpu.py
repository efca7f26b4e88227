"""On a machine with NVIDIA GPUs: devices are found, given out, really used, and free again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import dray
from dray.accelerators.nvidia import Nvidia
from tests.gates import Gate, until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(Nvidia().find() is None, reason="this machine has no NVIDIA GPU"),
]

MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    dray.shutdown()
    dray.init(num_cpus=8)
    yield
    dray.shutdown()


def used_memory(device: int = 0) -> int:
    """How many bytes of a GPU all processes together use."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    finally:
        pynvml.nvmlShutdown()


def fill(mebibytes: int) -> Any:
    """Takes memory of the GPU, and says which it is."""
    import torch

    block = torch.ones(mebibytes * MEBIBYTE, dtype=torch.uint8, device="cuda")
    assert int(block.sum(dtype=torch.int64)) == mebibytes * MEBIBYTE
    return torch.cuda.device_count(), os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()


def test_dray_counts_what_pytorch_counts() -> None:
    @dray.remote
    def count() -> int:
        import torch

        return torch.cuda.device_count()

    assert dray.get(count.remote()) == dray.cluster_resources()["GPU"]


def test_the_type_is_offered() -> None:
    found = Nvidia().find()
    assert found is not None
    assert found.type
    assert found.memory_bytes
    assert not found.trouble
    task = dray.remote(num_gpus=1, accelerator_type=found.type)(fill)
    assert dray.get(task.remote(1))[0] == 1


def test_a_task_sees_one_gpu_and_leaves_its_memory_free() -> None:
    before = used_memory()
    task = dray.remote(num_gpus=1)(fill)
    pids = set()
    for _ in range(3):
        count, shown, pid = dray.get(task.remote(2048))
        assert (count, shown) == (1, "0")
        pids.add(pid)
        until(lambda: used_memory() < before + 256 * MEBIBYTE)
    assert len(pids) == 3


def test_several_processes_share_a_gpu(gate: Gate) -> None:
    @dray.remote(num_gpus=0.25)
    def share() -> Any:
        found = fill(256)
        gate.pass_through()
        return found

    running = [share.remote() for _ in range(4)]
    pids = gate.heard(4)  # all four at once
    gate.open()
    found = dray.get(running)
    assert len(set(pids)) == 4
    assert {(count, shown) for count, shown, _ in found} == {(1, "0")}


def test_an_actor_holds_its_gpu_until_it_is_gone() -> None:
    before = used_memory()

    @dray.remote(num_gpus=1)
    class Holder:
        def __init__(self) -> None:
            import torch

            self.block = torch.ones(2048 * MEBIBYTE, dtype=torch.uint8, device="cuda")

        def ready(self) -> bool:
            return bool(self.block[0])

    holder = Holder.remote()
    assert dray.get(holder.ready.remote())
    assert used_memory() > before + 1024 * MEBIBYTE
    dray.kill(holder)
    until(lambda: used_memory() < before + 256 * MEBIBYTE)


def test_a_worker_trains_on_its_gpu(storage: Any) -> None:
    from dray.train import RunConfig, ScalingConfig
    from dray.train.torch import TorchTrainer, get_device, prepare_model

    def train() -> None:
        import torch

        model = prepare_model(torch.nn.Linear(64, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(256, 64, device=get_device())
        for _ in range(20):
            optimizer.zero_grad()
            loss = ((model(inputs) - 1) ** 2).mean()
            loss.backward()
            optimizer.step()
        dray.train.report({"loss": loss.item(), "device": str(get_device())})

    result = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(storage_path=str(storage)),
    ).fit()
    assert result.metrics["device"] == "cuda:0"
    assert result.metrics["loss"] < 1
