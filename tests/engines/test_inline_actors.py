"""Actors and placement groups on the inline engine."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.errors import (
    ActorDiedError,
    ConfigError,
    EngineError,
    InfeasibleError,
    NameTakenError,
)
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig
from dray.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from dray.util.scheduling_strategies import (
    PlacementGroupSchedulingStrategy,
)

pytestmark = pytest.mark.usefixtures("inline_session")


@dray.remote
class Counter:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    def leave(self) -> None:
        dray.exit_actor()

    def leave_and_return(self) -> str:
        with contextlib.suppress(SystemExit):
            dray.exit_actor()
        return "left"

    def where(self) -> tuple[str | None, str | None, dict[str, float]]:
        here = dray.get_runtime_context()
        return here.get_actor_id(), here.get_actor_name(), here.get_assigned_resources()


def test_an_actor_keeps_its_state() -> None:
    counter = Counter.remote(10)
    counter.add.remote()
    assert dray.get([counter.add.remote(), counter.add.remote(5)]) == [12, 17]
    assert dray.get(counter.where.remote()) == (counter._actor_id, None, {})


def test_an_actor_that_cannot_be_made() -> None:
    @dray.remote
    class Broken:
        def __init__(self) -> None:
            raise ValueError("no way")

        def call(self) -> None: ...

    broken = Broken.remote()
    with pytest.raises(ActorDiedError, match="__init__ raised ValueError: no way") as caught:
        dray.get(broken.call.remote())
    assert isinstance(caught.value.__cause__, ValueError)


def test_names() -> None:
    counter = Counter.options(name="counter", num_cpus=1).remote()
    assert dray.get_actor("counter") == counter
    same = Counter.options(name="counter", get_if_exists=True).remote()
    assert same == counter
    with pytest.raises(ConfigError, match="already"):
        Counter.options(name="counter").remote()
    with pytest.raises(ConfigError, match="namespace"):
        dray.get_actor("counter", namespace="elsewhere")
    assert dray.available_resources()["CPU"] == 3
    del counter, same
    with pytest.raises(ValueError, match="counter"):
        dray.get_actor("counter")
    assert dray.available_resources()["CPU"] == 4


def test_kill_exit_and_restart() -> None:
    counter = Counter.options(max_restarts=1).remote()
    dray.get(counter.add.remote())
    dray.kill(counter, no_restart=False)
    assert dray.get(counter.add.remote()) == 1
    dray.kill(counter)
    with pytest.raises(ActorDiedError, match="killed"):
        dray.get(counter.add.remote())
    counter = Counter.remote()
    with pytest.raises(ActorDiedError, match="exit_actor"):
        dray.get(counter.leave.remote())
    with pytest.raises(ActorDiedError, match="exit_actor"):
        dray.get(counter.add.remote())
    counter = Counter.options(max_restarts=1).remote()
    assert dray.get(counter.leave_and_return.remote()) == "left"
    with pytest.raises(ActorDiedError, match="exit_actor"):
        dray.get(counter.add.remote())
    with pytest.raises(ConfigError):
        dray.exit_actor()


def test_a_detached_actor_lives_without_a_handle_until_the_end_of_the_program() -> None:
    with pytest.warns(UserWarning, match="not this program"):
        Counter.options(name="kept", lifetime="detached").remote()
    gc.collect()
    kept = dray.get_actor("kept")
    assert dray.get(kept.add.remote()) == 1
    dray.kill(kept)
    with pytest.raises(ConfigError, match="kept"):
        dray.get_actor("kept")


def test_placement_groups() -> None:
    group = placement_group([{"CPU": 2}, {"CPU": 1}], name="mine")
    assert group.wait(0)
    dray.get(group.ready())
    assert get_placement_group("mine") == group
    with pytest.raises(NameTakenError, match="'mine' already"):
        placement_group([{"CPU": 1}], name="mine")
    assert dray.available_resources()["CPU"] == 1
    other = placement_group([{"CPU": 2}])
    assert not other.wait(0)
    assert placement_group_table(other)["state"] == "PENDING"
    strategy = PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=1, placement_group_capture_child_tasks=True
    )

    @dray.remote
    def inner() -> str | None:
        return dray.get_runtime_context().get_placement_group_id()

    @dray.remote
    def outer() -> tuple[Any, str | None]:
        return get_current_placement_group(), dray.get(inner.remote())

    within = outer.options(scheduling_strategy=strategy)
    assert dray.get(within.remote()) == (group, group.id)
    with pytest.raises(InfeasibleError, match="bundle"):
        within.options(num_cpus=2).remote()

    @dray.remote
    def too_large() -> None:
        inner.options(num_cpus=3).remote()

    with pytest.raises(InfeasibleError, match="bundle"):
        dray.get(too_large.options(scheduling_strategy=strategy).remote())
    counter = Counter.options(scheduling_strategy=strategy).remote()
    remove_placement_group(group)
    assert other.wait(0)
    with pytest.raises(ActorDiedError, match="placement group"):
        dray.get(counter.add.remote())
    with pytest.raises(ConfigError, match="removed"):
        within.remote()
    with pytest.raises(EngineError, match="removed"):
        group.wait(0)
    with pytest.raises(EngineError, match="removed"):
        dray.get(group.ready())
    remove_placement_group(other)
    assert dray.available_resources()["CPU"] == 4


def _held() -> tuple[object, dict[str, float], str | None]:
    resources = dray.get_runtime_context().get_assigned_resources()
    return dray.get_gpu_ids(), resources, os.environ.get("CUDA_VISIBLE_DEVICES")


def test_actors_in_groups_and_train_functions_know_their_devices(tmp_path: Path) -> None:
    @dray.remote(num_gpus=1)
    class Holder:
        def held(self) -> object:
            return _held()

    dray.shutdown()
    dray.init(engine="inline", num_gpus=2)
    group = placement_group([{"GPU": 1}])
    holder = Holder.options(placement_group=group).remote()
    assert dray.get(holder.held.remote()) == ([0], {"GPU": 1}, "0")
    scaling = ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 1})
    run = RunConfig(storage_path=tmp_path)
    trainer = DataParallelTrainer(_held, scaling_config=scaling, run_config=run)
    assert trainer.fit().return_value == ([1], {"GPU": 1}, "1")
    assert _held() == ([], {}, os.environ.get("CUDA_VISIBLE_DEVICES"))
