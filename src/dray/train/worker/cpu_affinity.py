"""The processor cores of a worker: the number of its threads, and the cores on which they run."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence

from dray import host

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def threads_per_worker(cores: int, local_world_size: int, cpus: float | None, own: int = 0) -> int:
    """Return how many threads a worker computes with.

    Args:
        local_world_size: Number of workers that share them.
        cpus: CPUs in `resources_per_worker`, if it names them.
        own: Number of CPUs it has for itself, by `pin`; 0 if it shares all.
    """
    if cpus:
        return max(1, min(own or cores, int(cpus)))
    return own or max(1, cores // local_world_size)


def asked_threads(environ: Mapping[str, str]) -> int:
    """Return how many threads the user asks for by `OMP_NUM_THREADS`; 0 if by none."""
    return _number(environ.get("OMP_NUM_THREADS", ""))


def _number(text: str) -> int:
    first = text.split(",")[0].strip()  # nested levels have numbers too
    return int(first) if first.isdecimal() else 0


def set_threads(threads: int, environ: MutableMapping[str, str]) -> None:
    """Have OpenMP, MKL and PyTorch compute with so many threads, unless the user says otherwise.

    Libraries that are imported later read the variables; PyTorch may be there already, with other
    numbers in mind.
    """
    threads = asked_threads(environ) or threads
    for name in _VARIABLES:
        if not _number(environ.get(name, "")):
            environ[name] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def pin(local_rank: int, local_world_size: int) -> int:
    """Bind this process to its share of the cores, which lie together.

    Returns:
        How many threads keep that share busy: one a core, fewer where a container may not use all
        the time of its cores; 0 where processes cannot be bound.
    """
    if not hasattr(os, "sched_setaffinity"):
        return 0
    usable, every = host.cpu_count(), len(os.sched_getaffinity(0))
    cores = share_of_cores(local_rank, local_world_size, cores_by_numa_node())
    os.sched_setaffinity(0, cores)
    return max(1, len(cores) * usable // every)


def share_of_cores(
    local_rank: int, local_world_size: int, numa_nodes: Sequence[Sequence[int]]
) -> list[int]:
    """Return a worker's share of the cores.

    Each NUMA node gets as many workers as the others, or one more, and divides its cores among
    them. Where workers are fewer than NUMA nodes, each gets several whole ones. Where that leaves a
    worker with less than half of an even share, all cores are divided evenly, whatever their node.

    Args:
        local_rank: The worker's place among those of the machine.
        local_world_size: Number of workers on the node.
    """
    nodes = [list(cores) for cores in numa_nodes if cores]
    every_rank, every_core = list(range(local_world_size)), list(itertools.chain(*nodes))
    parts = min(local_world_size, len(nodes))
    divided = [
        (_share(every_rank, at, parts), list(itertools.chain(*_share(nodes, at, parts))))
        for at in range(parts)
    ]
    least = min(len(cores) // len(ranks) for ranks, cores in divided)
    if 2 * least < len(every_core) // local_world_size:
        divided = [(every_rank, every_core)]
    ranks, cores = next(part for part in divided if local_rank in part[0])
    at = ranks.index(local_rank)
    if len(ranks) > len(cores):  # more workers than cores
        return [cores[at % len(cores)]]
    return _share(cores, at, len(ranks))


def _share(items: Sequence, at: int, parts: int) -> list:  # type: ignore[type-arg]
    """Return one of several parts of equal length, or nearly."""
    return list(items[len(items) * at // parts : len(items) * (at + 1) // parts])


def cores_by_numa_node() -> list[list[int]]:
    """Return the cores that this process may use, by NUMA node.

    Source: Linux, Documentation/ABI/stable/sysfs-devices-node.
    """
    mine = sorted(os.sched_getaffinity(0))
    found = [
        [core for core in _parse(host.read(path)) if core in mine]
        for path in host.device_files("sys/devices/system/node/node[0-9]*/cpulist")
    ]
    found = [cores for cores in found if cores]
    return found if sum(map(len, found)) == len(mine) else [mine]


def _parse(text: str) -> list[int]:
    """Return the numbers in a list such as 0-3,8."""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            cores += range(int(first), int(last or first) + 1)
    return cores
