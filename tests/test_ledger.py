"""The ledger: never over-committed, everything comes back, impossible requests are told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engines.contract import Node, Request
from dray.engines.ledger import STRATEGIES, Held, Ledger, from_fixed, to_fixed
from dray.errors import ConfigError, InfeasibleError

QUANTITIES = st.integers(0, 40).map(lambda n: n / 10)
BUNDLES = st.lists(
    st.fixed_dictionaries({"CPU": QUANTITIES, "GPU": QUANTITIES}), min_size=1, max_size=4
)


def ledger(*cpus: float, gpus: float = 2) -> Ledger:
    return Ledger([Node(f"n{i}", "::1", {"CPU": c, "GPU": gpus}) for i, c in enumerate(cpus)])


@given(st.lists(st.tuples(BUNDLES, st.sampled_from(STRATEGIES), st.integers(0, 5)), max_size=25))
def test_never_over_committed_and_all_comes_back(requests: Any) -> None:
    book = ledger(4, 3)
    asked = []
    for bundles, strategy, release in requests:
        try:
            asked.append(book.reserve(Request(bundles, strategy)))
        except InfeasibleError:
            continue
        held = [f.result() for f in asked if f.done()]
        for index, node in enumerate(book.nodes):
            for name, total in node.resources.items():
                used = sum(
                    quantities.get(name, 0) / 10_000
                    for reservation in held
                    for claimed, quantities in reservation._claims  # type: ignore[attr-defined]
                    if claimed == index
                )
                assert used <= total + 1e-9, (index, name)
        if release < len(held):
            held[release].release()
            held[release].release()  # twice is once
    while any(not f.done() for f in asked):
        for future in [f for f in asked if f.done()]:
            future.result().release()
    for future in asked:
        future.result().release()
    assert book.available() == {"CPU": 7, "GPU": 4}


def test_tenths_and_thirds_add_up() -> None:
    book = ledger(1)
    held = [book.reserve(Request([{"CPU": 0.1}], "PACK")) for _ in range(10)]
    assert all(f.done() for f in held)
    assert not book.reserve(Request([{"CPU": 0.0001}], "PACK")).done()


@given(st.dictionaries(st.sampled_from("ABC"), st.integers(1, 10**9).map(lambda n: n / 10_000)))
def test_fixed_point_comes_back(resources: dict[str, float]) -> None:
    assert from_fixed(to_fixed(resources)) == pytest.approx(resources)


@pytest.mark.parametrize("quantity", [-1, float("nan"), float("inf"), "2", True, 0.00001])
def test_quantities_that_are_refused(quantity: Any) -> None:
    with pytest.raises(ConfigError, match="the quantity of CPU must be"):
        to_fixed({"CPU": quantity})


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [
        ("PACK", ["n0", "n0"]),
        ("SPREAD", ["n0", "n1"]),
        ("STRICT_PACK", ["n0", "n0"]),
        ("STRICT_SPREAD", ["n0", "n1"]),
    ],
)
def test_strategies(strategy: str, nodes: list[str]) -> None:
    reservation = ledger(4, 4).reserve(Request([{"CPU": 1}] * 2, strategy)).result()
    assert isinstance(reservation, Held)
    assert [node.node_id for node in reservation.nodes] == nodes


def test_strict_strategies_are_strict() -> None:
    for strategy, bundles in (
        ("STRICT_PACK", [{"CPU": 3}] * 2),
        ("STRICT_SPREAD", [{"CPU": 1}] * 3),
    ):
        with pytest.raises(
            InfeasibleError, match=f"do not fit the nodes under strategy {strategy}"
        ):
            ledger(4, 4).reserve(Request(bundles, strategy))
    with pytest.raises(ConfigError, match="'FOO' is not one of PACK"):
        ledger(4).reserve(Request([{"CPU": 1}], "FOO"))


def test_impossible_requests_say_both_numbers() -> None:
    with pytest.raises(
        InfeasibleError, match=r"9 CPU asked, 7 CPU exist.*Nearest node: n0 with 4 CPU"
    ):
        ledger(4, 3).reserve(Request([{"CPU": 1}] * 9, "PACK"))
    with pytest.raises(InfeasibleError, match=r"no node offers TPU \(nodes offer CPU, GPU\)"):
        ledger(4).reserve(Request([{"TPU": 1}], "PACK"))


def test_oldest_first_and_cancelled_ones_are_passed_over() -> None:
    book = ledger(2)
    first, second, third, fourth = (book.reserve(Request([{"CPU": 2}], "PACK")) for _ in range(4))
    assert (first.done(), second.done(), third.done()) == (True, False, False)
    second.cancel()
    first.result().release()
    assert third.done()
    assert not fourth.done()


def asks(book: Ledger, cpus: float, *, lasting: bool = False) -> Any:
    return book.reserve(Request([{"CPU": cpus}], "PACK", lasting=lasting))


def test_who_has_waited_long_enough_is_not_passed_any_more(monkeypatch: Any) -> None:
    book = ledger(2)
    first = asks(book, 1)
    large = asks(book, 2)
    asks(book, 1).result().release()  # passes: the large one has only just come
    monkeypatch.setattr("dray.engines.ledger.PATIENCE_S", -1.0)
    small = asks(book, 1)
    assert not small.done()
    first.result().release()
    assert large.done()
    assert not small.done()
    large.result().release()
    assert small.done()


def test_who_waits_for_what_is_held_for_good_holds_nobody_up(monkeypatch: Any) -> None:
    monkeypatch.setattr("dray.engines.ledger.PATIENCE_S", -1.0)
    book = ledger(2)
    actor = asks(book, 1, lasting=True)
    large = asks(book, 2)
    small = asks(book, 1)
    assert small.done()
    assert not large.done()
    small.result().release()
    actor.result().release()
    assert large.done()


def test_others_use_the_cpus_of_a_task_that_waits_for_them() -> None:
    book = ledger(1)
    waits = asks(book, 1).result()
    child = asks(book, 1)
    assert not child.done()
    waits.lend()
    assert child.done()
    waits.take_back()  # at once, though they are in use
    assert book.available()["CPU"] == -1
    child.result().release()
    waits.release()
    assert book.available()["CPU"] == 1


def test_a_node_that_is_gone_takes_what_it_had_with_it() -> None:
    book = ledger(2, 2)
    held = [asks(book, 2).result() for _ in range(2)]
    lost = next(reservation for reservation in held if reservation.nodes[0].node_id == "n1")
    book.remove_node("n1")
    assert [reservation.broken for reservation in held] == [r is lost for r in held]
    lost.release()
    assert book.available()["CPU"] == 0
    with pytest.raises(InfeasibleError):
        book.reserve(Request([{"CPU": 2}, {"CPU": 2}]))
