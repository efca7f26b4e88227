"""Threads of a worker, and the cores that it runs on."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dray
from dray import host
from dray.testing import FakeHost
from dray.train import RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer
from dray.train.worker.cpu_affinity import (
    asked_threads,
    cores_by_numa_node,
    share_of_cores,
    threads_per_worker,
)

CORES = host.cpu_count()


@pytest.mark.parametrize(
    ("cores", "local_world_size", "cpus", "threads"),
    [
        (8, 1, None, 8),
        (8, 2, None, 4),
        (8, 3, None, 2),
        (2, 8, None, 1),
        (8, 2, 3, 3),
        (8, 2, 0.5, 1),
        (8, 2, 16, 8),
        (8, 2, 0, 4),
    ],
)
def test_threads(cores: int, local_world_size: int, cpus: float | None, threads: int) -> None:
    assert threads_per_worker(cores, local_world_size, cpus) == threads


@pytest.mark.parametrize(("text", "threads"), [("3", 3), ("4,2", 4), ("", 0), ("many", 0)])
def test_threads_that_the_user_asks_for(text: str, threads: int) -> None:
    assert asked_threads({"OMP_NUM_THREADS": text}) == threads
    assert asked_threads({}) == 0


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=8),
    st.integers(1, 64),
)
def test_shares_of_cores(sizes: list[int], workers: int) -> None:
    numbers = itertools.count()
    nodes = [[next(numbers) for _ in range(size)] for size in sizes]
    shares = [share_of_cores(rank, workers, nodes) for rank in range(workers)]
    assert all(shares)
    taken = [core for share in shares for core in share]
    assert set(taken) <= set(range(sum(sizes)))
    fair = sum(sizes) // workers
    assert 2 * min(map(len, shares)) >= fair
    if fair:
        assert sorted(taken) == list(range(sum(sizes)))  # each worker has cores of its own
    if workers >= len(nodes) and (len(set(sizes)) == 1 or not fair):
        assert all(any(set(share) <= set(node) for node in nodes) for share in shares)


@pytest.mark.parametrize(
    ("sizes", "workers", "expected"),
    [
        ([4, 4], 2, [4, 4]),
        ([4, 4], 3, [4, 2, 2]),
        ([6, 4], 2, [6, 4]),
        ([7, 1], 2, [4, 4]),
        ([7, 1], 4, [2, 2, 2, 2]),
        ([1, 1, 6], 2, [4, 4]),
        ([5, 3], 8, [1] * 8),
        ([1, 1], 3, [1, 1, 1]),
    ],
)
def test_numa_nodes_of_different_sizes(sizes: list[int], workers: int, expected: list[int]) -> None:
    numbers = itertools.count()
    nodes = [[next(numbers) for _ in range(size)] for size in sizes]
    shares = [share_of_cores(rank, workers, nodes) for rank in range(workers)]
    assert [len(share) for share in shares] == expected
    assert len({core for share in shares for core in share}) == min(sum(sizes), sum(expected))


def test_numa_nodes_of_a_machine() -> None:
    mine = sorted(os.sched_getaffinity(0))
    halves = {f"sys/devices/system/node/node{i}/cpulist": str(core) for i, core in enumerate(mine)}
    with FakeHost(files=halves):
        assert cores_by_numa_node() == [[core] for core in mine]
    with FakeHost(files={"sys/devices/system/node/node0/cpulist": "0-4095"}):
        assert cores_by_numa_node() == [mine]
    with FakeHost():
        assert cores_by_numa_node() == [mine]


def fit(storage: Path, train: Any, workers: int = 2, **options: Any) -> Any:
    run = {"worker_runtime_env": {"env_vars": options.pop("variables", {})}}
    return (
        TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=workers, **options),
            run_config=RunConfig(storage_path=storage, **run),  # type: ignore[arg-type]
        )
        .fit()
        .return_value
    )


def threads() -> list[Any]:
    import torch

    return [torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]]


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"workers": 1}, CORES),
        ({"workers": 2}, max(1, CORES // 2)),
        ({"workers": 2, "resources_per_worker": {"CPU": 1}}, 1),
        ({"workers": 2, "resources_per_worker": {"CPU": 2}}, min(2, CORES)),
        ({"workers": 2, "resources_per_worker": {"CPU": 0.5}}, 1),
        ({"workers": 2, "variables": {"OMP_NUM_THREADS": "4,2"}}, 4),
    ],
)
def test_threads_of_workers(
    engine: str, storage: Path, options: dict[str, Any], expected: int
) -> None:
    assert fit(storage, threads, **options)[0] == expected


def test_threads_are_for_libraries_that_come_later_too(process_engine: None, storage: Path) -> None:
    def train() -> Any:
        import subprocess
        import sys

        if dray.train.get_context().get_world_rank():
            return None  # only what rank 0 finds is looked at
        code = "import os; print(os.environ['OMP_NUM_THREADS'])"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout

    assert fit(storage, train, 1) == f"{CORES}\n"
    assert fit(storage, train, 2) == f"{max(1, CORES // 2)}\n"


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
def test_pinned_workers_have_cores_of_their_own(engine: str, storage: Path) -> None:
    def train() -> Any:
        import torch
        from torch import distributed

        cores: list[Any] = [None] * distributed.get_world_size()
        mine = (sorted(os.sched_getaffinity(0)), torch.get_num_threads())
        distributed.all_gather_object(cores, mine)
        return cores

    mine = sorted(os.sched_getaffinity(0))
    found = fit(storage, train, 2, pin_workers=True)
    half = len(mine) // 2
    assert found == [(mine[:half], half), (mine[half:], len(mine) - half)]
    assert fit(storage, train, 2)[0][0] == mine
    asked = fit(storage, train, 2, pin_workers=True, resources_per_worker={"CPU": 2})
    assert [count for _, count in asked] == [half, len(mine) - half]
    crowded = fit(
        storage, train, len(mine) + 1, pin_workers=True, resources_per_worker={"CPU": 0.1}
    )
    assert all(len(cores) == 1 and count == 1 for cores, count in crowded)


def test_pinned_workers_of_a_container_with_less_time_than_cores(storage: Path) -> None:
    """One core's time, and all cores to spend it on: threads beyond it would be throttled."""
    dray.shutdown()
    files = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 100000"}
    with FakeHost(files=files):
        dray.init(num_cpus=8)
        assert fit(storage, threads, 1, pin_workers=True)[0] == 1
        dray.shutdown()
