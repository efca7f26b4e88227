"""Program: its workers make one all-reduce, and then wait in the train function to be killed."""

import os
import sys
import threading
from typing import Any

from benchmarks.launch import launch
from benchmarks.records import record


def train_function(config: dict[str, Any]) -> None:
    import torch
    from torch import distributed

    distributed.all_reduce(torch.ones(1))
    record("sits", pid=os.getpid())
    threading.Event().wait()


if __name__ == "__main__":
    launch(sys.argv[1], train_function, int(sys.argv[2]))
