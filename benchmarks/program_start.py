"""Program: makes one all-reduce, optionally a step of training, and records when each is done.

Arguments: the library, the number of workers, and a strategy if there is to be a step.
"""

import os
import sys

if os.environ.get("BENCHMARK_TORCH_AT_TOP"):
    import torch  # noqa: F401

from benchmarks.first_step import train_function
from benchmarks.launch import launch

if __name__ == "__main__":
    library, workers, *strategy = sys.argv[1:]
    function = train_function(library, strategy[0] if strategy else None)
    launch(library, function, int(workers))
