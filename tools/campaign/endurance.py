"""An endurance test: very many runs and tasks in one process, which must leave nothing behind."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time

import psutil

import dray
import dray.train
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig

Verdict = tuple[dict[str, object], list[str]]


@dray.remote
def one(number: int) -> int:
    """Return the next number."""
    return number + 1


def _train() -> None:
    dray.train.report({"loss": 1.0})


def _held() -> dict[str, int]:
    gc.collect()
    me = psutil.Process()
    return {
        "descriptors": me.num_fds(),
        "threads": threading.active_count(),
        "processes": len(me.children(recursive=True)),
    }


def many_in_one_process(seed: int, scale: float) -> Verdict:
    """Run 300 fits and 100,000 tasks in this process."""
    faults: list[str] = []
    fits, tasks = round(300 * scale), round(100_000 * scale)
    os.environ["DRAY_PROGRESS"] = "0"
    dray.init(num_cpus=2)
    with tempfile.TemporaryDirectory(prefix="campaign-") as place:

        def fit() -> None:
            DataParallelTrainer(
                _train,
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(storage_path=place),
            ).fit()

        dray.get([one.remote(number) for number in range(1000)])
        fit()
        before, memory = _held(), psutil.Process().memory_info().rss
        for _ in range(fits):
            fit()
        for begin in range(0, tasks, 10_000):
            numbers = range(begin, min(begin + 10_000, tasks))
            if dray.get([one.remote(number) for number in numbers]) != [n + 1 for n in numbers]:
                faults.append(f"tasks from {begin} on have returned something else")
        deadline = time.monotonic() + 10
        while (after := _held()) != before and time.monotonic() < deadline:
            time.sleep(0.1)  # workers take a moment to end
        for what, count in after.items():
            if count > before[what]:
                faults.append(f"{count} {what}, {before[what]} before")
    grown = (psutil.Process().memory_info().rss - memory) >> 20
    if grown > 200:
        faults.append(f"{grown} MiB of memory more than before")
    dray.shutdown()
    return {"fits": fits, "tasks": tasks, "MiB more": grown}, faults
