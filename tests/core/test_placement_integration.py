"""Placement groups, label selectors and affinities; resources."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import psutil
import pytest

import dray
from dray.errors import (
    ActorDiedError,
    ConfigError,
    DrayError,
    EngineError,
    GetTimeoutError,
    GroupRemovedError,
    InfeasibleError,
    NameTakenError,
)
from dray.util import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from dray.util.placement_group import PlacementGroup
from dray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from tests.support.gates import PATIENCE_S, Gate, gone, refused_at_once, until
from tests.support.holding import held

pytestmark = pytest.mark.usefixtures("zones")


@dray.remote
def node() -> str:
    return dray.get_runtime_context().get_node_id()


@dray.remote
def group_id() -> str | None:
    group = get_current_placement_group()
    context = dray.get_runtime_context()
    assert context.get_placement_group_id() == (group.id if group else None)
    assert context.current_placement_group_id == (group.id if group else None)
    return group.id if group else None


@dray.remote(num_cpus=0, resources={"special": 1})
class Special:
    def node(self) -> str:
        return dray.get_runtime_context().get_node_id()


def zone_of(node_id: str) -> str | None:
    (found,) = (n for n in dray.nodes() if n["NodeID"] == node_id)
    zone: str | None = found["Labels"].get("zone")
    return zone


def within(group: PlacementGroup, bundle: int = -1, **options: Any) -> dict[str, Any]:
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, bundle, **options)}


@pytest.fixture
def pair() -> Any:
    """A group of two bundles, each on a node of its own."""
    group = placement_group([{"CPU": 1}, {"CPU": 2}], strategy="STRICT_SPREAD")
    assert group.wait(PATIENCE_S)
    yield group
    remove_placement_group(group)


# Placement groups.


def test_a_group_tells_about_itself(pair: PlacementGroup) -> None:
    assert pair.bundle_specs == [{"CPU": 1}, {"CPU": 2}]
    assert pair.bundle_count == 2
    dray.get(pair.ready(), timeout=PATIENCE_S)
    entry = placement_group_table(pair)
    assert entry["placement_group_id"] == pair.id
    assert entry["state"] == "CREATED"
    assert entry["strategy"] == "STRICT_SPREAD"
    assert entry["bundles"] == {0: {"CPU": 1}, 1: {"CPU": 2}}
    assert set(entry["bundles_to_node_id"]) == {0, 1}
    assert placement_group_table()[pair.id.hex()] == entry


@pytest.mark.parametrize(
    ("strategy", "nodes"), [("STRICT_PACK", 1), ("PACK", 1), ("SPREAD", 2), ("STRICT_SPREAD", 2)]
)
def test_strategies(strategy: str, nodes: int) -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy=strategy)
    dray.get(group.ready(), timeout=PATIENCE_S)
    on = placement_group_table(group)["bundles_to_node_id"]
    assert len(set(on.values())) == nodes
    assert dray.get([node.options(**within(group, i)).remote() for i in (0, 1)]) == [on[0], on[1]]
    remove_placement_group(group)


def test_tasks_and_actors_run_in_their_bundle(pair: PlacementGroup) -> None:
    @dray.remote(num_cpus=1)
    class Placed:
        def node(self) -> str:
            return dray.get_runtime_context().get_node_id()

        def group(self) -> str | None:
            return dray.get_runtime_context().get_placement_group_id()

    on = placement_group_table(pair)["bundles_to_node_id"]
    for bundle in (0, 1):
        actor = Placed.options(**within(pair, bundle)).remote()
        assert dray.get(actor.node.remote()) == on[bundle]
        assert dray.get(actor.group.remote()) == pair.id
        assert dray.get(node.options(num_cpus=0, **within(pair, bundle)).remote()) == on[bundle]


def test_any_bundle_that_has_room(pair: PlacementGroup, gate: Gate) -> None:
    anywhere = held.options(**within(pair))
    refs = [anywhere.remote(gate) for _ in range(4)]
    gate.heard(3)  # the group has three CPUs
    assert dray.wait(refs, timeout=0.1)[0] == []
    assert gate.silent()
    gate.open()
    assert dray.get(refs) == ["let go"] * 4


def test_the_group_that_code_runs_in(pair: PlacementGroup) -> None:
    assert get_current_placement_group() is None
    assert dray.get_runtime_context().get_placement_group_id() is None
    assert dray.get(group_id.remote()) is None
    assert dray.get(group_id.options(**within(pair)).remote()) == pair.id


def test_what_says_that_a_group_is_there_is_the_group(pair: PlacementGroup) -> None:
    @dray.remote(num_cpus=0)
    def use(groups: list[PlacementGroup]) -> Any:
        dray.get(groups[0].ready())
        return dray.get(group_id.options(**within(groups[0])).remote())

    there = dray.get(pair.ready())
    assert there == pair
    assert pair.ready().future().result() == pair
    assert there.bundle_specs == [{"CPU": 1}, {"CPU": 2}]
    assert there.wait(PATIENCE_S)
    assert dray.get(there.ready()) == pair
    assert dray.get(use.remote([there])) == pair.id


@pytest.mark.parametrize("capture", [True, False])
def test_child_tasks_are_captured_on_request(pair: PlacementGroup, capture: bool) -> None:
    @dray.remote
    def parent() -> Any:
        context = dray.get_runtime_context()
        child = dray.get(group_id.options(num_cpus=1).remote())
        return child, context.should_capture_child_tasks_in_placement_group

    place = within(pair, 1, placement_group_capture_child_tasks=capture)
    child, captures = dray.get(parent.options(**place).remote())
    assert captures is capture
    assert child == (pair.id if capture else None)


@pytest.mark.parametrize(
    "outside",
    [
        {"scheduling_strategy": PlacementGroupSchedulingStrategy(None)},
        {"scheduling_strategy": "DEFAULT"},
        {"scheduling_strategy": "SPREAD"},
        {"placement_group": None},
    ],
    ids=str,
)
def test_children_leave_a_group_that_captures_them(
    pair: PlacementGroup, outside: dict[str, Any]
) -> None:
    @dray.remote
    class Child:
        def group(self) -> str | None:
            return dray.get_runtime_context().get_placement_group_id()

    @dray.remote
    def parent() -> Any:
        of_task = dray.get(group_id.options(num_cpus=3, **outside).remote())  # more than it has
        return of_task, dray.get(Child.options(num_cpus=3, **outside).remote().group.remote())

    place = within(pair, 1, placement_group_capture_child_tasks=True)
    assert dray.get(parent.options(num_cpus=0, **place).remote()) == (None, None)


def test_a_group_may_be_handed_to_tasks(pair: PlacementGroup) -> None:
    @dray.remote(num_cpus=0)
    def use(group: PlacementGroup) -> Any:
        return dray.get(group_id.options(**within(group)).remote()), group.bundle_count

    assert dray.get(use.remote(pair)) == (pair.id, 2)


def test_a_group_waits_for_resources_and_removal_frees_them() -> None:
    holder = Special.remote()
    dray.get(holder.node.remote())
    group = placement_group([{"special": 2}])
    assert group.wait(0.1) is False
    with pytest.raises(GetTimeoutError):
        dray.get(group.ready(), timeout=0.05)
    assert placement_group_table(group)["state"] == "PENDING"
    dray.kill(holder)
    dray.get(group.ready(), timeout=PATIENCE_S)
    until(lambda: dray.available_resources().get("special", 0) == 0)
    waiting = Special.remote()
    ref = waiting.node.remote()
    assert dray.wait([ref], timeout=0.1)[0] == []
    remove_placement_group(group)
    assert dray.get(ref, timeout=PATIENCE_S)
    assert placement_group_table(group)["state"] == "REMOVED"
    remove_placement_group(group)  # a second time does nothing


@pytest.mark.parametrize("what", ["task", "actor"])
def test_a_removed_group_has_its_resources_until_its_processes_are_gone(
    gate: Gate, zones: str, what: str
) -> None:
    """A GPU's memory is not free before."""
    if zones == "ray":
        pytest.skip("when they are free there is for Ray")
    group = placement_group([{"CPU": 1, "special": 1}, {"CPU": 1, "special": 1}])
    group.wait(PATIENCE_S)

    @dray.remote(num_cpus=1)
    class Actor:
        def hold(self, gate: Gate) -> None:
            gate.pass_through()

    inside = within(group, 1)
    if what == "task":
        hold = dray.remote(num_cpus=1)(lambda gate: gate.pass_through())
        hold.options(**inside).remote(gate)
    else:
        actor = Actor.options(**inside).remote()
        actor.hold.remote(gate)
    (pid,) = map(int, gate.heard())
    server = psutil.Process(pid).parent()
    server.suspend()  # it ends no process for now
    try:
        remove_placement_group(group)
        assert psutil.pid_exists(pid)
        assert not dray.available_resources().get("special")
        waiting = Special.remote().node.remote()
        assert dray.wait([waiting], timeout=0.1)[0] == []
    finally:
        server.resume()
    assert dray.get(waiting, timeout=PATIENCE_S)
    assert not psutil.pid_exists(pid)


def test_a_removed_group_is_known_as_long_as_somebody_has_it(zones: str) -> None:
    if zones == "ray":
        pytest.skip("Ray knows removed groups to the end of the cluster")

    @dray.remote
    def work() -> int:
        return 1

    before = set(placement_group_table())
    for _ in range(3):
        group = placement_group([{"CPU": 1}])
        inside = work.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
        assert dray.get(inside.remote()) == 1
        remove_placement_group(group)
        assert placement_group_table(group)["state"] == "REMOVED"
        with pytest.raises(ConfigError, match="has been removed"):
            inside.options(name="another").remote()
    assert set(placement_group_table()) - before == {group.id}
    del group, inside
    gc.collect()
    assert not set(placement_group_table()) - before


def test_what_is_asked_of_a_removed_group_is_refused() -> None:
    group = placement_group([{"CPU": 1}], name="removed")
    again = get_placement_group("removed")
    assert dray.get(node.options(name="before", **within(group, 0)).remote())
    remove_placement_group(group)
    for known in (group, again):
        with pytest.raises(EngineError):
            dray.get(known.ready(), timeout=PATIENCE_S)
        with contextlib.suppress(EngineError):
            assert known.wait(1) is False
        for bundle in (0, -1):
            with pytest.raises(ConfigError, match="has been removed"):
                node.options(**within(known, bundle)).remote()
            with pytest.raises(ConfigError, match="has been removed"):
                Special.options(resources={}, num_cpus=1, **within(known, bundle)).remote()


def test_what_was_bound_to_a_group_does_not_run_once_it_is_removed(zones: str) -> None:
    if zones == "ray":
        pytest.skip("what becomes of it there is for Ray")
    group = placement_group([{"CPU": 1}])
    inside = PlacementGroupSchedulingStrategy(group)
    task = node.options(scheduling_strategy=inside)
    kind = Special.options(scheduling_strategy=inside, resources={}, num_cpus=1)
    assert dray.get(task.remote())
    actor = kind.remote()
    assert dray.get(actor.node.remote())
    remove_placement_group(group)
    with pytest.raises(ActorDiedError, match=r"ended with its placement group .*, which was rem"):
        dray.get(actor.node.remote())
    with pytest.raises(GroupRemovedError):
        dray.get(task.remote())
    with pytest.raises(ConfigError, match="has been removed"):
        kind.remote()


def test_removal_kills_what_runs_and_fails_what_waits(gate: Gate, zones: str) -> None:
    group = placement_group([{"CPU": 1}, {"special": 1, "CPU": 1}], name="gone")
    dray.get(group.ready(), timeout=PATIENCE_S)
    actor = Special.options(max_restarts=-1, **within(group, 1)).remote()
    dray.get(actor.node.remote())
    met = Special.options(**within(group, 1)).remote().node.remote()
    running = held.options(**within(group, 0)).remote(gate)
    gate.heard()
    waiting, _ = held.options(num_returns=2, **within(group, 0)).remote(gate)
    assert dray.wait([waiting], timeout=0.3)[0] == []
    remove_placement_group(group)
    which = None if zones == "ray" else "task held ended with its placement group 'gone', which was"
    for ref in (running, waiting):
        with pytest.raises(GroupRemovedError, match=which):
            dray.get(ref, timeout=PATIENCE_S)
    with pytest.raises(GroupRemovedError):
        running.future().result()
    with pytest.raises(ActorDiedError, match="placement group"):
        dray.get(met, timeout=PATIENCE_S)
    until(lambda: gone(actor.node))
    until(lambda: dray.available_resources().get("special") == 2)


def test_a_group_is_removed_while_it_waits() -> None:
    holder = Special.options(resources={"special": 2}).remote()
    dray.get(holder.node.remote())
    ready = (group := placement_group([{"special": 1}])).ready()
    assert dray.wait([ready], timeout=0.3)[0] == []
    remove_placement_group(group)
    with pytest.raises(EngineError):
        dray.get(ready, timeout=PATIENCE_S)
    dray.kill(holder)
    until(lambda: dray.available_resources().get("special") == 2)
    for timeout in (1, 0.1):
        with contextlib.suppress(EngineError):
            assert group.wait(timeout) is False


def test_a_group_is_found_by_its_name() -> None:
    group = placement_group([{"CPU": 1}], name="a group")
    assert group.wait(PATIENCE_S)
    assert get_placement_group("a group") == group
    assert placement_group_table(group)["name"] == "a group"
    with pytest.raises(NameTakenError, match="name"):
        placement_group([{"CPU": 1}], name="a group")
    remove_placement_group(group)
    again = placement_group([{"CPU": 1}], name="a group")
    assert get_placement_group("a group") == again
    assert again.wait(PATIENCE_S)  # Ray loses a group's CPU that is removed as it is granted
    remove_placement_group(again)
    with pytest.raises(ConfigError, match="nobody"):
        get_placement_group("nobody")


def test_bundles_choose_nodes_by_labels() -> None:
    group = placement_group([{"CPU": 1}] * 2, bundle_label_selector=[{"zone": "b"}, {"zone": "!b"}])
    assert group.wait(PATIENCE_S)
    on = placement_group_table(group)["bundles_to_node_id"]
    assert [zone_of(on[0]), zone_of(on[1])] == ["b", "a"]
    remove_placement_group(group)


def test_what_does_not_fit_into_a_group(pair: PlacementGroup) -> None:
    with pytest.raises((ConfigError, InfeasibleError), match="CPU"):
        node.options(num_cpus=3, **within(pair)).remote()
    with pytest.raises((ConfigError, InfeasibleError), match="CPU"):
        node.options(num_cpus=2, **within(pair, 0)).remote()
    with pytest.raises(ConfigError, match="bundle"):
        node.options(**within(pair, 2))
    with pytest.raises(ConfigError, match="is '0'; the group has bundles 0 to 1, and -1 is"):
        node.options(**within(pair, "0"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="placement group"):
        node.options(scheduling_strategy=PlacementGroupSchedulingStrategy("a group"))
    with pytest.raises(ConfigError, match="index is 1, but there is no placement group"):
        node.options(placement_group_bundle_index=1)
    with pytest.raises(ConfigError, match="index is 0, but there is no placement group"):
        node.options(scheduling_strategy=PlacementGroupSchedulingStrategy(None, 0))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), ConfigError, "bundles"),
        (({"CPU": 1},), ConfigError, "bundles"),
        (([{}],), ConfigError, "bundle 0"),
        (([{"CPU": -1}],), ConfigError, "CPU"),
        (([{"CPU": 1}], "TIGHT"), ConfigError, "STRICT_PACK"),
        (([{"CPU": 1}], "PACK", 3), ConfigError, "name must be a string, not 3"),
        (([{"CPU": 1000}],), InfeasibleError, "1000"),
        (([{"unicorn": 1}],), InfeasibleError, "unicorn"),
        (([{"CPU": 3}] * 2, "STRICT_PACK"), InfeasibleError, "CPU"),
        (([{"CPU": 1}] * 5, "STRICT_SPREAD"), InfeasibleError, "node"),
    ],
    ids=str,
)
def test_groups_that_can_never_be(arguments: Any, error: type[DrayError], message: str) -> None:
    refused_at_once(error, lambda: placement_group(*arguments), message)


# Nodes.


def test_labels_choose_nodes() -> None:
    for value, zones in (("a", "a"), ("b", "b"), ("in(a, b)", "ab"), ("!a", "b")):
        found = zone_of(dray.get(node.options(label_selector={"zone": value}).remote()))
        assert found is not None
        assert found in zones
    hard = NodeLabelSchedulingStrategy(hard={"zone": "b"})
    assert zone_of(dray.get(node.options(scheduling_strategy=hard).remote())) == "b"
    actor = Special.options(resources={}, label_selector={"zone": "b"}).remote()
    assert zone_of(dray.get(actor.node.remote())) == "b"


def test_a_task_may_ask_for_one_node() -> None:
    for entry in dray.nodes():
        if entry["Alive"] and entry["Resources"].get("CPU"):
            here = NodeAffinitySchedulingStrategy(entry["NodeID"])
            assert dray.get(node.options(scheduling_strategy=here).remote()) == entry["NodeID"]


def test_a_node_that_is_not_there() -> None:
    nowhere = "0" * 56
    soft = NodeAffinitySchedulingStrategy(nowhere, soft=True)
    assert zone_of(dray.get(node.options(scheduling_strategy=soft).remote())) in ("a", "b")
    with pytest.raises(InfeasibleError):
        dray.get(
            node.options(scheduling_strategy=NodeAffinitySchedulingStrategy(nowhere)).remote(),
            timeout=PATIENCE_S,
        )


# Resources, and what code knows of its place.


def test_resources_are_gone_while_they_are_held(gate: Gate) -> None:
    assert dray.cluster_resources()["special"] == 2
    assert dray.cluster_resources()["CPU"] == 8
    until(lambda: dray.available_resources().get("special") == 2)
    ref = held.options(num_cpus=1, resources={"special": 1.5}).remote(gate)
    gate.heard()
    until(lambda: dray.available_resources().get("special") == 0.5)
    rest = held.options(num_cpus=1, resources={"special": 0.5}).remote(gate)
    until(lambda: "special" not in dray.available_resources())
    gate.open()
    dray.get([ref, rest])
    until(lambda: dray.available_resources().get("special") == 2)


def test_fractions_add_up(gate: Gate) -> None:
    fraction = held.options(num_cpus=0, resources={"special": 0.7})
    refs = [fraction.remote(gate) for _ in range(3)]
    gate.heard(2)
    assert dray.wait(refs, timeout=0.1)[0] == []
    assert gate.silent()
    gate.open()
    dray.get(refs)


def test_a_small_request_passes_a_large_one_that_waits(gate: Gate, second_gate: Gate) -> None:
    def needs(amount: float) -> Any:
        return held.options(num_cpus=0, resources={"special": amount})

    first = needs(1).remote(gate)
    gate.heard()
    large, small = needs(2).remote(gate), needs(1).remote(second_gate)
    second_gate.heard()
    second_gate.open()
    assert dray.get(small) == "let go"
    assert dray.wait([large], timeout=0)[0] == []
    gate.open()
    assert dray.get([first, large]) == ["let go"] * 2
