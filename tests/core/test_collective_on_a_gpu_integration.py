"""Collectives between actors on an NVIDIA GPU: NCCL for one rank, Gloo where ranks share."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import pytest

import dray
from dray.errors import CollectiveError
from dray.util import collective
from dray.util.collective.types import ReduceOp
from tests.support.gpus import on_a_gpu

torch = pytest.importorskip("torch")
pytestmark = [*on_a_gpu(), pytest.mark.usefixtures("own_session")]

DEVICE = "cuda"
NCCL = "nccl"


class Member:
    """Calls functions."""

    def do(self, function: Callable[[], Any]) -> Any:
        return function()


def members(count: int, backend: str, share: float) -> list[Any]:
    actors = [dray.remote(num_gpus=share)(Member).remote() for _ in range(count)]
    collective.create_collective_group(actors, count, [*range(count)], backend=backend)
    return actors


def test_one_rank_of_nccl_does_every_operation_on_tensors() -> None:
    (member,) = members(1, NCCL, 1)

    def operations() -> Any:
        found = {}
        own = torch.arange(6.0, device=DEVICE).reshape(2, 3)
        collective.allreduce(own[:, 1:])  # a view, with gaps in memory
        found["allreduce"] = own.tolist()
        collective.allreduce(own, op=ReduceOp.MAX)
        collective.reduce(own, dst_rank=0)
        collective.broadcast(own, src_rank=0)
        collective.barrier()
        gathered = [torch.zeros(3, device=DEVICE)]
        collective.allgather(gathered, torch.full((3,), 4.0, device=DEVICE))
        found["allgather"] = gathered[0].tolist()
        scattered = torch.zeros(2, device=DEVICE)
        collective.reducescatter(scattered, [torch.full((2,), 5.0, device=DEVICE)])
        found["reducescatter"] = scattered.tolist()
        half = torch.full((2,), 1.5, device=DEVICE, dtype=torch.bfloat16)
        collective.allreduce(half)
        found["bfloat16"] = half.tolist()
        return found, own.device.type

    assert dray.get(member.do.remote(operations)) == (
        {
            "allreduce": [[0, 1, 2], [3, 4, 5]],
            "allgather": [4, 4, 4],
            "reducescatter": [5, 5],
            "bfloat16": [1.5, 1.5],
        },
        DEVICE,
    )

    def leaves() -> bool:
        collective.destroy_collective_group()
        collective.init_collective_group(1, 0, NCCL)
        one = torch.ones(2, device=DEVICE)
        collective.allreduce(one)
        return one.tolist() == [1, 1]

    assert dray.get(member.do.remote(leaves))


def test_nccl_changes_arrays_of_cupy_in_place() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    (member,) = members(1, NCCL, 1)

    def operations() -> Any:
        cupy = importlib.import_module("cupy")

        own = cupy.arange(4, dtype=cupy.float32)
        collective.allreduce(own)
        gathered = [cupy.zeros(4, dtype=cupy.float32)]
        collective.allgather(gathered, own * 2)
        return own.tolist(), gathered[0].tolist()

    assert dray.get(member.do.remote(operations)) == ([0, 1, 2, 3], [0, 2, 4, 6])


def test_nccl_says_which_tensors_it_does_not_carry() -> None:
    (member,) = members(1, NCCL, 1)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        dray.get(member.do.remote(lambda: collective.allreduce(torch.ones(2))))
    assert "CUDA" in str(caught.value) or "GPU" in str(caught.value), repr(caught.value)


def reduce_ones() -> None:
    collective.allreduce(torch.ones(2, device=DEVICE))


def test_two_ranks_of_nccl_on_one_gpu_are_told_so_soon() -> None:
    def reduce_all() -> None:
        pair = members(2, NCCL, 0.5)
        dray.get([member.do.remote(reduce_ones) for member in pair])

    began = time.monotonic()
    with pytest.raises(CollectiveError) as caught:
        reduce_all()
    took_s = time.monotonic() - began
    assert "NCCL cannot connect two ranks on one GPU" in str(caught.value), str(caught.value)
    assert took_s < 60, f"it took {took_s:.0f} s: {caught.value}"


def test_gloo_connects_ranks_on_one_gpu() -> None:
    pair = members(2, "gloo", 0.5)

    def operations() -> Any:
        rank = collective.get_rank()
        found = {}
        for device in ("cpu", DEVICE):
            own = torch.full((3,), rank + 1.0, device=device)
            collective.allreduce(own)
            told = torch.full((2,), float(rank), device=device)
            collective.broadcast(told, src_rank=1)
            collective.barrier()
            found[device] = own.tolist(), told.tolist(), own.device.type
        return found

    for found in dray.get([member.do.remote(operations) for member in pair]):
        assert found == {
            device: ([3, 3, 3], [1, 1], torch.device(device).type) for device in ("cpu", DEVICE)
        }
