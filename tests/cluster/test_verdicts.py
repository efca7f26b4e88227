"""Ends of workers that a node tells late, as a busy one does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import dray
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig, WorkerGroupError
from tests.support.clusters import Cluster
from tests.support.gates import Gate

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("_quiet")]


@pytest.fixture(scope="module")
def node() -> Iterator[psutil.Process]:
    """The one node of a cluster."""
    cluster = Cluster(({"num_cpus": 2},))
    dray.shutdown()
    dray.init(engine="ray", address=cluster.address)
    (raylet,) = cluster.nodes[0].all_processes["raylet"]
    yield psutil.Process(raylet.process.pid)
    dray.shutdown()
    cluster.shutdown()


def fit(train: Any, storage: Path, gate: Gate) -> Any:
    return DataParallelTrainer(
        train,
        train_loop_config={"gate": gate},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=storage),
    ).fit()


def test_an_agent_that_dies_is_not_a_node_that_is_gone(
    node: psutil.Process, storage: Path, gate: Gate
) -> None:
    """Ray says "unavailable" when it has not heard within a second or two why a call failed."""

    def train(config: dict[str, Gate]) -> None:
        config["gate"].pass_through()
        server = psutil.Process().parent()
        assert server is not None
        agent = server.parent()
        assert agent is not None
        agent.kill()
        threading.Event().wait()

    def be_late() -> None:
        gate.heard()
        node.send_signal(signal.SIGSTOP)
        threading.Timer(4, node.send_signal, [signal.SIGCONT]).start()
        gate.open()

    threading.Thread(target=be_late).start()
    with pytest.raises(WorkerGroupError, match=r"rank 0 failed.*ended with dray's agent on"):
        fit(train, storage, gate)
