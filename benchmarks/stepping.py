"""The parts that programs of frameworks share: records of steps, data, start of workers.

Arguments of such a program: the library ("alone" for the framework's own launcher), the number of
workers, the number of steps, the number of fits, and optionally the step after which rank 1 kills
itself, once.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.launch import make_trainer, start_library
from benchmarks.records import record

if TYPE_CHECKING:
    from torch.utils.data import Dataset

ALONE = "alone"
FORKED = "forked"  # also without a library, with processes that are forks
COLUMNS, BATCH_SIZE, CLASSES = 64, 64, 10
WARM_UP_STEPS = 10

Config = dict[str, Any]


def library() -> str | None:
    """Return the library that runs this program; None for the framework's own launcher."""
    name = sys.argv[1]
    return None if name in (ALONE, FORKED) else name


def names_of(framework: str = "") -> Any:
    """Import the library's module for a framework, as the first lines of a script do."""
    name = ".".join(filter(None, (library(), "train", framework)))
    return importlib.import_module(name) if library() else None


class Steps:
    """The counter of steps, which records the first step, and at the end the steps a second.

    Args:
        config: The config of the train function.
        rank: The rank of this process; only rank 0 records.
    """

    def __init__(self, config: Config, rank: int) -> None:
        self._last, self._rank, self._kill = config["steps"], rank, config["kill"]
        self._count = 0
        self._began = 0.0
        self._in_callback_s: list[float] = []

    def stepped(self) -> None:
        """Count a step that has ended."""
        self._count += 1
        if self._count == self._kill and self._rank == 1 and not Path("killed").exists():
            Path("killed").touch()
            record("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        if self._rank != 0:
            return
        if self._count == 1:
            record("stepped")
        if self._count == WARM_UP_STEPS:
            self._began, self._in_callback_s = time.perf_counter(), []
        if self._count == self._last - 1:  # the last step also saves a checkpoint
            seconds = time.perf_counter() - self._began
            steps = self._count - WARM_UP_STEPS
            callback_s = statistics.median(self._in_callback_s or [0.0])
            record("trained", rate=steps / seconds, callback_s=callback_s)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time of a block to that of the report callback."""
        began = time.perf_counter()
        yield
        self._in_callback_s.append(time.perf_counter() - began)

    def watch(self, callback: Any, *hooks: str) -> Any:
        """Return a callback whose hooks are timed."""
        for hook in hooks:
            setattr(callback, hook, self._timing(getattr(callback, hook)))
        return callback

    def _timing(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.timed():
                return hook(*args, **kwargs)

        return call


def rows(count: int) -> Dataset[Any]:
    """Return rows for a classification, which take no memory."""
    import torch

    numbers, labels = torch.randn(1, COLUMNS).expand(count, -1), torch.zeros(1).long()
    return torch.utils.data.TensorDataset(numbers, labels.expand(count))


def rows_in(config: Config) -> int:
    """Return the number of rows that all workers together see in all steps."""
    count: int = config["steps"] * config["workers"] * BATCH_SIZE
    return count


def network() -> Any:
    """Return a network with a million parameters, whose step takes some 10 ms."""
    from torch import nn

    layers = (nn.Linear(COLUMNS, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(1024, CLASSES))


def main(
    train: Callable[[Config], None],
    alone: Callable[[Config], None],
    framework: str = "torch",
) -> None:
    """Run a train function with the options of the command line.

    Args:
        train: The train function.
        alone: Function that runs it without a library.
        framework: The framework of the library's trainer.
    """
    _, workers, steps, fits, *kill = sys.argv[1:]
    config: Config = {"steps": int(steps), "workers": int(workers)}
    config["kill"] = int(kill[0]) if kill else None
    name = library()
    if name is None:
        alone(config)
        return
    start_library(name)
    for _ in range(int(fits)):
        failures = 0 if config["kill"] is None else 1
        trainer = make_trainer(
            name,
            _in_this_folder(train),
            int(workers),
            framework=framework,
            config=config,
            max_failures=failures,
        )
        record("called")
        trainer.fit()
        record("returned")


def _in_this_folder(train: Callable[[Config], None]) -> Callable[[Config], None]:
    """Make a worker use the program's working directory; Ray's workers have another one."""
    here = os.getcwd()

    def run(config: Config) -> None:
        os.chdir(here)
        train(config)

    return run


def side_by_side(
    work: Callable[[int, Mapping[str, Any], Config], None],
    meeting: Mapping[str, Any],
    config: Config,
) -> None:
    """Run a function in plain processes, like a script without a launcher."""
    forks = sys.argv[1] == FORKED
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    ranks = range(config["workers"])
    processes = [context.Process(target=work, args=(rank, meeting, config)) for rank in ranks]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(1)
