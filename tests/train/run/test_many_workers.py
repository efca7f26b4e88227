"""The controller's work for many workers: in proportion to their number, in every step of a run."""

from __future__ import annotations

import time

import pytest

from benchmarks import program_controller
from dray.train.run.report_tracker import CollectiveTracker, ReportTracker
from dray.train.worker.run_messages import CollectiveArrival, Reported

FEW, MANY = 200, 4800
TOO_MUCH = 4  # what is quadratic grows 24 times, less what is not


@pytest.fixture(scope="module")
def growth() -> dict[str, float]:
    """How much more a worker costs among many than among few, by step."""
    program_controller.run(FEW)  # imports
    found = _growth()
    if max(found.values()) >= TOO_MUCH:  # a collection of garbage, or another program's caches
        found = {step: min(found[step], other) for step, other in _growth().items()}
    return found


def _growth() -> dict[str, float]:
    few, many = program_controller.run(FEW), program_controller.run(MANY)
    return {step: many[step] / MANY / (few[step] / FEW) for step in few}


@pytest.mark.parametrize(
    "step",
    ["start", "a report", "a collective", "a checkpoint of all", "a failure and the restart"],
)
def test_a_worker_costs_no_more_among_many(growth: dict[str, float], step: str) -> None:
    assert growth[step] < TOO_MUCH


def test_ranks_that_fail_stop_and_return_are_counted_out() -> None:
    book = ReportTracker(4)
    for rank in range(3):
        book.reported(rank, Reported(0, {}))
    assert list(book.complete()) == []
    book.ended(3)
    assert [entry.report for entry in book.complete()] == [0]
    book.reported(0, Reported(1, {}))
    book.failed(1)
    assert list(book.complete()) == []  # who has failed is still waited for, and will not come
    book.stopped(2)
    assert [list(waiting) for waiting in book.given_up()] == [[]]
    assert list(book.complete()) == []


def test_a_rank_far_ahead_costs_no_more_a_report() -> None:
    def cost_s(ahead: int) -> float:
        book, count = ReportTracker(2), 5_000
        for number in range(ahead):
            book.reported(0, Reported(number, {}))
        began = time.process_time()
        for number in range(count):
            book.reported(0, Reported(ahead + number, {}))
            book.reported(1, Reported(number, {}))
            assert not list(book.to_stage())
            assert len(list(book.complete())) == 1
        return time.process_time() - began

    growth = min(cost_s(900) / cost_s(1) for _ in range(3))
    assert growth < TOO_MUCH  # looking at all that are open costs 10 times as much


def test_reports_that_are_heard_together_cost_no_more_each() -> None:
    def cost_s(count: int) -> float:
        book = ReportTracker(1)
        for number in range(count):
            book.reported(0, Reported(number, {}))
        began = time.process_time()
        assert sum(1 for _ in book.complete()) == count
        return (time.process_time() - began) / count

    growth = min(cost_s(80_000) / cost_s(4_000) for _ in range(2))
    assert growth < TOO_MUCH  # looking for the first among all costs 10 times as much


def test_a_collective_of_many_ranks() -> None:
    collectives = CollectiveTracker(3)
    assert collectives.joined(1, CollectiveArrival(0, "barrier", ())) is None
    assert collectives.joined(2, CollectiveArrival(0, "barrier", ())) is None
    assert collectives.joined(0, CollectiveArrival(0, "barrier", (b"mine",))) == (b"mine",)
