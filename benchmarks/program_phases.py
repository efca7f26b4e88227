"""Program: runs several fits to an optimizer step, and records the phases of each.

Arguments: the library, and the numbers of workers and of fits. The first fit includes the start of
the program, the others do not.
"""

import importlib
import json
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.launch import make_trainer
from benchmarks.records import record

# The phases of a fit, in their order.
PHASES = (
    "checks, the run's directory, the reservation",
    "workers forked, there and told their ranks",
    "process group",
    "to the train function",
    "first all-reduce",
    "model and DDP",
    "optimizer",
    "forward and backward",
    "optimizer step",
    "to the end of fit()",
)


def train(config: dict[str, Any]) -> None:
    """Take one step; rank 0 records the time at which each part was done."""
    moments = [time.time()]
    import torch
    from torch import distributed

    from dray.train.torch import prepare_model

    def done() -> None:
        moments.append(time.time())

    distributed.all_reduce(torch.ones(1))
    done()
    linear = torch.nn.Linear
    model = prepare_model(torch.nn.Sequential(linear(64, 64), torch.nn.ReLU(), linear(64, 1)))
    done()
    optimizer = torch.optim.AdamW(model.parameters())
    done()
    model(torch.randn(8, 64)).square().mean().backward()
    done()
    optimizer.step()
    done()
    if distributed.get_rank() == 0:
        Path(config["moments"]).write_text(json.dumps(moments))


def one_fit(workers: int) -> list[float]:
    """Return the seconds of each phase of one fit."""
    told = Path("moments.json").absolute()
    trainer = make_trainer("dray", train, workers, config={"moments": str(told)})
    called = time.time()
    result = trainer.fit()
    returned = time.time()
    lines = Path(result.path, "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    state = {event["state"]: event["time"] for event in events if event["event"] == "state"}
    started = next(event["time"] for event in events if event["event"] == "workers started")
    of_driver = [called, state["STARTING"], started, state["RUNNING"]]
    moments = [*of_driver, *json.loads(told.read_text()), returned]
    return [after - before for before, after in pairwise(moments)]


if __name__ == "__main__":
    began = time.time()
    importlib.import_module("dray.train.torch")
    seconds = time.time() - began
    _, workers, fits = sys.argv[1], *map(int, sys.argv[2:])
    record("imported", seconds=seconds)
    record("first", phases=dict(zip(PHASES, one_fit(workers), strict=True)))
    later = [one_fit(workers) for _ in range(fits)]
    medians = map(statistics.median, zip(*later, strict=True))
    record("later", phases=dict(zip(PHASES, medians, strict=True)))
