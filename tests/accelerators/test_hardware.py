"""On a machine with NVIDIA GPUs: devices are found, given out, really used, and free again."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
from typing import Any

import pytest

import dray
from dray.accelerators.vendors.nvidia import Nvidia
from tests.support.gates import Gate, until
from tests.support.gpus import MEBIBYTE, used_memory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(Nvidia().find() is None, reason="this machine has no NVIDIA GPU"),
    pytest.mark.usefixtures("own_session"),
]


def fill(mebibytes: int) -> Any:
    """Take memory of the GPU, and say which it is."""
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
    assert result.metrics is not None
    assert result.metrics["device"] == "cuda:0"
    assert result.metrics["loss"] < 1


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_on_one_gpu_learn_what_one_process_learns(storage: Any, strategy: str) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None:
        pytest.skip(f"PyTorch {torch.__version__} is built without CUDA")

    from dray.train import RunConfig, ScalingConfig
    from dray.train.torch import TorchTrainer, get_device, prepare_model

    def step(model: Any, inputs: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(inputs).square().mean().backward()
        optimizer.step()

    def all_inputs() -> Any:
        return torch.randn(8, 6, generator=torch.Generator().manual_seed(5))

    def train() -> Any:
        from torch import distributed

        rank = distributed.get_rank()
        torch.manual_seed(rank)
        net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        model = prepare_model(net, parallel_strategy=strategy)
        step(model, all_inputs()[rank::2].to(get_device()))
        if strategy == "fsdp":
            # Not full_tensor(): https://github.com/pytorch/pytorch/issues/152645, with gloo.
            model.unshard()
        mine = [parameter.tolist() for parameter in net.parameters()]
        ranks: list[Any] = [None, None]
        distributed.all_gather_object(ranks, (str(get_device()), mine))
        return distributed.get_backend(), ranks

    shared = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 0.5})
    backend, ranks = (
        TorchTrainer(train, scaling_config=shared, run_config=RunConfig(storage_path=str(storage)))
        .fit()
        .return_value
    )
    (device, first), (other_device, second) = ranks
    assert (backend, device, other_device) == ("gloo", "cuda:0", "cuda:0")
    assert first == second
    torch.manual_seed(0)
    alone = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    step(alone, all_inputs())
    for found, expected in zip(first, alone.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(found), expected.detach(), rtol=0, atol=1e-5)


def test_nccl_connects_what_has_a_whole_gpu(storage: Any) -> None:
    from dray.train import RunConfig, ScalingConfig
    from dray.train.torch import TorchTrainer, get_device

    def train() -> Any:
        import torch
        from torch import distributed

        one = torch.ones(3, device=get_device())
        distributed.all_reduce(one)
        return distributed.get_backend(), one.tolist()

    scaling = ScalingConfig(num_workers=1, use_gpu=True)
    run = RunConfig(storage_path=str(storage))
    found = TorchTrainer(train, scaling_config=scaling, run_config=run).fit().return_value
    assert found == ("nccl", [1.0] * 3)


def test_jax_computes_on_the_gpu_of_its_worker(storage: Any) -> None:
    if not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)):
        pytest.skip("JAX is not installed for CUDA")

    from dray.train import RunConfig, ScalingConfig
    from dray.train.jax import JaxTrainer

    def train() -> Any:
        import jax

        total = jax.numpy.ones(1000).sum()
        return [device.platform for device in total.devices()], float(total), jax.device_count()

    scaling = ScalingConfig(num_workers=1, use_gpu=True)
    run = RunConfig(storage_path=str(storage))
    found = JaxTrainer(train, scaling_config=scaling, run_config=run).fit().return_value
    assert found == (["gpu"], 1000.0, 1)


# Steps a second of a small transformer, on the first device there is; `seconds` after a warm-up.
MEASURE = """
import sys, time, torch

def measure(prepare=lambda model: model, report=lambda metrics: None, seconds=5.0):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 8, batch_first=True)
    model = prepare(torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(32, 128, 256, device=device)
    begun, steps = None, 0
    while begun is None or time.perf_counter() < begun + seconds:
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
        report({"loss": loss.item()})  # which waits for the device
        steps = 0 if begun is None else steps + 20
        begun = begun or time.perf_counter()
    return steps / (time.perf_counter() - begun)
"""


def test_training_is_as_fast_as_plain_pytorch(storage: Any) -> None:
    """In pairs, because clocks drift; each in a process of its own."""
    from dray.train import RunConfig, ScalingConfig
    from dray.train.torch import TorchTrainer, prepare_model

    def train(source: str) -> Any:
        names: dict[str, Any] = {}
        exec(source, names)
        return names["measure"](prepare_model, dray.train.report)

    def with_dray() -> float:
        trainer = TorchTrainer(
            lambda config: train(config["source"]),
            train_loop_config={"source": MEASURE},
            scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
            run_config=RunConfig(storage_path=str(storage)),
        )
        return float(trainer.fit().return_value)

    def plain() -> float:
        command = [sys.executable, "-c", f"{MEASURE}\nprint(measure())"]
        return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    ratios = [with_dray() / plain() for _ in range(5)]
    print("steps/s of dray over plain PyTorch:", [f"{ratio:.3f}" for ratio in ratios])
    assert statistics.median(ratios) > 0.99
