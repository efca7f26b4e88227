"""Placement: the same as a plain model that sorts all nodes for each bundle, but fast."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dray.scheduling.capacity import UNIT, Capacity, DevicePool, to_fixed
from dray.scheduling.placement import STRATEGIES, Bundle, BundlePlacement, Demand, place

BOUND_S = 2.0  # some ten times what it takes; what sorts for each bundle takes minutes


def bundle(**resources: float) -> Bundle:
    return Bundle(tuple(sorted(to_fixed(resources).items())))


def capacity(**resources: float) -> Capacity:
    fixed = to_fixed(resources)
    return Capacity(fixed, {"GPU"} & fixed.keys())


def model(
    demand: Demand, capacities: Sequence[Capacity], allowed: Sequence[set[int]]
) -> list[int] | None:
    """Place bundles in the plainest way."""
    if demand.strategy == "STRICT_PACK":
        for index in sorted(range(len(capacities)), key=lambda i: wastes(demand, capacities[i])):
            if model_fill(demand, [index], capacities, allowed) is not None:
                return [index] * len(demand.bundles)
        return None
    return model_fill(demand, range(len(capacities)), capacities, allowed)


def model_fill(
    demand: Demand,
    nodes: Sequence[int],
    capacities: Sequence[Capacity],
    allowed: Sequence[set[int]],
) -> list[int] | None:
    left = {index: capacities[index].copy() for index in nodes}
    used: Counter[int] = Counter()

    def order_key(index: int) -> tuple[int, int, bool, int]:
        each, wasteful = left[index], wastes(demand, left[index])
        if not demand.strategy.endswith("SPREAD"):
            return -used[index], 0, wasteful, 0
        if len(demand.bundles) > 1:
            return used[index], -each.quantities.get("CPU", 0), False, 0
        return 0, each.last_taken, wasteful, 0

    chosen = [-1] * len(demand.bundles)
    for position in sorted(range(len(chosen)), key=lambda p: len(allowed[p])):
        wanted = demand.bundles[position].quantities
        for index in sorted(nodes, key=order_key):
            if index not in allowed[position]:
                continue
            if demand.strategy == "STRICT_SPREAD" and used[index]:
                continue
            if left[index].fits(wanted):
                break
        else:
            return None
        left[index].add(wanted, left[index].choose(wanted), -1)
        used[index] += 1
        chosen[position] = index
    return chosen


def wastes(demand: Demand, each: Capacity) -> bool:
    """Return whether a bundle that is alone would lie beside devices that it does not ask for."""
    asked = {name for one in demand.bundles for name, _ in one.quantities}
    return len(demand.bundles) == 1 and not each.devices.keys() <= asked


def check(
    demand: Demand,
    capacities: Sequence[Capacity],
    allowed: Sequence[set[int]],
    placements: list[BundlePlacement],
) -> None:
    """Assert that bundles fit where they were placed, device by device."""
    left = [each.copy() for each in capacities]
    for position, (placement, wanted) in enumerate(zip(placements, demand.bundles, strict=True)):
        assert placement.node in allowed[position]
        asked = dict(wanted.quantities)
        assert {n: sum(u for _, u in parts) for n, parts in placement.parts.items()} == {
            name: asked[name] for name in capacities[placement.node].devices.keys() & asked.keys()
        }
        left[placement.node].add(wanted.quantities, placement.parts, -1)
        for name, units in wanted.quantities:
            assert left[placement.node].quantities[name] >= 0
            if devices := left[placement.node].devices.get(name):
                assert all(devices.free_of(p.device) >= 0 for p in placement.parts[name]), (
                    name,
                    units,
                )
                assert units < UNIT or all(p.units == UNIT for p in placement.parts[name])
                assert units >= UNIT or len(placement.parts[name]) == 1
    if demand.strategy == "STRICT_SPREAD":
        assert len({placement.node for placement in placements}) == len(placements)
    if demand.strategy == "STRICT_PACK":
        assert len({placement.node for placement in placements}) == 1


def nodes_of(placements: list[BundlePlacement] | None) -> list[int] | None:
    return None if placements is None else [placement.node for placement in placements]


def state(each: Capacity) -> Any:
    whole = {name: devices.times(UNIT) for name, devices in each.devices.items()}
    return dict(each.quantities), whole, {n: d.largest for n, d in each.devices.items()}


@st.composite
def capacities_partly_taken(draw: st.DrawFn) -> Capacity:
    cpus, gpus, others = draw(st.integers(0, 6)), draw(st.integers(0, 3)), draw(st.integers(0, 4))
    made = capacity(CPU=cpus, GPU=gpus, disk=others)
    for taken in draw(st.lists(st.sampled_from([0.25, 0.5, 1]), max_size=2)):
        wanted = bundle(GPU=taken).quantities
        if made.fits(wanted):
            made.add(wanted, made.choose(wanted), -1)
    cpus_in_use_again = draw(st.sampled_from([0, 0, 0, 1, 8]))  # more than there are, once lent
    made.add([("CPU", cpus_in_use_again * UNIT)], {}, -1)
    return made


KINDS = st.builds(
    bundle,
    CPU=st.sampled_from([0, 0, 0.25, 0.5, 1, 2]),
    GPU=st.sampled_from([0, 0, 0, 0.1, 0.25, 0.6, 1, 2]),
    disk=st.sampled_from([0, 0, 0, 0, 0.5]),
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Bundle], list[Capacity], list[set[int]]]:
    capacities = draw(st.lists(capacities_partly_taken(), min_size=1, max_size=7))
    indices = st.sets(st.integers(0, len(capacities) - 1), min_size=1)
    kinds = draw(st.lists(KINDS, min_size=1, max_size=4))
    sets = [set(range(len(capacities))), *draw(st.lists(indices, max_size=3))]
    some = st.tuples(st.sampled_from(kinds), st.sampled_from(sets))
    chosen = draw(st.lists(some, min_size=1, max_size=16))
    return [one for one, _ in chosen], capacities, [nodes for _, nodes in chosen]


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=400)
@given(problems())
def test_as_the_model_and_valid(strategy: str, problem: Any) -> None:
    bundles, capacities, allowed = problem
    demand = Demand(tuple(bundles), strategy)
    before = [state(each) for each in capacities]
    placements = place(demand, capacities, allowed)
    plainly = model(demand, capacities, allowed)
    if plainly is not None:  # what fits only otherwise is in test_placement_exactly.py
        assert nodes_of(placements) == plainly
    if placements is not None:
        check(demand, capacities, allowed, placements)
    assert [state(each) for each in capacities] == before


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(KINDS, st.integers(1, 20), st.lists(capacities_partly_taken(), min_size=1, max_size=7))
@example(bundle(), 3, [capacity(), capacity()])
@example(bundle(CPU=1), 3, [capacity(CPU=2), capacity(CPU=2)])
def test_one_kind_is_as_the_model(
    strategy: str, kind: Bundle, count: int, capacities: list[Capacity]
) -> None:
    demand, allowed = Demand((kind,) * count, strategy), [set(range(len(capacities)))] * count
    assert nodes_of(place(demand, capacities, allowed)) == model(demand, capacities, allowed)


@given(capacities_partly_taken(), KINDS, st.integers(0, 20))
def test_times_is_how_many_fit(each: Capacity, kind: Bundle, most: int) -> None:
    said, wanted = each.times(kind.quantities, most), kind.quantities
    for _ in range(said):
        assert each.fits(wanted)
        each.add(wanted, each.choose(wanted), -1)
    assert said == most or not each.fits(wanted)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("PACK", [0, 0, 0, 0, 1]),
        ("SPREAD", [1, 2, 0, 1, 2]),
        ("STRICT_PACK", [1, 1, 1, 1, 1]),
        ("STRICT_SPREAD", None),
    ],
)
def test_whose_turn_it_is(strategy: str, expected: list[int] | None) -> None:
    capacities = [capacity(CPU=4), capacity(CPU=6), capacity(CPU=5)]
    demand = Demand((bundle(CPU=1),) * 5, strategy)
    assert nodes_of(place(demand, capacities, [{0, 1, 2}] * 5)) == expected


@pytest.mark.parametrize(
    ("strategy", "wanted", "expected"),
    [
        ("PACK", bundle(CPU=1), 1),
        ("PACK", bundle(CPU=1, GPU=1), 0),
        ("PACK", bundle(CPU=3), 2),
        ("PACK", bundle(CPU=4), 3),
        ("SPREAD", bundle(CPU=1), 1),
        ("SPREAD", bundle(CPU=1, GPU=1), 0),
    ],
)
def test_one_bundle_spares_the_devices_that_it_does_not_ask_for(
    strategy: str, wanted: Bundle, expected: int
) -> None:
    capacities = [capacity(CPU=2, GPU=1), capacity(CPU=2), capacity(CPU=3), capacity(CPU=4, GPU=2)]
    demand = Demand((wanted,), strategy)
    assert nodes_of(place(demand, capacities, [{0, 1, 2, 3}])) == [expected]


def test_what_few_nodes_may_take_goes_first() -> None:
    everywhere, there = {0, 1}, {0}
    demand = Demand((bundle(CPU=1), bundle(CPU=1)), "PACK")
    capacities = [capacity(CPU=1), capacity(CPU=1)]
    assert nodes_of(place(demand, capacities, [everywhere, there])) == [1, 0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_bundles_fit_anywhere(strategy: str) -> None:
    assert place(Demand((), strategy), [capacity(CPU=1)], []) == []


def seconds(
    demand: Demand, capacities: Sequence[Capacity], allowed: Sequence[set[int]]
) -> tuple[Any, float]:
    start = time.thread_time()
    return place(demand, capacities, allowed), time.thread_time() - start


@pytest.mark.parametrize("a_node", [8, 1])
@pytest.mark.parametrize("strategy", ["PACK", "SPREAD", "STRICT_SPREAD"])
def test_ten_thousand_on_ten_thousand(strategy: str, a_node: int) -> None:
    capacities = [capacity(CPU=64, GPU=8) for _ in range(10_000)]
    demand = Demand((bundle(CPU=1, GPU=8 / a_node),) * len(capacities), strategy)
    chosen, took = seconds(demand, capacities, [set(range(len(capacities)))] * len(capacities))
    assert set(Counter(nodes_of(chosen)).values()) == {a_node if strategy == "PACK" else 1}
    assert took < BOUND_S


def test_ten_thousand_on_the_last_of_ten_thousand() -> None:
    capacities = [
        *(capacity(CPU=64, GPU=8) for _ in range(9_999)),
        capacity(CPU=10_000, GPU=10_000),
    ]
    demand = Demand((bundle(CPU=1, GPU=1),) * len(capacities), "STRICT_PACK")
    chosen, took = seconds(demand, capacities, [set(range(len(capacities)))] * len(capacities))
    assert nodes_of(chosen) == [9_999] * len(capacities)
    assert took < BOUND_S


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_thousand_selectors(strategy: str) -> None:
    size = 1_000
    capacities = [capacity(CPU=64, GPU=8) for _ in range(size)]
    allowed = [{index, (index + 1) % size} for index in range(size)]
    demand = Demand((bundle(GPU=8),) * size, strategy)
    chosen, took = seconds(demand, capacities, allowed)
    if strategy == "STRICT_PACK":
        assert chosen is None
    else:
        check(demand, capacities, allowed, chosen)
    assert took < BOUND_S


@pytest.mark.parametrize(
    "bundles",
    [
        (bundle(GPU=1),) * 80_001,
        (bundle(CPU=5),) * 120_001,
        (bundle(GPU=0.6),) * 80_001,
        (bundle(GPU=9),) * 2,
        (bundle(TPU=1), bundle(CPU=1)),
        (bundle(GPU=8),) * 9_999 + (bundle(GPU=4),) * 3,
    ],
    ids=["in sum", "a bundle's rest", "a device's rest", "too large", "unknown", "mixed"],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_refused_at_once(strategy: str, bundles: tuple[Bundle, ...]) -> None:
    capacities = [capacity(CPU=64, GPU=8) for _ in range(10_000)]
    allowed = [set(range(len(capacities)))] * len(bundles)
    chosen, took = seconds(Demand(bundles, strategy), capacities, allowed)
    assert chosen is None
    assert took < BOUND_S


def test_devices_too_fragmented_for_strict_pack_are_refused_at_once() -> None:
    capacities = [capacity(CPU=64, GPU=8) for _ in range(10_000)]
    mixed = (*[bundle(GPU=0.6)] * 8, bundle(GPU=0.5), bundle(CPU=1))
    demand, allowed = Demand(mixed, "STRICT_PACK"), [set(range(len(capacities)))] * len(mixed)
    chosen, took = seconds(demand, capacities, allowed)
    assert chosen is None
    assert took < BOUND_S


@given(st.integers(0, 8 * UNIT), st.sampled_from([1000, 2500, 3333, 5000, 6000, UNIT, 2 * UNIT]))
@example(35_000, 5000)
def test_a_quantity_of_devices_is_whole_ones_and_the_rest(there: int, wanted: int) -> None:
    """As on a node of Ray with four GPUs of which half a one is taken: seven halves are left."""
    devices = DevicePool.of(there)
    whole, part = divmod(there, UNIT)
    if wanted < UNIT:
        assert devices.times(wanted) == whole * (UNIT // wanted) + part // wanted
    else:
        assert devices.times(wanted) == whole // (wanted // UNIT)
    taken = 0
    while (parts := devices.choose(wanted)) is not None:
        devices.add(parts, -1)
        taken += sum(units for _, units in parts)
    assert taken // wanted * wanted == taken <= there
