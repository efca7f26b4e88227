"""Program: calls between two bare processes, as the floor of such calls in Python.

The processes send each other pickled arguments and results over a socket, and keep no records.
They sleep while they wait. The arguments of the command line are not used.
"""

import os
import pickle
import socket
from collections.abc import Callable
from typing import Any

from benchmarks.program_core import MANY, ONE_BY_ONE, seconds
from benchmarks.records import record

_LENGTH = 4
_PIECE = 128  # so many calls go in one message if many are made at once
_ARGUMENTS: tuple[Any, Any] = ((7,), {})


class Line:
    """A socket for pickled messages, each with its length before it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb")

    def send(self, message: object) -> None:
        body = pickle.dumps(message, 5)
        self._sock.sendall(len(body).to_bytes(_LENGTH, "big") + body)

    def receive(self) -> Any:
        """Return the next message; None at the end."""
        head = self._file.read(_LENGTH)
        return pickle.loads(self._file.read(int.from_bytes(head, "big"))) if head else None


def serve(line: Line) -> None:
    """Answer calls until the caller ends."""
    while (calls := line.receive()) is not None:
        answers = []
        for number, payload in calls:
            (value,), _ = pickle.loads(payload)
            answers.append((number, pickle.dumps(value, 5)))
        line.send(answers)


def call(line: Line, count: int) -> None:
    """Make some calls at once, and wait for their answers."""
    line.send([(number, pickle.dumps(_ARGUMENTS, 5)) for number in range(count)])
    for _, payload in line.receive():
        if pickle.loads(payload) != 7:
            raise AssertionError("the results are not what they should be")


def rate(work: Callable[[int], None], count: int) -> float:
    """Return the calls in a second, after some that are not counted."""
    work(count // 10)
    return count / seconds(lambda: work(count))


def main() -> None:
    """Measure calls one at a time, and in pieces."""
    here, there = socket.socketpair()
    if os.fork() == 0:
        here.close()
        serve(Line(there))
        os._exit(0)
    there.close()
    line = Line(here)

    def one_by_one(count: int) -> None:
        for _ in range(count):
            call(line, 1)

    def in_pieces(count: int) -> None:
        for _ in range(count // _PIECE):
            call(line, _PIECE)

    record(
        "measured",
        call_round_trips=rate(one_by_one, ONE_BY_ONE),
        calls=rate(in_pieces, MANY // _PIECE * _PIECE),
    )


if __name__ == "__main__":
    main()
