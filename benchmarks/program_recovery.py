"""Program: rank 1 kills itself once; rank 0 records when all ranks are connected again.

Arguments: the library, the number of workers, and a strategy if the ranks are to take a step.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.first_step import take_step
from benchmarks.launch import launch
from benchmarks.records import record


def reduce(config: dict[str, Any]) -> None:
    import torch
    from torch import distributed

    rank, number = distributed.get_rank(), torch.ones(1)
    distributed.all_reduce(number)
    if Path(config["mark"]).exists():
        if rank == 0:
            record("recovered")
        return
    distributed.barrier()
    if rank == 1:
        Path(config["mark"]).touch()
        record("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.all_reduce(number)


def train(config: dict[str, Any]) -> None:
    again = Path(config["mark"]).exists()
    if again:
        reduce(config)
    take_step(config["library"], config["strategy"])
    if not again:
        reduce(config)


if __name__ == "__main__":
    library, workers, *strategy = sys.argv[1:]
    config = {
        "mark": str(Path("killed").absolute()),
        "library": library,
        "strategy": strategy[0] if strategy else None,
    }
    function = train if strategy else reduce
    launch(library, function, int(workers), config=config, max_failures=1)
