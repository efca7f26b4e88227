"""What a train function can know of where it runs, and do there, beside training."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

import dray
from dray.train import (
    DataParallelTrainer,
    RunConfig,
    ScalingConfig,
    UserCallback,
    get_context,
    report,
)


def look() -> dict[str, Any]:
    """Return what a train function on a node can know of itself."""
    context = dray.get_runtime_context()

    @dray.remote
    def task() -> str:
        return dray.get_runtime_context().get_job_id()

    return {
        "job": context.get_job_id(),
        "jobs_tasks": dray.get(task.remote()),
        "has_actor": context.get_actor_id() is not None and context.get()["actor_id"] != "",
        "resources": context.get_assigned_resources(),
        "node": context.get_node_id(),
        "variables": context.runtime_env["env_vars"],
        "gpus": context.get_accelerator_ids()["GPU"],
    }


SCALING = ScalingConfig(resources_per_worker={"CPU": 0.5, "special": 1})


def run_config(storage: Path) -> RunConfig:
    return RunConfig(
        storage_path=storage, worker_runtime_env={"env_vars": {"DRAY_TESTS_LOOK": "1"}}
    )


def test_a_train_function_knows_where_it_runs(core_engine: str, storage: Path) -> None:
    found = (
        DataParallelTrainer(look, scaling_config=SCALING, run_config=run_config(storage))
        .fit()
        .return_value
    )
    assert found == {
        "job": dray.get_runtime_context().get_job_id(),
        # A worker joins a Ray cluster as a job of its own.
        "jobs_tasks": ANY if core_engine == "ray" else dray.get_runtime_context().get_job_id(),
        "has_actor": True,
        "resources": {"CPU": 0.5, "special": 1},
        "node": next(n["NodeID"] for n in dray.nodes() if "special" in n["Resources"]),
        "variables": {"DRAY_TESTS_LOOK": "1"},
        "gpus": [],
    }


def test_so_does_one_within_a_task_or_an_actor(session: Any, storage: Path) -> None:
    session({"num_cpus": 4, "num_gpus": 2, "resources": {"special": 2}, "node_id": "one"})
    config = run_config(storage)

    def train() -> Any:
        scaling = ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 1, "special": 1})
        return DataParallelTrainer(look, scaling_config=scaling, run_config=config).fit()

    class Trains:
        def train(self) -> Any:
            return train()

    for result in (
        dray.remote(train).remote(),
        dray.remote(Trains).remote().train.remote(),
    ):
        found = dray.get(result).return_value
        assert found["job"] == found["jobs_tasks"] == dray.get_runtime_context().get_job_id()
        assert found["resources"] == {"GPU": 1, "special": 1}
        assert found["node"] == "one"
        assert len(found["gpus"]) == 1


def test_each_worker_knows_its_own_devices(session: Any, storage: Path) -> None:
    session({"num_cpus": 4, "num_gpus": 2})

    def train() -> None:
        own = dray.get_runtime_context().get_accelerator_ids()["GPU"]
        report({"rank": get_context().get_world_rank(), "own": own})

    seen: list[dict[str, Any]] = []

    class Listener(UserCallback):
        def after_report(
            self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any
        ) -> None:
            seen.extend(metrics)

    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
        run_config=RunConfig(storage_path=storage, callbacks=[Listener()]),
    ).fit()
    assert seen == [{"rank": 0, "own": ["0"]}, {"rank": 1, "own": ["1"]}]


@pytest.mark.usefixtures("process_engine")
def test_a_training_within_a_training_says_what_it_cannot(storage: Path) -> None:
    def inner() -> str:
        with pytest.raises(dray.exceptions.RayError, match="use them in the outer one"):
            dray.put(1)
        return "said so"

    def outer() -> Any:
        return fit(inner, storage / "inner")

    def fit(function: Any, storage: Path) -> Any:
        config = RunConfig(storage_path=storage)
        return DataParallelTrainer(function, run_config=config).fit().return_value

    assert fit(outer, storage) == "said so"
