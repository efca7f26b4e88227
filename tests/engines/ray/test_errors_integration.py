"""What Ray refuses and reports, in dray's words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dray
from dray.errors import ConfigError, WorkerDiedError
from tests.support.programs import run, write

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.parametrize("engine_name", ["ray"], indirect=True),
]


def test_a_local_directory_of_one_task_is_refused(tmp_path: Path) -> None:
    @dray.remote(runtime_env={"working_dir": str(tmp_path)})
    def task() -> None:
        return None

    with pytest.raises(ConfigError, match=r"passed to `dray\.init\(runtime_env=\.\.\.\)`"):
        task.remote()


def test_a_task_whose_process_ends_says_so_and_what_lets_it_run_again() -> None:
    @dray.remote(max_retries=0)
    def leave() -> None:
        os._exit(4)

    with pytest.raises(WorkerDiedError, match=r"process ended on its own.*max_retries"):
        dray.get(leave.remote())


def test_a_cluster_that_does_not_start_is_unreachable(tmp_path: Path) -> None:
    script = write(
        tmp_path / "script.py",
        """
        import dray, ray

        def init(**options):  # as Ray raises it where a machine is too busy
            raise Exception("The current node timed out during startup.")

        ray.init = init
        try:
            dray.init(engine="ray", address="local")
        except dray.errors.ClusterUnreachableError as error:
            print(error)
        """,
    )
    done = run(script, tmp_path)
    told = "no Ray cluster can be started here: The current node timed out during startup."
    assert told in done.stdout, done.stderr
