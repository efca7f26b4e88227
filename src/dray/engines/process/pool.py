"""Worker processes for tasks and actors, as the driver holds them: started, idle, gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from dray.engines.contract import Node
from dray.engines.process.frames import Inbox, Outbox
from dray.engines.reader import Reader
from dray.engines.rows import last_state
from dray.errors import EngineError, WorkerDiedError

if TYPE_CHECKING:
    from dray.engines.ledger import Held
    from dray.engines.process.records import ActorRecord, Client, Shape, Task

RuntimeKey = tuple[tuple[tuple[str, str], ...], str | None]


class Line:
    """A socket to a process that talks to the hub.

    Attributes:
        client: What the hub knows of the process.
        gone: Whether nothing can be sent any more.
    """

    client: Client

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.inbox = Inbox(sock)
        self.outbox = Outbox(sock)
        self.gone = False

    def close(self) -> None:
        """Frees the socket."""
        self.sock.close()


class WorkerProcess(Line):
    """One worker process for tasks and actors.

    Attributes:
        number: Unique in the engine.
        theirs: The worker's end of the socket; closed once it has it.
        node: The node it belongs to.
        runtime_env: What it finds around itself.
        pid: Its process, once that is known.
        task: The task that it runs.
        actor: The actor that lives in it.
        lease: The resources that it works with.
        retiring: Whether it was asked to end.
    """

    def __init__(
        self, number: int, node: Node, runtime_env: RuntimeKey, on_exit: Callable[..., None]
    ) -> None:
        sock, self.theirs = socket.socketpair()
        super().__init__(sock)
        self.number = number
        self.node = node
        self.runtime_env = runtime_env
        self.pid: int | None = None
        self.task: Task | None = None
        self.actor: ActorRecord | None = None
        self.shape: Shape | None = None
        self.lease: Held | None = None
        self.known: set[bytes] = set()
        self.calls: dict[bytes, int] = {}
        self.retiring = False
        self._on_exit = on_exit

    @property
    def title(self) -> str:
        """How its output is marked."""
        if self.actor is not None:
            return self.actor.creation.kind.name
        return self.task.kind.name if self.task is not None else "worker"

    def on_start(self, pid: int, node: Node) -> None:
        """Takes note of its start; called by the fork server's notices."""
        self.pid = pid

    def on_exit(self, exitcode: int | None, killed: bool) -> None:
        """Takes note of its end; called by the fork server's notices."""
        self._on_exit(self, WorkerDiedError(exitcode))

    def on_failure(self, error: EngineError) -> None:
        """Takes note that it could not be started; called by the fork server's notices."""
        self._on_exit(self, error)


class OutputTap:
    """Shows what workers print, each line with its origin.

    Args:
        reader: Waits for output.
        show: Takes a stream's name and a line.
    """

    def __init__(self, reader: Reader, show: Callable[[str, str], None]) -> None:
        self._reader = reader
        self._show = show
        self._open: dict[int, tuple[WorkerProcess, str, bytearray]] = {}

    def watch(self, worker: WorkerProcess, fd: int, stream: str) -> None:
        """Takes a descriptor, as its owner, from which a worker's output is read."""
        os.set_blocking(fd, False)
        self._open[fd] = (worker, stream, bytearray())
        self._reader.watch(fd, lambda: self._read(fd), lambda _: self._close(fd))

    def _read(self, fd: int) -> bool:
        worker, stream, rest = self._open[fd]
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        rest += data
        *lines, last = bytes(rest).split(b"\n")
        if not data and last:
            lines.append(last)
        for line in lines:
            self._show(stream, f"({worker.title} pid={worker.pid}) {last_state(line)}")
        rest[:] = last
        if not data:
            self._close(fd)
        return bool(data)

    def drain(self, worker: WorkerProcess) -> None:
        """Shows what a worker that is gone has left."""
        self._reader.do_tasks()
        for fd, (owner, _, _) in list(self._open.items()):
            if owner is worker:
                self._finish(fd)

    def forget(self, worker: WorkerProcess) -> None:
        """Lets a worker's output be that was not started. From any thread."""
        self._reader.run(lambda: self.drain(worker))

    def _finish(self, fd: int) -> None:
        while fd in self._open and self._read(fd):
            pass
        if fd in self._open:
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._reader.unwatch(fd)
        del self._open[fd]
        os.close(fd)

    def close(self) -> None:
        """Shows what is left and frees the descriptors."""
        for fd in list(self._open):
            self._finish(fd)


class Pool:
    """The workers that no task uses now.

    Args:
        start: Starts a worker process for a node and a runtime environment.
        most_idle: How many are kept for each of both.
    """

    def __init__(self, start: Callable[[Node, RuntimeKey], WorkerProcess], most_idle: int) -> None:
        self._start = start
        self._most_idle = most_idle
        self._idle: dict[tuple[str, RuntimeKey], list[WorkerProcess]] = {}
        self.all: dict[int, WorkerProcess] = {}

    def take(self, node: Node, runtime_env: RuntimeKey, *, fresh: bool = False) -> WorkerProcess:
        """Returns a worker that nobody uses; a new one if there is none, or if asked for."""
        idle = self._idle.get((node.node_id, runtime_env), [])
        while idle and not fresh:
            worker = idle.pop()
            if not worker.gone:
                return worker
        worker = self._start(node, runtime_env)
        self.all[worker.number] = worker
        return worker

    def give_back(self, worker: WorkerProcess) -> bool:
        """Takes a worker that is not used any more; returns False if there are enough."""
        idle = self._idle.setdefault((worker.node.node_id, worker.runtime_env), [])
        if len(idle) >= self._most_idle:
            return False
        idle.append(worker)
        return True

    def forget(self, worker: WorkerProcess) -> None:
        """Takes note that a worker is gone."""
        self.all.pop(worker.number, None)
        idle = self._idle.get((worker.node.node_id, worker.runtime_env), [])
        if worker in idle:
            idle.remove(worker)
