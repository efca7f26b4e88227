"""Short tasks are sent ahead of time, and none is stuck, lost or run twice for that."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import dray
from dray.errors import TaskCancelledError, WorkerDiedError
from tests.support.gates import PATIENCE_S, count_up, counted

pytestmark = pytest.mark.usefixtures("process_engine")

MANY = 400
ODD = 100  # the one that is not as the others

limited = dray.remote(num_cpus=4)  # of 8


def results(refs: list[dray.ObjectRef]) -> list[object]:
    """What came of each task: its value, or the class of its error."""
    found: list[object] = []
    for ref in refs:
        try:
            found.append(dray.get(ref, timeout=PATIENCE_S))
        except (TaskCancelledError, WorkerDiedError) as error:
            found.append(type(error))
    return found


def test_none_is_stuck_behind_one_that_waits_for_a_later_one(tmp_path: Path) -> None:
    @limited
    def step(index: int) -> int:
        if index == MANY - 1:
            (tmp_path / "came").touch()
        while index == ODD and not (tmp_path / "came").exists():
            time.sleep(0.005)
        if index in (2 * ODD, 3 * ODD):  # what the session knows of
            return dray.get(step.remote(-1)) + 1 + index
        return index

    assert results([step.remote(index) for index in range(MANY)]) == list(range(MANY))


def test_one_that_is_stuck_holds_up_none_though_more_come(tmp_path: Path) -> None:
    @limited
    def step(index: int) -> int:
        while index == ODD and not (tmp_path / "over").exists():
            time.sleep(0.005)
        return index

    refs = [step.remote(index) for index in range(MANY)]
    stuck = refs.pop(ODD)
    while refs:
        _, refs = dray.wait(refs, num_returns=len(refs), timeout=0.001)
        more = [step.remote(MANY) for _ in range(20)]
        assert results(more) == [MANY] * 20
    (tmp_path / "over").touch()
    assert results([stuck]) == [ODD]


def test_what_was_sent_to_a_process_that_dies_runs_once_elsewhere(tmp_path: Path) -> None:
    @dray.remote(num_cpus=4, max_retries=0)
    def step(index: int) -> int:
        count_up(tmp_path / str(index))
        if index % ODD == ODD - 1:
            os._exit(1)
        return index

    found = results([step.remote(index) for index in range(MANY)])
    dies = range(ODD - 1, MANY, ODD)
    assert found == [WorkerDiedError if index in dies else index for index in range(MANY)]
    assert {counted(tmp_path / str(index)) for index in range(MANY)} == {1}


@pytest.mark.parametrize("force", [False, True])
def test_what_is_cancelled_leaves_the_others_alone(tmp_path: Path, force: bool) -> None:
    @dray.remote(num_cpus=4, max_retries=0)
    def step(index: int) -> int:
        count_up(tmp_path / str(index))
        return index

    refs = [step.remote(index) for index in range(MANY)]
    chosen = random.Random(0).sample(range(MANY), MANY // 4)
    for index in chosen:
        dray.cancel(refs[index], force=force)
    for index, found in enumerate(results(refs)):
        cancelled = isinstance(found, type) and issubclass(found, TaskCancelledError)
        assert found == index or (index in chosen and cancelled)
        assert counted(tmp_path / str(index)) == 1 or index in chosen
