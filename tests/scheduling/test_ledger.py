"""The ledger: never over-committed, everything comes back, impossible requests are told."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
from hypothesis import example, given
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


# Devices.


def gpus(*counts: int, **more: float) -> Ledger:
    """Nodes with so many GPUs each."""
    nodes = []
    for i, count in enumerate(counts):
        ids = {"GPU": tuple(map(str, range(count)))}
        nodes.append(Node(f"n{i}", "::1", {"CPU": 64, "GPU": count, **more}, devices=ids))
    return Ledger(nodes)


def take(book: Ledger, gpu: float, long_lived: bool = True) -> Any:
    return book.reserve(Request([{"GPU": gpu}], long_lived=long_lived))


def ids(future: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = future.result().devices[0]["GPU"]
    return found


def test_fractions_are_packed_and_whole_devices_are_taken_in_order() -> None:
    book = gpus(4)
    assert [ids(take(book, 0.5)) for _ in range(3)] == [("0",), ("0",), ("1",)]
    assert ids(take(book, 2)) == ("2", "3")
    assert ids(take(book, 0.3)) == ("1",)


def test_a_fraction_goes_to_the_device_with_the_least_that_is_enough() -> None:
    book = gpus(4)
    held = [take(book, 1), take(book, 1)]
    assert ids(take(book, 0.4)) == ("2",)
    assert ids(take(book, 0.7)) == ("3",)
    assert ids(take(book, 0.3)) == ("3",)
    held[1].result().release()
    assert ids(take(book, 1)) == ("1",)


def test_what_no_single_device_has_waits_for_one_that_does() -> None:
    book = gpus(2)
    halves = [take(book, 0.6), take(book, 0.6)]  # 0.4 left on each
    more = take(book, 0.5)
    assert not more.done()
    halves[1].result().release()
    assert ids(more) == ("1",)


def test_a_lasting_fraction_on_each_device_does_not_hold_up_smaller_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sum would be enough for ever, and no device ever will."""
    book = gpus(2)
    held = [take(book, 0.6), take(book, 0.6)]
    monkeypatch.setattr("dray.scheduling.request_queue.STARVATION_LIMIT_S", -1)
    stuck = take(book, 0.7, long_lived=False)
    assert not stuck.done()
    assert [ids(take(book, 0.2)) for _ in range(4)] == [("0",), ("0",), ("1",), ("1",)]
    del held


def test_a_request_finds_the_node_whose_devices_fit() -> None:
    book = gpus(1, 5)
    assert take(book, 2).result().nodes[0].node_id == "n1"
    assert take(book, 1).result().nodes[0].node_id == "n0"


DEVICE_QUANTITIES = st.sampled_from([0.25, 0.3, 0.5, 0.6, 1, 2, 3])


@given(
    st.lists(st.tuples(DEVICE_QUANTITIES, st.integers(0, 4)), max_size=40),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
def test_devices_are_never_over_committed_or_split(
    steps: list[tuple[float, int]], counts: list[int]
) -> None:
    book = gpus(*counts)
    asked: list[tuple[float, Any]] = []
    for quantity, ends in steps:
        if quantity <= max(counts):
            asked.append((quantity, take(book, quantity)))
        done = [entry for entry in asked if entry[1].done()]
        for entry in done[:ends]:
            entry[1].result().release()
            asked.remove(entry)
        used: dict[tuple[str, str], float] = {}
        for amount, future in asked:
            if future.done():
                node, devices = future.result().nodes[0].node_id, ids(future)
                assert len(devices) == max(1, amount)
                assert len(set(devices)) == len(devices)
                for device in devices:
                    key = (node, device)
                    used[key] = used.get(key, 0) + min(1, amount)
        assert all(amount <= 1 + 1e-9 for amount in used.values())
    while asked:
        ready = next(entry for entry in asked if entry[1].done())  # somebody always goes on
        ready[1].result().release()
        asked.remove(ready)
    assert book.available()["GPU"] == sum(counts)
    assert len(
        {(f.result().nodes[0].node_id, ids(f)) for f in [take(book, 1) for _ in range(sum(counts))]}
    ) == sum(counts)


PLACES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=4)


@given(
    PLACES,
    st.integers(1, 7),
    st.sampled_from([0, 0.5, 1, 2, 5]),
    st.sampled_from([0, 0.25, 0.6, 1, 2, 8]),
    st.sampled_from(STRATEGIES),
)
@example([(1, 4), (1, 2)], 1, 0, 8, "PACK")
@example([(1, 2), (1, 4)], 2, 0, 4, "PACK")
@example([(4, 0), (2, 0)], 2, 5, 0, "PACK")
def test_what_is_proposed_to_copy_fits(
    places: list[tuple[int, int]], workers: int, cpus: float, gpus: float, strategy: str
) -> None:
    book = Ledger(
        [
            Node(
                f"n{index}",
                "::1",
                {"CPU": cores, "GPU": devices},
                {},
                {"GPU": [*"0123"][:devices]} if devices else {},
            )
            for index, (cores, devices) in enumerate(places)
        ]
    )
    try:
        book.check(Request([{"CPU": cpus, "GPU": gpus}] * workers, strategy))
    except InfeasibleError as error:
        message, shortfall = str(error), error.shortfall
    else:
        return
    assert shortfall is not None
    proposed = shortfall.proposed
    if proposed:
        assert proposed != {"CPU": cpus, "GPU": gpus}
        book.check(Request([proposed] * workers, strategy))
    elif strategy == "PACK" and not gpus and any(cores for cores, _ in places):
        pytest.fail(f"there is something to propose: {message}")


class OtherProgram:
    """Device locks of which some are another program's."""

    def __init__(self, *devices: str) -> None:
        self.has = {("GPU", device) for device in devices}

    def take_all(self, devices: Any) -> Any:
        return next((device for device in devices if device in self.has), None)

    def give_back(self, device: Any) -> None:
        assert device not in self.has


def test_a_device_of_another_program_does_not_hold_up_smaller_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dray.scheduling.request_queue.STARVATION_LIMIT_S", -1)
    book = gpus(2)
    other: Any = OtherProgram("0")
    book.device_locks = other
    both = take(book, 2, long_lived=False)
    one = take(book, 1, long_lived=False)
    assert one.done()
    assert ids(one) == ("1",)
    one.result().release()
    assert not both.done()
    other.has.clear()
    book.readmit(("GPU", "0"))
    assert ids(both) == ("0", "1")
    later = take(book, 2, long_lived=False)
    assert not later.done()
    assert not take(book, 1, long_lived=False).done(), "both come back, and are kept"
    both.result().release()
    assert later.done()


def test_ten_thousand_fractions_on_a_thousand_devices_take_less_than_a_second() -> None:
    def seconds(counts: list[int]) -> float:
        book = gpus(*counts)
        began = time.thread_time()
        held = [take(book, 0.1) for _ in range(10_000)]
        taken = time.thread_time() - began
        assert all(future.done() for future in held)
        assert take(book, 0.1).done() is False
        return taken

    for counts in ([1000], [8] * 125):  # beside other programs it may take longer, not each time
        assert any(seconds(counts) < 1 for _ in range(3))


@pytest.mark.parametrize(
    ("bundles", "resources", "proposed"),
    [
        (9, {"GPU": 1}, {"GPU": 0.33}),  # not 4/9: a GPU takes two of these
        (5, {"GPU": 1}, {"GPU": 0.5}),
        (3, {"GPU": 2}, {"GPU": 1}),
        (3, {"TPU": 4}, {"TPU": 2}),
        (3, {"HPU": 2}, {"HPU": 1}),
        (5, {"HPU": 1}, None),  # not shared
        (9, {"CPU": 1}, {"CPU": 0.44}),
    ],
)
def test_what_is_proposed_fits(
    bundles: int, resources: dict[str, float], proposed: dict[str, float] | None
) -> None:
    there = {"CPU": 4, "GPU": 4, "TPU": 8, "HPU": 4}
    devices = {name: [*"01234567"][: there[name]] for name in ("GPU", "TPU", "HPU")}
    book = Ledger([Node("n", "::1", there, {}, devices)])
    with pytest.raises(InfeasibleError, match="Ask for less, or") as refused:
        book.check(Request([resources] * bundles))
    shortfall = pickle.loads(pickle.dumps(refused.value)).shortfall  # as it comes from the hub
    assert shortfall.change == "less"
    assert shortfall.proposed == proposed
    book.check(Request([proposed or {}] * bundles))


def test_what_is_about_to_go_is_no_room() -> None:
    book = ledger(2, gpus=0)
    book.announce_loss("n0", None)
    assert not book.preview(Request([{"CPU": 1}])).fits
    with pytest.raises(InfeasibleError, match="Nearest node: n0 with nothing"):
        book.reserve(Request([{"CPU": 1}]))
