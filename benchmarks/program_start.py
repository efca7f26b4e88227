"""Program: trains nothing but one all-reduce, and tells when it is done."""

import os
import sys
from typing import Any

if os.environ.get("BENCHMARK_TORCH_AT_TOP"):
    import torch  # noqa: F401

from benchmarks.launch import launch
from benchmarks.records import record


def train_function(config: dict[str, Any]) -> None:
    import torch
    from torch import distributed

    distributed.all_reduce(torch.ones(1))
    if distributed.get_rank() == 0:
        record("reduced")


if __name__ == "__main__":
    launch(sys.argv[1], train_function, int(sys.argv[2]))
