"""Requests to a fork server, in order; some are held back until earlier ones are answered.

Descriptors that were sent and not yet received belong to no process. Linux counts them for each
user, and refuses more of them than the number of files that a process may open (ETOOMANYREFS). A
fresh server receives nothing before its imports are done, so a driver that requests many workers at
once would reach that limit.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dray.engines.launch.system_limits import OpenFiles
from dray.engines.rpc import sockets, wire

# Errors that are no sign of a server's end.
_SHORTAGES = (errno.ETOOMANYREFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


class _Request(NamedTuple):
    number: int
    data: bytes
    fds: Sequence[int]


def is_shortage(error: OSError) -> bool:
    """Return whether an error says that the system gives no more, and not that a server is gone."""
    return error.errno in _SHORTAGES


class Requests:
    """A driver's requests to one fork server, from any thread.

    Args:
        on_refused: Called if a worker that was asked for cannot be, after all.
    """

    def __init__(
        self,
        control: socket.socket,
        open_files: OpenFiles,
        on_refused: Callable[[int, OSError], object],
    ) -> None:
        self._control = control
        self._open_files = open_files
        self._on_refused = on_refused
        self._lock = threading.Lock()
        self._held: deque[_Request] = deque()
        self._asked = 0  # so many requests with descriptors were sent
        self._answered = 0  # and so many of them are answered
        self._looked = 0  # at how many answers since something was held

    def send(self, kind: bytes, number: int, value: int = 0, fds: Sequence[int] = ()) -> None:
        """Send a request, or hold it with copies of its descriptors until there are answers.

        Raises:
            OSError: The server is gone, or the system gives no more.
        """
        request = _Request(number, wire.REQUEST.pack(kind, number, value), fds)
        with self._lock:
            if self._held or not self._passes(request):
                self._held.append(request._replace(fds=self._copies(fds)))
        self._send_held()

    def take_answer(self) -> None:
        """Take note that one more worker has started, or could not. For one thread alone."""
        self._answered += 1
        self._send_held()

    def close(self) -> None:
        """Forget what is held, after the socket is closed and the server has ended."""
        with self._lock:
            while self._held:
                _close(self._held.popleft().fds)

    def _passes(self, request: _Request) -> bool:
        """Send a request, unless there will be room for it after an answer."""
        unanswered = self._asked - self._answered
        try:
            sockets.send_fds(self._control, request.data, request.fds)
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS and unanswered:
                return False
            raise
        self._asked += bool(request.fds)
        return True

    def _copies(self, fds: Sequence[int]) -> Sequence[int]:
        copies: list[int] = []
        try:
            for fd in fds:
                copies.append(os.dup(fd))
                self._open_files.make_room(copies[-1])
        except OSError:
            _close(copies)
            raise
        return copies

    def _send_held(self) -> None:
        """Send what was held, as far as the answers allow.

        The thread that takes answers waits for none that sends, and the server may wait for it: who
        has the lock looks again as it lets it go.
        """
        while self._held and self._looked != self._answered and self._lock.acquire(blocking=False):
            try:
                self._looked = self._answered
                while self._held and self._goes(self._held[0]):
                    _close(self._held.popleft().fds)
            finally:
                self._lock.release()

    def _goes(self, request: _Request) -> bool:
        """Send a request that was held, or have it refused; return False if it stays."""
        try:
            return self._passes(request)
        except OSError as error:
            if not is_shortage(error):
                return False  # the server's end is told otherwise
            self._on_refused(request.number, error)
            return True


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
