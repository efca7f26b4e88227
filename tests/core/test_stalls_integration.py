"""Warnings about work that waits for resources which nothing will free, on the process engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import dray
from dray.util.placement_group import placement_group
from dray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support.gates import Gate, until

WITHIN_S = 0.2


@pytest.fixture(autouse=True)
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    dray.shutdown()  # the session of the tests before
    monkeypatch.setenv("DRAY_STALL_WARNING_S", str(WITHIN_S))
    dray.init(engine="process", num_cpus=2, resources={"special": 1})
    yield
    dray.shutdown()


@dray.remote(num_cpus=1)
class Holder:
    def __init__(self) -> None:
        pass

    def here(self) -> bool:
        return True


@dray.remote
def value(of: int) -> int:
    return of


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def only_warning(caplog: pytest.LogCaptureFixture, refs: list[dray.ObjectRef]) -> str:
    """Return what is warned of, after which nothing is ready, nor warned of again."""
    until(lambda: bool(warnings_of(caplog)))
    assert dray.wait(refs, timeout=2 * WITHIN_S)[0] == []
    (warning,) = warnings_of(caplog)
    return warning


def test_tasks_that_wait_for_what_actors_keep(caplog: pytest.LogCaptureFixture) -> None:
    holders = [Holder.remote() for _ in range(2)]
    dray.get([holder.here.remote() for holder in holders])
    refs = [value.remote(n) for n in range(3)]
    warning = only_warning(caplog, refs)
    assert "value and 2 more cannot start: it asks for 1 CPU" in warning
    assert "0 of 2 CPU are free" in warning
    assert "2 x Holder" in warning
    dray.kill(holders.pop())
    assert dray.get(refs) == [0, 1, 2]


def test_an_actor_that_waits_for_another(caplog: pytest.LogCaptureFixture) -> None:
    special = Holder.options(resources={"special": 1})
    first = special.remote()
    dray.get(first.here.remote())
    second = special.remote()
    warning = only_warning(caplog, [second.here.remote()])
    assert "actor Holder cannot start: it asks for" in warning
    assert "1 special" in warning


def test_what_no_bundle_has_together(caplog: pytest.LogCaptureFixture) -> None:
    group = placement_group([{"CPU": 1, "special": 1}, {"CPU": 1}])
    inside = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    first = Holder.options(scheduling_strategy=inside).remote()
    dray.get(first.here.remote())
    inside = PlacementGroupSchedulingStrategy(group)
    second = Holder.options(resources={"special": 1}, scheduling_strategy=inside).remote()
    warning = only_warning(caplog, [second.here.remote()])
    assert "1 of 2 CPU and 1 of 1 special are free, but not in one bundle" in warning


def test_a_queue_behind_work_is_no_stall(caplog: pytest.LogCaptureFixture, gate: Gate) -> None:
    @dray.remote(num_cpus=2)
    def work() -> bool:
        gate.pass_through()
        return True

    ref, behind = work.remote(), value.remote(1)
    gate.heard()
    assert dray.wait([behind], timeout=5 * WITHIN_S)[0] == []
    assert warnings_of(caplog) == []
    gate.open()
    assert dray.get([ref, behind]) == [True, 1]
