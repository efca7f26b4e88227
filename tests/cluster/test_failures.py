"""Nodes, drivers and workers of a cluster that die; each test has a cluster of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.core.generated import autoscaler_pb2

import dray.train
from dray.engines.ray import cluster
from dray.engines.ray.bundles import PlacedBundles
from dray.errors import InfeasibleError, NodeDiedError, PreemptionError, WorkerGroupError
from dray.train import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    UserCallback,
)
from dray.train.run.launch import Launch
from tests.support.clusters import Cluster
from tests.support.gates import PATIENCE_S, until
from tests.support.programs import Program, survivors, write

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.fixture
def own_cluster(_quiet: None) -> Iterator[Cluster]:
    """Two nodes for workers, and a driver on the head."""
    dray.shutdown()
    cluster = Cluster(({"num_cpus": 2}, {"num_cpus": 2}))
    dray.init(engine="ray", address=cluster.address)
    yield cluster
    dray.shutdown()
    cluster.shutdown()


def node_of(cluster: Cluster, node_id: str) -> Any:
    (node,) = [node for node in cluster.nodes if node.node_id == node_id]
    return node


class KillNode(UserCallback):
    """Kills the node of a rank once, when a checkpoint is there."""

    def __init__(self, cluster: Cluster, storage: Path, rank: int) -> None:
        self.cluster = cluster
        self.storage = storage
        self.rank = rank
        self.at = 0.0

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        if checkpoint is None or self.at:
            return
        lines = (self.storage / "run/events.jsonl").read_text().splitlines()
        (started,) = [e for e in map(json.loads, lines) if e["event"] == "workers started"]
        node = node_of(self.cluster, started["ranks"][self.rank]["node"])
        self.at = time.time()
        self.cluster.kill(node)


def train_with_checkpoints(config: dict[str, str]) -> dict[str, Any]:
    """Save every step; tell where it began, and on which nodes."""
    checkpoint = dray.train.get_checkpoint()
    first = int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0
    for step in range(first, first + 400 if first == 0 else first + 2):
        dray.train.collective.barrier()
        # In the test's own directory: a rank that is killed leaves it behind.
        with tempfile.TemporaryDirectory(dir=config["directory"]) as directory:
            Path(directory, "step").write_text(str(step))
            dray.train.report({"step": step}, Checkpoint(directory))
        time.sleep(0.05)
    return {"first": first}


def spread(storage: Path, callback: UserCallback, lost_nodes: int = 1) -> DataParallelTrainer:
    """Two workers that must not share a node."""
    return DataParallelTrainer(
        train_with_checkpoints,
        train_loop_config={"directory": str(storage)},
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(
            name="run",
            storage_path=storage,
            callbacks=[callback],
            failure_config=FailureConfig(max_preemption_failures=lost_nodes),
        ),
    )


def test_a_node_killed_costs_seconds_and_no_committed_progress(
    own_cluster: Cluster, storage: Path
) -> None:
    own_cluster.nodes.append(own_cluster.add(num_cpus=2))
    kill = KillNode(own_cluster, storage, rank=1)
    result = spread(storage, kill).fit()
    steps = list(result.metrics_dataframe["step"])
    assert steps == list(range(result.return_value["first"] + 2))  # none lost, none twice
    events = [json.loads(line) for line in (storage / "run/events.jsonl").open()]
    (failure,) = [e for e in events if e["event"] == "worker failed"]
    assert failure["time"] - kill.at < 10  # Ray needs 14 s to give up the node
    assert failure["rank"] == 1
    assert "node" in failure["cause"]
    assert "SCHEDULING" in [e["state"] for e in events if "state" in e][4:]  # reserved anew


def test_a_node_killed_without_retries_is_named(own_cluster: Cluster, storage: Path) -> None:
    kill = KillNode(own_cluster, storage, rank=0)
    with pytest.raises(WorkerGroupError, match=r"rank 0 failed: .*node") as caught:
        spread(storage, kill, lost_nodes=0).fit()
    assert isinstance(caught.value, NodeDiedError)


def test_a_node_that_goes_before_its_worker_begins_is_no_failure_of_the_run(
    own_cluster: Cluster, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, removed = Launch.start, list[str]()

    def late(self: Launch, reservation: Any, *rest: Any) -> Any:
        if not removed:
            removed.append(reservation.places[0])
            own_cluster.remove(node_of(own_cluster, removed[0]))
            until(lambda: not {node.node_id: node for node in cluster.nodes()}.get(removed[0]))
        return start(self, reservation, *rest)

    monkeypatch.setattr(Launch, "start", late)
    trainer = DataParallelTrainer(
        lambda: 7,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=storage),  # no failures are allowed
    )
    assert trainer.fit().return_value == 7
    assert removed


def test_a_node_that_goes_as_it_is_given_is_replaced_by_the_next_one(
    own_cluster: Cluster, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cluster.nodes.append(own_cluster.add(num_gpus=1))
    looks, removed = PlacedBundles._looks, threading.Event()

    def late(self: PlacedBundles) -> Any:
        if not removed.is_set():
            own_cluster.remove(node_of(own_cluster, self.places[0]))
            removed.set()
        return looks(self)

    monkeypatch.setattr(PlacedBundles, "_looks", late)
    trainer = DataParallelTrainer(
        lambda: 7,
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(storage_path=storage),
    )
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(trainer.fit)
        assert removed.wait(60)
        own_cluster.add(num_gpus=1)
        assert asked.result(100).return_value == 7


def test_a_node_that_is_drained_is_no_room(own_cluster: Cluster, storage: Path) -> None:
    def trainer(num_workers: Any) -> DataParallelTrainer:
        return DataParallelTrainer(
            lambda: dray.train.get_context().get_world_size(),
            scaling_config=ScalingConfig(num_workers=num_workers),
            run_config=RunConfig(storage_path=storage),
        )

    assert trainer((1, 4)).fit().return_value == 4
    drain(own_cluster, own_cluster.nodes[0])
    assert trainer((1, 4)).fit().return_value == 2
    assert not trainer(3).plan().fits
    assert trainer(2).plan().fits
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(trainer(4).fit)  # it is not refused, as the node is there still
        own_cluster.nodes.append(own_cluster.add(num_cpus=2))
        assert asked.result(PATIENCE_S).return_value == 4

    def until_told() -> Any:
        dray.train.report({})
        while (info := dray.train.get_preemption_info()) is None:
            pass
        return info

    class Drain(UserCallback):
        def after_report(self, *_: Any) -> None:
            drain(own_cluster, own_cluster.nodes[1])

    info = (
        DataParallelTrainer(
            until_told,
            scaling_config=ScalingConfig(num_workers=4),
            run_config=RunConfig(storage_path=storage, callbacks=[Drain()]),
        )
        .fit()
        .return_value
    )
    assert info.preempted_node_ids == [own_cluster.nodes[1].node_id]
    assert len(info.preempted_ranks) == 2
    assert 60 < info.deadline_ms / 1000 - time.time() <= 120

    class DrainAtOnce(UserCallback):
        def after_report(self, *_: Any) -> None:
            drain(own_cluster, own_cluster.nodes[2], within_s=1)

    def until_its_end() -> None:
        dray.train.report({})
        threading.Event().wait()

    with pytest.raises(PreemptionError, match="and ranks 0, 1 with them; some ranks were still"):
        DataParallelTrainer(
            until_its_end,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                storage_path=storage,
                callbacks=[DrainAtOnce()],
                failure_config=FailureConfig(max_preemption_failures=0),
            ),
        ).fit()


def drain(cluster: Cluster, node: Any, within_s: float = 120) -> None:
    """Have Ray put nothing new on a node, as before it is taken away."""
    head = ray._raylet.GcsClient(address=cluster.address)
    preemption = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline_ms = int((time.time() + within_s) * 1000)
    assert head.drain_node(node.node_id, preemption, "a test", deadline_ms)[0]


def test_a_node_that_is_missing_is_waited_for(
    own_cluster: Cluster, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a loss the run waits, says for what, and goes on when a node has come."""
    waits = threading.Event()

    class Watch(io.StringIO):
        def write(self, text: str) -> int:
            if "waiting up to 600 s for resources: The nodes cannot offer" in text:
                waits.set()
            return super().write(text)

    monkeypatch.setenv("DRAY_PROGRESS", "1")
    monkeypatch.setattr(sys, "stderr", Watch())
    trainer = spread(storage, KillNode(own_cluster, storage, rank=1))
    with ThreadPoolExecutor() as pool:
        result = pool.submit(trainer.fit)
        assert waits.wait(PATIENCE_S)
        own_cluster.add(num_cpus=2)
        assert result.result(PATIENCE_S).return_value["first"] > 0


def test_a_missing_node_is_not_waited_for_longer_than_allowed(
    own_cluster: Cluster, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_START_TIMEOUT_S", "3")
    kill = KillNode(own_cluster, storage, rank=1)
    with pytest.raises(InfeasibleError, match="do not fit the nodes under strategy STRICT_SPREAD"):
        spread(storage, kill).fit()
    assert (storage / "run/checkpoint_000000").is_dir()


BUSY = """
    import subprocess, time

    def train():
        apart = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        children = [subprocess.Popen(["sleep", "1000"]), apart]
        print("pids", os.getpid(), *[child.pid for child in children], flush=True)
        dray.train.collective.barrier()
        threading.Event().wait()

    dray.init(engine="ray")
    fit(train)
"""


# Whoever is killed, and how its run ends.
VICTIMS = {
    "worker": "failed: its process was killed by signal 9",
    "server": "failed: its process is gone",
    "agent": "ended with dray's agent on its node",
    "driver": "",
    "node": "",  # its raylet alone, which Ray sees after 14 s; the run goes on elsewhere
}


def test_kill_9_leaves_nothing(own_cluster: Cluster, tmp_path: Path) -> None:
    """Whoever is killed, nothing is left of the program: no process, no reservation."""
    script = write(tmp_path / "script.py", BUSY)
    for victim, said in VICTIMS.items():
        storage = tmp_path / victim
        with Program(script, storage, RAY_ADDRESS=own_cluster.address) as program:
            lines = [program.wait_for("pids"), program.wait_for("pids")]
            pids = [int(word) for line in lines for word in line.partition("pids")[2].split()]
            assert len(pids) == 6
            server, agent = psutil.Process(pids[0]).parents()[:2]
            kept = {process.pid for pid in (pids[0], pids[3]) for process in _agent_of(pid)}
            assert {server.pid, agent.pid} <= kept
            assert all(psutil.pid_exists(pid) for pid in pids)
            os.kill(
                {
                    "worker": pids[0],
                    "server": server.pid,
                    "agent": agent.pid,
                    "driver": program.process.pid,
                    "node": agent.ppid(),
                }[victim],
                signal.SIGKILL,
            )
            if victim not in ("driver", "node"):
                assert said in program.end()[1]
            assert survivors(pids) == []
            assert survivors(kept) == []
        if victim != "node":
            until(lambda: dray.available_resources().get("CPU") == 4)


def _agent_of(worker: int) -> list[psutil.Process]:
    """Return the agent of a worker, and the fork server between."""
    return psutil.Process(worker).parents()[:2]
