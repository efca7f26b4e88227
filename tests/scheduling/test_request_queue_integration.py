"""Requests that wait for long: what they keep from younger ones, and what they do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dray
from dray.util.placement_group import PlacementGroup, placement_group
from dray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support.gates import PATIENCE_S, Gate


@pytest.fixture(autouse=True)
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two nodes, on which whoever waits has waited for long."""
    dray.shutdown()
    monkeypatch.setattr("dray.scheduling.request_queue.STARVATION_LIMIT_S", -1)
    nodes = [
        {"num_cpus": 3, "num_gpus": 2, "labels": {"zone": "a"}},
        {"num_cpus": 1, "labels": {"zone": "b"}},
    ]
    dray.init(engine="process", nodes=nodes)
    yield
    dray.shutdown()


@dray.remote
def done() -> str:
    return "done"


@dray.remote
def held(gate: Gate) -> str:
    gate.pass_through()
    return "held"


@dray.remote
def parent(gate: Gate) -> str:
    gate.pass_through()
    answer: str = dray.get(done.options(num_gpus=1).remote())
    return answer


def within(group: PlacementGroup, bundle: int) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)


def test_who_waits_for_a_task_does_not_hold_up_what_that_task_waits_for(gate: Gate) -> None:
    first = parent.options(num_gpus=1).remote(gate)
    gate.heard()
    both = done.options(num_gpus=2).remote()
    gate.open()
    assert dray.get([first, both], timeout=PATIENCE_S) == ["done", "done"]


def test_who_waits_for_one_node_or_bundle_does_not_hold_up_others(gate: Gate) -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}], bundle_label_selector=[{"zone": "a"}] * 2)
    places = {"label_selector": {"zone": "b"}}, {"scheduling_strategy": within(group, 0)}
    busy = [held.options(**place).remote(gate) for place in places]
    gate.heard(2)
    waiting = [done.options(**place).remote() for place in places]
    free = [done.options(scheduling_strategy=within(group, 1)).remote(), done.remote()]
    assert dray.get(free, timeout=PATIENCE_S) == ["done"] * 2
    gate.open()
    assert dray.get([*busy, *waiting], timeout=PATIENCE_S) == ["held", "held", "done", "done"]


def test_who_is_held_up_holds_up_only_who_wants_the_same(gate: Gate) -> None:
    busy = held.options(num_cpus=0, num_gpus=1).remote(gate)
    gate.heard()
    both = done.options(num_cpus=0, num_gpus=2).remote()
    behind = done.options(num_gpus=1).remote()
    assert dray.get(done.options(num_cpus=2).remote(), timeout=PATIENCE_S) == "done"
    assert dray.wait([both, behind], timeout=0)[0] == []
    gate.open()
    assert dray.get([busy, both, behind], timeout=PATIENCE_S) == ["held", "done", "done"]
