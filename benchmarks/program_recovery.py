"""Program: rank 1 kills itself once; rank 0 tells when all ranks are together again."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.launch import launch
from benchmarks.records import record


def train_function(config: dict[str, Any]) -> None:
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


if __name__ == "__main__":
    mark = str(Path("killed").absolute())
    launch(sys.argv[1], train_function, int(sys.argv[2]), config={"mark": mark}, max_failures=1)
