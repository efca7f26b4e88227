"""A Ray cluster that has found an NVIDIA GPU: tasks, shares of it, errors, and runs on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray.errors import InfeasibleError, TaskError
from dray.train import RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer, get_device, prepare_model
from dray.util.placement_group import placement_group, remove_placement_group
from dray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support.gates import Gate, until
from tests.support.gpus import MEBIBYTE, on_a_gpu, used_memory

torch = pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = on_a_gpu()

DEVICE = "cuda"
USE_GPU = True
OF_THE_HEAD = ("--num-cpus=8",)


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One node, as `ray start` finds it."""
    from tests.support.clusters import Head

    dray.shutdown()
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns
        changed.setenv("RAY_AUTH_MODE", "disabled")
        head = Head(tmp_path_factory.mktemp("ray"), *OF_THE_HEAD)
        try:
            dray.init(engine="ray", address=head.address)
            yield
        finally:
            dray.shutdown()
            head.stop()


def fill(mebibytes: int) -> Any:
    """Take memory of the GPU, and say which it is."""
    block = torch.ones(mebibytes * MEBIBYTE, dtype=torch.uint8, device=DEVICE)
    assert int(block.sum(dtype=torch.int64)) == mebibytes * MEBIBYTE
    ids = dray.get_runtime_context().get_accelerator_ids()["GPU"]
    return list(ids), os.environ["CUDA_VISIBLE_DEVICES"], block.device.type, os.getpid()


def test_the_cluster_offers_the_gpu() -> None:
    found = dray.cluster_resources()
    assert found["GPU"] >= 1, found
    assert any(name.startswith("accelerator_type:") for name in found), found


def test_a_task_sees_one_gpu_and_leaves_its_memory_free() -> None:
    before = used_memory()
    task = dray.remote(num_gpus=1)(fill)
    for _ in range(2):
        ids, shown, device, _ = dray.get(task.remote(1024))
        assert (ids, shown, device) == (["0"], "0", DEVICE)
        until(lambda: used_memory() < before + 256 * MEBIBYTE)


def test_several_tasks_share_the_gpu(gate: Gate) -> None:
    @dray.remote(num_gpus=0.5)
    def share() -> Any:
        found = fill(64)
        gate.pass_through()
        return found

    running = [share.remote() for _ in range(2)]
    gate.heard(2)
    gate.open()
    found = dray.get(running)
    assert len({pid for *_, pid in found}) == 2
    assert [each[:3] for each in found] == [(["0"], "0", DEVICE)] * 2


def test_tensors_travel_between_tasks_on_the_gpu() -> None:
    @dray.remote(num_gpus=0.5)
    def made() -> Any:
        return torch.arange(4, device=DEVICE, dtype=torch.bfloat16)

    @dray.remote(num_gpus=0.5)
    def looked_at(tensor: Any) -> Any:
        return tensor.device.type, str(tensor.dtype), tensor.tolist()

    found = dray.get(looked_at.remote(made.remote()))
    assert found == (DEVICE, "torch.bfloat16", [0, 1, 2, 3])


def test_an_actor_holds_its_gpu_until_it_is_gone() -> None:
    before = used_memory()

    @dray.remote(num_gpus=1)
    class Holder:
        def __init__(self) -> None:
            self.block = torch.ones(1024 * MEBIBYTE, dtype=torch.uint8, device=DEVICE)

        def about(self) -> Any:
            return self.block.device.type, int(self.block.sum(dtype=torch.int64))

    holder = Holder.remote()
    assert dray.get(holder.about.remote()) == (DEVICE, 1024 * MEBIBYTE)
    dray.kill(holder)
    until(lambda: used_memory() < before + 256 * MEBIBYTE)


def test_want_of_memory_is_pytorchs_error() -> None:
    @dray.remote(num_gpus=1, max_retries=0)
    def too_much() -> Any:
        return torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE)

    with pytest.raises(torch.OutOfMemoryError if USE_GPU else RuntimeError) as caught:
        dray.get(too_much.remote())
    assert isinstance(caught.value, TaskError), type(caught.value).__mro__
    assert "too_much" in str(caught.value), str(caught.value)


def test_a_placement_group_sets_the_gpu_aside() -> None:
    group = placement_group([{"GPU": 1, "CPU": 1}])
    assert group.wait(60)
    here = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    task = dray.remote(num_gpus=0.5, num_cpus=0, scheduling_strategy=here)(fill)
    assert dray.get(task.remote(1))[:3] == (["0"], "0", DEVICE)
    remove_placement_group(group)


def fit(storage: Path, function: Any, workers: int = 1, name: str = "run") -> Any:
    shared = {"GPU": 1 / workers} if USE_GPU and workers > 1 else None
    scaling = ScalingConfig(num_workers=workers, use_gpu=USE_GPU, resources_per_worker=shared)
    return TorchTrainer(
        function,
        scaling_config=scaling,
        run_config=RunConfig(storage_path=storage, name=name),
    ).fit()


def train() -> Any:
    from torch import distributed

    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = ((model(torch.ones(32, 16, device=get_device())) - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dray.train.report({"loss": losses[-1]})
    where = {parameter.device.type for parameter in model.parameters()}
    return where, distributed.get_backend(), losses[-1] < losses[0], os.getpid()


def test_runs_train_on_the_gpu_one_after_the_other(storage: Path) -> None:
    before = used_memory()
    found = [fit(storage, train, name=f"run-{i}").return_value for i in range(2)]
    backend = "nccl" if USE_GPU else "gloo"
    assert [each[:3] for each in found] == [({DEVICE}, backend, True)] * 2
    assert found[0][3] != found[1][3]
    until(lambda: used_memory() < before + 256 * MEBIBYTE)


def test_two_ranks_share_the_gpu(storage: Path) -> None:
    def both() -> Any:
        from torch import distributed

        found = train()
        every: list[Any] = [None, None]
        distributed.all_gather_object(every, (str(get_device()), distributed.get_backend()))
        return found[:3], every

    mine, every = fit(storage, both, workers=2).return_value
    assert mine == ({DEVICE}, "gloo", True)
    assert every == [("cuda:0" if USE_GPU else "cpu", "gloo")] * 2


def test_a_run_that_asks_for_more_gpus_is_told_so(storage: Path) -> None:
    there = int(dray.cluster_resources()["GPU"])
    with pytest.raises(InfeasibleError, match="GPU"):
        TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=there + 1, use_gpu=True),
            run_config=RunConfig(storage_path=storage),
        ).fit()
