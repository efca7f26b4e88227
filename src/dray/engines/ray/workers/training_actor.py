"""The driver's end of an actor in a Ray cluster: events from Ray, and messages from the worker."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from dray.engines.base import Mailbox, Started
from dray.engines.ray.errors import is_crash, translate
from dray.engines.ray.workers.worker_channel import Hello
from dray.engines.rpc.io_thread import Reader
from dray.engines.rpc.remote_actor import RemoteActor
from dray.engines.rpc.sockets import socket_of
from dray.errors import EngineError, InfeasibleError, NodeDiedError

# A node that lives says within milliseconds that a worker of its has died, or seconds under load.
_SILENCE_S = 1.0
# Seconds after a worker's end within which its last output comes.
_LAST_WORDS_S = 1.0
# Seconds for a worker that has left cleanly to end: users' exit handlers run then.
_LEAVING_S = 60.0


class RayActor(RemoteActor):
    """An actor of a Ray cluster.

    Two things tell its end. The connection closes, at once. Ray says why, as a rule within
    milliseconds, because the node has seen its worker die; if it says nothing, and the node does
    not answer when called, the node is gone as well, long before Ray itself gives it up.

    Args:
        is_gone: Calls a node by its id, and tells whether it does not answer; raises EngineError if
            nobody can tell any more.
        on_over: Called when the end has been told.

    Attributes:
        over: Set once the end has been told.
    """

    def __init__(
        self,
        number: int,
        name: str,
        mailbox: Mailbox,
        reader: Reader,
        is_gone: Callable[[str], bool],
        on_over: Callable[[RayActor], object],
    ) -> None:
        super().__init__(number, name, mailbox, reader)
        self._is_gone = is_gone
        self._on_over = on_over
        self._end: Callable[[], None] | None = None
        self._hello: Hello | None = None
        self._death_cause: EngineError | None = None
        self._crashed = False
        self._hung_up = False
        self._killed = False
        self._timers: list[threading.Timer] = []
        self._awaits_last_words = False
        self.over = threading.Event()

    def lives_in(self, end: Callable[[], None]) -> None:
        """Take what ends the process."""
        self._end = end

    def kill(self) -> None:
        if self._hung_up and not self.has_left:
            return  # it is gone, and Ray is about to say why
        self._killed = True
        if self._end is not None:
            self._end()

    # On the reader thread.

    def on_hello(self, hello: Hello, connection: Connection) -> None:
        """Take one of the worker's connections."""
        if self.over.is_set():
            connection.close()
        elif hello.stream != "wire":
            self.attach_output(own_descriptor(connection), hello.stream)
        else:
            self._hello = hello
            self.pid = hello.pid
            self.attach(socket_of(own_descriptor(connection)))
            self.mailbox.put(Started(self, hello.node_id, hello.address, hello.devices))

    def refuse(self, error: EngineError) -> None:
        """End a worker that cannot be used."""
        self.on_death_cause(error)
        if self._end is not None:
            self._end()

    def on_hangup(self) -> None:
        self._hung_up = True
        if self._death_cause is None:
            self._later(_SILENCE_S, self._call_node)
        self._conclude()

    def _call_node(self) -> None:
        """Look, in a thread of its own, whether the silent node is there."""
        if self.over.is_set() or self._death_cause is not None or self._hello is None:
            return
        try:
            gone = self._is_gone(self._hello.node_id)
        except EngineError as error:
            cause = error
            self._reader.run(lambda: self.on_death_cause(cause))
            return
        except Exception:
            if self.over.is_set():  # and nobody is connected to Ray any more
                return
            raise
        if gone:
            self._reader.run(self._on_node_gone)
        else:
            self._later(_SILENCE_S, self._call_node)

    def on_death_cause(self, error: BaseException | None) -> None:
        """Take what Ray says of the process's end."""
        if self._death_cause is not None:
            return
        translated = EngineError("its process ended") if error is None else translate(error)
        if isinstance(translated, InfeasibleError):  # Ray says so of a node that is not there
            translated = NodeDiedError(None, details="its node is gone")
        if not isinstance(translated, EngineError):
            translated = EngineError(str(translated))
        self._crashed = error is not None and is_crash(error)
        self._death_cause = translated
        self._conclude()

    def _on_node_gone(self) -> None:
        assert self._hello is not None
        node = f"{self._hello.address} ({self._hello.node_id[:8]})"
        self.on_death_cause(
            NodeDiedError(None, details=f"its connection broke, and its node {node} is gone")
        )

    def on_output_end(self) -> None:
        self._conclude()

    def _conclude(self) -> None:
        """Tell the end, once it is certain and the last words are there."""
        if self._death_cause is None or self.over.is_set():
            return
        leaving = self.has_left and not self._hung_up
        if not leaving and not self.has_output:
            self._tell_end()
        elif not self._awaits_last_words or not leaving:
            self._awaits_last_words = True
            patience = _LEAVING_S if leaving else _LAST_WORDS_S
            self._later(patience, lambda: self._reader.run(self._tell_end))

    def _tell_end(self) -> None:
        if self.over.is_set() or self._death_cause is None:
            return
        # By dray's kill, rather than by something that came before the kill.
        was_killed = self._killed and not self._crashed
        self.on_death(self._death_cause, expected=self.has_left or was_killed)
        self._on_over(self)

    def on_death(self, error: EngineError, *, expected: bool) -> None:
        self.over.set()
        self._end = None
        for timer in self._timers:
            timer.cancel()
        super().on_death(error, expected=expected)

    def _later(self, delay_s: float, task: Callable[[], object]) -> None:
        """Do something later, in a thread of its own."""
        timer = threading.Timer(delay_s, task)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)


def own_descriptor(connection: Connection) -> int:
    """Take the descriptor out of a connection, which closes."""
    fd = os.dup(connection.fileno())
    connection.close()
    return fd
