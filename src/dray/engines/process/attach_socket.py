"""The attach socket, through which workers pass sockets of training workers to the driver.

Messages of workers to the hub carry no descriptors. So all workers of tasks inherit one end of a
pair of sockets. A worker with a socket to pass on sends it there, and then says so to the hub.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque

from dray.engines.rpc import sockets

_NUMBER_BYTES = 8


class AttachSocket:
    """The driver's end. With the hub's lock held.

    Attributes:
        far: The end that workers inherit.
    """

    def __init__(self) -> None:
        self._near, self.far = sockets.socket_pair(socket.SOCK_DGRAM)
        self._near.setblocking(False)
        self._left: dict[int, deque[int]] = {}

    def take(self, number: int) -> socket.socket | None:
        """Return the next socket that a client has left; None if it could not be taken."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, fds, _, _ = socket.recv_fds(self._near, _NUMBER_BYTES, 1)
                self._left.setdefault(int.from_bytes(data, "big"), deque()).extend(fds)
        return (
            socket.socket(fileno=self._left[number].popleft()) if self._left.get(number) else None
        )

    def close(self) -> None:
        for left in self._left.values():
            for fd in left:
                os.close(fd)
        self._near.close()
        self.far.close()


def leave(far: socket.socket, number: int, passed: socket.socket) -> None:
    """Leave a socket for the driver, in a worker.

    Args:
        far: The end that it has inherited.
        number: Of the client that will say so.
        passed: The socket; still this process's to close.
    """
    sockets.send_fds(far, number.to_bytes(_NUMBER_BYTES, "big"), [passed.fileno()])
