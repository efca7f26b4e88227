"""The ledger: never over-committed, everything comes back, impossible requests are told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError, InfeasibleError
from dray.scheduling.capacity import from_fixed, to_fixed
from dray.scheduling.ledger import Held, Ledger
from dray.scheduling.placement import STRATEGIES
from dray.scheduling.requests import Node, Request

QUANTITIES = st.integers(0, 40).map(lambda n: n / 10)
BUNDLES = st.lists(
    st.fixed_dictionaries({"CPU": QUANTITIES, "GPU": QUANTITIES}), min_size=1, max_size=4
)


def ledger(*cpus: float, gpus: float = 2) -> Ledger:
    return Ledger([Node(f"n{i}", "::1", {"CPU": c, "GPU": gpus}) for i, c in enumerate(cpus)])


def assert_not_over_committed(book: Ledger, held: list[Any]) -> None:
    for index, node in enumerate(book.nodes):
        for name, total in node.resources.items():
            used = sum(
                dict(quantities).get(name, 0) / 10_000
                for reservation in held
                for place, quantities, _ in reservation.allocations
                if place == index
            )
            assert used <= total + 1e-9, (index, name)


@given(
    st.lists(
        st.tuples(BUNDLES, st.sampled_from(STRATEGIES), st.integers(0, 5), st.booleans()),
        max_size=25,
    )
)
def test_never_over_committed_and_all_comes_back(requests: Any) -> None:
    book = ledger(4, 3)
    asked = []
    for bundles, strategy, release, aside in requests:
        try:
            asked.append(book.reserve(Request(bundles, strategy)))
        except InfeasibleError:
            continue
        held = [f.result() for f in asked if f.done()]
        assert_not_over_committed(book, held)
        if release < len(held) and aside:
            if held[release].set_aside() and release % 2:
                assert held[release].take_up()
        elif release < len(held):
            held[release].release()
            held[release].release()  # twice is once
    while any(not f.done() for f in asked):
        for future in [f for f in asked if f.done()]:
            future.result().release()
    for future in asked:
        future.result().release()
    assert book.available() == {"CPU": 7, "GPU": 4}


@given(
    st.lists(BUNDLES, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), BUNDLES, st.sampled_from(STRATEGIES)), max_size=10),
)
def test_exchanges_are_whole_or_nothing(asked: Any, exchanges: Any) -> None:
    nodes = [
        Node(f"n{i}", "::1", {"CPU": 4, "GPU": 2}, devices={"GPU": ("0", "1")}) for i in range(2)
    ]
    book = Ledger(nodes)
    requests = [
        Request([{**b, "GPU": int(b["GPU"])} for b in bundles], "PACK") for bundles in asked
    ]
    held: list[Any] = []
    for request in requests:
        if book.preview(request).fits:
            held.append(book.reserve(request).result())
    for which, bundles, strategy in exchanges:
        if which >= len(held):
            continue
        old, before, free = held[which], held[which].allocations, book.available()
        request = Request([{**b, "GPU": int(b["GPU"])} for b in bundles], strategy)
        new = old.exchange(request)
        if new is None:
            assert (old.allocations, book.available()) == (before, free)
            continue
        assert len(new.allocations) == len(bundles)
        held[which] = new
        old.release()  # holds nothing any more
        assert_not_over_committed(book, held)
        devices = [
            (allocation.node, part.device)
            for reservation in held
            for allocation in reservation.allocations
            for part in allocation.parts.get("GPU", ())
        ]
        assert len(devices) == len(set(devices))
    for reservation in held:
        reservation.release()
    assert book.available() == {"CPU": 8, "GPU": 4}


def test_an_exchange_wakes_who_waits_for_what_it_leaves() -> None:
    book = ledger(4)
    first = asks(book, 4).result()
    other = asks(book, 2)
    assert not other.done()
    assert first.exchange(Request([{"CPU": 5}], "PACK")) is None
    assert not other.done()
    assert first.exchange(Request([{"CPU": 2}], "PACK")) is not None
    assert other.done()


def test_what_is_set_aside_is_free_to_whoever_asks_first() -> None:
    book = ledger(2)
    mine = asks(book, 2).result()
    assert mine.set_aside()
    assert mine.take_up()
    assert not mine.take_up(), "it is not set aside any more"
    assert mine.set_aside()
    assert book.available()["CPU"] == 2
    assert not mine.take_up(), "somebody was told that it is free"
    first = asks(book, 1).result()
    assert first.set_aside()
    assert asks(book, 2).done()
    waiting = asks(book, 1)
    assert not first.take_up()
    assert not waiting.done()
    other = ledger(2)
    held, waits = asks(other, 2).result(), asks(other, 1)
    assert not held.set_aside(), "somebody waits for it"
    held.release()
    assert waits.done()


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


def test_the_most_of_a_resource_may_be_asked_for() -> None:
    assert from_fixed(to_fixed({"CPU": 1e30})) == {"CPU": 1e30}
    with pytest.raises(ConfigError, match=r"at most 1e\+30, not 1.1e\+30"):
        to_fixed({"CPU": 1.1e30})


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
    with pytest.raises(InfeasibleError, match=r"9 CPU asked, 7 CPU exist.* node: n0 with 4 CPU"):
        ledger(4, 3).reserve(Request([{"CPU": 1}] * 9, "PACK"))
    with pytest.raises(InfeasibleError, match=r"48\.83 KiB memory asked, 4\.883 KiB"):
        Ledger([Node("n", "", {"memory": 5000})]).check(Request([{"memory": 50_000}]))
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


def asks(book: Ledger, cpus: float, *, long_lived: bool = False) -> Any:
    return book.reserve(Request([{"CPU": cpus}], "PACK", long_lived=long_lived))


def test_who_has_waited_long_enough_is_not_passed_any_more(monkeypatch: Any) -> None:
    book = ledger(2)
    first = asks(book, 1)
    large = asks(book, 2)
    asks(book, 1).result().release()  # passes: the large one has only just come
    monkeypatch.setattr("dray.scheduling.request_queue.STARVATION_LIMIT_S", -1.0)
    small = asks(book, 1)
    assert not small.done()
    first.result().release()
    assert large.done()
    assert not small.done()
    large.result().release()
    assert small.done()


def test_who_waits_for_what_is_held_for_good_holds_nobody_up(monkeypatch: Any) -> None:
    monkeypatch.setattr("dray.scheduling.request_queue.STARVATION_LIMIT_S", -1.0)
    book = ledger(2)
    actor = asks(book, 1, long_lived=True)
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
    waits.release_cpus()
    assert child.done()
    waits.reacquire_cpus()  # at once, though they are in use
    assert book.available()["CPU"] == 0
    third = asks(book, 1)
    child.result().release()
    assert not third.done()
    third.cancel()
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


def test_what_is_about_to_go_is_no_room() -> None:
    book = ledger(2, gpus=0)
    book.announce_loss("n0", None)
    assert not book.preview(Request([{"CPU": 1}])).fits
    with pytest.raises(InfeasibleError, match="Nearest node: n0 with nothing"):
        book.reserve(Request([{"CPU": 1}]))
