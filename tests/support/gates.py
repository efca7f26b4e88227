"""Gates: what tests hold tasks up with, so that no test has to guess how long anything takes."""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import dray
from dray.errors import ActorDiedError, ActorUnavailableError

_Error = TypeVar("_Error", bound=Exception)

# An end of patience, which claims nothing: a loaded machine takes long. pytest's own is 200 s.
PATIENCE_S = 100

# In which workers are gone for certain, by engine. On Ray a node ends them, which may be busy; a
# leak would stay for ever.
MOMENT_S = {"process": 10, "ray": 60}


class Gate:
    """Holds up whoever passes it until it is open, and tells who has come. It can be pickled.

    It is made of two named pipes, so it works between any processes of one machine without polling.
    """

    def __init__(self, directory: Path, name: str = "gate") -> None:
        self._door = str(directory / f"{name}.door")
        self._bell = str(directory / f"{name}.bell")
        os.mkfifo(self._door)
        os.mkfifo(self._bell)
        # A pipe that is open both ways never blocks or ends: the listener here, the door later.
        self._listener = os.open(self._bell, os.O_RDWR | os.O_NONBLOCK)
        self._opened: int | None = None
        self._heard = b""

    def __reduce__(self) -> tuple[object, ...]:
        return (_visit, (self._door, self._bell))

    def ring(self, text: object = "") -> None:
        """Tell the test that somebody has come, and what they have to say."""
        with open(self._bell, "w") as bell:
            bell.write(f"{text}\n")

    def wait(self) -> None:
        """Wait until the gate is open."""
        os.close(os.open(self._door, os.O_RDONLY))

    def pass_through(self) -> None:
        """Ring with the process's id, and wait."""
        self.ring(os.getpid())
        self.wait()

    def heard(self, count: int = 1, within_s: float = PATIENCE_S) -> list[str]:
        """Wait for so many rings; return what they said.

        Raises:
            TimeoutError: They did not come.
        """
        deadline = time.monotonic() + within_s
        while self._heard.count(b"\n") < count:
            ready, _, _ = select.select(
                [self._listener], [], [], max(0, deadline - time.monotonic())
            )
            if not ready:
                raise TimeoutError(f"{self._heard!r} is all that came within {within_s} seconds")
            self._heard += os.read(self._listener, 65536)
        *lines, rest = self._heard.split(b"\n", count)
        self._heard = rest
        return [line.decode() for line in lines]

    def silent(self) -> bool:
        """Return whether nobody has rung that was not heard."""
        with contextlib.suppress(BlockingIOError):
            self._heard += os.read(self._listener, 65536)
        return not self._heard

    def is_there(self) -> bool:
        """Return whether it has not ended yet, and so whether the test still runs."""
        return os.path.exists(self._door)

    def open(self) -> None:
        """Let everybody pass, now and later."""
        if self._opened is None:
            self._opened = os.open(self._door, os.O_RDWR)

    def close(self) -> None:
        """Let everybody pass who waits, and end it: who comes later finds none, and fails."""
        self.open()
        assert self._opened is not None
        os.unlink(self._door)
        os.unlink(self._bell)
        os.close(self._opened)
        os.close(self._listener)


class _Visitor(Gate):
    def __init__(self, door: str, bell: str) -> None:
        self._door = door
        self._bell = bell
        self._opened = None


def _visit(door: str, bell: str) -> Gate:
    return _Visitor(door, bell)


# What one of several tries may take, within pytest's limit.
TRY_S = 30


def three_tries_on_ray(scenario: Callable[..., None]) -> Callable[[str, Path], None]:
    """Make a test of a scenario that interrupts tasks; its parameters are gates.

    Ray interrupts a task once, and on a loaded machine that may be lost: then what comes within
    `TRY_S` otherwise does not come, and the scenario gets new gates and new tasks.
    """

    def test(core_engine: str, tmp_path: Path) -> None:
        tries = 3 if core_engine == "ray" else 1
        for number in range(1, tries + 1):
            names = inspect.signature(scenario).parameters
            gates = [Gate(tmp_path, f"{name}-{number}") for name in names]
            try:
                return scenario(*gates)
            except TimeoutError:
                if number == tries:
                    raise
            finally:
                for gate in gates:
                    gate.close()

    return test


def refused_at_once(
    kind: type[_Error], ask: Callable[[], object], match: str | None = None
) -> _Error:
    """Ask for what is to be refused within a second, and again if the machine has stalled.

    Returns:
        The error of the refusal.
    """
    for last in (False, False, True):
        began = time.monotonic()
        with pytest.raises(kind, match=match) as caught:
            ask()
        took_s = time.monotonic() - began
        if took_s < 1:
            break
        assert not last, f"the third refusal too took {took_s:.1f} s"
    return caught.value


def count_up(path: Path) -> int:
    """Return how often it was called with this path, whichever processes called it."""
    with path.open("ab") as file:
        file.write(b"x")
        return file.tell()


def counted(path: Path) -> int:
    """Return how often `count_up` was called with this path."""
    return path.stat().st_size if path.exists() else 0


def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Wait for what nothing announces: resources that come back, a name that is free again."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def gone(method: Any) -> bool:
    """Return whether an actor has ended, which Ray does, and tells, after what has ended it."""
    try:
        dray.get(method.remote())
    except ActorDiedError:
        return True
    except ActorUnavailableError:
        return False
    return False
