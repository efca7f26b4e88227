"""One thread that waits on everything an engine hears from, and calls what belongs to it."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any


class Reader:
    """Waits on sockets and pipes in a thread; everything it calls runs in that thread.

    Args:
        on_crash: Called when a callback raises, which is a bug: whoever waits must be told.
    """

    def __init__(self, on_crash: Callable[[], None]) -> None:
        self._on_crash = on_crash
        self._selector = selectors.DefaultSelector()
        self._todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wakeup_out, self._wakeup_in = socket.socketpair()
        self._wakeup_in.setblocking(False)  # the thread itself may hand over more than it takes
        self._selector.register(self._wakeup_out, selectors.EVENT_READ, self._on_wakeup)
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="dray-reader", daemon=True)

    def start(self) -> None:
        """Starts the thread, unless it runs."""
        if not self._thread.is_alive():
            self._thread.start()

    def run(self, task: Callable[[], object]) -> None:
        """Has the thread do something. May be called from any thread."""
        self._todo.put(task)
        with contextlib.suppress(
            OSError
        ):  # full, so it wakes; or closed, and `close` does the rest
            self._wakeup_in.send(b"\0")

    def watch(self, source: Any, callback: Callable[[], object]) -> None:
        """Calls back whenever there is something to read. May be called from any thread."""
        self.run(lambda: self._selector.register(source, selectors.EVENT_READ, callback))

    # What follows is for the thread itself, and for anybody once it has ended.

    def unwatch(self, source: Any) -> None:
        """Stops to wait on a source; one that is not waited on is fine."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def do_tasks(self) -> None:
        """Does what `run` and `watch` have handed over so far."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._todo.get_nowait()()

    def _on_wakeup(self) -> None:
        self._wakeup_out.recv(4096)
        self.do_tasks()

    def _read(self) -> None:
        try:
            while not self._closed:
                for key, _ in self._selector.select():
                    # One callback may close what another one of the same round waits for.
                    if key.fd in self._selector.get_map():
                        key.data()
        except BaseException:
            self._on_crash()
            raise

    def stop(self) -> None:
        """Ends the thread; what it has not done yet is done by the caller's `do_tasks`."""
        self._closed = True
        with contextlib.suppress(BlockingIOError):
            self._wakeup_in.send(b"\0")
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Frees the descriptors, after `stop`."""
        self._selector.close()
        self._wakeup_out.close()
        self._wakeup_in.close()
