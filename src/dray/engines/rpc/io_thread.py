"""One thread that waits on all sources of an engine, and calls the handler of each."""

from __future__ import annotations

import contextlib
import logging
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dray.errors import EngineError

_logger = logging.getLogger(__name__)

OnFailure = Callable[[BaseException], object]

# Seconds that a source may rest: so late is heard what nobody waits for.
REST_S = 0.1


class _Watched(NamedTuple):
    callback: Callable[[], object]
    on_failure: OnFailure | None


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        EngineError: There is no room for it.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise EngineError(
            f"{error}: the limit of processes and threads (ulimit -u, or a container's) is "
            "reached; raise it, or use fewer workers"
        ) from error


class Reader:
    """Waits on sockets and pipes in a thread; everything it calls runs in that thread.

    If a callback raises, which is a bug, only that callback is not called any more, and the thread
    continues.

    A source can rest: its messages do not wake the thread until its time is up, a byte arrives at
    `doorbell`, or another source has a message that must be handled after them (`in_order`).

    Args:
        on_crash: Called when the thread itself cannot go on: whoever waits must be told.

    Attributes:
        doorbell: Wakes the thread, and ends all rests, when it is written to, by whoever has it.
    """

    def __init__(self, on_crash: Callable[[], None]) -> None:
        self._on_crash = on_crash
        self._selector = selectors.DefaultSelector()
        self._todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._resting: dict[Any, tuple[_Watched, float]] = {}  # until when; the first ends first
        self._later: deque[Callable[[], object]] | None = None  # while rests are being ended
        self._wakeup_out, self.doorbell = socket.socketpair()
        self.doorbell.setblocking(False)  # the thread itself may hand over more than it takes
        self._register(self._wakeup_out, _Watched(self._on_wakeup, None))
        self._closed = False
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="dray-reader", daemon=True)
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start the thread, unless it runs. May be called from any thread.

        Raises:
            EngineError: It ran, and could not go on; or there is no room for it.
        """
        if self._crash is not None:
            raise EngineError(
                f"the thread that watches workers has ended: {self._crash!r}; call dray.shutdown()"
            )
        with self._starting:
            if not self._thread.is_alive():
                start_thread(self._thread)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def run(self, task: Callable[[], object]) -> None:
        """Have the thread do something, `in_order`. May be called from any thread."""
        self._todo.put(task)
        with contextlib.suppress(OSError):  # full, so it wakes; or closed, see `stop`
            self.doorbell.send(b"\0")

    def watch(
        self, source: Any, callback: Callable[[], object], on_failure: OnFailure | None = None
    ) -> None:
        """Call back whenever there is something to read. May be called from any thread.

        Args:
            source: A socket, a pipe or a descriptor.
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
        self._resting.pop(source, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def rest(self, source: Any) -> None:
        """Let a watched source rest, because its next messages are not urgent.

        Its next callback may find nothing to read.
        """
        watched = self._selector.unregister(source).data
        self._resting[source] = watched, time.monotonic() + REST_S

    @property
    def is_ending_rests(self) -> bool:
        """True while what resting sources have said is being heard."""
        return self._later is not None

    def in_order(self, task: Callable[[], object]) -> None:
        """Do something after all that resting sources have said until now has been heard."""
        if self._later is not None:  # it is being heard
            self._later.append(task)
        else:
            self.end_rests()
            task()

    def end_rests(self) -> None:
        """Hear what resting sources have said until now; not within that itself."""
        if not self._resting:
            return
        self._later = deque()
        for source in list(self._resting):
            if source in self._resting:
                watched = self._end_rest(source)
                if watched is not None:
                    self._call(watched, source)
        later, self._later = self._later, None
        for task in later:
            self.isolate(task)

    def _end_rest(self, source: Any) -> _Watched | None:
        """Wait on a source again; None if the system takes no more of them."""
        watched, _ = self._resting.pop(source)
        error = self.isolate(lambda: self._register(source, watched))
        if error is None:
            return watched
        self._fail(watched, error)
        return None

    def _end_due_rests(self) -> float | None:
        """Wait again on those that have rested for long enough; return when the next one has."""
        now = time.monotonic()
        while self._resting:
            source, (_, until) = next(iter(self._resting.items()))
            if until > now:
                return until - now
            self._end_rest(source)
        return None

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
                _logger.error("dray could not handle a message", exc_info=error)
            return error
        return None

    def _fail(self, watched: _Watched, error: BaseException) -> None:
        on_failure = watched.on_failure
        if on_failure is not None:
            self.isolate(lambda: on_failure(error))

    def _on_wakeup(self) -> None:
        self._wakeup_out.recv(4096)
        self.end_rests()
        self.do_tasks()

    def _read(self) -> None:
        try:
            while not self._closed:
                left_s = self._end_due_rests() if self._resting else None
                for key, _ in self._selector.select(left_s):
                    # One callback may close what another one of the same round waits for.
                    if key.fd in self._selector.get_map():
                        self._call(key.data, key.fileobj)
        except BaseException as error:
            self._crash = error
            self._on_crash()
            raise

    def _call(self, watched: _Watched, source: Any) -> None:
        error = self.isolate(watched.callback)
        if error is not None:
            self.unwatch(source)  # or it would be called again at once
            self._fail(watched, error)

    def stop(self) -> None:
        """End the thread; what it has not done yet is done by the caller's `do_tasks`."""
        self._closed = True
        with contextlib.suppress(BlockingIOError):
            self.doorbell.send(b"\0")
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Free the descriptors, after `stop`."""
        self._selector.close()
        self._wakeup_out.close()
        self.doorbell.close()
