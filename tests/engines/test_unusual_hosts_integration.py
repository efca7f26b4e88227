"""Scripts in processes that are not as usual: in their signals, paths, limits, variables."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gates import PATIENCE_S
from tests.support.programs import environment, write

# A second thread keeps the workers' server from being a fork of the script.
THREAD = """
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

WORK = """
import numpy as np
total = dray.remote(lambda values: int(values.sum()))
print("task", dray.get(total.remote(dray.put(np.ones(1 << 20, np.uint8)))))
print("run", fit(lambda: 5).return_value)
"""


def outcome(tmp_path: Path, code: str, **limits: int) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        for name, most in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))

    script = write(tmp_path / "script.py", code)
    return subprocess.run(
        [sys.executable, str(script)],
        env=environment(tmp_path / "runs", DRAY_PROGRESS="0"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        preexec_fn=limit,
    )


@pytest.mark.parametrize("server", ["", THREAD], ids=["fork", "fresh"])
@pytest.mark.parametrize(
    "before",
    [
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "import socket; socket.setdefaulttimeout(0.02)",
        "import pathlib; sys.path.insert(0, pathlib.Path('lib'))\n"
        "import resource; os.dup2(0, 200); resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))",
    ],
    ids=["signals-blocked", "children-ignored", "timeouts", "pathlib, few files"],
)
def test_what_programs_do_before(tmp_path: Path, before: str, server: str) -> None:
    """A training waited for ever, ended with a traceback, and did not begin, or one was shown."""
    done = outcome(tmp_path, f"{before}\n{server}\n{WORK}")
    assert (done.stdout, done.stderr) == (f"task {1 << 20}\nrun 5\n", "")


def test_a_worker_that_is_gone_ends_no_program_that_pipes_may_end(tmp_path: Path) -> None:
    """As many that print do, lest `head` has them show a traceback."""
    code = """
        import signal
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

        @dray.remote
        class Worker:
            def pid(self):
                return os.getpid()

        for _ in range(5):
            worker = Worker.remote()
            os.kill(dray.get(worker.pid.remote()), signal.SIGKILL)
            calls = [worker.pid.remote() for _ in range(500)]
    """
    assert outcome(tmp_path, code).returncode == 0


@pytest.mark.parametrize("name", ["FSIZE", "AS"])
def test_the_default_store_fits_limits(tmp_path: Path, name: str) -> None:
    """Of a share of the machine's memory, a process with `ulimit` could use nothing."""
    assert outcome(tmp_path, WORK, **{name: 3 << 30}).stdout == f"task {1 << 20}\nrun 5\n"


def test_a_server_that_cannot_begin_is_told_of(tmp_path: Path) -> None:
    """That its workers were gone was all that was said."""
    code = """
        os.environ["PYTHONHOME"] = "/nowhere"
        call = dray.remote(lambda: 1)
        for begin in (lambda: dray.get(call.remote()), lambda: fit(lambda: 1)):
            try:
                begin()
            except dray.exceptions.DrayError as error:
                print(error)
    """
    done = outcome(tmp_path, THREAD + "import dray.exceptions" + code.replace("\n        ", "\n"))
    of_task, *of_run = done.stdout.splitlines()
    for said in (of_task, of_run[0]):
        assert "the fork server ended with status 1; its output" in said, done.stderr
    assert "No module named 'encodings'" in done.stderr


def test_a_program_without_an_interpreter_is_told_so(tmp_path: Path) -> None:
    for path, said in (
        ("", "EngineError: sys.executable is empty, as in programs that embed Python"),
        ("/gone/python", "No such file or directory (ENOENT): /gone/python"),
    ):
        done = outcome(tmp_path, f"{THREAD}\nsys.executable = {path!r}\n{WORK}")
        assert said in done.stderr
