"""The command line: help, Ctrl-C in the middle of it, scripts that end before their fit()."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from dray import cli
from dray.version import VERSION

LOADING = """
import os, signal, threading
{first}
print(os.getpid(), flush=True)
threading.Event().wait()
"""


def dray(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dray", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_it_says_what_it_can_do_and_which_version_it_is() -> None:
    alone = dray()
    assert (alone.returncode, alone.stderr) == (0, "")
    assert [word for word in ("status", "plan", "doctor") if word not in alone.stdout] == []
    assert "run a script up to its first fit()" in alone.stdout
    assert dray("help").stdout == dray("--help").stdout == alone.stdout
    assert "--address" in dray("help", "status").stdout
    assert dray("--version").stdout == f"dray {VERSION}\n"


def test_an_unknown_command_is_told_with_the_ones_there_are() -> None:
    wrong = dray("stats")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == (
        "dray: there is no command 'stats'. Did you mean 'status'? "
        "The commands are status, plan, doctor and help.\n"
    )


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dray", "help"]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    try:
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, env=buffered, timeout=60
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@contextmanager
def planning(
    path: Path, first: str = "", grace_s: float = 5
) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Run `dray plan` on a script that never comes to its fit(); give both processes."""
    path.write_text(LOADING.format(first=first))
    with subprocess.Popen(
        [
            *(sys.executable, "-c"),
            f"import sys, dray.cli; dray.cli._GRACE_S = {grace_s}; sys.exit(dray.cli.main())",
            *("plan", str(path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Ctrl-C is ignored by what a shell runs in the background, such as a whole test run.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as command:
        try:
            assert command.stderr is not None
            yield command, psutil.Process(int(command.stderr.readline()))
        finally:
            if command.poll() is None:
                os.killpg(command.pid, signal.SIGKILL)


def test_sigterm_ends_a_plan_and_its_script(tmp_path: Path) -> None:
    with planning(tmp_path / "script.py") as (command, script):
        command.terminate()
        _, said = command.communicate(timeout=20)
        assert not script.is_running()
    assert said.endswith("script.py was ended by SIGTERM before fit() had a plan\n")
    assert command.returncode == 1


def test_ctrl_c_ends_a_plan_without_a_traceback_of_drays(tmp_path: Path) -> None:
    with planning(tmp_path / "script.py") as (command, script):
        os.killpg(command.pid, signal.SIGINT)
        printed, said = command.communicate(timeout=20)
        assert command.returncode == 130, said
        assert not script.is_running()
    assert printed == ""
    assert said.count("KeyboardInterrupt") == 1  # the script's own
    assert str(tmp_path / "script.py") in said
    assert "cli/__init__.py" not in said
    assert "subprocess.py" not in said


def test_a_second_ctrl_c_ends_a_script_that_goes_on(tmp_path: Path) -> None:
    ignore = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    with planning(tmp_path / "script.py", ignore, grace_s=1000) as (command, script):
        os.killpg(command.pid, signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(1)
        while command.poll() is None:  # a second one that comes too soon is one with the first
            os.killpg(command.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                command.wait(1)
        _, said = command.communicate()
        assert command.returncode == 130, said
        assert not script.is_running()
    assert said == ""


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("sys.exit(3)", "ended with status 3"),
        ("sys.exit('no data')", "ended with status 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 1)", "was ended by signal 35"),
        ("train({'pip': ['what only Ray installs']})", "ended with status 1"),
    ],
)
def test_a_plan_of_a_script_that_fails_says_how_it_has_ended(
    tmp_path: Path, ending: str, said: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "def train(environment):\n"
        "    from dray.train import DataParallelTrainer, RunConfig\n"
        "    config = RunConfig(worker_runtime_env=environment)\n"
        "    DataParallelTrainer(print, run_config=config).fit()\n" + ending
    )
    command = [sys.executable, "-m", "dray", "plan", "--json", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last == f"dray plan: {script} {said} before fit() had a plan"


def test_the_help_of_plan_says_what_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    assert "tasks and actors run" in " ".join(capsys.readouterr().out.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
@pytest.mark.parametrize("command", [["status"], ["status", "--json"], ["doctor"]], ids=" ".join)
def test_no_room_for_what_it_says_is_an_error_in_a_line(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dray", *command], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "dray: the output cannot be written: No space left on device\n"
