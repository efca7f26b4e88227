"""The attach socket, through which workers pass sockets of training workers to the driver.

Messages of workers to the hub carry no descriptors. So a worker with a socket to pass on connects
to a Unix socket, whose random name the driver has told it. On Linux the name is in no directory, so
that nothing is left when the driver is killed; elsewhere it is in a directory of this user alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections import deque

from dray.engines.status_socket import peer_of

_NUMBER_BYTES = 8


class AttachListener:
    """The driver's end, opened when it is first needed. With the hub's lock held."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._directory: str | None = None  # of its name, if it is in one
        self._callers: list[socket.socket] = []  # that have connected, and not been heard yet
        self._left: dict[int, deque[int]] = {}

    def address(self) -> str:
        if self._listener is None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.setblocking(False)
            if sys.platform != "linux":
                self._directory = tempfile.mkdtemp(prefix="dray-")
            name = os.urandom(16).hex()
            place = f"{self._directory}/" if self._directory else "\0dray-attach-"
            self._listener.bind(place + name)
            self._listener.listen(socket.SOMAXCONN)
        return os.fsdecode(self._listener.getsockname())

    def take(self, number: int) -> socket.socket | None:
        """Return the next socket that a client has left; None if it could not be taken."""
        self._accept_all()
        callers, self._callers = self._callers, []
        for caller in callers:
            try:
                self._hear(caller)
            except BlockingIOError:  # it is about to say what it has
                self._callers.append(caller)
            except OSError:
                caller.close()
        return (
            socket.socket(fileno=self._left[number].popleft()) if self._left.get(number) else None
        )

    def _accept_all(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):  # nobody else is there, or no descriptor is free
            while True:
                caller, _ = self._listener.accept()
                caller.setblocking(False)
                self._callers.append(caller)

    def _hear(self, caller: socket.socket) -> None:
        if self._directory or peer_of(caller).user == os.getuid():
            data, fds, _, _ = socket.recv_fds(caller, _NUMBER_BYTES, 1)
            self._left.setdefault(int.from_bytes(data, "big"), deque()).extend(fds)
        caller.close()

    def close(self) -> None:
        for left in self._left.values():
            for fd in left:
                os.close(fd)
        for sock in (*self._callers, *(() if self._listener is None else (self._listener,))):
            sock.close()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)


def leave(address: str, number: int, passed: socket.socket) -> None:
    """Leave a socket for the driver, in a worker.

    Args:
        number: Of the client that will say so.
        passed: The socket; still this process's to close.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address)
        socket.send_fds(sock, [number.to_bytes(_NUMBER_BYTES, "big")], [passed.fileno()])
