"""The harness: it runs a program, reads the records of its processes, and ends all of them."""

import contextlib
import ctypes
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil

from benchmarks import records

Record = dict[str, Any]

TIMEOUT_S = 180.0
_ROOT = Path(__file__).parent.parent
_PR_SET_CHILD_SUBREAPER = 36
_DROPPED = (
    *("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("DRAY_ENGINE", "RAY_ADDRESS"),
)
_SETTINGS = {
    "PYTHONPATH": str(_ROOT),
    "DRAY_PROGRESS": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class ProgramFailed(Exception):
    """A program failed or took too long; the message has the end of its output."""


class Program:
    """A running program, with all the processes that it starts.

    Args:
        command: The program and its arguments.
        environment: Variables in addition to the usual ones.
    """

    _running: ClassVar[list["Program"]] = []

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        place = Path(self._place.name)
        self._output = place / "output"
        os.mkfifo(place / "records")
        # Opened for reading and writing, so that opening needs no writer, and no writer's end is
        # the end of the pipe.
        self._records = os.open(place / "records", os.O_RDWR)
        variables = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        variables |= _SETTINGS | {
            records.VARIABLE: str(place / "records"),
            "TMPDIR": str(place),
            "RAY_TMPDIR": str(place),
        }
        self._command = list(command)
        with self._output.open("wb") as output:
            self.began = time.monotonic()
            self._process = subprocess.Popen(
                self._command,
                cwd=place,
                env={**variables, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._running.append(self)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *error: object) -> None:
        """End every process that is left."""
        self._running.remove(self)
        while left := self._left():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    process.kill()
            psutil.wait_procs(left)
        self._process.wait()
        os.close(self._records)
        self._place.cleanup()

    def _left(self) -> set[psutil.Process]:
        """Return the processes that are left, except those of other running programs."""
        left = set(psutil.Process().children(recursive=True))
        for program in self._running:
            other = psutil.Process(program.pid)
            left -= {other, *other.children(recursive=True)}
        return left

    def records(self) -> Iterator[Record]:
        """Yield the records of the processes, until the program ends.

        Raises:
            ProgramFailed: The program failed or took too long.
        """
        handle = os.pidfd_open(self.pid)
        pending = b""
        try:
            while True:
                left = self.began + TIMEOUT_S - time.monotonic()
                ready, _, _ = select.select([self._records, handle], [], [], max(0, left))
                if self._records in ready:
                    *lines, pending = (pending + os.read(self._records, 65536)).split(b"\n")
                    yield from map(json.loads, lines)
                elif ready:
                    break
                else:
                    raise self._failed(f"took more than {TIMEOUT_S:.0f} s")
        finally:
            os.close(handle)
        if self._process.wait() != 0:
            raise self._failed(f"ended with status {self._process.returncode}")

    def _failed(self, what: str) -> ProgramFailed:
        output = self._output.read_text(encoding="utf-8", errors="replace").splitlines()
        name = " ".join(Path(argument).name for argument in self._command)
        return ProgramFailed("\n".join([f"{name} {what}", *output[-20:]]))


class Finished:
    """The records of a program that has ended."""

    def __init__(self, program: Program) -> None:
        self._records = list(program.records())
        self.seconds = time.monotonic() - program.began
        self._began = program.began

    def every(self, event: str) -> list[Record]:
        """Return all records of an event; there is at least one."""
        found = [record for record in self._records if record["event"] == event]
        if not found:
            raise ProgramFailed(f"the program never told {event!r}")
        return found

    def last(self, event: str) -> Record:
        """Return the last record of an event."""
        return self.every(event)[-1]

    def between(self, first: str, then: str, turn: int = -1) -> float:
        """Return the seconds from one event to another, at their last or an earlier occurrence."""
        seconds: float = self.every(then)[turn]["time"] - self.every(first)[turn]["time"]
        return seconds

    def until(self, event: str, turn: int = -1) -> float:
        """Return the seconds from the program's start to the last or an earlier event of a name."""
        seconds: float = self.every(event)[turn]["time"] - self._began
        return seconds


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Finished:
    """Run a program to its end.

    Raises:
        ProgramFailed: The program failed or took too long.
    """
    with Program(command, environment) as program:
        return Finished(program)


def adopt_orphans() -> None:
    """Make this process the parent of processes that programs leave, so that it can end them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
