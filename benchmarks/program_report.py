"""Program: reports metrics again and again, and tells how long the calls took.

Arguments: the library, the number of workers, the number of calls, the seconds of work before each.
"""

import importlib
import statistics
import sys
import time
from typing import Any

from benchmarks.launch import launch
from benchmarks.records import record


def train_function(config: dict[str, Any]) -> None:
    train = importlib.import_module(f"{config['library']}.train")
    seconds = []
    for step in range(config["calls"]):
        work_until = time.perf_counter() + config["work_s"]
        while time.perf_counter() < work_until:
            pass
        metrics = {"loss": 1.5 / (step + 1), "accuracy": 0.25, "learning_rate": 1e-3}
        began = time.perf_counter()
        train.report(metrics)
        seconds.append(time.perf_counter() - began)
    if train.get_context().get_world_rank() == 0:
        seconds.sort()
        late = seconds[int(0.99 * (len(seconds) - 1))]
        record("reported", median=statistics.median(seconds), p99=late)


if __name__ == "__main__":
    library, workers, calls, work_s = sys.argv[1:]
    config = {"library": library, "calls": int(calls), "work_s": float(work_s)}
    launch(library, train_function, int(workers), config=config)
