"""Placement: what is promised to be found is found, compared with trying everything."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.scheduling.capacity import Capacity
from dray.scheduling.placement import STRATEGIES, Bundle, Demand, place
from tests.scheduling.test_placement import bundle, capacity, check, nodes_of

BOUND_S = 2.0  # some ten times what it takes

ROOMS = st.lists(
    st.builds(capacity, CPU=st.integers(0, 5), GPU=st.integers(0, 2)), min_size=2, max_size=4
)
KINDS = st.builds(bundle, CPU=st.integers(0, 4), GPU=st.sampled_from([0, 0, 0, 1, 2]))
FRACTIONS = st.builds(bundle, CPU=st.sampled_from([0.5, 1, 2]), GPU=st.sampled_from([0, 0.4, 0.5]))


def can_be(demand: Demand, capacities: Sequence[Capacity], allowed: Sequence[set[int]]) -> bool:
    """Return whether bundles fit somehow, by trying everything; devices in the order given."""
    for nodes in itertools.product(*map(sorted, allowed)):
        different = len(set(nodes))
        if demand.strategy == "STRICT_SPREAD" and different < len(nodes):
            continue
        if demand.strategy == "STRICT_PACK" and different > 1:
            continue
        left = [each.copy() for each in capacities]
        for node, wanted in zip(nodes, demand.bundles, strict=True):
            if not left[node].fits(wanted.quantities):
                break
            left[node].take(wanted.quantities)
        else:
            return True
    return False


def assert_found(
    strategy: str, bundles: Sequence[Bundle], capacities: list[Capacity], allowed: list[set[int]]
) -> None:
    demand = Demand(tuple(bundles), strategy)
    placements = place(demand, capacities, allowed)
    assert (placements is not None) == can_be(demand, capacities, allowed)
    if placements is not None:
        check(demand, capacities, allowed, placements)


@st.composite
def nodes_for(draw: st.DrawFn, capacities: list[Capacity], most: int) -> list[set[int]]:
    """Return the nodes that each of some bundles may lie on."""
    some = st.sets(st.integers(0, len(capacities) - 1), min_size=1)
    return draw(st.lists(some, min_size=1, max_size=most))


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=150)
@given(st.data(), ROOMS, KINDS | FRACTIONS)
def test_bundles_alike_with_any_selectors(
    strategy: str, data: st.DataObject, capacities: list[Capacity], kind: Bundle
) -> None:
    allowed = data.draw(nodes_for(capacities, 5))
    assert_found(strategy, [kind] * len(allowed), capacities, allowed)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=200)
@given(st.data(), ROOMS, KINDS, KINDS, st.integers(1, 4))
def test_bundles_alike_beside_one_other(
    strategy: str,
    data: st.DataObject,
    capacities: list[Capacity],
    kind: Bundle,
    other: Bundle,
    count: int,
) -> None:
    """As workers, and what `trainer_resources` reserves."""
    theirs, its = data.draw(nodes_for(capacities, 1)), data.draw(nodes_for(capacities, 1))
    assert_found(strategy, [*[kind] * count, other], capacities, theirs * count + its)


@pytest.mark.parametrize("strategy", ["STRICT_SPREAD", "STRICT_PACK"])
@settings(max_examples=150)
@given(st.data(), ROOMS)
def test_anything_under_strict_strategies(
    strategy: str, data: st.DataObject, capacities: list[Capacity]
) -> None:
    allowed = data.draw(nodes_for(capacities, 4))
    bundles = [data.draw(KINDS) for _ in allowed]
    assert_found(strategy, bundles, capacities, allowed)


@pytest.mark.parametrize(
    ("strategy", "bundles", "capacities", "expected"),
    [
        (
            "PACK",
            [*[bundle(CPU=1)] * 4, bundle(CPU=8)],
            [capacity(CPU=8), capacity(CPU=4)],
            [1] * 4 + [0],
        ),
        (
            "PACK",
            [bundle(CPU=8), bundle(CPU=1, GPU=1)],
            [capacity(CPU=8, GPU=1), capacity(CPU=8)],
            [1, 0],
        ),
        ("SPREAD", [*[bundle(CPU=1)] * 2, bundle(CPU=4)], [capacity(CPU=4)] * 2, [1, 1, 0]),
        (  # on any other node it would cost three
            "PACK",
            [*[bundle(CPU=2)] * 7, bundle(CPU=5)],
            [capacity(CPU=6), capacity(CPU=7), capacity(CPU=6)],
            [1, 0, 0, 0, 2, 2, 2, 1],
        ),
        (  # there is room for more like it than like the others, which leave it none
            "SPREAD",
            [*[bundle(CPU=3, disk=2)] * 3, bundle(CPU=1, disk=4)],
            [capacity(CPU=3, disk=12), capacity(CPU=10, disk=6)],
            [1, 1, 1, 0],
        ),
    ],
)
def test_the_one_that_costs_most_goes_first_in_the_end(
    strategy: str, bundles: list[Bundle], capacities: list[Capacity], expected: list[int]
) -> None:
    allowed = [set(range(len(capacities)))] * len(bundles)
    assert nodes_of(place(Demand(tuple(bundles), strategy), capacities, allowed)) == expected


@pytest.mark.parametrize("strategy", ["PACK", "SPREAD", "STRICT_SPREAD"])
def test_a_long_chain_of_moves_is_found_at_once(strategy: str) -> None:
    """Each may lie on two nodes, and the last one needs all others to move."""
    size = 1_000
    capacities = [capacity(CPU=1)] * size
    allowed = [*({i, i + 1} for i in range(size - 1)), {0, 1}]
    demand = Demand((bundle(CPU=1),) * size, strategy)
    began = time.thread_time()
    placements = place(demand, capacities, allowed)
    assert time.thread_time() - began < BOUND_S
    assert placements is not None
    check(demand, capacities, allowed, placements)


@pytest.mark.parametrize("strategy", ["PACK", "SPREAD"])
def test_ten_thousand_beside_one_that_never_fits_with_them(strategy: str) -> None:
    capacities = [capacity(CPU=3)] * 10_000
    demand = Demand((*[bundle(CPU=2)] * 10_000, bundle(CPU=2)), strategy)
    began = time.thread_time()
    assert place(demand, capacities, [set(range(10_000))] * 10_001) is None
    other = Demand((*[bundle(CPU=2)] * 10_000, bundle(CPU=3)), strategy)
    assert place(other, capacities, [set(range(10_000))] * 10_001) is None
    assert time.thread_time() - began < BOUND_S
