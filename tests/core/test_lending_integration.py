"""CPUs that waiting tasks lend out: counted once, and to whom they go."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.train import DataParallelTrainer, RunConfig
from tests.support import holding
from tests.support.gates import PATIENCE_S, Gate, until

pytestmark = pytest.mark.usefixtures("process_engine")

held = holding.held.options(num_cpus=0)


@dray.remote
def leaves_a_thread(refs: list[Any], gate: Gate) -> None:
    threading.Thread(target=lambda: dray.get(refs[0]), daemon=True).start()
    gate.pass_through()


def leave_a_thread_that_waits_later(refs: list[Any], gate: Gate) -> int:
    def wait() -> None:
        gate.pass_through()
        dray.get(refs[0])

    threading.Thread(target=wait, daemon=True).start()
    return os.getpid()


def free() -> float:
    return dray.available_resources().get("CPU", 0)


def test_a_thread_that_waits_longer_than_its_task_lends_nothing(
    gate: Gate, second_gate: Gate
) -> None:
    cpus = dray.cluster_resources()["CPU"]

    @dray.remote(num_cpus=cpus)
    def child() -> str:
        return "done"

    @dray.remote(num_cpus=cpus)
    def parent() -> Any:
        return dray.get(child.remote())

    awaited = held.remote(second_gate)
    left = [leaves_a_thread.remote([awaited], gate) for _ in range(int(cpus))]
    gate.heard(int(cpus))
    until(lambda: free() == cpus)  # their threads wait, and lend their CPUs
    gate.open()
    dray.get(left)
    assert free() == cpus
    # In a worker where such a thread still waits.
    assert dray.get(parent.remote(), timeout=PATIENCE_S) == "done"
    second_gate.open()
    dray.get(awaited)
    until(lambda: free() == cpus)


def test_a_thread_that_begins_to_wait_between_tasks_keeps_no_task_from_lending(
    gate: Gate, second_gate: Gate
) -> None:
    cpus = dray.cluster_resources()["CPU"]

    @dray.remote(num_cpus=cpus)
    def child() -> str:
        time.sleep(0.05)
        return "done"

    @dray.remote(num_cpus=cpus)
    def parent() -> Any:
        return os.getpid(), dray.get(child.remote())

    awaited = held.remote(second_gate)
    leave = dray.remote(num_cpus=cpus)(leave_a_thread_that_waits_later)
    pid = dray.get(leave.remote([awaited], gate))
    gate.heard()
    gate.open()
    second_gate.heard()
    time.sleep(0.2)  # nothing tells that a process without a task waits
    assert dray.get(parent.remote(), timeout=PATIENCE_S) == (pid, "done")
    second_gate.open()
    dray.get(awaited)
    until(lambda: free() == cpus)


def test_parents_that_wait_get_their_children_before_further_ones_begin() -> None:
    cpus = dray.cluster_resources()["CPU"]

    @dray.remote(num_cpus=cpus)
    def nested(depth: int, children: int) -> set[int]:
        below = [nested.remote(depth - 1, 1) for _ in range(children if depth else 0)]
        if len(below) > 1:  # the last one waits for the others as arguments
            below.append(joined.remote(*below))
        return {os.getpid()}.union(*dray.get(below))

    @dray.remote(num_cpus=cpus)
    def joined(*pids: set[int]) -> set[int]:
        return {os.getpid()}.union(*pids)

    pids = set().union(*dray.get([nested.remote(2, 5) for _ in range(10)], timeout=PATIENCE_S))
    assert len(pids) < 30  # of 120 tasks, most of which wait


def test_a_task_that_trains_lends_its_cpus_to_its_workers(tmp_path: Path) -> None:
    cpus = dray.cluster_resources()["CPU"]

    @dray.remote(num_cpus=cpus)
    def train() -> Any:
        config = RunConfig(storage_path=tmp_path)
        return DataParallelTrainer(lambda: "trained", run_config=config).fit().return_value

    assert dray.get(train.remote(), timeout=PATIENCE_S) == "trained"
    until(lambda: free() == cpus)


def test_what_a_task_leaves_behind_goes_before_nobody(tmp_path: Path) -> None:
    cpus = dray.cluster_resources()["CPU"]

    @dray.remote(num_cpus=cpus)
    def again(end: Path, gate: Gate) -> None:
        gate.ring()
        if not end.exists():
            again.remote(end, gate)

    gate = Gate(tmp_path)
    again.remote(tmp_path / "end", gate)
    gate.heard()
    touch = dray.remote(num_cpus=cpus)(Path.touch)
    dray.get(touch.remote(tmp_path / "end"), timeout=PATIENCE_S)


def test_a_task_that_submits_others_without_end_holds_up_nobody(tmp_path: Path) -> None:
    end = tmp_path / "end"

    @dray.remote(num_cpus=1)
    def short() -> None:
        time.sleep(0.01)

    @dray.remote(num_cpus=1)
    def crawl(gate: Gate) -> None:
        refs = [short.remote() for _ in range(50)]
        gate.ring()
        while not end.exists():
            _, refs = dray.wait(refs)
            refs.append(short.remote())

    gate = Gate(tmp_path)
    crawling = crawl.remote(gate)
    gate.heard()
    dray.get(short.remote(), timeout=PATIENCE_S)
    end.touch()
    dray.get(crawling, timeout=PATIENCE_S)
