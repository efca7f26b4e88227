"""CPUs that waiting tasks lend out: counted once, whatever threads the tasks leave behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import dray
from tests.support.gates import PATIENCE_S, Gate, until

pytestmark = pytest.mark.usefixtures("process_engine")


@dray.remote(num_cpus=0)
def held(gate: Gate) -> str:
    gate.pass_through()
    return "let go"


@dray.remote
def leaves_a_thread(refs: list[Any], gate: Gate) -> None:
    threading.Thread(target=lambda: dray.get(refs[0]), daemon=True).start()
    gate.pass_through()


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
