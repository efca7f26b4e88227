"""Program: calls `fit` several times in one process, and records when each call begins and ends.

Arguments: the library, the number of workers, the train function ("empty", "reduce", or the
strategy of a step), the number of fits, and optionally the number of CPUs to offer.
"""

import sys
from typing import Any

from benchmarks.first_step import train_function
from benchmarks.launch import make_trainer, start_library
from benchmarks.records import record


def empty(config: dict[str, Any]) -> None:
    pass


if __name__ == "__main__":
    library, workers, name, fits, *cpus = sys.argv[1:]
    start_library(library, int(cpus[0]) if cpus else None)
    strategy = None if name == "reduce" else name
    function = empty if name == "empty" else train_function(library, strategy)
    for _ in range(int(fits)):
        trainer = make_trainer(library, function, int(workers))
        record("called")
        trainer.fit()
        record("returned")
