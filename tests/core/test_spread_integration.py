"""Tasks and actors that are spread over the nodes, whatever they ask for."""

from __future__ import annotations

import pytest

import dray
from tests.support.gates import PATIENCE_S, Gate

pytestmark = pytest.mark.usefixtures("zones")


def node() -> str:
    return dray.get_runtime_context().get_node_id()


@pytest.mark.parametrize("cpus", [1, 0])
def test_tasks_use_all_nodes(cpus: int, gate: Gate) -> None:
    @dray.remote(num_cpus=cpus, scheduling_strategy="SPREAD")
    def where(gate: Gate) -> str:
        gate.pass_through()
        return node()

    refs = [where.remote(gate) for _ in range(2)]
    gate.heard(2)
    gate.open()
    assert len(set(dray.get(refs))) == 2


def test_actors_that_hold_nothing_use_all_nodes() -> None:
    @dray.remote(scheduling_strategy="SPREAD")
    class Placed:
        def where(self) -> str:
            return node()

    actors = [Placed.remote() for _ in range(2)]
    found = dray.get([actor.where.remote() for actor in actors], timeout=PATIENCE_S)
    assert len(set(found)) == 2
