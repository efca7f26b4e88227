"""A set of descriptors to wait for: epoll, or `poll` where there is none (macOS)."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time

# Readiness to read and to write; epoll's numbers are the same.
READ, WRITE = select.POLLIN, select.POLLOUT


class PollSet:
    """The part of `select.epoll` that is used; other threads may change the set during a wait.

    One thread waits at a time. A wait takes time in proportion to the number of descriptors.
    """

    def __init__(self) -> None:
        self._events: dict[int, int] = {}
        self._lock = threading.Lock()
        self._changed, self._wake = socket.socketpair()
        self._changed.setblocking(False)
        self._wake.setblocking(False)
        self._events[self._changed.fileno()] = READ

    def register(self, fd: int | socket.socket, events: int) -> None:
        """Add a descriptor."""
        with self._lock:
            self._events[_number(fd)] = events
        with contextlib.suppress(BlockingIOError):  # it is about to wake
            self._wake.send(b"\0")

    modify = register

    def unregister(self, fd: int | socket.socket) -> None:
        """Take a descriptor out, which may be closed then."""
        with self._lock:
            del self._events[_number(fd)]

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return descriptors with their events, as soon as there are some or the time is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                events = dict(self._events)
            waiting = select.poll()
            for fd, wanted in events.items():
                waiting.register(fd, wanted)
            left = max(0.0, deadline - time.monotonic())
            found = waiting.poll(left * 1000)
            ready = [(fd, event) for fd, event in found if fd != self._changed.fileno()]
            if ready or not found:
                return ready
            self._changed.recv(4096)

    def close(self) -> None:
        """Free it."""
        self._changed.close()
        self._wake.close()


def _number(fd: int | socket.socket) -> int:
    return fd if isinstance(fd, int) else fd.fileno()


def make_poll() -> select.epoll | PollSet:
    """Return a set of the system's best kind."""
    return select.epoll() if hasattr(select, "epoll") else PollSet()
