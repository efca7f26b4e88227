"""Work that waits for a node which is lost: it fails, or goes elsewhere if it may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dray
import dray.testing
from dray.errors import ActorDiedError, InfeasibleError, NodeDiedError
from dray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.support.gates import PATIENCE_S, Gate, gone, until


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    dray.shutdown()
    dray.init(engine="process", nodes=[{"node_id": "a"}, {"node_id": "b", "num_cpus": 1}])
    yield
    dray.shutdown()


def node() -> str:
    return dray.get_runtime_context().get_node_id()


class Placed:
    def where(self) -> str:
        return node()


def on_b(soft: bool) -> dict[str, Any]:
    return {"num_cpus": 1, "scheduling_strategy": NodeAffinitySchedulingStrategy("b", soft=soft)}


def test_what_waits_for_a_lost_node_does_not_wait_for_ever(gate: Gate) -> None:
    hard, soft = (dray.remote(node).options(**on_b(soft)) for soft in (False, True))
    hard_actor, soft_actor = (dray.remote(Placed).options(**on_b(s)) for s in (False, True))
    busy = dray.remote(max_retries=0)(Gate.pass_through).options(**on_b(False)).remote(gate)
    gate.heard()
    waiting = [hard.remote(), soft.remote()]
    actors = [hard_actor.remote(), soft_actor.remote()]
    waiting += [actor.where.remote() for actor in actors]
    assert dray.wait([busy, *waiting], timeout=0)[0] == []

    dray.testing.kill_node("b")
    with pytest.raises(NodeDiedError):
        dray.get(busy, timeout=PATIENCE_S)
    assert dray.get([waiting[1], waiting[3]], timeout=PATIENCE_S) == ["a", "a"]
    with pytest.raises(InfeasibleError, match=r"ray\.io/node-id=b"):
        dray.get(waiting[0], timeout=PATIENCE_S)
    with pytest.raises(ActorDiedError, match=r"ray\.io/node-id=b"):
        dray.get(waiting[2], timeout=PATIENCE_S)

    assert dray.get(soft.remote(), timeout=PATIENCE_S) == "a"
    with pytest.raises(InfeasibleError):
        dray.get(hard.remote(), timeout=PATIENCE_S)
    with pytest.raises(InfeasibleError):
        dray.get(hard_actor.remote().where.remote(), timeout=PATIENCE_S)


def test_an_actor_of_a_lost_node_is_made_again_elsewhere_if_it_may() -> None:
    kinds = [
        dray.remote(Placed).options(
            max_restarts=-1, max_task_retries=-1, **(on_b(s) | {"num_cpus": 0})
        )
        for s in (False, True)
    ]
    hard, soft = (kind.remote() for kind in kinds)
    assert dray.get([hard.where.remote(), soft.where.remote()]) == ["b", "b"]
    dray.testing.kill_node("b")
    # The processes of the node may answer once more while they are killed.
    until(lambda: dray.get(soft.where.remote(), timeout=PATIENCE_S) == "a")
    until(lambda: gone(hard.where))
    with pytest.raises(ActorDiedError, match=r"ray\.io/node-id=b"):
        dray.get(hard.where.remote(), timeout=PATIENCE_S)
