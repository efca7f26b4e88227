"""What `dray.init` takes and refuses, and that a run in this process is a run of the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray.errors import ConfigError, InfeasibleError
from dray.testing import FakeHost
from dray.train import DataParallelTrainer, Result, RunConfig, ScalingConfig
from tests.support.clusters import Cluster


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start sessions, and end them."""
    monkeypatch.setenv("DRAY_PROGRESS", "0")
    dray.shutdown()
    yield dray.init
    dray.shutdown()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_gpus": -1}, "num_gpus must be a number, 0 or more, not -1"),
        ({"num_gpus": "2"}, "num_gpus must be a number, 0 or more, not '2'"),
        ({"num_cpus": True}, "num_cpus must be a number, 0 or more, not True"),
        ({"num_cpus": float("nan")}, "num_cpus must be a number, 0 or more, not nan"),
        ({"num_cpus": 1.5}, "num_cpus must be a whole number, not 1.5"),
        ({"num_gpus": 0.5}, "num_gpus must be a whole number"),
        ({"resources": {"x": 0.5}}, r"resources\['x'\] must be a whole number"),
        ({"nodes": [{"num_cpus": 0.5}]}, r"nodes\[0\]\['num_cpus'\] must be a whole number"),
        ({"resources": {"GPU": -1}}, r"resources\['GPU'\] must be a number, 0 or more"),
        ({"resources": "x"}, "resources must be a dict of names to quantities, not 'x'"),
        ({"resources": {1: 1}}, "resources must be a dict of names to quantities; 1 is not a name"),
        ({"labels": "x"}, "labels must be a dict of names to text, not 'x'"),
        ({"labels": {"zone": 1}}, r"labels\['zone'\] must be text, .*, such as '1', not 1"),
        ({"labels": {"a/b/c": "x"}}, "labels: 'a/b/c' is no name of a label"),
        ({"labels": {"zone": "a b"}}, r"labels\['zone'\] has letters, digits .*, and is not 'a b'"),
        ({"object_store_memory": "1GB"}, "object_store_memory must be a whole number of bytes"),
        ({"object_store_memory": 1.5}, "object_store_memory must be a whole number"),
        ({"object_store_memory": 2**63}, r"object_store_memory must be .* to 2\*\*46"),
        ({"object_store_memory": True}, "object_store_memory must be a whole number of bytes"),
        ({"num_gpus": 2**31}, "at most 100,000 GPU, not 2,147,483,648"),
        ({"nodes": [{"num_gpus": 2**31}]}, "at most 100,000 GPU"),
        ({"nodes": 4}, "nodes must be a list of dicts, such as .*, not 4"),
        ({"nodes": ({"num_cpus": n} for n in (1, 2))}, "nodes must be a list of dicts"),
        ({"nodes": {"num_cpus": 4}}, "nodes must be a list of dicts"),
        ({"nodes": [4]}, r"nodes\[0\] must be a dict, not 4"),
        ({"nodes": [{}, {"labels": "a=b"}]}, r"nodes\[1\]\['labels'\] must be a dict of names to"),
        ({"nodes": [{"labels": {"zone": 1}}]}, r"nodes\[0\]\['labels'\]\['zone'\] must be text"),
        ({"nodes": [{"num_gpus": "2"}]}, r"nodes\[0\]\['num_gpus'\] must be a number"),
        ({"nodes": [{"resources": {"a": -1}}]}, r"nodes\[0\]\['resources'\]\['a'\] must be a numb"),
        ({"nodes": [{}], "num_gpus": 1}, "num_gpus would describe this machine, but nodes"),
        (
            {"nodes": [{}], "num_cpus": 0, "labels": {"a": "b"}, "resources": {"a": 1}},
            "num_cpus, resources and labels would describe .* the dict of each node",
        ),
    ],
)
def test_what_a_session_refuses(session: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        session(engine="process", **options)
    assert not dray.is_initialized()


def test_what_a_session_takes(session: Any) -> None:
    session(
        engine="process",
        nodes=({"num_cpus": None, "num_gpus": None, "labels": None}, {"num_cpus": 3.0}),
        resources={},
        labels={},
        object_store_memory=2**27,
    )
    assert dray.cluster_resources()["CPU"] == dray.nodes()[0]["Resources"]["CPU"] + 3


@pytest.mark.parametrize("engine", ["process", "inline"])
def test_a_session_may_begin_after_a_trainer_is_built(
    session: Any, storage: Path, engine: str
) -> None:
    scaling = ScalingConfig(resources_per_worker={"licence": 1})
    config = RunConfig(storage_path=storage)
    trainer = DataParallelTrainer(lambda: "ran", scaling_config=scaling, run_config=config)
    assert not dray.is_initialized()
    with pytest.raises(ConfigError, match="num_gpus must be a number"):
        session(num_gpus=-1)
    session(engine=engine, resources={"licence": 1})
    assert trainer.fit().return_value == "ran"
    DataParallelTrainer(print)
    with pytest.raises(ConfigError, match="dray is initialised already"):
        session()


@pytest.mark.parametrize("use", ["fit", "plan", "nodes"])
def test_what_has_used_a_session_has_begun_it(session: Any, storage: Path, use: str) -> None:
    trainer = DataParallelTrainer(lambda: None, run_config=RunConfig(storage_path=storage))
    DataParallelTrainer(print)
    {"fit": trainer.fit, "plan": trainer.plan, "nodes": dray.nodes}[use]()
    assert dray.is_initialized()
    with pytest.raises(ConfigError, match="dray is initialised already"):
        session(num_cpus=1)
    with pytest.raises(RuntimeError, match="ignore_reinit_error=True"):
        session(num_cpus=1)
    session(num_cpus=1, ignore_reinit_error=True)


def test_the_address_comes_first(session: Any) -> None:
    with pytest.raises(ConfigError, match="address='head:6379': the process engine runs on this"):
        session("head:6379", engine="process")


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/job/step", {"job/cpu.max": "150000 100000", "job/step/memory.max": "1000000"}),
        (
            "5:memory:/job/step\n4:cpuacct,cpu:/job/step\n0::/",
            {
                "cpu/job/cpu.cfs_quota_us": "100000",
                "cpu/job/cpu.cfs_period_us": "100000",
                "memory/job/memory.limit_in_bytes": "1000000",
                "memory/job/step/memory.limit_in_bytes": str(2**63 - 4096),
            },
        ),
        # As a container may see it: its own group is the root, under a name from outside.
        (
            "5:memory:/docker/1\n4:cpuacct,cpu:/docker/1",
            {
                "cpu/cpu.cfs_quota_us": "100000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "1000000",
            },
        ),
    ],
    ids=["version 2", "version 1", "container"],
)
def test_a_session_offers_what_its_control_groups_leave(
    session: Any, groups: str, limits: dict[str, str]
) -> None:
    files = {f"sys/fs/cgroup/{path}": said for path, said in limits.items()}
    with FakeHost(files={"proc/self/cgroup": groups, **files}):
        session(engine="inline")
        offered = dray.cluster_resources()
        assert (offered["CPU"], offered["memory"]) == (1, 1_000_000)
        dray.shutdown()


def test_a_simulated_node_has_the_label_of_its_accelerators(session: Any) -> None:
    name = "ray.io/accelerator-type"
    v100 = {"num_gpus": 1, "accelerator_type": "V100"}
    session(
        engine="process",
        nodes=[v100, {**v100, "accelerator_type": "A100"}, {**v100, "labels": {name: "mine"}}, {}],
    )
    assert [node["Labels"].get(name) for node in dray.nodes()] == ["V100", "A100", "mine", None]

    @dray.remote(num_gpus=1, label_selector={name: "A100"})
    def where() -> str:
        return dray.get_runtime_context().get_node_id()

    assert dray.get(where.remote()) == "node-1"


def here(storage: Path, function: Any, **scaling: Any) -> Result:
    """Train with num_workers=0."""
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=0, **scaling),
        run_config=RunConfig(storage_path=storage),
    ).fit()


def look() -> tuple[str, str | None, str | None]:
    dray.train.report({"step": 0})
    names = ("CUDA_VISIBLE_DEVICES", "COLOUR")
    return os.getcwd(), *(os.environ.get(name) for name in names)  # type: ignore[return-value]


@pytest.mark.parametrize("engine", ["process", "inline"])
def test_a_run_in_this_process_has_what_the_session_says(
    session: Any, storage: Path, tmp_path: Path, engine: str
) -> None:
    before, directory = dict(os.environ), os.getcwd()
    session(
        engine=engine,
        num_cpus=64,
        num_gpus=3,
        resources={"licence": 2},
        runtime_env={"env_vars": {"COLOUR": "red"}, "working_dir": str(tmp_path)},
    )
    asked = {"CPU": 64, "GPU": 3, "licence": 2}
    result = here(storage, look, use_gpu=True, resources_per_worker=asked)
    assert result.return_value == (str(tmp_path), "0,1,2", "red")
    with pytest.raises(InfeasibleError, match="2 licence exist"):
        here(storage, look, resources_per_worker={"licence": 3})
    assert (dict(os.environ), os.getcwd()) == (before, directory)


def test_a_run_in_this_process_has_the_sessions_labels(session: Any, storage: Path) -> None:
    session(engine="process", labels={"zone": "a"})
    assert here(storage, lambda: "ran", label_selector={"zone": "a"}).return_value == "ran"
    with pytest.raises(InfeasibleError, match="no node has the labels zone=b"):
        here(storage, lambda: "ran", label_selector={"zone": "b"})


def test_a_session_that_ended_says_nothing(session: Any, storage: Path) -> None:
    session(engine="process", resources={"licence": 2})
    dray.shutdown()
    with pytest.raises(InfeasibleError, match="no node offers licence"):
        here(storage, look, resources_per_worker={"licence": 1})
    assert not dray.is_initialized()


def test_a_run_in_this_process_is_on_the_first_simulated_node_that_fits(
    session: Any, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    session(
        engine="process",
        nodes=[
            {"num_cpus": 1, "num_gpus": 8, "accelerator_type": "V100"},
            {"num_cpus": 96, "resources": {"licence": 1}},
            {"num_cpus": 2, "num_gpus": 2, "accelerator_type": "A100"},
        ],
        runtime_env={"env_vars": {"COLOUR": "red"}},
    )
    found = here(storage, look, resources_per_worker={"CPU": 90, "licence": 1})
    assert found.return_value[1:] == ("5,6", "red")
    found = here(storage, look, use_gpu=True, accelerator_type="A100")
    assert found.return_value[1:] == ("0", "red")
    with pytest.raises(InfeasibleError, match="licence"):
        here(storage, look, use_gpu=True, resources_per_worker={"GPU": 1, "licence": 1})


@pytest.mark.ray
def test_a_run_in_this_process_has_the_variables_of_a_cluster_session(
    session: Any, storage: Path, cluster: Cluster
) -> None:
    session(engine="ray", address=cluster.address, runtime_env={"env_vars": {"COLOUR": "red"}})
    found = here(storage, look)
    assert found.return_value[::2] == (os.getcwd(), "red")
    assert "COLOUR" not in os.environ


@pytest.mark.parametrize(
    "engine", ["process", "inline", pytest.param("ray", marks=pytest.mark.ray)]
)
def test_a_task_knows_the_variables_of_its_session(
    session: Any, request: pytest.FixtureRequest, engine: str
) -> None:
    options = {"address": request.getfixturevalue("cluster").address} if engine == "ray" else {}
    session(engine=engine, runtime_env={"env_vars": {"COLOUR": "red"}}, **options)

    @dray.remote(runtime_env={"env_vars": {"SHAPE": "round"}})
    def known() -> Any:
        return dray.get_runtime_context().runtime_env["env_vars"]

    assert dray.get(known.remote()) == {"COLOUR": "red", "SHAPE": "round"}
