"""Work that processes leave behind: it ends with those that are lost, and goes on after others."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import dray
from dray.errors import WorkerDiedError
from dray.train import DataParallelTrainer, RunConfig
from tests.support.gates import PATIENCE_S, Gate, gone, until


@dray.remote(max_retries=0)
def child(gate: Gate, *after: object) -> str:
    gate.pass_through()
    return "let go"


@dray.remote(num_cpus=1)
class Child:
    def run(self, gate: Gate) -> str:
        gate.pass_through()
        return "let go"

    def pid(self) -> int:
        return os.getpid()


@dray.remote(num_cpus=0)
class Owner:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def pid(self) -> int:
        return os.getpid()

    def submit(self, gate: Gate, count: int) -> None:
        self.kept += [child.remote(gate) for _ in range(count)]
        self.kept.append(child.options(num_returns=0).remote(gate, self.kept[-1]))

    def make(self, gate: Gate) -> None:
        self.actor = Child.remote()
        self.kept.append(self.actor.run.remote(gate))

    def hand_out(self, gate: Gate, other: Any) -> Any:
        made = Child.remote()
        self.kept.append(other.run.remote(gate))
        return child.remote(gate), made, made.run.remote(gate)


@dray.remote(max_calls=1)
def leaves(gate: Gate) -> int:
    child.remote(gate)
    Child.remote().run.remote(gate)
    return os.getpid()


def kill(owner: Any) -> None:
    os.kill(dray.get(owner.pid.remote()), signal.SIGKILL)


def free() -> bool:
    return dray.available_resources().get("CPU", 0) == dray.cluster_resources()["CPU"]


@pytest.mark.parametrize("end", [kill, dray.kill])
def test_what_only_a_lost_process_refers_to_ends(
    core_engine: str, gate: Gate, end: Callable[[Any], None]
) -> None:
    owner = Owner.remote()
    dray.get(owner.make.remote(gate))
    gate.heard()
    dray.get(owner.submit.remote(gate, 20))  # some of which wait for CPUs
    gate.heard(3)
    end(owner)
    until(free)


def test_the_children_of_a_try_that_is_lost_end(core_engine: str, gate: Gate) -> None:
    @dray.remote(max_retries=1, num_cpus=0)
    def parent(gate: Gate) -> list[str]:
        gate.ring(os.getpid())
        results: list[str] = dray.get([child.remote(gate) for _ in range(2)])
        return results

    ref = parent.remote(gate)
    pid, *children = (int(said) for said in gate.heard(3))
    os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(psutil.pid_exists, children)))
    gate.heard(3)
    gate.open()
    assert dray.get(ref, timeout=PATIENCE_S) == ["let go"] * 2


def test_what_others_refer_to_goes_on(process_engine: None, gate: Gate) -> None:
    owner, other = Owner.remote(), Child.remote()
    ref, made, call = dray.get(owner.hand_out.remote(gate, other))
    gate.heard(3)
    kill(owner)
    until(lambda: gone(owner.pid))
    gate.open()
    assert dray.get([ref, call], timeout=PATIENCE_S) == ["let go"] * 2
    assert dray.get(made.pid.remote()) != dray.get(other.pid.remote())


def test_what_a_process_leaves_that_ends_by_itself_goes_on(
    process_engine: None, gate: Gate
) -> None:
    pid = dray.get(leaves.remote(gate))
    until(lambda: not psutil.pid_exists(pid))
    left = [psutil.Process(int(said)) for said in gate.heard(2)]
    assert all(process.is_running() for process in left)
    gate.open()
    until(free)


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_a_training_worker_leaves_ends_if_it_is_lost(
    process_engine: None, gate: Gate, storage: Path, is_lost: bool
) -> None:
    def train() -> None:
        gate.ring(os.getpid())
        child.remote(gate)
        Child.remote().run.remote(gate)
        if is_lost:
            threading.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        fit = DataParallelTrainer(train, run_config=RunConfig(storage_path=storage)).fit
        fitted = pool.submit(fit)
        trainer, *left = (int(said) for said in gate.heard(3))
        if is_lost:
            os.kill(trainer, signal.SIGKILL)
            with pytest.raises(WorkerDiedError):
                fitted.result(PATIENCE_S)
        else:
            fitted.result(PATIENCE_S)
            until(lambda: not psutil.pid_exists(trainer))
            assert all(map(psutil.pid_exists, left))
            gate.open()
    until(free)
