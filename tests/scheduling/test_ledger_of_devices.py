"""The ledger's devices: fractions are packed, and none is given out twice."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.scheduling.ledger import Ledger
from dray.scheduling.requests import Node, Request


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


def test_fractions_of_many_devices_take_a_time_that_grows_with_their_number() -> None:
    def seconds(counts: list[int]) -> float:
        book = gpus(*counts)
        began = time.thread_time()
        held = [take(book, 0.1) for _ in range(10 * sum(counts))]
        taken = time.thread_time() - began
        assert all(future.done() for future in held)
        assert take(book, 0.1).done() is False
        return taken

    for few, many in (([100], [1000]), ([8] * 12, [8] * 125)):
        # Ten times as long, and a hundred times if each looked at all devices.
        assert any(seconds(many) < 30 * seconds(few) for _ in range(3))
