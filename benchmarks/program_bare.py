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
from dray.engines.rpc.framing import Inbox, encode

_PIECE = 128  # so many calls go in one message if many are made at once
_ARGUMENTS: tuple[Any, Any] = ((7,), {})


def serve(sock: socket.socket) -> None:
    """Answer calls until the caller ends."""
    inbox = Inbox(sock)
    while (calls := inbox.receive()) is not None:
        answers = []
        for number, payload in calls:
            (value,), _ = pickle.loads(payload)
            answers.append((number, pickle.dumps(value, 5)))
        sock.sendall(encode(answers))


def call(sock: socket.socket, inbox: Inbox, count: int) -> None:
    """Make some calls at once, and wait for their answers."""
    sock.sendall(encode([(number, pickle.dumps(_ARGUMENTS, 5)) for number in range(count)]))
    values: list[Any] = []
    while len(values) < count:
        answers = inbox.receive()
        if answers is None:
            raise ConnectionError("the other process has ended")
        values += [pickle.loads(payload) for _, payload in answers]
    if values != [7] * count:
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
        serve(there)
        os._exit(0)
    there.close()
    inbox = Inbox(here)

    def one_by_one(count: int) -> None:
        for _ in range(count):
            call(here, inbox, 1)

    def in_pieces(count: int) -> None:
        for _ in range(count // _PIECE):
            call(here, inbox, _PIECE)

    record(
        "measured",
        call_round_trips=rate(one_by_one, ONE_BY_ONE),
        calls=rate(in_pieces, MANY // _PIECE * _PIECE),
    )


if __name__ == "__main__":
    main()
