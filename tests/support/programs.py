"""Runs programs as a user would: scripts, modules, standard input; and reads what they leave."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from tests.support.gates import PATIENCE_S

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# Standard lines of the programs below: two workers, a storage path from the command line.
PRELUDE = """
import os, sys, threading
import dray.train
from dray.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def fit(function, workers=2, **options):
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.1}),
        run_config=RunConfig(name="run", storage_path=os.environ["STORAGE"], **options),
    ).fit()
"""


def environment(storage: Path, **extra: str) -> dict[str, str]:
    """Return the environment of a program: this one, and where it keeps its runs."""
    kept = {k: v for k, v in os.environ.items() if k != "DRAY_PROGRESS"}
    return {**kept, "STORAGE": str(storage), "PYTHONUNBUFFERED": "1", **extra}


def write(path: Path, code: str) -> Path:
    """Write a program; its indentation is that of the test."""
    path.write_text(PRELUDE + textwrap.dedent(code))
    return path


def run(path: Path, storage: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    return subprocess.run(
        [sys.executable, str(path)],
        env=environment(storage, **extra),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def run_example(name: str, home: Path, *options: str, **extra: str) -> str:
    """Run an example to its end, at home in a directory; return what it prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *options],
        env=environment(home, HOME=str(home), **extra),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


class Program:
    """A script that runs beside the test.

    Args:
        path: The script.
        storage: Where it keeps its runs.
        options: Of its command line.
        extra: Environment variables.
    """

    def __init__(self, path: Path, storage: Path, *options: str, **extra: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(path), *options],
            env=environment(storage, **extra),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # Ctrl-C is ignored by what a shell runs in the background, such as a whole test run.
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait_for(self, text: str, within_s: float = PATIENCE_S) -> str:
        """Read lines until one holds a text; return it."""
        assert self.process.stdout is not None
        with self._killed_after(within_s):
            for line in self.process.stdout:
                self.lines.append(line)
                if text in line:
                    return line
        raise AssertionError(f"{text!r} did not come:\n{''.join(self.lines)}")

    def end(self, within_s: float = PATIENCE_S) -> tuple[int, str]:
        """Wait for the end; return the exit status and all output."""
        assert self.process.stdout is not None
        with self._killed_after(within_s) as late:
            # Not `communicate`, which does not know of what `wait_for` has read ahead.
            self.lines.append(self.process.stdout.read())
            status = self.process.wait()
        assert not late.is_set(), f"it did not end within {within_s} s:\n{''.join(self.lines)}"
        return status, "".join(self.lines)

    @contextlib.contextmanager
    def _killed_after(self, delay_s: float) -> Iterator[threading.Event]:
        """End the program when it takes too long, and say so."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            self.process.kill()

        watchdog = threading.Timer(delay_s, kill)
        watchdog.start()
        try:
            yield late
        finally:
            watchdog.cancel()
            watchdog.join()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        self.process.stdout.close()
        self.process.stdin.close()


def survivors(pids: Iterable[int], within_s: float = 60.0) -> list[int]:
    """Return the processes that still run after a while; none as soon as all have ended.

    A zombie has ended. `psutil.wait_procs` would wait until it is gone, which for one that has lost
    its parent is when the first process of the machine gets round to it.
    """
    processes: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    deadline = time.monotonic() + within_s
    while (left := [p.pid for p in processes if _runs(p)]) and time.monotonic() < deadline:
        time.sleep(0.01)  # no event tells of the end of a process that is nobody's child here
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family(pid: int) -> list[int]:
    """Return all processes below one, and itself."""
    return [pid, *(p.pid for p in psutil.Process(pid).children(recursive=True))]
