"""Real Ray clusters of several nodes, all on this machine: a GCS, and a raylet for each node."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import ray.cluster_utils

# A loaded machine tells late that an actor is dead, and after a second Ray says "unavailable"
# instead. And Ray's workers are not to starve beside the tests, as its niceness of 15 makes them.
CONFIG = {"timeout_ms_task_wait_for_death_info": 5000, "worker_niceness": 0}


class Cluster:
    """A head without CPUs to give, and worker nodes.

    Args:
        nodes: For each worker node, what it offers, as `ray start` would be told.
    """

    def __init__(self, nodes: tuple[dict[str, Any], ...] | None = None) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns
        with pytest.MonkeyPatch.context() as changed:
            # Workers of nodes import torchvision beside a torch without CUDA, too.
            changed.setenv("PYTHONPATH", str(Path(__file__).with_name("beside_torch")))
            self._start(nodes)

    def _start(self, nodes: tuple[dict[str, Any], ...] | None) -> None:
        self._cluster = ray.cluster_utils.Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": CONFIG},
        )
        if nodes is None:
            nodes = (
                {"num_cpus": 4, "labels": {"zone": "a"}, "resources": {"special": 2}},
                {"num_cpus": 4, "labels": {"zone": "b"}},
            )
        self.nodes = [self.add(**node) for node in nodes]

    @property
    def address(self) -> str:
        """What `dray.init(address=...)` takes."""
        address: str = self._cluster.address
        return address

    def add(self, **node: Any) -> Any:
        """Start one more node."""
        return self._cluster.add_node(**node)

    def kill(self, node: Any) -> None:
        """End a node as a power cut would: nobody is told."""
        (raylet,) = node.all_processes["raylet"]
        victims = psutil.Process(raylet.process.pid).children(recursive=True)
        raylet.process.kill()
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()

    def remove(self, node: Any) -> None:
        """End a node that tells the cluster so."""
        self._cluster.remove_node(node, allow_graceful=True)

    def shutdown(self) -> None:
        """End every process of the cluster."""
        self._cluster.shutdown()


# `ray` as a command of the interpreter that runs the tests.
RAY = (sys.executable, "-c", "from ray.scripts.scripts import main; main()")


class Head:
    """A cluster that the `ray start --head` of the command line has started.

    Args:
        directory: Where its output goes.
        options: Further options of `ray start`.
        variables: Environment variables of the cluster.
    """

    def __init__(self, directory: Path, *options: str, **variables: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        port = self.address.partition(":")[2]
        self._log = directory / "head.log"
        self._process = subprocess.Popen(
            [
                *(*RAY, "start", "--head", f"--port={port}", "--block"),
                f"--dashboard-agent-listen-port={free_port()}",  # jobs come by it
                *options,
            ],
            env={**os.environ, **variables},
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + 60
        while "runtime started" not in self._log.read_text():
            assert time.monotonic() < deadline, self._log.read_text()
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """End every process of this cluster, and of no other one (`ray stop` ends all)."""
        processes = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(processes, timeout=10)


def comes_free(within_s: float = 70.0) -> bool:
    """Wait until Ray knows that nothing of earlier tests holds anything, which it learns late.

    Where bundles go depends on it: on a half-taken node SPREAD puts fewer. A task that has lost its
    interrupt lasts a minute.

    Returns:
        Whether it is so.
    """
    deadline = time.monotonic() + within_s
    while not (free := _is_free()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return free


# Resource -> quantity that Ray 2.60 has lost for good, as of a group that is removed in the moment
# in which its bundles are granted; tests need not wait for it one after the other.
_lost: dict[str, float] = {}


def give_up_missing() -> None:
    """Wait no more for what is not free now."""
    _lost.update(_missing())


def _is_free() -> bool:
    return _missing().items() <= _lost.items()


def _missing() -> dict[str, float]:
    free, whole = ray.available_resources(), ray.cluster_resources()
    whole.pop("object_store_memory", None)
    taken = {name: total - free.get(name, 0.0) for name, total in whole.items()}
    return {name: quantity for name, quantity in taken.items() if quantity}


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
