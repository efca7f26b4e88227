"""Gates: what tests hold tasks up with, so that no test has to guess how long anything takes."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from pathlib import Path


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
        """Tells the test that somebody has come, and what they have to say."""
        with open(self._bell, "w") as bell:
            bell.write(f"{text}\n")

    def wait(self) -> None:
        """Waits until the gate is open."""
        os.close(os.open(self._door, os.O_RDONLY))

    def pass_through(self) -> None:
        """Rings with the process's id, and waits."""
        self.ring(os.getpid())
        self.wait()

    def heard(self, count: int = 1, within_s: float = 30) -> list[str]:
        """Waits for so many rings; returns what they said."""
        deadline = time.monotonic() + within_s
        while self._heard.count(b"\n") < count:
            ready, _, _ = select.select([self._listener], [], [], deadline - time.monotonic())
            assert ready, f"{self._heard!r} is all that came within {within_s} seconds"
            self._heard += os.read(self._listener, 65536)
        *lines, rest = self._heard.split(b"\n", count)
        self._heard = rest
        return [line.decode() for line in lines]

    def silent(self) -> bool:
        """Returns whether nobody has rung that was not heard."""
        with contextlib.suppress(BlockingIOError):
            self._heard += os.read(self._listener, 65536)
        return not self._heard

    def open(self) -> None:
        """Lets everybody pass, now and later."""
        if self._opened is None:
            self._opened = os.open(self._door, os.O_RDWR)

    def close(self) -> None:
        """Lets everybody pass who waits, and ends the gate."""
        self.open()
        assert self._opened is not None
        os.close(self._opened)
        os.close(self._listener)


class _Visitor(Gate):
    def __init__(self, door: str, bell: str) -> None:
        self._door = door
        self._bell = bell
        self._opened = None


def _visit(door: str, bell: str) -> Gate:
    return _Visitor(door, bell)


def count_up(path: Path) -> int:
    """Returns how often it was called with this path, whichever processes called it."""
    with path.open("ab") as file:
        file.write(b"x")
        return file.tell()


def counted(path: Path) -> int:
    """Returns how often `count_up` was called with this path."""
    return path.stat().st_size if path.exists() else 0


def until(condition: Callable[[], object], within_s: float = 20) -> None:
    """Waits for what nothing announces: resources that come back, a name that is free again."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
