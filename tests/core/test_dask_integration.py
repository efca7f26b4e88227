"""Graphs of Dask, whose steps are tasks, where Dask is installed."""

from __future__ import annotations

import os
from typing import Any

import pytest

import dray
from dray.errors import ConfigError, MissingDependencyError
from dray.util.dask import disable_dask_on_ray, enable_dask_on_ray, ray_dask_get


@pytest.fixture
def dask(process_engine: None) -> Any:
    return pytest.importorskip("dask")


def test_steps_of_a_graph_are_tasks(dask: Any) -> None:
    def place(*others: Any) -> tuple[int, float, str | None]:
        context = dray.get_runtime_context()
        cpus = context.get_assigned_resources().get("CPU", 0)
        return os.getpid(), cpus, context.get_task_name()

    placed = dask.delayed(place)
    with dask.annotate(ray_remote_args={"num_cpus": 3}):
        first = placed()
    both = dask.compute(
        placed(first), {"first": [first]}, scheduler=ray_dask_get, ray_remote_args={"num_cpus": 2}
    )
    last_pid, last_cpus, name = both[0]
    [(pid, cpus, _)] = both[1]["first"]
    assert os.getpid() not in (last_pid, pid)
    assert (last_cpus, cpus) == (2, 3)
    assert name == "place"


def test_arrays_errors_and_settings(dask: Any) -> None:
    array = pytest.importorskip("dask.array").arange(16, chunks=4)
    with enable_dask_on_ray():
        assert dask.config.get("scheduler") is ray_dask_get
        assert array.sum().compute() == 120
        kept = (array + 1).persist()
        assert kept.compute().tolist() == list(range(1, 17))
        with pytest.raises(ZeroDivisionError):
            dask.delayed(lambda: 1 / 0)().compute()
    assert dask.config.get("scheduler", None) is None
    with disable_dask_on_ray():
        assert dask.config.get("scheduler") is None
    assert ray_dask_get({"x": 1, "y": (sum, ["x", 2]), "z": "y"}, "z") == 3
    assert ray_dask_get({"x": 1, "y": (sum, ["x", 2])}, [["x"], "y"]) == ((1,), 3)
    for wrong, error in (
        ({"resources": {"GPU": 1}}, ConfigError),
        ({"ray_persist": True}, TypeError),
    ):
        with pytest.raises(error):
            array.sum().compute(scheduler=ray_dask_get, **wrong)


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.checks.spec_of", lambda package: None)
    with pytest.raises(MissingDependencyError, match="pip install dask"):
        enable_dask_on_ray()
