"""Clusters as users have them: jobs, autoscalers, nodes that do not fit, the demo."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

import dray
import dray.train
from dray.engines.ray import cluster
from dray.errors import ClusterUnreachableError, ConfigError, InfeasibleError
from dray.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from tests.support.clusters import RAY, Cluster, Head, free_port
from tests.support.gates import Gate, until
from tests.support.programs import Program, environment, write

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def head(_quiet: None) -> Iterator[Cluster]:
    """A cluster whose nodes are still to come."""
    dray.shutdown()
    cluster = Cluster(())
    yield cluster
    dray.shutdown()
    cluster.shutdown()


def fit(storage: Path, **options: Any) -> Any:
    return DataParallelTrainer(
        lambda: 7,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="run", storage_path=storage, **options),
    ).fit()


def test_a_node_with_another_dray(head: Cluster, tmp_path: Path, storage: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "src/dray", other / "dray")
    (other / "dray/version.py").write_text('VERSION = "0.0.1"\n')
    head.add(num_cpus=1, env_vars={"PYTHONPATH": str(other)})
    dray.init(engine="ray", address=head.address)
    with pytest.raises(ClusterUnreachableError, match=r"has dray 0\.0\.1 on Python .*this program"):
        fit(storage)


def test_a_node_without_dray(head: Cluster, tmp_path: Path, storage: Path) -> None:
    (tmp_path / "dray.py").write_text("raise ModuleNotFoundError('No module named dray')")
    head.add(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path)})
    dray.init(engine="ray", address=head.address)
    with pytest.raises(dray.errors.EngineError, match="No module named dray"):
        fit(storage)


@pytest.fixture
def _lonely_node(head: Cluster, storage: Path) -> Iterator[None]:
    """A node on which the run directory's file system is not mounted; needs root."""
    storage.mkdir()
    hide = f"mount -t tmpfs none {storage} && exec "
    start = shlex.join([*RAY, "start", f"--address={head.address}", "--num-cpus=1", "--block"])
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here: not root")
    process = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", hide + start],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    dray.init(engine="ray", address=head.address)
    deadline = time.monotonic() + 60
    while len(dray.nodes()) < 2:
        assert time.monotonic() < deadline, "the node did not come"
        time.sleep(0.1)
    yield
    dray.shutdown()
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.usefixtures("_lonely_node")
def test_storage_that_a_node_does_not_see(storage: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not see it\. Set RunConfig\(storage_path=") as e:
        fit(storage, failure_config=dray.train.FailureConfig(max_failures=3))
    assert "shared_storage=True" in str(e.value)
    assert fit(storage, shared_storage=True).return_value == 7  # the user's own responsibility


AUTOSCALER = {
    "cluster_name": "scales",
    "max_workers": 2,
    "provider": {
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
        "launch_multiple": True,
        "head_node_id": FAKE_HEAD_NODE_ID,
    },
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "small": {
            "resources": {"CPU": 2},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 2,
        },
    },
    "head_node_type": "ray.head.default",
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 1,
    # Nothing is done on nodes, but all of it must be said.
    "auth": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    "setup_commands": [],
    "initialization_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
}


@pytest.mark.usefixtures("_quiet")
def test_an_autoscaler_may_add_what_is_missing_so_it_is_waited_for(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real autoscaler of Ray's; that it starts nodes is its own affair, and not tested here."""
    dray.shutdown()
    (tmp_path / "autoscaler.json").write_text(json.dumps(AUTOSCALER))
    head = Head(
        tmp_path,
        *("--num-cpus=0", "--include-dashboard=false"),
        f"--autoscaling-config={tmp_path / 'autoscaler.json'}",
        AUTOSCALER_UPDATE_INTERVAL_S="1",
        RAY_AUTH_MODE="disabled",
        RAY_FAKE_CLUSTER="1",
        RAY_enable_autoscaler_v2="1",
        RAY_CLOUD_INSTANCE_ID=FAKE_HEAD_NODE_ID,
        RAY_OVERRIDE_NODE_ID_FOR_TESTING=FAKE_HEAD_NODE_ID,
    )
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("DRAY_START_TIMEOUT_S", "2")
    try:
        dray.init(engine="ray", address=head.address)
        deadline = time.monotonic() + 30
        while not cluster.autoscales():  # until it has looked at the cluster once
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(InfeasibleError, match=r"no node offers CPU"):
            fit(storage)
    finally:
        dray.shutdown()
        head.stop()
    # It was not refused at once: it was asked for, and waited for.
    events = [json.loads(line) for line in (storage / "run/events.jsonl").open()]
    assert [event["cause"] for event in events] == ["fit() called", "waited too long"]
    assert events[1]["time"] - events[0]["time"] >= 2


def test_nodes_that_are_still_to_come(head: Cluster, storage: Path) -> None:
    @dray.remote
    def seven() -> int:
        return 7

    dray.init(engine="ray", address=head.address, wait_for_nodes_s=0.2)
    began = time.monotonic()
    with pytest.raises(InfeasibleError, match=r"task .*seven can never run"):
        seven.remote()
    assert time.monotonic() - began >= 0.2
    dray.shutdown()
    dray.init(engine="ray", address=head.address, wait_for_nodes_s=100)

    @dray.remote(num_cpus=0)
    def within_a_task() -> object:
        (storage / "asks").mkdir(parents=True)
        return fit(storage / "within").return_value

    with ThreadPoolExecutor() as pool:
        asked = pool.submit(seven.remote)
        trained = pool.submit(fit, storage)
        within = within_a_task.remote()
        until((storage / "asks").exists)
        head.add(num_cpus=2)
        assert dray.get(asked.result(100)) == 7
        assert trained.result(100).return_value == 7
        assert dray.get(within, timeout=100) == 7


def test_a_run_grows_onto_a_node_that_comes(head: Cluster, storage: Path, gate: Gate) -> None:
    def train(gate: Gate) -> int:
        checkpoint = dray.train.get_checkpoint()
        if checkpoint is None:
            gate.pass_through()  # until there is another node
            while True:  # Ray may show late what it has
                with tempfile.TemporaryDirectory(dir=storage) as directory:  # it may be left
                    dray.train.report({}, Checkpoint(directory))
        return dray.train.get_context().get_world_size()

    head.add(num_cpus=1)
    dray.init(engine="ray", address=head.address)
    trainer = DataParallelTrainer(
        lambda: train(gate),
        scaling_config=ScalingConfig(num_workers=(1, 4), elastic_resize_monitor_interval_s=0),
        run_config=RunConfig(storage_path=storage),
    )
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(trainer.fit)
        gate.heard()
        head.add(num_cpus=2)
        gate.open()
        assert run.result(100).return_value == 3


@pytest.mark.parametrize("address", ["address='local', ", ""])
def test_a_cluster_of_ones_own(address: str, tmp_path: Path) -> None:
    """It starts with the program and ends with it; also if none runs, and no address is given."""
    script = write(
        tmp_path / "train.py",
        f"""
        import ray
        dray.init(engine="ray", {address}num_cpus=3, resources={{"unicorn": 1}})
        offered = dray.cluster_resources()
        print("of", ray._private.worker._global_node.session_name)
        open(sys.argv[1]).close()  # until somebody opens the other end
        print(offered["CPU"], offered["unicorn"], fit(lambda: "done").return_value)
        """,
    )
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Where Ray notes which clusters run: nowhere else, and a socket's path must be short.
    with (
        tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-") as directory,
        Program(script, tmp_path / "runs", str(pipe), RAY_TMPDIR=directory) as program,
    ):
        session = program.wait_for("of session_").split()[-1]
        assert "gcs_server" in processes_of(session)
        pipe.write_text("")
        status, output = program.end()
    assert status == 0, output
    assert output.split()[-3:] == ["3.0", "1.0", "done"]
    until(lambda: not processes_of(session))


def processes_of(session: str) -> list[str]:
    """Return the names of the processes of a cluster, which tell its session."""
    processes = psutil.process_iter(["name", "cmdline"])
    return [p.info["name"] for p in processes if session in " ".join(p.info["cmdline"] or [])]


def submit(
    script: Path, port: int, storage: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Submit a script as a job, once the cluster takes jobs, a little after its start."""
    environment_of_job = {"env_vars": {"STORAGE": str(storage)}}
    deadline = time.monotonic() + 60
    while True:
        done = subprocess.run(
            [
                *(*RAY, "job", "submit", f"--address=http://127.0.0.1:{port}"),
                *("--runtime-env-json", json.dumps(environment_of_job)),
                *("--", sys.executable, str(script)),
            ],
            env=environment(storage, **variables),
            capture_output=True,
            text=True,
            timeout=120,
        )
        if "No available agent" not in done.stderr or time.monotonic() > deadline:
            return done


def test_ray_job_submit(tmp_path: Path) -> None:
    """The three steps of docs/cluster.md: the script that ran here is submitted as it is."""
    script = write(
        tmp_path / "train.py",
        """
        def train():
            dray.train.report({"answer": 42})

        result = fit(train)
        print("engine", dray.session.current_engine().name, "answer", result.metrics["answer"])
        """,
    )
    port = free_port()
    (tmp_path / "token").write_text("0123456789abcdef" * 4)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    head = Head(tmp_path, "--num-cpus=2", f"--dashboard-port={port}", **token)
    try:
        refused = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import dray; dray.init(engine='ray', address='{head.address}')",
            ],
            env=environment(tmp_path, RAY_AUTH_MODE="disabled", DRAY_ENGINE="ray"),
            capture_output=True,
            text=True,
            timeout=60,
        )
        submitted = submit(script, port, tmp_path / "runs", **token)
    finally:
        head.stop()
    assert "asks for a token, and does not accept this program's" in refused.stderr
    assert "engine ray answer 42" in submitted.stdout, submitted.stdout + submitted.stderr


def test_nobody_else_reads_the_token_of_a_cluster_that_starts_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray writes it there as it starts, which takes too long for a test, for all to read."""
    dray.shutdown()
    modes = []

    def start(**_: object) -> None:
        modes.append(stat.filemode((tmp_path / ".ray").stat().st_mode))
        raise ConnectionError

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir(mode=0o755)
    with pytest.raises(ClusterUnreachableError):
        dray.init(engine="ray", address="local")
    assert modes == ["drwx------"]


def test_a_cluster_of_another_user_is_joined_only_if_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody can write the address of one into /tmp/ray, where Ray looks for it."""
    dray.shutdown()
    joined: list[object] = []

    def join(address: str, **_: object) -> None:
        joined.append(address)
        raise ConnectionError

    monkeypatch.setattr(ray, "init", join)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as head:
        (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{head.getsockname()[1]}")
        with pytest.raises(ClusterUnreachableError):
            dray.init(engine="ray")
        if os.geteuid() == 0:
            os.chown(tmp_path / "ray" / "ray_current_cluster", 65534, 65534)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 65534)
        with pytest.raises(ConfigError, match=r"another user's .*address='auto'"):
            dray.init(engine="ray")
        with pytest.raises(ClusterUnreachableError):
            dray.init(engine="ray", address="auto")
    assert joined == ["auto", "auto"]


def test_the_status_of_a_cluster_with_an_actor_a_task_and_a_pending_group(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bell")
    script = write(
        tmp_path / "program.py",
        f"""
        import time
        import dray
        from dray.util.placement_group import placement_group

        @dray.remote(num_cpus=0)
        class Keeper:
            def pid(self):
                return os.getpid()

        @dray.remote
        def dig():
            open({str(tmp_path / "bell")!r}, "w").close()
            time.sleep(300)

        dray.init()
        keeper = Keeper.options(name="somebody").remote()
        digging = dig.remote()
        open({str(tmp_path / "bell")!r}).close()  # else the group may have its CPU first
        group = placement_group([{{"CPU": 2}}], name="large")
        print("actor", dray.get(keeper.pid.remote()))
        input()
        dray.cancel(digging, force=True)
        """,
    )
    here = {"RAY_AUTH_MODE": "disabled"}
    head = Head(tmp_path, "--num-cpus=2", f"--dashboard-port={free_port()}", **here)
    try:
        with Program(script, tmp_path, DRAY_ENGINE="ray", RAY_ADDRESS=head.address) as program:
            pid = program.wait_for("actor ").split()[-1]

            def shown(*options: str) -> str:
                return subprocess.run(
                    [sys.executable, "-m", "dray", "status", *options, "--address", head.address],
                    env=environment(tmp_path),
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout

            until(lambda: "dig: running" in (text := shown()) and "large" in text)  # heard late
            text, (data,) = shown(), json.loads(shown("--json"))
            program.say("")
            program.end()
    finally:
        head.stop()
    assert re.search(rf"actor \S*Keeper 'somebody': alive, pid {pid}\n", text)
    assert re.search(r"dig: running, pid \d+", text)
    assert "placement group large waiting for resources" in text
    (actor,), (task,), (waiting,) = data["actors"], data["tasks"], data["waiting"]
    assert (actor["name"], actor["pid"], task["name"]) == ("somebody", int(pid), "dig")
    assert waiting["what"] == "placement group large"


def test_the_example_on_a_cluster_that_loses_a_node(head: Cluster, tmp_path: Path) -> None:
    """The demo, unchanged; a node killed in the middle costs seconds and no committed progress."""
    nodes = {node.node_id: node for node in (head.add(num_cpus=1) for _ in range(3))}
    runs = tmp_path / "runs"
    example = Program(
        ROOT / "examples/image_classification.py",
        runs,
        *("--epochs=3", "--name=run", "--max-failures=1", f"--storage-path={runs}"),
        f"--data-dir={tmp_path / 'data'}",
        DRAY_ENGINE="ray",
        RAY_ADDRESS=head.address,
        OMP_NUM_THREADS="1",  # each of these nodes believes that it has the machine's cores alone
    )
    with example:
        example.wait_for("epoch 0: loss", within_s=120)
        example.wait_for("epoch 1: loss", within_s=120)
        events = map(json.loads, (runs / "run/events.jsonl").open())
        (started,) = [event for event in events if event["event"] == "workers started"]
        lost = started["ranks"][1]["node"]
        killed = time.time()
        head.kill(nodes[lost])
        example.wait_for("going on from checkpoint_000001")
        events = map(json.loads, (runs / "run/events.jsonl").open())
        failures = [event for event in events if event["event"] == "worker failed"]
        seen = min(failure["time"] for failure in failures)
        assert seen - killed < 10  # Ray needs 14 s to give up the node
        status, output = example.end(within_s=120)
    assert status == 0, output
    assert output.count("epoch 1: loss") == 1  # not again
    result = dray.train.Result.from_path(runs / "run")
    assert [metrics["epoch"] for _, metrics in result.best_checkpoints] == [0, 1, 2]
