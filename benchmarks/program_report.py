"""Program: reports metrics repeatedly, and records the time of the calls.

Arguments: the library, the number of workers, the number of calls, the seconds of work before each
call.

For comparison, after as much work, the program also times plain Python that writes a line into a
file and a socket, and an empty function. Because the work has filled the caches, these times are
the lower limit for any Python code.
"""

import importlib
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.launch import launch
from benchmarks.records import record


def train_function(config: dict[str, Any]) -> None:
    train = importlib.import_module(f"{config['library']}.train")
    calls, work_s = config["calls"], config["work_s"]
    if not work_s:
        tell(train, seconds_of([train.report], calls, work_s))
        return
    with tempfile.TemporaryFile() as file:
        here, there = socket.socketpair()

        def plain_line(metrics: dict[str, float]) -> None:
            line = json.dumps(metrics).encode() + b"\n"
            os.write(file.fileno(), line)
            here.send(line)
            there.recv(len(line))

        tell(train, seconds_of([train.report, plain_line, empty], calls, work_s))


def empty(metrics: dict[str, float]) -> None:
    """Do nothing."""


def seconds_of(
    functions: list[Callable[[dict[str, float]], None]], calls: int, work_s: float
) -> list[list[float]]:
    """Return the time of each call of each function, in turns, each after work."""
    seconds: list[list[float]] = [[] for _ in functions]
    for step in range(calls):
        for function, taken in zip(functions, seconds, strict=True):
            work_until = time.perf_counter() + work_s
            while time.perf_counter() < work_until:
                pass
            metrics = {"loss": 1.5 / (step + 1), "accuracy": 0.25, "learning_rate": 1e-3}
            began = time.perf_counter()
            function(metrics)
            taken.append(time.perf_counter() - began)
    return seconds


def tell(train: Any, seconds: list[list[float]]) -> None:
    """Record the medians of rank 0, and the 99th percentile of its reports."""
    if train.get_context().get_world_rank() == 0:
        medians = [statistics.median(taken) for taken in seconds]
        names = ("median", "plain_line", "empty")
        late = sorted(seconds[0])[int(0.99 * (len(seconds[0]) - 1))]
        record("reported", p99=late, **dict(zip(names, medians, strict=False)))


if __name__ == "__main__":
    library, workers, calls, work_s = sys.argv[1:]
    config = {"library": library, "calls": int(calls), "work_s": float(work_s)}
    launch(library, train_function, int(workers), config=config)
