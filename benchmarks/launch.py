"""The start of a train function under dray, Ray Train or torchrun, which the programs share.

dray has the names of Ray Train, so one program works with both, by the name of the library. If
`RAY_ADDRESS` names a Ray cluster, both use it.
"""

import importlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import records

_TRAINERS = {"xgboost": "XGBoostTrainer", "lightgbm": "LightGBMTrainer"}  # others are regular

TrainFunction = Callable[[dict[str, Any]], None]

_RAY_OPTIONS = {"include_dashboard": False, "log_to_driver": False}


def start_library(library: str, num_cpus: int | None = None) -> None:
    """Start a library's engine, as the first lines of a script do."""
    cluster = os.environ.get("RAY_ADDRESS")
    if library == "ray":
        options = {"address": cluster or "local", "num_cpus": num_cpus, **_RAY_OPTIONS}
        importlib.import_module("ray").init(**options)
    elif cluster or num_cpus is not None:
        importlib.import_module(library).init(num_cpus=num_cpus)


def told_here(function: TrainFunction) -> TrainFunction:
    """Make a train function send its records to this program's pipe.

    Workers of a running cluster do not have this program's variables. With a runtime environment
    for these, Ray could not use the workers that it has started in advance.
    """
    pipe = os.environ[records.VARIABLE]

    def run(config: dict[str, Any]) -> None:
        os.environ[records.VARIABLE] = pipe
        function(config)

    return run


def make_trainer(
    library: str,
    function: TrainFunction,
    workers: int,
    *,
    framework: str = "torch",
    config: dict[str, Any] | None = None,
    max_failures: int = 0,
    checkpoints: dict[str, Any] | None = None,
    datasets: dict[str, Any] | None = None,
    use_gpu: bool = False,
) -> Any:
    """Make a library's trainer of a framework; workers share cores if there are too few."""
    train = importlib.import_module(f"{library}.train")
    module = importlib.import_module(f"{library}.train.{framework}")
    trainer = getattr(module, _TRAINERS.get(framework, f"{framework.capitalize()}Trainer"))
    cores = len(os.sched_getaffinity(0))
    share = {"CPU": math.floor(100 * cores / workers) / 100}
    resources = share if workers > cores else None  # otherwise the library's default
    return trainer(
        told_here(function),
        train_loop_config=config or {},
        **({} if datasets is None else {"datasets": datasets}),
        scaling_config=train.ScalingConfig(
            num_workers=workers, resources_per_worker=resources, use_gpu=use_gpu
        ),
        run_config=train.RunConfig(
            storage_path=str(Path("results").absolute()),
            failure_config=train.FailureConfig(max_failures=max_failures),
            checkpoint_config=train.CheckpointConfig(**(checkpoints or {})),
        ),
    )


def launch(library: str, function: TrainFunction, workers: int, **options: Any) -> None:
    """Run a train function once; under torchrun, this process is one of its workers."""
    if library != "torchrun":
        start_library(library)
        make_trainer(library, function, workers, **options).fit()
        return
    from torch import distributed

    distributed.init_process_group("gloo")
    function(options.get("config", {}))
    distributed.destroy_process_group()
