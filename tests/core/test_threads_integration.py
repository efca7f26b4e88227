"""How many threads libraries compute with in tasks and actors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import dray
from tests.support import programs


def variable() -> tuple[int, str | None]:
    """Return which process this is, and what it tells libraries."""
    return os.getpid(), os.environ.get("OMP_NUM_THREADS")


class Told:
    def variable(self) -> str | None:
        return os.environ.get("OMP_NUM_THREADS")


@pytest.fixture
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("_unset")
def test_threads_are_as_many_as_cpus(core_engine: str) -> None:
    task = dray.remote(variable)
    for num_cpus, threads in ((1, "1"), (3, "3"), (0.5, "1"), (2.5, "2"), (0, "1")):
        assert dray.get(task.options(num_cpus=num_cpus).remote())[1] == threads
    for options, threads in (({"num_cpus": 2}, "2"), ({"resources": {"special": 1}}, "1")):
        actor = dray.remote(**options)(Told).remote()
        assert dray.get(actor.variable.remote()) == threads


@pytest.mark.usefixtures("_unset", "process_engine")
def test_a_process_that_is_used_again_gets_the_new_number() -> None:
    task = dray.remote(variable)
    seen = [dray.get(task.options(num_cpus=n).remote()) for n in (1, 4, 1)]
    assert len({pid for pid, _ in seen}) == 1
    assert [threads for _, threads in seen] == ["1", "4", "1"]


@pytest.mark.usefixtures("process_engine")
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    task = dray.remote(variable)
    dray.shutdown()
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert dray.get(task.remote())[1] == "7"
    dray.shutdown()
    monkeypatch.delenv("OMP_NUM_THREADS")
    of_task = task.options(runtime_env={"env_vars": {"OMP_NUM_THREADS": "5"}})
    assert dray.get(of_task.remote())[1] == "5"
    dray.shutdown()


LIBRARIES = """
import sys
import numpy, torch
import dray

def threads():
    import threadpoolctl, torch
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
    return torch.get_num_threads(), {library["num_threads"] for library in blas}

def awake():
    import os
    return len(os.listdir("/proc/self/task"))

dray.init(num_cpus=64)
print(dray.get(dray.remote(awake).remote()), "threads")
for num_cpus in (1, 3):
    print(*dray.get(dray.remote(threads).options(num_cpus=num_cpus).remote()))

def train():
    import os
    print("trains with", os.environ["OMP_NUM_THREADS"])

@dray.remote
def trains():
    from dray.train import DataParallelTrainer, RunConfig, ScalingConfig
    scaling = ScalingConfig(num_workers=1, resources_per_worker={"CPU": 2})
    DataParallelTrainer(
        train, scaling_config=scaling, run_config=RunConfig(storage_path=sys.argv[1])
    ).fit()

dray.get(trains.remote())
"""


FORKS = """
import os
import numpy, threadpoolctl
from dray.engines import thread_limits

def begins(limited):
    thread_limits.before_fork(limited=limited)
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
    return {library["num_threads"] for library in blas}

thread_limits.find_for_forks()
of_training, of_tasks = begins(False), begins(True)
thread_limits.find_for_forks()  # as an heir of a server does that has just forked for a task
print(of_tasks, begins(False) == of_training)
"""


def test_a_fork_server_and_its_heir_know_the_threads_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "script.py"
    script.write_text(FORKS)
    done = programs.run(script, tmp_path)
    assert done.stdout.splitlines() == ["{1} True"], done.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="nothing is imported ahead there")
def test_libraries_that_are_there_already_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "script.py"
    script.write_text(LIBRARIES.replace("sys.argv[1]", repr(str(tmp_path))))
    done = programs.run(script, tmp_path, DRAY_ENGINE="process", DRAY_PROGRESS="1")
    # Python's two; to tell OpenBLAS in the worker would start its own, which spin for a while.
    assert done.stdout.splitlines()[:3] == ["2 threads", "1 {1}", "3 {3}"], done.stderr
    # A training within a task has its own rule, and does not take the task's number for the user's.
    assert "trains with 2" in done.stdout + done.stderr
