"""Whole numbers of NumPy, wherever Python's are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dray
from dray.errors import ConfigError
from dray.train import CheckpointConfig, FailureConfig, ScalingConfig
from dray.util.placement_group import placement_group, remove_placement_group
from dray.util.queue import Queue
from dray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ONE, TWO = np.int64(1), np.uint8(2)


@dray.remote
def pair() -> tuple[int, int]:
    return 1, 2


class Counted:
    @dray.method(num_returns=TWO, concurrency_group="few")
    def pair(self) -> tuple[int, int]:
        return 1, 2


def test_options_take_numbers_of_numpy(core_engine: str) -> None:
    options: dict[str, Any] = {
        "max_retries": ONE,
        "num_returns": TWO,
        "num_cpus": np.float64(1.0),
        "max_calls": np.int8(5),
        "resources": {"special": ONE},
    }
    refs = pair.options(**options).remote()
    assert dray.get(refs) == [1, 2]
    ready, _ = dray.wait(refs, num_returns=TWO)
    assert len(ready) == 2
    actor = dray.remote(
        max_restarts=ONE,
        max_task_retries=ONE,
        max_concurrency=TWO,
        max_pending_calls=np.int32(9),
        concurrency_groups={"few": TWO},
    )(Counted).remote()
    assert dray.get(actor.pair.remote()) == [1, 2]
    assert dray.get(actor.pair.options(num_returns=ONE, max_task_retries=ONE).remote()) == (1, 2)
    group = placement_group([{"CPU": ONE}])
    strategy = PlacementGroupSchedulingStrategy(group, np.int64(0))
    assert dray.get(pair.options(scheduling_strategy=strategy).remote()) == (1, 2)
    remove_placement_group(group)


def test_configs_and_queues_take_them(process_engine: None) -> None:
    assert FailureConfig(ONE).max_failures == 1
    assert CheckpointConfig(TWO).num_to_keep == 2
    assert ScalingConfig(num_workers=(ONE, TWO)).num_workers == (1, 2)
    queue = Queue(TWO)
    queue.put_nowait_batch([1, 2])
    assert queue.get_nowait_batch(TWO) == [1, 2]
    queue.shutdown()


@pytest.mark.parametrize("value", [True, np.True_, np.float64(1.5), 2.0, "2"])
@pytest.mark.parametrize("option", ["max_retries", "num_returns", "max_calls"])
def test_what_is_no_whole_number_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be a whole number"):
        pair.options(**{option: value})


@pytest.mark.parametrize("option", ["max_retries", "max_calls"])
def test_what_no_engine_can_count_to_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is at most 2,147,483,647"):
        pair.options(**{option: 2**40})
