"""Actors on an NVIDIA GPU: a model that stays there, its memory between calls, and shares."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import dray
from dray.errors import ActorDiedError, ActorUnavailableError, InfeasibleError
from dray.util.placement_group import placement_group, remove_placement_group
from dray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support.gates import refused_at_once, until
from tests.support.gpus import MEBIBYTE, on_a_gpu, used_memory

torch = pytest.importorskip("torch")
pytestmark = [*on_a_gpu(), pytest.mark.usefixtures("own_session")]

DEVICE = "cuda"


class Model:
    """Keeps a model on its device."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(16, 4).to(DEVICE).eval()

    def weights(self) -> Any:
        return {name: value.cpu() for name, value in self.net.state_dict().items()}

    def predict(self, inputs: Any) -> Any:
        with torch.inference_mode():
            return self.net(inputs.to(DEVICE)).cpu()

    def allocated(self) -> int:
        return torch.cuda.memory_allocated() if DEVICE == "cuda" else 0

    def give(self, mebibytes: int) -> Any:
        return torch.ones(mebibytes * MEBIBYTE, dtype=torch.uint8, device=DEVICE)

    def take(self, block: Any) -> tuple[str, int]:
        return block.device.type, int(block.sum(dtype=torch.int64))

    def run_out(self) -> None:
        kept = self.give(512)
        torch.empty(1 << 50, dtype=torch.uint8, device=kept.device)

    def devices(self) -> Any:
        context = dray.get_runtime_context()
        return context.get_accelerator_ids()["GPU"], os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_concurrent_calls_share_a_model() -> None:
    model = dray.remote(num_gpus=1, max_concurrency=4)(Model).remote()
    net = torch.nn.Linear(16, 4)
    net.load_state_dict(dray.get(model.weights.remote()))
    inputs = [torch.randn(64, 16, generator=torch.Generator().manual_seed(i)) for i in range(32)]
    found = dray.get([model.predict.remote(each) for each in inputs])
    with torch.inference_mode():
        for got, given in zip(found, inputs, strict=True):
            torch.testing.assert_close(got, net(given), rtol=1e-3, atol=1e-3)


def test_calls_leave_no_memory_taken_behind_them() -> None:
    """Neither what they are given and return, nor the frames of one that has run out of memory."""
    first, second = (dray.remote(num_gpus=0.5)(Model).remote() for _ in range(2))
    before = dray.get([first.allocated.remote(), second.allocated.remote()])
    taken = dray.get([second.take.remote(first.give.remote(256)) for _ in range(3)])
    assert taken == [(DEVICE, 256 * MEBIBYTE)] * 3
    with pytest.raises(torch.OutOfMemoryError if DEVICE == "cuda" else RuntimeError):
        dray.get(first.run_out.remote())
    after = dray.get([first.allocated.remote(), second.allocated.remote()])
    assert after == before
    assert dray.get(first.predict.remote(torch.ones(1, 16))).shape == (1, 4)  # it lives on


def test_actors_share_a_gpu_and_one_that_dies_ends_no_other() -> None:
    before = used_memory()
    actors = [dray.remote(num_gpus=0.25)(Model).remote() for _ in range(4)]
    found = dray.get([actor.devices.remote() for actor in actors])
    assert {(tuple(ids), shown) for ids, shown, _ in found} == {(("0",), "0")}
    assert len({pid for _, _, pid in found}) == 4
    assert dray.available_resources().get("GPU", 0) == dray.cluster_resources()["GPU"] - 1
    dying, *others = actors
    with pytest.raises(ActorDiedError):
        dray.get(dying.die.remote())
    inputs = torch.ones(2, 16)
    same = dray.get([actor.predict.remote(inputs) for actor in others])
    assert all(torch.equal(each, same[0]) for each in same), same
    for actor in others:
        dray.kill(actor)
    until(lambda: used_memory() < before + 256 * MEBIBYTE)


def test_an_actor_that_is_made_again_has_its_gpu_again() -> None:
    actor = dray.remote(num_gpus=1, max_restarts=1)(Model).remote()
    ids, shown, pid = dray.get(actor.devices.remote())
    with pytest.raises(ActorUnavailableError):
        dray.get(actor.die.remote())
    again = dray.get(actor.devices.remote())
    assert again[:2] == (ids, shown)
    assert again[2] != pid
    assert dray.get(actor.predict.remote(torch.ones(1, 16))).shape == (1, 4)


def test_a_placement_group_sets_a_gpu_aside() -> None:
    group = placement_group([{"GPU": 1, "CPU": 1}])
    assert group.wait(30)
    assert dray.available_resources().get("GPU", 0) == dray.cluster_resources()["GPU"] - 1
    here = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    half = dray.remote(num_gpus=0.5, num_cpus=0, scheduling_strategy=here)(Model)
    actors = [half.remote(), half.remote()]
    found = dray.get([actor.devices.remote() for actor in actors])
    assert [(list(ids), shown) for ids, shown, _ in found] == [(["0"], "0")] * 2
    for actor in actors:
        dray.kill(actor)
    remove_placement_group(group)
    alone = dray.remote(num_gpus=1)(Model).remote()
    assert dray.get(alone.devices.remote())[1] == "0"


def test_more_gpus_than_there_are_is_told_at_once() -> None:
    there = int(dray.cluster_resources()["GPU"])
    too_many = there + 1

    @dray.remote(num_gpus=too_many)
    def never() -> None:
        pass

    error = refused_at_once(InfeasibleError, lambda: dray.get(never.remote()), match="GPU")
    assert f"{too_many} GPU" in str(error), str(error)
    assert str(there) in str(error), str(error)
    error = refused_at_once(InfeasibleError, lambda: placement_group([{"GPU": too_many}]))
    assert "GPU" in str(error), str(error)
