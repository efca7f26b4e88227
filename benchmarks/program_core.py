"""Program: tasks, actors and objects, with the names that dray and Ray share.

Arguments: the library, the number of CPUs, dray's engine, and the measure: "rates" or "times".
"""

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.records import record

MANY = 5000
ONE_BY_ONE = 1000
BYTES = 100_000_000


def start(library: str, cpus: int, engine: str) -> Any:
    """Start the library on this machine alone; return its module."""
    module = importlib.import_module(library)
    if library == "ray":
        module.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    else:
        where = {"address": "local"} if engine == "ray" else {}
        module.init(engine=engine, num_cpus=cpus, **where)
    return module


def nothing(value: int = 0) -> int:
    """Return the value; the function of the tasks."""
    return value


def import_torch() -> str:
    """Import PyTorch, as a task with a GPU does, and return its version."""
    import torch

    return torch.__version__


class Echo:
    """The class of the actors."""

    def nothing(self, value: int = 0) -> int:
        return value


def seconds(function: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def one_by_one(ray: Any, submit: Callable[[], Any]) -> float:
    """Return the number of round trips in a second, one after the other."""

    def work(count: int) -> None:
        for _ in range(count):
            ray.get(submit())

    work(100)
    return ONE_BY_ONE / seconds(lambda: work(ONE_BY_ONE))


def at_once(ray: Any, submit: Callable[[int], Any]) -> float:
    """Return the number of calls in a second, if all are submitted before the first wait."""

    def work(count: int) -> None:
        if ray.get([submit(i) for i in range(count)]) != list(range(count)):
            raise AssertionError("the results are not what they should be")

    work(500)
    return MANY / seconds(lambda: work(MANY))


def rates(ray: Any) -> dict[str, float]:
    """Tasks and calls in a second."""
    task = ray.remote(nothing)
    actor = ray.remote(Echo).remote()
    return {
        "task_round_trips": one_by_one(ray, lambda: task.remote()),
        "tasks": at_once(ray, task.remote),
        "call_round_trips": one_by_one(ray, lambda: actor.nothing.remote()),
        "calls": at_once(ray, actor.nothing.remote),
    }


def times(ray: Any) -> dict[str, float]:
    """Seconds of single operations, most of them medians."""
    return {**actor_starts(ray), **fresh_tasks(ray), **objects(ray)}


def actor_starts(ray: Any) -> dict[str, float]:
    """Time from `.remote()` of a new actor to its first answer."""
    kind = ray.remote(Echo)
    actors = []

    def first_answer() -> None:
        actors.append(kind.remote())
        ray.get(actors[-1].nothing.remote())

    taken = []
    for turn in range(6):  # the first is the warm-up
        taken.append(seconds(first_answer))
        ray.kill(actors.pop())
        time.sleep(0.2 if turn else 1)  # keep the end of one out of the next start
    return {"actor_start": statistics.median(taken[1:])}


def fresh_tasks(ray: Any) -> dict[str, float]:
    """Round trips of tasks that each have their own process."""
    task = ray.remote(max_calls=1)(nothing)
    taken = [seconds(lambda: ray.get(task.remote())) for _ in range(9)]
    importing = ray.remote(max_calls=1)(import_torch)
    imports = [seconds(lambda: ray.get(importing.remote())) for _ in range(8)]
    return {
        "fresh_task": statistics.median(taken[2:]),
        "fresh_import": statistics.median(imports[-3:]),
    }


def objects(ray: Any) -> dict[str, float]:
    """Storing, reading and copying an array, in turn."""
    array = np.random.default_rng(0).integers(0, 256, BYTES, dtype=np.uint8)
    first = seconds(lambda: ray.put(array))
    puts, copies, gets = [], [], []
    kept: list[Any] = []
    for _ in range(8):
        copies.append(seconds(lambda: kept.append(np.copy(array))))
        kept.clear()
        puts.append(seconds(lambda: kept.append(ray.put(array))))
        gets.append(seconds(lambda: kept.append(ray.get(kept[0]))))
        if not np.array_equal(kept[1][::4096], array[::4096]):
            raise AssertionError("the array is not what it should be")
        kept.clear()
        time.sleep(0.1)  # Ray frees objects without references a moment later
    return {
        "first_put": first,
        "put": statistics.median(puts[1:]),
        "copy": statistics.median(copies[1:]),
        "get": statistics.median(gets[1:]),
    }


if __name__ == "__main__":
    library, cpus, engine, part = sys.argv[1:]
    importlib.import_module(library)
    began = time.perf_counter()
    ray = start(library, int(cpus), engine)
    init = time.perf_counter() - began
    ray.get(ray.remote(nothing).remote())
    first = time.perf_counter() - began
    measured = {"rates": rates, "times": times}[part](ray)
    record("measured", init=init, first_task=first, **measured)
    ray.shutdown()
