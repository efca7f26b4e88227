"""Collectives between actors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import dray
from dray.errors import CollectiveError, ConfigError
from dray.util import collective
from dray.util.collective.group import Group
from dray.util.collective.types import Backend, ReduceOp

pytestmark = pytest.mark.usefixtures("core_engine")

SIZE = 3


@dray.remote(num_cpus=0)
class Member:
    """Calls functions with its rank."""

    def join(self, rank: int, name: str = "default", timeout_ms: int = 30000) -> None:
        collective.init_collective_group(SIZE, rank, "gloo", name, timeout_ms)

    def do(self, function: Callable[[int], Any]) -> Any:
        return function(collective.get_rank())

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def members() -> Iterator[list[Any]]:
    members = [Member.remote() for _ in range(SIZE)]
    collective.create_collective_group(members, SIZE, [0, 1, 2], backend="gloo")
    yield members
    for member in members:
        dray.kill(member)


def results(members: list[Any], function: Callable[[int], Any]) -> list[Any]:
    return dray.get([member.do.remote(function) for member in members])


def test_reductions(members: list[Any]) -> None:
    def all_reduced(rank: int) -> Any:
        table = np.full((2, 3), rank + 1)
        collective.allreduce(table[:, 1:], op=ReduceOp.PRODUCT)  # a view, with gaps in memory
        return table.tolist()

    def reduced(rank: int) -> Any:
        numbers = torch.tensor([rank + 1.0, -rank])
        collective.reduce(numbers, dst_rank=1, op=ReduceOp.MAX)
        return numbers.tolist()

    def scattered(rank: int) -> Any:
        own = torch.zeros(2)
        collective.reducescatter(own, [torch.full((2,), float(rank + i)) for i in range(SIZE)])
        return own.tolist()

    assert results(members, all_reduced) == [[[rank, 6, 6]] * 2 for rank in (1, 2, 3)]
    assert results(members, reduced) == [[1, 0], [3, 0], [3, -2]]
    assert results(members, scattered) == [[3, 3], [6, 6], [9, 9]]


def test_copies(members: list[Any]) -> None:
    constant = dray.put(np.arange(4.0))

    def gathered(rank: int) -> Any:
        found = [np.zeros(1) for _ in range(SIZE)]
        collective.allgather(found, np.array([float(rank)]))
        return [float(each[0]) for each in found]

    def told(rank: int) -> Any:
        own = dray.get(constant) if rank == 2 else np.zeros(4)  # read-only there, and only read
        collective.broadcast(own, src_rank=2)
        collective.barrier()
        return own.tolist()

    def passed_on(rank: int) -> Any:
        own = torch.full((2,), float(rank))
        if rank > 0:
            collective.recv(own, rank - 1)
        if rank < SIZE - 1:
            collective.send(own + 1, rank + 1)
        return own.tolist()

    assert results(members, gathered) == [[0, 1, 2]] * SIZE
    assert results(members, told) == [[0, 1, 2, 3]] * SIZE
    assert results(members, passed_on) == [[0, 0], [1, 1], [2, 2]]


def test_groups_come_and_go(members: list[Any]) -> None:
    def described(_: int) -> Any:
        group = collective.get_group_handle()
        return group.rank, group.world_size, group.backend is Backend.GLOO

    def left(_: int) -> Any:
        collective.destroy_collective_group()
        return collective.is_group_initialized(), collective.get_collective_group_size()

    assert results(members, described) == [(rank, SIZE, True) for rank in range(SIZE)]
    dray.get([member.join.remote(SIZE - 1 - i, "other") for i, member in enumerate(members)])
    for _ in range(2):
        assert results(members, left) == [(False, -1)] * SIZE
        dray.get([member.join.remote(rank) for rank, member in enumerate(members)])

    def both(rank: int) -> Any:
        return collective.get_rank("other") + rank, collective.get_rank("none")

    assert results(members, both) == [(SIZE - 1, -1)] * SIZE
    assert not any("collective" in name for name in dray.util.list_named_actors())


def test_a_rank_that_is_not_there_is_named(members: list[Any]) -> None:
    joining = [members[rank].join.remote(rank, "two", 1000) for rank in (0, 1)]
    dray.wait(joining, num_returns=2)
    with pytest.raises(
        CollectiveError, match=r"2 of collective group 'two' did not come to rank 0"
    ):
        dray.get(joining[0])
    with pytest.raises(CollectiveError, match=r"rank 0 of collective group 'one' did not come"):
        dray.get(members[1].join.remote(1, "one", 500))
    dray.get([member.join.remote(rank, "two", 30000) for rank, member in enumerate(members)])

    members[0].die.remote()
    rest = [member.do.remote(lambda _: collective.barrier("two")) for member in members[1:]]
    with pytest.raises(
        CollectiveError, match=r"^(?s:.*)barrier\(\) of collective group 'two' fail"
    ):
        dray.get(rest)


def test_what_cannot_be_is_refused(members: list[Any]) -> None:
    with pytest.raises(ConfigError, match="'mpi': collectives use 'gloo' or 'nccl'"):
        collective.create_collective_group(members, SIZE, [0, 1, 2], backend="mpi")
    with pytest.raises(ConfigError, match="each rank from 0 to world_size - 1 once"):
        collective.create_collective_group(members, SIZE, [0, 1, 1], backend="gloo")
    with pytest.raises(ConfigError, match="collectives are for actors"):
        collective.allreduce(np.zeros(1))
    with pytest.raises(ConfigError, match="in a collective group 'default' already"):
        dray.get(members[0].join.remote(0))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="'nccl' needs an NVIDIA GPU"):
            collective.create_collective_group(members, SIZE, [0, 1, 2], group_name="gpu")
    fixed = np.zeros(1)
    fixed.flags.writeable = False
    for wrong, message in (
        (lambda _: collective.allreduce(np.zeros(1), "none"), "in no collective group 'none'"),
        (lambda _: collective.allreduce([1.0]), "a list is not a tensor"),
        (lambda _: collective.allreduce(fixed), "read-only"),
        (lambda _: collective.broadcast(np.zeros(1), SIZE), "has no rank 3"),
        (lambda rank: collective.send(np.zeros(1), rank), "rank 0 .* is this process"),
        (lambda _: collective.allgather([np.zeros(1)], np.zeros(1)), "1 tensors were given"),
    ):
        with pytest.raises(ConfigError, match=message):
            dray.get(members[0].do.remote(wrong))


def test_what_nccl_says_of_two_ranks_on_one_gpu_is_told_plainly() -> None:
    """As it is in https://github.com/verl-project/verl/issues/161."""
    said = (
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, invalid usage (run "
        "with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 40000\n"
    )
    group = object.__new__(Group)
    group.name, group.rank, group.world_size, group.backend = "default", 1, 2, Backend.NCCL
    with pytest.raises(CollectiveError) as caught, group.failing("allreduce()"):
        raise RuntimeError(said)
    assert str(caught.value) == (
        "allreduce() of collective group 'default' failed on rank 1 of 2: NCCL cannot connect two "
        "ranks on one GPU: give each actor a whole one (num_gpus=1), or use backend='gloo' "
        "(Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 40000)"
    )
