"""Program: calls `fit` several times in one process, and tells when each begins and ends.

Arguments: the library, the number of workers, the train function's name, the number of fits, and
perhaps the number of CPUs to offer.
"""

import sys
from typing import Any

from benchmarks.launch import make_trainer, start_library
from benchmarks.records import record


def reduce(config: dict[str, Any]) -> None:
    import torch
    from torch import distributed

    distributed.all_reduce(torch.ones(1))
    if distributed.get_rank() == 0:
        record("reduced")


def empty(config: dict[str, Any]) -> None:
    pass


if __name__ == "__main__":
    library, workers, name, fits, *cpus = sys.argv[1:]
    start_library(library, int(cpus[0]) if cpus else None)
    for _ in range(int(fits)):
        trainer = make_trainer(library, {"reduce": reduce, "empty": empty}[name], int(workers))
        record("called")
        trainer.fit()
        record("returned")
