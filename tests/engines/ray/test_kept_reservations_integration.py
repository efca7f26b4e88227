"""What a run had reserved is kept for a moment for the next run of the session."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray

import dray
import dray.session
from dray.engines.ray import bundles, cluster
from dray.engines.ray.bundles import PlacedBundles
from dray.engines.ray.engine import RayEngine
from dray.engines.ray.reservations import Reservations
from dray.scheduling.requests import Request
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig
from dray.util.placement_group import get_current_placement_group
from tests.support.gates import Gate, until

pytestmark = [
    pytest.mark.parametrize("engine_name", ["ray"], indirect=True),
    pytest.mark.usefixtures("engine"),
]
_LONG_S = 100.0


@pytest.fixture
def reservations() -> Reservations:
    engine = dray.session.current_engine()
    assert isinstance(engine, RayEngine)
    return engine._reservations


def group_of_a_run(storage: Path, num_workers: int = 2) -> Any:
    """Return the id of the placement group in which a run was."""

    def train() -> Any:
        group = get_current_placement_group()
        return None if group is None else group.id

    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(storage_path=storage),
    )
    plan = trainer.plan()
    assert plan.fits
    assert len(plan.workers) == num_workers
    return trainer.fit().return_value


def free_of_ray() -> float:
    free: float = ray.available_resources().get("CPU", 0)
    return free


def test_the_next_run_that_asks_the_same_gets_the_same(
    storage: Path, reservations: Reservations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "_keep_s", _LONG_S)
    first = group_of_a_run(storage)
    until(lambda: free_of_ray() == 6)  # Ray's account says that they are reserved
    assert dray.available_resources()["CPU"] == 8  # for this session they are free
    assert group_of_a_run(storage) == first
    # Who asks for something else of the same session gets it, though all is needed.
    assert group_of_a_run(storage, num_workers=8) != first


def test_it_is_given_up_when_anybody_waits_and_after_a_while(
    storage: Path, reservations: Reservations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "_keep_s", _LONG_S)
    group_of_a_run(storage, num_workers=8)
    began = time.monotonic()
    assert ray.get(ray.remote(num_cpus=4)(lambda: 7).remote(), timeout=_LONG_S / 2) == 7
    assert time.monotonic() - began < _LONG_S / 2
    monkeypatch.setattr(reservations, "_keep_s", 0.2)
    group_of_a_run(storage)
    until(lambda: free_of_ray() == 8)


def test_who_takes_a_request_back_does_not_wait_until_its_devices_are_known(
    reservations: Reservations, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    look = ray.remote(max_calls=0, max_retries=0)(lambda: gate.pass_through())
    with monkeypatch.context() as with_devices:
        with_devices.setattr(bundles, "families_on", lambda bundle: bundle)
        with_devices.setattr(bundles, "_looker", lambda: look)
        asked = reservations.reserve(Request([{"CPU": 1}]))
        gate.heard()
        began = time.monotonic()
        assert asked.cancel()
        assert time.monotonic() - began < _LONG_S / 4
        until(lambda: "dray-reserve" not in [thread.name for thread in threading.enumerate()])
    until(lambda: free_of_ray() == 8)


def test_a_request_taken_back_as_it_is_met_leaves_nothing_for_the_next(
    reservations: Reservations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(*arguments: Any) -> PlacedBundles:
        placed = PlacedBundles(*arguments)
        assert asked.cancel()
        return placed

    monkeypatch.setattr(reservations, "_keep_s", _LONG_S)
    with monkeypatch.context() as interrupted:
        interrupted.setattr("dray.engines.ray.reservations.PlacedBundles", place)
        asked = reservations.reserve(Request([{"CPU": 1}]))
        until(lambda: "dray-reserve" not in [thread.name for thread in threading.enumerate()])
    assert reservations.kept() == {}
    until(lambda: free_of_ray() == 8)


def test_what_is_kept_is_given_up_when_nobody_can_tell_whether_somebody_waits(
    storage: Path, reservations: Reservations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> bool:
        raise ConnectionError("the head does not answer")

    monkeypatch.setattr(reservations, "_keep_s", _LONG_S)
    monkeypatch.setattr(cluster, "somebody_waits", fails)
    group_of_a_run(storage)
    until(lambda: free_of_ray() == 8, within_s=_LONG_S / 2)
