"""Tasks that are run again, on every engine: after the death of their process, or an exception."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.errors import WorkerDiedError
from tests.support import programs
from tests.support.gates import Gate, count_up, counted

pytestmark = pytest.mark.usefixtures("core_engine")


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_task_whose_process_dies_runs_again(tmp_path: Path, how: str) -> None:
    @dray.remote(max_retries=2)
    def third_time(path: Path) -> int:
        count = count_up(path)
        if count < 3:
            os._exit(1) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
        return count

    assert dray.get(third_time.remote(tmp_path / "count")) == 3


@pytest.mark.parametrize("retries", [0, 1])
def test_a_task_that_always_dies_is_given_up(tmp_path: Path, retries: int) -> None:
    @dray.remote(max_retries=retries)
    def hopeless(path: Path) -> None:
        count_up(path)
        os._exit(3)

    with pytest.raises(WorkerDiedError):
        dray.get(hopeless.remote(tmp_path / "count"))
    assert counted(tmp_path / "count") == retries + 1


def test_the_death_of_one_task_does_not_hurt_others(gate: Gate) -> None:
    @dray.remote
    def patient(gate: Gate) -> str:
        gate.pass_through()
        return "still here"

    @dray.remote(max_retries=0)
    def die() -> None:
        os._exit(1)

    ref = patient.remote(gate)
    gate.heard()
    with pytest.raises(WorkerDiedError):
        dray.get(die.remote())
    gate.open()
    assert dray.get(ref) == "still here"


@pytest.mark.parametrize("which", [True, [KeyError, ValueError]])
def test_exceptions_are_retried_on_request(tmp_path: Path, which: Any) -> None:
    @dray.remote(retry_exceptions=which, max_retries=2)
    def third_time(path: Path) -> int:
        count = count_up(path)
        if count < 3:
            raise ValueError("not yet")
        return count

    assert dray.get(third_time.remote(tmp_path / "count")) == 3


OWN_EXCEPTIONS = """
import sys
from pathlib import Path
import dray as ray

class Own(Exception):
    pass

def third_time(path):
    with open(path, "a") as file:
        file.write("x")
    if Path(path).stat().st_size < 3:
        raise Own
    return "at last"

task = ray.remote(max_retries=2, retry_exceptions=[Own])(third_time)

@ray.remote(max_restarts=1)
class Actor:
    @ray.method(max_task_retries=2, retry_exceptions=[Own])
    def third_time(self, path):
        return third_time(path)

@ray.remote
def within(path):
    named = ray.get_actor("named")
    again = ray.remote(max_retries=2, retry_exceptions=[Own])(third_time)
    return ray.get([again.remote(path + "1"), named.third_time.remote(path + "2")])

here = sys.argv[1]
actor = Actor.options(name="named").remote()
print(ray.get([task.remote(here + "/a"), actor.third_time.remote(here + "/b")]))
print(ray.get(within.remote(here + "/c")))
"""


def test_exceptions_of_the_script_are_retried_on_request(
    core_variables: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(OWN_EXCEPTIONS.replace("sys.argv[1]", repr(str(tmp_path))))
    done = programs.run(script, tmp_path, **core_variables)
    said = done.stdout.splitlines()  # Ray talks too
    assert said.count("['at last', 'at last']") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("which", [None, False, [KeyError]])
def test_other_exceptions_are_not_retried(tmp_path: Path, which: Any) -> None:
    @dray.remote(retry_exceptions=which)
    def fail(path: Path) -> None:
        count_up(path)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        dray.get(fail.remote(tmp_path / "count"))
    assert counted(tmp_path / "count") == 1


# Dependencies.
