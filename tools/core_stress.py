"""A stress test of many tasks, actors and objects, with random kills, which looks for leaks."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil

import dray
from dray.engines.runtime import Runtime
from dray.errors import ActorDiedError, ActorUnavailableError, WorkerDiedError
from dray.status import ObjectsStatus


@dray.remote
def one(number: int) -> int:
    """A small task."""
    return number + 1


@dray.remote(num_cpus=0.001)
class Cell:
    """A small actor."""

    def add(self, number: int) -> int:
        """Return an answer."""
        return number + 1


@dray.remote(max_retries=-1)
def make(seed: int, size: int) -> np.ndarray:
    """A large object."""
    return np.full(size, seed % 256, np.uint8)


@dray.remote(max_retries=-1)
def check(value: np.ndarray, seed: int) -> bool:
    """Return whether an object is unchanged."""
    return bool((value == seed % 256).all())


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print the duration of a block."""
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.1f} s, {_memory()} MB resident", flush=True)


def _memory() -> int:
    return psutil.Process().memory_info().rss >> 20


def tasks(count: int) -> None:
    """Run many tasks at once."""
    with timed(f"{count} tasks"):
        values = dray.get([one.remote(number) for number in range(count)])
        assert values == list(range(1, count + 1))


def actors(count: int) -> None:
    """Keep many actors at the same time."""
    with timed(f"{count} actors"):
        cells = [Cell.remote() for _ in range(count)]
        values = dray.get([cell.add.remote(n) for n, cell in enumerate(cells)])
        assert values == list(range(1, count + 1))


def objects(limit: int) -> None:
    """Keep objects of twice the size of the store."""
    size = limit // 40
    with timed(f"{2 * limit >> 20} MB of objects in a store of {limit >> 20} MB"):
        refs = [make.remote(seed, size) for seed in range(80)]
        puts: list[dray.ObjectRef] = [dray.put(np.full(size, seed, np.uint8)) for seed in range(8)]
        assert all(dray.get([check.remote(ref, seed) for seed, ref in enumerate(refs)]))
        assert all((dray.get(ref) == seed).all() for seed, ref in enumerate(puts))


def kills(seconds: float) -> None:
    """Kill workers at random while tasks and actors work."""
    over = threading.Event()
    chance = random.Random(1)
    mine = os.getpid()

    def kill() -> None:
        while not over.wait(0.05):
            workers = [
                process
                for server in psutil.Process(mine).children()
                for process in server.children()
            ]
            if workers:
                try:
                    chance.choice(workers).kill()
                except psutil.NoSuchProcess:
                    continue

    killer = threading.Thread(target=kill)
    killer.start()
    rounds = lost = 0
    try:
        with timed("kills at random"):
            until = time.monotonic() + seconds
            cells = [Cell.options(max_restarts=-1).remote() for _ in range(4)]
            while time.monotonic() < until:
                steady = one.options(max_retries=-1)
                assert dray.get([steady.remote(n) for n in range(200)], timeout=60)
                ref = make.remote(rounds, 1 << 20)
                assert dray.get(check.remote(ref, rounds), timeout=60)
                for call in [cell.add.remote(1) for cell in cells for _ in range(20)]:
                    try:
                        assert dray.get(call, timeout=60) == 2
                    except (ActorUnavailableError, ActorDiedError, WorkerDiedError):
                        lost += 1
                rounds += 1
    finally:
        over.set()
        killer.join()
    print(f"  {rounds} rounds, {lost} calls lost with their process, as they must be", flush=True)


def objects_left(runtime: Runtime) -> ObjectsStatus:
    """Return the objects that the store still holds."""
    return runtime.status().objects or ObjectsStatus()


def main() -> int:
    """Run all parts; return 1 if an object is left behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--actors", type=int, default=1000)
    parser.add_argument("--store-mb", type=int, default=400)
    parser.add_argument("--kill-seconds", type=float, default=20)
    options = parser.parse_args()
    limit = options.store_mb << 20
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    files = set(os.listdir(tempfile.gettempdir()))
    descriptors = len(os.listdir("/proc/self/fd"))
    dray.init(num_cpus=4, object_store_memory=limit)
    tasks(options.tasks)
    actors(options.actors)
    objects(limit)
    kills(options.kill_seconds)
    runtime = dray.session.current_runtime()
    deadline = time.monotonic() + 10
    while (left := objects_left(runtime)).objects and time.monotonic() < deadline:
        time.sleep(0.01)
    dray.shutdown()
    children = psutil.Process().children(recursive=True)
    shared_left = (set(os.listdir("/dev/shm")) if shared else set()) - shared
    files_left = set(os.listdir(tempfile.gettempdir())) - files
    print(
        f"left: objects {left.objects}, memory {left.memory_bytes}, disk "
        f"{left.disk_bytes}, processes {len(children)}, shared memory {len(shared_left)}, "
        f"files {len(files_left)}, descriptors {len(os.listdir('/proc/self/fd')) - descriptors}"
    )
    clean = not (left.objects or left.memory_bytes or left.disk_bytes or children)
    return 0 if clean and not shared_left and not files_left else 1


if __name__ == "__main__":
    sys.exit(main())
