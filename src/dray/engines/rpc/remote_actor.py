"""The driver's end of an actor in another process: its calls, answers, output and end.

It uses the protocol of `wire.py` over one connection, and reads output from two descriptors. Each
engine has its own way to start the process and to learn of its end; the rest is here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import pickle
import signal
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from dray.engines.base import Actor, Died, Mailbox, Output, Posted
from dray.engines.rpc import wire
from dray.engines.rpc.framing import Frame, Inbox
from dray.engines.rpc.io_thread import Reader
from dray.engines.rpc.output_pipe import OutputPipe
from dray.engines.rpc.sockets import NO_SIGNAL
from dray.errors import EngineError, OutOfMemoryError, WorkerDiedError

# Reads in a row from one process, so that one which talks without end does not keep others waiting.
_MOST_READS = 4
_ALL_QUIET = _QUIET, _QUIET_PICKLED = wire.QUIET[0], wire.QUIET_PICKLED[0]


class RemoteActor(Actor):
    """An actor in another process. Methods named `on_...` run on the engine's reader thread."""

    # Whether its connection rests after a quiet message; it has a doorbell then.
    may_rest = False

    def __init__(self, number: int, name: str, mailbox: Mailbox, reader: Reader) -> None:
        self.number = number
        self.name = name
        self.pid: int | None = None
        self.mailbox = mailbox
        self.stopping = False
        self.has_left = False  # cleanly
        self._reader = reader
        self._sock: socket.socket | None = None
        self._inbox: Inbox | None = None
        self._unsent: list[wire.ToWorker] = []
        self._outputs: list[OutputPipe] = []
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

    def attach(self, sock: socket.socket) -> None:
        """Take, as its owner, the socket to the process, and send what has waited for it."""
        with self._lock:
            self._sock = sock
            inbox = self._inbox = Inbox(sock)
            self._flush()
        self._reader.watch(sock, lambda: self._on_readable(inbox), self._on_broken)

    def attach_output(self, fd: int, stream: str) -> None:
        """Take, as its owner, a descriptor from which the process's output is read."""
        take = functools.partial(self._take_output, stream)
        output = OutputPipe(self._reader, fd, take, self.on_output_end)
        self._outputs.append(output)
        output.watch()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self._send(message)

    def _send(self, message: wire.ToWorker) -> None:
        if self._sock is None:
            self._unsent.append(message)
            return
        # A process that is gone: the engine learns of it on its own, and `on_death` answers.
        with contextlib.suppress(OSError):
            self._sock.sendall(wire.framed(pickle.dumps(message, 5)), NO_SIGNAL)

    def _on_readable(self, inbox: Inbox) -> None:
        for _ in range(_MOST_READS):
            frames = inbox.receive_raw(socket.MSG_DONTWAIT)
            if frames is None:
                self._reader.unwatch(self._sock)
                self.on_hangup()
                return
            if not self._deal(frames):
                return
            if not inbox.has_more:
                break
        if self.may_rest and frames and not inbox.amid and frames[-1][0] in _ALL_QUIET:
            self._reader.rest(self._sock)

    def _on_broken(self, error: BaseException) -> None:
        """End a process that cannot be understood; nobody may wait for its answers for ever."""
        self.kill()
        why = f"a message of {self.name} cannot be read: {error!r}; dray ended its process"
        self.on_death(EngineError(why), expected=False)

    def on_hangup(self) -> None:
        """Called when the process closes its connection, which is before its end is told."""

    def _deal(self, frames: Sequence[Frame]) -> bool:
        """Take messages of the process; return whether all of them have been taken.

        A message that is not quiet comes after all earlier messages of other processes. It may have
        to wait for these, and the messages that follow it as well.
        """
        for at, frame in enumerate(frames):
            if frame[0] == _QUIET:
                self.mailbox.put(Posted(self, bytes(frame[1:])))
            elif frame[0] == _QUIET_PICKLED:
                self.mailbox.put(Posted(self, pickle.loads(frame[1:])))
            elif self._reader.is_ending_rests:
                self._reader.in_order(functools.partial(self._deal_late, frames[at:]))
                return False
            else:
                self._reader.end_rests()
                self._take(pickle.loads(frame))
        return True

    def _deal_late(self, frames: Sequence[Frame]) -> None:
        try:
            self._deal(frames)
        except Exception as error:  # noqa: BLE001 (it concerns that process alone)
            self._reader.unwatch(self._sock)
            self._on_broken(error)

    def _take(self, message: wire.ToDriver) -> None:
        if isinstance(message, wire.Message):
            self.mailbox.put(Posted(self, message.message))
            return
        if isinstance(message, wire.Left):
            self.has_left = True
            return
        future = self._pending.pop(message.number)
        if message.kind == "raised":
            future.set_exception(wire.load_error(message.payload))
            return
        try:
            value = wire.load(message.payload)
        except Exception as error:  # noqa: BLE001 (whatever it is, the caller must learn of it)
            future.set_exception(error)
        else:
            future.set_result(value)

    def _take_output(self, stream: str, data: bytes) -> None:
        if data:
            self.mailbox.put(Output(self, stream, data))

    def on_output_end(self) -> None:
        """Called when one of the output descriptors has ended."""

    @property
    def has_output(self) -> bool:
        """True while an output descriptor has not ended."""
        return any(output.is_open for output in self._outputs)

    def death_of(
        self, exitcode: int | None, *, killed: bool, starved: bool
    ) -> tuple[EngineError, bool]:
        """Return why the process ended, and whether that was expected.

        One that was ending on its own when it was killed has an exit status of its own.
        """
        kind = OutOfMemoryError if starved else WorkerDiedError
        by_us = killed and exitcode in (None, 0, -signal.SIGKILL)
        return kind(exitcode, out_of_memory=starved), by_us or (self.stopping and exitcode == 0)

    def on_death(self, error: EngineError, *, expected: bool) -> None:
        """Take what the dead process left, answer what is pending, and tell the mailbox."""
        self._reader.in_order(lambda: self._die(error, expected))

    def _die(self, error: EngineError, expected: bool) -> None:
        if self._death is not None:
            return
        self._reader.do_tasks()  # what is to be freed here may not be watched yet
        if self._inbox is not None:
            self._reader.unwatch(self._sock)
            inbox = self._inbox
            while (frames := inbox.receive_raw(socket.MSG_DONTWAIT)) or inbox.has_more:
                self._deal(frames or ())
        for output in list(self._outputs):
            output.drain()
        with self._lock:
            self._death = Died(self, error, expected)
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_exception(error)
        self.mailbox.put(self._death)
        self._free()

    def _free(self) -> None:
        for output in self._outputs:
            output.close()
        if self._sock is not None:
            self._sock.close()
