"""The driver's end of an actor in another process: its calls, its answers, its output, its end.

It speaks `wire.py` over one connection and reads output from two descriptors. How the process is
made, and who says that it is gone, differs from engine to engine; the rest is here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from dray.engines.base import Actor, Died, Mailbox, Output, Posted
from dray.engines.rpc import wire
from dray.engines.rpc.io_thread import Reader
from dray.errors import EngineError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class RemoteActor(Actor):
    """An actor in another process. What is called `on_...` runs on the engine's reader thread."""

    def __init__(self, number: int, name: str, mailbox: Mailbox, reader: Reader) -> None:
        self.number = number
        self.name = name
        self.pid: int | None = None
        self.mailbox = mailbox
        self.stopping = False
        self.has_left = False  # cleanly
        self._reader = reader
        self._connection: Connection | None = None
        self._unsent: list[wire.ToWorker] = []
        self._outputs: dict[int, str] = {}  # descriptor -> stream
        self._calls = itertools.count()
        self._pending: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._death: Died | None = None

    def call(self, method: str, /, *args: object) -> Future[Any]:
        payload = wire.dump((method, args), f"a call of {self.name}")
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._death is None:
                number = next(self._calls)
                self._pending[number] = future
                self._send(wire.Call(number, payload))
                return future
            error = self._death.error
        future.set_exception(error)
        return future

    def signal(self, method: str, /, *args: object) -> None:
        payload = wire.dump((method, args), f"a signal to {self.name}")
        with self._lock:
            if self._death is None:
                self._send(wire.Signal(payload))

    def stop(self) -> None:
        with self._lock:
            self.stopping = True
            if self._death is None:
                self._send(wire.Stop())

    def begin(self, message: wire.Begin) -> None:
        """Send the first message."""
        with self._lock:
            self._unsent.insert(0, message)
            self._flush()

    def attach(self, connection: Connection) -> None:
        """Take the connection to the process, and send what has waited for it."""
        with self._lock:
            self._connection = connection
            self._flush()
        self._reader.watch(connection, self._on_readable, self._on_broken)

    def attach_output(self, fd: int, stream: str) -> None:
        """Take, as its owner, a descriptor from which the process's output is read."""
        os.set_blocking(fd, False)
        self._outputs[fd] = stream
        self._reader.watch(fd, lambda: self.on_output(fd), lambda _: self._end_output(fd))

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self._send(message)

    def _send(self, message: wire.ToWorker) -> None:
        if self._connection is None:
            self._unsent.append(message)
            return
        # A process that is gone: the engine learns of it on its own, and `on_death` answers.
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def _on_readable(self) -> None:
        if not self.on_message():
            self._reader.unwatch(self._connection)
            self.on_hangup()

    def _on_broken(self, error: BaseException) -> None:
        """End a process that cannot be understood; nobody may wait for its answers for ever."""
        self.kill()
        why = f"what {self.name} says cannot be read: {error!r}; its process was ended"
        self.on_death(EngineError(why), expected=False)

    def on_hangup(self) -> None:
        """Called when the process closes its connection, which is before its end is told."""

    def on_message(self) -> bool:
        """Take one message from the process; return False at the end of the stream."""
        assert self._connection is not None
        try:
            message: wire.ToDriver = self._connection.recv()
        except (EOFError, OSError):
            return False
        if isinstance(message, wire.Message):
            self.mailbox.put(Posted(self, message.message))
            return True
        if isinstance(message, wire.Left):
            self.has_left = True
            return True
        future = self._pending.pop(message.number)
        if message.kind == "raised":
            future.set_exception(wire.load_error(message.payload))
            return True
        try:
            value = wire.load(message.payload)
        except Exception as error:  # noqa: BLE001 (whatever it is, the caller must learn of it)
            future.set_exception(error)
        else:
            future.set_result(value)
        return True

    def on_output(self, fd: int) -> bool:
        """Take a piece of the process's output; return whether there may be more now."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if data:
            self.mailbox.put(Output(self, self._outputs[fd], data))
            return True
        self._end_output(fd)
        return False

    def _end_output(self, fd: int) -> None:
        self._reader.unwatch(fd)
        del self._outputs[fd]
        os.close(fd)
        self.on_output_end()

    def on_output_end(self) -> None:
        """Called when one of the output descriptors has ended."""

    @property
    def has_output(self) -> bool:
        """True while an output descriptor has not ended."""
        return bool(self._outputs)

    def on_death(self, error: EngineError, *, expected: bool) -> None:
        """Take what the dead process left, answer what is pending, and tell the mailbox."""
        if self._death is not None:
            return
        self._reader.do_tasks()  # what is to be freed here may not be watched yet
        if self._connection is not None:
            with contextlib.suppress(OSError):
                while self._connection.poll() and self.on_message():
                    pass
            self._reader.unwatch(self._connection)
        for fd in list(self._outputs):
            while self.on_output(fd):
                pass
        with self._lock:
            self._death = Died(self, error, expected)
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_exception(error)
        self.mailbox.put(self._death)
        self._free()

    def _free(self) -> None:
        for fd in self._outputs:
            self._reader.unwatch(fd)
            os.close(fd)
        self._outputs.clear()
        if self._connection is not None:
            self._connection.close()
