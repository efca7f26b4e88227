"""What only a cluster has: nodes and labels, connecting to it, its runtime environments."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.exceptions

import dray.session
import dray.train
import dray.train.torch
from dray.errors import (
    ClusterUnreachableError,
    ConfigError,
    EngineError,
    InfeasibleError,
    RuntimeEnvSetupError,
)
from dray.train import DataParallelTrainer, Result, RunConfig, ScalingConfig
from dray.util.placement_group import get_current_placement_group
from tests.support.clusters import Cluster
from tests.support.gates import PATIENCE_S
from tests.support.programs import environment, run, write

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.parametrize("engine_name", ["ray"], indirect=True),
]


def fit(function: Any, storage: Path, run_options: Any = None, **scaling: Any) -> Result:
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(name="run", storage_path=storage, **(run_options or {})),
    ).fit()


def report_place() -> None:
    """Report who is who, and where."""
    context = dray.train.get_context()
    labels = ray.get_runtime_context().get_node_labels()
    dray.train.report(
        {
            "node": ray.get_runtime_context().get_node_id(),
            "zone": labels.get("zone"),
            "local": context.get_local_rank(),
            "local_world": context.get_local_world_size(),
            "node_rank": context.get_node_rank(),
        }
    )


def places(storage: Path) -> list[dict[str, Any]]:
    files = sorted((storage / "run/metrics").iterdir())
    return [json.loads(file.read_text().splitlines()[-1])["metrics"] for file in files]


# Placement.


def test_ranks_go_node_by_node(storage: Path) -> None:
    """Spread bundles alternate between nodes; ranks do not."""
    fit(report_place, storage, num_workers=4, placement_strategy="SPREAD")
    ranks = places(storage)
    nodes = [[*of_node] for _, of_node in itertools.groupby(ranks, key=lambda r: r["node"])]
    assert len(nodes) == len({r["node"] for r in ranks}) == 2
    for node_rank, of_node in enumerate(nodes):  # how many on which is Ray's choice
        assert [r["local"] for r in of_node] == [*range(len(of_node))]
        assert {r["local_world"] for r in of_node} == {len(of_node)}
        assert {r["node_rank"] for r in of_node} == {node_rank}


def test_strict_strategies(storage: Path) -> None:
    fit(report_place, storage, num_workers=2, placement_strategy="STRICT_SPREAD")
    assert len({r["node"] for r in places(storage)}) == 2
    fit(report_place, storage, num_workers=4, placement_strategy="STRICT_PACK")
    assert len({r["node"] for r in places(storage)}) == 1


def test_label_selectors(storage: Path) -> None:
    fit(report_place, storage, num_workers=2, label_selector={"zone": "b"})
    assert [r["zone"] for r in places(storage)] == ["b", "b"]
    fit(report_place, storage, num_workers=2, label_selector=[{"zone": "a"}, {"zone": "!a"}])
    assert [r["zone"] for r in places(storage)] == ["a", "b"]
    with pytest.raises(InfeasibleError, match="no node has the labels zone=c"):
        fit(report_place, storage, num_workers=1, label_selector={"zone": "c"})


def test_a_group_over_two_nodes(storage: Path) -> None:
    """The master is rank 0's node, and collectives use the interface of the node's address."""

    def train() -> Any:
        import torch

        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        names = ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return total.item(), *(os.environ.get(name) for name in names)

    total, master, interface, of_nccl = (
        dray.train.torch.TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
            run_config=RunConfig(storage_path=storage),
        )
        .fit()
        .return_value
    )
    assert total == 2
    assert master in {node["NodeManagerAddress"] for node in dray.nodes()}
    assert interface in {name for _, name in socket.if_nameindex()}
    # To NCCL a bare name is the beginning of one.
    assert of_nccl == (None if master == "127.0.0.1" else f"={interface}")


def test_a_run_needs_no_actors_but_an_agent_on_each_node(storage: Path) -> None:
    def alive() -> set[str]:
        assert ray.is_initialized()
        actors = ray._private.state.actors()
        return {actor for actor, entry in actors.items() if entry["State"] == "ALIVE"}

    def train() -> int:
        dray.train.collective.barrier()
        new = alive() - before
        dray.train.collective.barrier()
        return len(new)

    before = alive()  # those of tests before this one, of whose end the cluster hears later
    assert fit(train, storage, num_workers=3).return_value <= 2
    assert len(dray.session.current_engine()._actors) <= 2  # type: ignore[attr-defined]


def test_no_two_workers_draw_the_same_ids(storage: Path) -> None:
    """Ray's random numbers go on in a fork where its parent is."""

    def train() -> None:
        import ray.data  # draws ids; the next workers must not find it imported
        from ray._raylet import WorkerID

        assert ray.data
        (storage / WorkerID.from_random().hex()).touch()

    for number in range(3):
        DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=3),
            run_config=RunConfig(name=str(number), storage_path=storage / "runs"),
        ).fit()
    assert len([file for file in storage.iterdir() if file.is_file()]) == 9


def test_workers_can_use_ray_themselves(storage: Path) -> None:
    """It joins the cluster for that, in its session's namespace; references load there."""

    @dray.remote(num_cpus=0)
    class Keeper:
        def kept(self) -> int:
            return 7

    keeper = Keeper.options(name="keeper").remote()
    six = dray.put(6)

    def refused_in_a_fork() -> int:
        """Ray itself hangs there."""
        child = os.fork()
        if child == 0:
            signal.alarm(PATIENCE_S)
            with pytest.raises(EngineError, match="is a fork of worker process"):
                dray.put(1)
            os._exit(0)
        return os.waitpid(child, 0)[1]

    def raised_in_a_fork() -> int:
        child = os.fork()
        if child == 0:
            signal.alarm(PATIENCE_S)
            raise ValueError("of a fork")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def train(config: dict[str, Any]) -> Any:
        own = get_current_placement_group()
        return (
            dray.get(config["six"]) * dray.get(dray.get_actor("keeper").kept.remote()),
            dray.get(config["keeper"].kept.remote()),
            ray.get(ray.remote(num_cpus=0)(lambda: 6 * 7).remote()),
            ray.get_runtime_context().namespace,
            own is not None and own.bundle_specs,
            refused_in_a_fork(),
            raised_in_a_fork(),
        )

    trainer = DataParallelTrainer(
        train,
        train_loop_config={"six": six, "keeper": keeper},
        run_config=RunConfig(storage_path=storage),
    )
    namespace = ray.get_runtime_context().namespace
    assert trainer.fit().return_value == (42, 7, 42, namespace, [{"CPU": 1}], 0, 1)


# Connecting.


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"address": "127.0.0.1:1"}, ClusterUnreachableError, "no Ray cluster answers at 127"),
        ({"address": "here"}, ConfigError, "must be 'auto', 'local' or 'host:port'"),
        ({"address": "ray://head:10001"}, ConfigError, "Ray Client is not supported"),
        ({"num_cpus": 4}, ConfigError, "num_cpus: what a cluster offers is declared by its nodes"),
        ({}, ClusterUnreachableError, "no Ray cluster answers at 127.0.0.1:1"),
    ],
)
def test_clusters_that_cannot_be_connected_to(
    tmp_path: Path, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    code = f"import dray; dray.init(engine='ray', **{arguments!r})"
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path, RAY_ADDRESS="127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert time.monotonic() - start < 40  # Ray itself tries for minutes
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"dray.errors.{kind.__name__}: ")
    assert message in last


@pytest.mark.parametrize("asked", ["engine='ray'", "address='auto'"])
def test_ray_not_installed(tmp_path: Path, asked: str) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('no')")
    done = subprocess.run(
        [sys.executable, "-c", f"import dray; dray.init({asked})"],
        env=environment(tmp_path, PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "dray.errors.MissingDependencyError: ray is not installed" in done.stderr
    assert "pip install 'ray>=2.49'" in done.stderr
    assert "dray uses this machine alone" in done.stderr


def test_a_listener_that_is_no_ray_cluster(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", f"import dray; dray.init(address='127.0.0.1:{port}')"],
            env=environment(tmp_path, DRAY_ENGINE="ray"),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert "ClusterUnreachableError" in done.stderr


def test_within_a_ray_job_the_cluster_is_the_default(tmp_path: Path, cluster: Cluster) -> None:
    """The job's supervisor sets this variable for the program that it runs."""
    script = write(tmp_path / "script.py", "print(dray.train.DataParallelTrainer and dray.nodes())")
    done = run(
        script,
        tmp_path,
        RAY_JOB_CONFIG_JSON_ENV_VAR=json.dumps({"runtime_env": {}}),
        RAY_ADDRESS=cluster.address,
    )
    assert "'zone': 'a'" in done.stdout, done.stderr


def test_a_connection_of_the_users_own_is_used_and_left_open(
    tmp_path: Path, cluster: Cluster
) -> None:
    script = write(
        tmp_path / "script.py",
        """
        import dray, ray
        ray.init(address=os.environ["RAY_ADDRESS"], logging_level="ERROR")
        dray.init(engine="ray", runtime_env={"env_vars": {"COLOUR": "red"}})
        print(fit(lambda: os.environ["COLOUR"]).return_value)
        dray.shutdown()
        print(ray.is_initialized())
        """,
    )
    done = run(script, tmp_path, RAY_ADDRESS=cluster.address)
    assert done.stdout.split()[-2:] == ["red", "True"], done.stderr


def test_a_connection_of_the_users_own_may_be_made_again(tmp_path: Path, cluster: Cluster) -> None:
    script = write(
        tmp_path / "script.py",
        """
        import dray, ray
        def connect():
            ray.init(address=os.environ["RAY_ADDRESS"], logging_level="ERROR")
        @dray.remote
        def seven():
            return 7
        connect()
        print(">", fit(lambda: 1).return_value, dray.get(seven.remote()))
        ray.shutdown()
        connect()
        print(">", fit(lambda: 2).return_value, dray.get(seven.remote()))
        ray.shutdown()
        connect()
        print(">", dray.get(seven.remote()), fit(lambda: 3).return_value)
        trains = os.environ["STORAGE"] + "/trains"
        os.mkfifo(trains)
        threading.Thread(target=lambda: (open(trains).close(), ray.shutdown())).start()
        try:
            fit(lambda: (open(trains, "w").close(), threading.Event().wait()), workers=1)
        except dray.errors.DrayError as error:
            print(">", str(error).splitlines()[0])
        dray.shutdown()
        print(">", ray.is_initialized())
        """,
    )
    done = run(script, tmp_path, RAY_ADDRESS=cluster.address, DRAY_ENGINE="ray")
    said = [line for line in done.stdout.splitlines() if line.startswith("> ")]
    assert said[:3] == ["> 1 7", "> 2 7", "> 7 3"], done.stderr
    assert "the program has closed its connection to Ray" in said[3]
    assert said[4] == "> False"


def test_what_the_users_own_connection_has_settled_is_refused(
    tmp_path: Path, cluster: Cluster
) -> None:
    script = write(
        tmp_path / "script.py",
        """
        import dray, ray, ray.util.client
        ray.init(address=os.environ["RAY_ADDRESS"], logging_level="ERROR", namespace="a")
        def refused(**arguments):
            try:
                dray.init(engine="ray", **arguments)
            except dray.errors.ConfigError as error:
                print("refused:", error)
        refused(num_gpus=8, resources={"unicorn": 1})
        refused(namespace="b")
        refused(runtime_env={"working_dir": "."})
        refused(runtime_env={"py_modules": [ray, "https://host/a.zip"]})
        with dray.init(engine="ray", namespace="a", runtime_env={"working_dir": "s3://b/a.zip"}):
            print("taken")
        ray.util.client.ray.is_connected = lambda: True
        refused()
        """,
    )
    done = run(script, tmp_path, RAY_ADDRESS=cluster.address)
    first, second, third, fourth, taken, client = done.stdout.splitlines()[-6:]
    assert first.startswith("refused: num_gpus, resources: what a cluster offers is declared by")
    assert "the namespace 'a'; give it to ray.init()" in second
    assert third.startswith("refused: runtime_env: working_dir: ")
    assert fourth.startswith("refused: runtime_env: py_modules: ")
    assert taken == "taken"
    assert "Ray Client is not supported" in client


def test_nobody_without_the_key_is_heard(storage: Path) -> None:
    listener = dray.session.current_engine()._listener  # type: ignore[attr-defined]
    assert listener._address[0] in {node["NodeManagerAddress"] for node in dray.nodes()}
    with socket.create_connection(listener._address) as caller:
        connection = Connection(os.dup(caller.fileno()))
        challenge = connection.recv_bytes()
        assert challenge.startswith(b"#CHALLENGE#")
        connection.send_bytes(b"x" * 20)
        assert connection.recv_bytes() == b"#FAILURE#"
        with pytest.raises(EOFError):
            connection.recv_bytes()
        connection.close()
    assert fit(lambda: 1, storage).return_value == 1


# Runtime environments.


def test_working_dir_and_py_modules_reach_workers(tmp_path: Path, cluster: Cluster) -> None:
    for name in ("here", "there/extra"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "here/mine.py").write_text("VALUE = 'mine'")
    (tmp_path / "here/data.txt").write_text("data")
    (tmp_path / "there/extra/__init__.py").write_text("VALUE = 'extra'")
    script = write(
        tmp_path / "script.py",
        f"""
        def train():
            import extra, mine
            return mine.VALUE, extra.VALUE, open("data.txt").read(), os.environ["COLOUR"]

        dray.init(engine="ray", runtime_env={{
            "working_dir": {str(tmp_path / "here")!r},
            "py_modules": [{str(tmp_path / "there/extra")!r}],
            "env_vars": {{"COLOUR": "red"}},
        }})
        print(fit(train).return_value)
        """,
    )
    done = run(script, tmp_path / "runs", RAY_ADDRESS=cluster.address)
    assert "('mine', 'extra', 'data', 'red')" in done.stdout, done.stderr


def test_a_runtime_env_that_cannot_be_made(storage: Path) -> None:
    broken = {"worker_runtime_env": {"py_modules": ["https://127.0.0.1:1/nothing.zip"]}}
    with pytest.raises(RuntimeEnvSetupError, match="runtime environment cannot be made"):
        fit(print, storage, broken)
    with pytest.raises(ConfigError, match="Ray refuses this runtime environment"):
        fit(print, storage, {"worker_runtime_env": {"pip": 3}})


def test_variables_of_the_driver_that_mean_something_elsewhere(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "red")
    monkeypatch.setenv("SHAPE", "round")
    monkeypatch.setenv("HOSTNAME", "the driver's")
    seen = fit(
        lambda: (os.environ["COLOUR"], os.environ["SHAPE"], os.environ.get("HOSTNAME")),
        storage,
        {"worker_runtime_env": {"env_vars": {"SHAPE": "square"}}},
    ).return_value
    assert seen[:2] == ("red", "square")
    assert seen[2] != "the driver's"


def test_a_lost_object_is_an_error_of_the_train_function(storage: Path) -> None:
    """What the train function does with Ray itself fails as Ray says, with its rank."""

    def train() -> None:
        raise ray.exceptions.ObjectLostError("ab" * 28, "owner", "site")

    with pytest.raises(ray.exceptions.ObjectLostError, match="rank 0 failed: ObjectLostError"):
        fit(train, storage)


def test_what_is_free_is_given_however_short_the_limit(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray takes a moment to set resources aside, for which the limit is not meant."""
    monkeypatch.setenv("DRAY_START_TIMEOUT_S", "0")
    assert fit(lambda: 1, storage).return_value == 1
