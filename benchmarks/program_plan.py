"""Program: plans as many workers as there are simulated nodes, and then one worker more.

Arguments: the library (only dray plans), the number of workers and nodes, the number of calls.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import dray
from benchmarks.records import record
from dray.errors import InfeasibleError
from dray.train import ScalingConfig
from dray.train.torch import TorchTrainer

NODE = {"num_cpus": 8, "num_gpus": 1}


def make_trainer(workers: int, strategy: str = "PACK") -> TorchTrainer:
    """Make a trainer that never trains."""
    scaling = ScalingConfig(num_workers=workers, use_gpu=True, placement_strategy=strategy)
    return TorchTrainer(print, scaling_config=scaling)


def seconds(calls: int, function: Callable[..., None], *arguments: Any) -> list[float]:
    """Return the seconds of each of several calls."""
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        function(*arguments)
        taken.append(time.perf_counter() - began)
    return taken


def plan(trainer: TorchTrainer, workers: int) -> None:
    """Plan a run that fits."""
    planned = trainer.plan()
    if not planned.fits or len(planned.workers) != workers:
        raise AssertionError(planned.why)


def refuse(trainer: TorchTrainer) -> None:
    """Start a run that does not fit."""
    try:
        trainer.fit()
    except InfeasibleError:
        return
    raise AssertionError("what does not fit was not refused")


if __name__ == "__main__":
    workers, calls = map(int, sys.argv[2:])
    dray.init(nodes=[NODE] * workers)
    for strategy in ("PACK", "SPREAD"):
        trainer = make_trainer(workers, strategy)
        record(strategy, seconds=seconds(calls, plan, trainer, workers))
    trainer = make_trainer(workers + 1)
    record("refused", seconds=seconds(calls, refuse, trainer))
