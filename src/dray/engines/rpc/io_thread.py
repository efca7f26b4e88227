"""One thread that waits on everything an engine hears from, and calls what belongs to it."""

from __future__ import annotations

import contextlib
import logging
import queue
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from dray.errors import EngineError

_logger = logging.getLogger(__name__)

OnFailure = Callable[[BaseException], object]


class _Watched(NamedTuple):
    callback: Callable[[], object]
    on_failure: OnFailure | None


class Reader:
    """Waits on sockets and pipes in a thread; everything it calls runs in that thread.

    What it calls may raise, which is a bug: then that alone is not called any more, and the thread
    goes on.

    Args:
        on_crash: Called when the thread itself cannot go on: whoever waits must be told.
    """

    def __init__(self, on_crash: Callable[[], None]) -> None:
        self._on_crash = on_crash
        self._selector = selectors.DefaultSelector()
        self._todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wakeup_out, self._wakeup_in = socket.socketpair()
        self._wakeup_in.setblocking(False)  # the thread itself may hand over more than it takes
        self._register(self._wakeup_out, _Watched(self._on_wakeup, None))
        self._closed = False
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="dray-reader", daemon=True)

    def start(self) -> None:
        """Start the thread, unless it runs.

        Raises:
            EngineError: It ran, and could not go on.
        """
        if self._crash is not None:
            raise EngineError(
                f"the thread that hears of workers has ended: {self._crash!r}; call dray.shutdown()"
            )
        if not self._thread.is_alive():
            self._thread.start()

    def run(self, task: Callable[[], object]) -> None:
        """Have the thread do something. May be called from any thread."""
        self._todo.put(task)
        with contextlib.suppress(
            OSError
        ):  # full, so it wakes; or closed, and `close` does the rest
            self._wakeup_in.send(b"\0")

    def watch(
        self, source: Any, callback: Callable[[], object], on_failure: OnFailure | None = None
    ) -> None:
        """Call back whenever there is something to read. May be called from any thread.

        Args:
            source: A socket, a pipe or a descriptor.
            callback: Reads from it.
            on_failure: Called when that has raised, or it cannot be watched, and is not any more.
        """
        watched = _Watched(callback, on_failure)

        def begin() -> None:
            try:
                self._register(source, watched)
            except Exception as error:  # noqa: BLE001 (whoever waits for it must be told)
                self._fail(watched, error)

        self.run(begin)

    def _register(self, source: Any, watched: _Watched) -> None:
        self._selector.register(source, selectors.EVENT_READ, watched)

    # What follows is for the thread itself, and for anybody once it has ended.

    def unwatch(self, source: Any) -> None:
        """Stop to wait on a source; one that is not waited on is fine."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def do_tasks(self) -> None:
        """Do what `run` and `watch` have handed over so far."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.isolate(self._todo.get_nowait())

    def isolate(self, task: Callable[[], object]) -> BaseException | None:
        """Call something; log and return what it has raised, which concerns nobody else."""
        try:
            task()
        except BaseException as error:
            with contextlib.suppress(Exception):  # the log may go to a stream that raises as well
                _logger.error("what dray heard could not be dealt with", exc_info=error)
            return error
        return None

    def _fail(self, watched: _Watched, error: BaseException) -> None:
        on_failure = watched.on_failure
        if on_failure is not None:
            self.isolate(lambda: on_failure(error))

    def _on_wakeup(self) -> None:
        self._wakeup_out.recv(4096)
        self.do_tasks()

    def _read(self) -> None:
        try:
            while not self._closed:
                for key, _ in self._selector.select():
                    # One callback may close what another one of the same round waits for.
                    if key.fd in self._selector.get_map():
                        error = self.isolate(key.data.callback)
                        if error is not None:
                            self.unwatch(key.fileobj)  # or it would be called again at once
                            self._fail(key.data, error)
        except BaseException as error:
            self._crash = error
            self._on_crash()
            raise

    def stop(self) -> None:
        """End the thread; what it has not done yet is done by the caller's `do_tasks`."""
        self._closed = True
        with contextlib.suppress(BlockingIOError):
            self._wakeup_in.send(b"\0")
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Free the descriptors, after `stop`."""
        self._selector.close()
        self._wakeup_out.close()
        self._wakeup_in.close()
