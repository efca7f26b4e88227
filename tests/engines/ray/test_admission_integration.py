"""Runs on a cluster that has set their resources aside, but takes its time to say so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from ray.util.placement_group import PlacementGroup, placement_group

import dray
import dray.train
from dray.engines.ray import reservations
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig
from tests.support.gates import until

pytestmark = [
    pytest.mark.parametrize("engine_name", ["ray"], indirect=True),
    pytest.mark.usefixtures("engine"),
]


@pytest.mark.parametrize(("num_workers", "limit_s"), [((1, 3), "600"), (3, "0")])
def test_a_run_does_not_take_its_own_resources_for_those_of_others(
    storage: Path, monkeypatch: pytest.MonkeyPatch, num_workers: Any, limit_s: str
) -> None:
    class SlowToAnswer(PlacementGroup):
        def wait(self, timeout_seconds: float = 30) -> bool:
            ready: bool = super().wait(timeout_seconds)
            time.sleep(1.5)  # the run looks after one second what it waits for
            return ready

    monkeypatch.setattr(
        reservations, "placement_group", lambda *a, **k: SlowToAnswer(placement_group(*a, **k).id)
    )
    monkeypatch.setenv("DRAY_START_TIMEOUT_S", limit_s)
    until(lambda: dray.available_resources().get("special") == 2)
    trainer = DataParallelTrainer(
        lambda: dray.train.get_context().get_world_size(),
        scaling_config=ScalingConfig(
            num_workers=num_workers, resources_per_worker={"special": 0.5}
        ),
        run_config=RunConfig(storage_path=storage),
    )
    assert trainer.fit().return_value == 3
