"""Work that waits for a node which is lost: it fails, or goes elsewhere if it may."""

from __future__ import annotations

from typing import Any

import pytest

import dray
import dray.testing
from dray.errors import ActorDiedError, InfeasibleError, NodeDiedError
from dray.util import placement_group, placement_group_table, remove_placement_group
from dray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from dray.util.state import get_actor
from tests.support.gates import PATIENCE_S, Gate, gone, until


@pytest.fixture(autouse=True)
def own_session(session: Any) -> None:
    session({"node_id": "a"}, {"node_id": "b", "num_cpus": 1})


def node() -> str:
    return dray.get_runtime_context().get_node_id()


class Placed:
    def where(self) -> str:
        return node()


def state_of(actor: Any) -> str:
    found = get_actor(actor._actor_id)
    assert found is not None
    return found.state


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


def test_a_group_loses_the_bundles_of_a_lost_node() -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    assert group.wait(PATIENCE_S)
    at = placement_group_table(group)["bundles_to_node_id"]
    (lost,) = (index for index, node_id in at.items() if node_id == "b")

    def within(bundle: int) -> dict[str, Any]:
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, bundle)}

    task = dray.remote(node)
    before = task.options(**within(lost))
    assert dray.get(before.remote()) == "b"
    waiting = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    inside = task.options(scheduling_strategy=PlacementGroupSchedulingStrategy(waiting)).remote()
    assert dray.wait([waiting.ready(), inside], timeout=0)[0] == []
    dray.testing.kill_node("b")
    for ref in (waiting.ready(), inside):
        with pytest.raises(InfeasibleError):
            dray.get(ref, timeout=PATIENCE_S)
    remove_placement_group(waiting)
    assert placement_group_table(group)["state"] == "RESCHEDULING"
    assert [dray.get(task.options(**within(i)).remote()) for i in (1 - lost, -1)] == ["a", "a"]
    for in_lost in (before, task.options(name="another", **within(lost))):
        with pytest.raises(InfeasibleError, match="lost with their nodes"):
            dray.get(in_lost.remote(), timeout=PATIENCE_S)
    free = dray.available_resources()["CPU"]
    remove_placement_group(group)
    until(lambda: dray.available_resources()["CPU"] == free + 1)


def test_the_bundles_of_a_lost_node_move_and_what_runs_in_them_follows() -> None:
    dray.shutdown()
    dray.init(engine="process", nodes=[{"node_id": name, "num_cpus": 2} for name in "abc"])
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    assert group.wait(PATIENCE_S)
    actors = [
        dray.remote(Placed)
        .options(
            num_cpus=1,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
        )
        .remote()
        for bundle in range(2)
    ]
    kept, lost = dray.get([actor.where.remote() for actor in actors])
    [other] = {*"abc"} - {kept, lost}
    holder = dray.remote(Placed).options(num_cpus=2, label_selector={"ray.io/node-id": other})
    holding = holder.remote()
    assert dray.get(holding.where.remote()) == other
    dray.testing.kill_node(lost)
    # The processes of the node may answer once more while they are killed.
    until(lambda: state_of(actors[1]) == "PENDING_CREATION")
    waiting = actors[1].where.remote()
    assert placement_group_table(group)["state"] == "RESCHEDULING"
    assert dray.get(actors[0].where.remote()) == kept
    assert dray.wait([waiting], timeout=0)[0] == []
    dray.kill(holding)
    assert dray.get(waiting, timeout=PATIENCE_S) == other
    moved = get_actor(actors[1]._actor_id)
    assert moved is not None
    assert (moved.num_restarts, moved.placement_group_id) == (1, group.id)
    table = placement_group_table(group)
    assert (table["state"], table["bundles_to_node_id"]) == ("CREATED", {0: kept, 1: other})
    dray.testing.kill_node(other)
    assert placement_group_table(group)["state"] == "RESCHEDULING"
    remove_placement_group(group)
    until(lambda: dray.available_resources()["CPU"] == 2)


def test_a_bundle_that_names_its_nodes_stays_apart_from_others_when_it_moves() -> None:
    dray.shutdown()
    dray.init(engine="process", nodes=[{"node_id": name, "num_cpus": 2} for name in "abc"])
    selectors = [{"ray.io/node-id": names} for names in ("in(a, b, c)", "b")]
    group = placement_group([{"CPU": 1}] * 2, "STRICT_SPREAD", bundle_label_selector=selectors)
    assert group.wait(PATIENCE_S)
    first = placement_group_table(group)["bundles_to_node_id"][0]
    [second] = {*"ac"} - {first}
    dray.testing.kill_node(first)
    until(lambda: placement_group_table(group)["bundles_to_node_id"] == {0: second, 1: "b"})
    dray.testing.kill_node(second)  # there is no other that has none of them
    assert placement_group_table(group)["state"] == "RESCHEDULING"


def test_an_actor_that_asks_nothing_goes_where_there_are_cpus() -> None:
    dray.shutdown()
    none = {"node_id": "none", "num_cpus": 0, "resources": {"disk": 1}}
    dray.init(engine="process", nodes=[none, {"node_id": "cpu", "num_cpus": 1}])
    kind = dray.remote(Placed)
    actors = [kind.remote() for _ in range(3)]  # more than there are CPUs
    assert dray.get([actor.where.remote() for actor in actors]) == ["cpu"] * 3
    assert dray.get(kind.options(num_cpus=0).remote().where.remote()) == "none"
    group = placement_group([{"disk": 1}, {"CPU": 1}])
    inside = kind.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()
    assert dray.get(inside.where.remote()) == "cpu"
    dray.testing.kill_node("cpu")
    with pytest.raises(InfeasibleError, match="no node offers CPU"):
        kind.remote()


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
