"""The process engine: workers are processes of this machine, and there is no daemon.

A fork server makes the workers; each worker has a socket pair to the driver for calls, answers and
messages, and two pipes for its output. One thread here waits on all of them and hands out what
comes: answers to futures, the rest to mailboxes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import queue
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from dray.engines import clone, fork_server, lifeline, wire
from dray.engines.contract import (
    Actor,
    ActorFactory,
    Died,
    Mailbox,
    Node,
    Output,
    Placement,
    Posted,
)
from dray.engines.local import LocalEngine
from dray.errors import EngineError, WorkerDiedError
from dray.settings import Settings

T = TypeVar("T")


class ProcessActor(Actor):
    """An actor in a worker process. Its state changes on the engine's reader thread."""

    def __init__(self, server: _Server, number: int, name: str, mailbox: Mailbox) -> None:
        self.name = name
        self.pid: int | None = None
        self.number = number
        self.mailbox = mailbox
        self.server = server
        self.pipes: dict[int, str] = {}  # descriptor -> stream
        self._calls = itertools.count()
        self._pending: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self._death: Died | None = None
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        self.theirs = theirs
        self._oom_before = _out_of_memory_kills()

    def call(self, method: str, /, *args: Any) -> Future[Any]:
        payload = wire.dump((method, args), f"a call of {self.name}")
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._death is None:
                number = next(self._calls)
                self._pending[number] = future
                self._send(wire.Call(number, payload))
                return future
        future.set_exception(self._error())
        return future

    def signal(self, method: str, /, *args: Any) -> None:
        payload = wire.dump((method, args), f"a signal to {self.name}")
        with self._lock:
            if self._death is None:
                self._send(wire.Signal(payload))

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            if self._death is None:
                self._send(wire.Stop())

    def kill(self) -> None:
        self.server.kill(self.number)

    def begin(self, message: wire.Begin) -> None:
        """Sends the first message."""
        self._send(message)

    def _send(self, message: wire.ToWorker) -> None:
        # A worker that is gone: the fork server tells, and `died` answers for it.
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def on_message(self) -> bool:
        """Takes one message from the worker; returns False at the end of the stream."""
        try:
            message: wire.ToDriver = self.connection.recv()
        except (EOFError, OSError):
            return False
        if isinstance(message, wire.Message):
            self.mailbox.put(Posted(self, message.message))
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
        """Takes a piece of the worker's output; returns False when there is none now."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        if data:
            self.mailbox.put(Output(self, self.pipes[fd], data))
        return bool(data)

    def died(self, exitcode: int | None, killed: bool) -> None:
        """Takes note of the process's end: answers what is pending, and tells the mailbox."""
        with self._lock:
            if self._death is not None:
                return
            expected = killed or (self._stopping and exitcode == 0)
            starved = exitcode == -9 and not killed and _out_of_memory_kills() > self._oom_before
            self._death = Died(self, exitcode, expected, starved)
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_exception(self._error())
        self.mailbox.put(self._death)

    def _error(self) -> WorkerDiedError:
        assert self._death is not None
        return WorkerDiedError(self._death.exitcode, out_of_memory=self._death.out_of_memory)


def _out_of_memory_kills() -> int:
    """Returns how many processes the kernel has killed for want of memory since it started."""
    with contextlib.suppress(OSError), open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


class _Server:
    """The driver's end of one fork server process."""

    def __init__(self, modules: tuple[str, ...], method: str, share_imports: bool) -> None:
        self.modules = modules
        self.actors: dict[int, ProcessActor] = {}
        self._lock = threading.Lock()
        self.control, theirs = socket.socketpair()
        lifeline_read, self._lifeline = os.pipe()
        try:
            fds = (theirs.fileno(), lifeline_read)
            shared = None
            if share_imports and method == "fork" and clone.can_share(modules):
                serve = functools.partial(fork_server.serve, *fds, os.getpid(), method, modules)
                shared = clone.fork_driver(serve, keep=fds)
            self._process = shared or _fresh_server(fds, method, modules)
        finally:
            theirs.close()
            os.close(lifeline_read)

    def fork(self, actor: ProcessActor, fds: Sequence[int]) -> None:
        """Asks for a worker process for an actor."""
        with self._lock:
            self.actors[actor.number] = actor
            try:
                request = wire.REQUEST.pack(wire.FORK, actor.number)
                socket.send_fds(self.control, [request], fds)
            except OSError as error:
                self.actors.pop(actor.number, None)
                raise EngineError(
                    f"the fork server is gone (status {self._process.poll()}): {error}"
                ) from error

    def ended(self) -> bool:
        """Returns whether the server process is over."""
        return self._process.poll() is not None

    def kill(self, number: int) -> None:
        """Asks for a worker's end; nothing happens if it is over already."""
        with self._lock, contextlib.suppress(OSError):
            self.control.sendall(wire.REQUEST.pack(wire.KILL, number))

    def close(self) -> None:
        """Ends the server, which ends its workers, and waits until it is gone."""
        self.control.close()
        os.close(self._lifeline)
        self._process.wait()


def _fresh_server(
    fds: tuple[int, int], method: str, modules: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Starts a fork server as an interpreter of its own."""
    arguments = (*map(str, fds), str(os.getpid()), method, *modules)
    command = fork_server.interpreter(sys.path, "serve", *arguments)
    return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL)


class ProcessEngine(LocalEngine):
    """Runs actors as processes of this machine."""

    name = "process"
    distributed = True

    def __init__(self, node: Node, settings: Settings) -> None:
        super().__init__(node)
        self._method = settings.start_method or ("fork" if sys.platform == "linux" else "spawn")
        self._share_imports = settings.share_imports
        self._servers: dict[tuple[str, ...], _Server] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wakeup_out, self._wakeup_in = socket.socketpair()
        self._selector.register(self._wakeup_out, selectors.EVENT_READ, self._on_wakeup)
        # Started after the first server: one that shares the driver's imports needs it unthreaded.
        self._reader = threading.Thread(target=self._read, name="dray-reader", daemon=True)

    def drive(self, loop: Callable[[], T]) -> T:
        return loop()

    def prepare(self, modules: Sequence[str]) -> None:
        self._server(tuple(modules))

    def _server(self, modules: tuple[str, ...]) -> _Server:
        """Returns the server that has these modules, and starts it if there is none."""
        with self._lock:
            if self._closed:
                raise EngineError("this engine is closed; call dray.init() again")
            server = self._servers.get(modules)
            if server is None or server.ended():
                server = self._servers[modules] = _Server(
                    modules, self._method, self._share_imports
                )
                if not self._reader.is_alive():
                    self._reader.start()
                self._on_reader(server.control, lambda: self._on_notice(server))
            return server

    def start_actor(
        self,
        factory: ActorFactory,
        *,
        name: str,
        placement: Placement,
        environment: Mapping[str, str],
        mailbox: Mailbox,
        modules: Sequence[str] = (),
    ) -> Actor:
        payload = wire.dump(factory, name)
        try:
            actor = self._fork(self._server(tuple(modules)), name, mailbox)
        except EngineError:  # a server that was killed: the next one serves
            actor = self._fork(self._server(tuple(modules)), name, mailbox)
        actor.begin(wire.Begin({**os.environ, **environment}, os.getcwd(), list(sys.path), payload))
        return actor

    def _fork(self, server: _Server, name: str, mailbox: Mailbox) -> ProcessActor:
        actor = ProcessActor(server, next(self._numbers), name, mailbox)
        out, out_of_worker = os.pipe()
        err, err_of_worker = os.pipe()
        actor.pipes = {out: "stdout", err: "stderr"}
        # Before the worker exists: its end may come at any time after.
        self._on_reader(actor.connection, lambda: self._on_message(actor))
        for fd in actor.pipes:
            os.set_blocking(fd, False)
            self._on_reader(fd, functools.partial(self._on_output, actor, fd))
        try:
            server.fork(actor, [actor.theirs.fileno(), out_of_worker, err_of_worker])
        except EngineError:
            self._on_thread(lambda: self._bury(actor, None, killed=True))
            with self._lock:
                if self._servers.get(server.modules) is server:
                    del self._servers[server.modules]
            raise
        finally:
            actor.theirs.close()
            os.close(out_of_worker)
            os.close(err_of_worker)
        return actor

    # What follows runs on the reader thread.

    def _read(self) -> None:
        try:
            while not self._closed:
                for key, _ in self._selector.select():
                    # One callback may close what another one of the same round waits for.
                    if key.fd in self._selector.get_map():
                        key.data()
        except BaseException:  # a bug; but nobody may wait for ever for what will not come
            for server in self._servers.values():
                for actor in server.actors.values():
                    actor.died(None, killed=False)
            raise

    def _on_thread(self, task: Callable[[], object]) -> None:
        """Has the reader thread do something."""
        self._todo.put(task)
        self._wakeup_in.send(b"\0")

    def _on_reader(self, source: Any, callback: Callable[[], object]) -> None:
        """Has the reader thread wait for a source."""
        self._on_thread(lambda: self._selector.register(source, selectors.EVENT_READ, callback))

    def _on_wakeup(self) -> None:
        self._wakeup_out.recv(4096)
        self._do_tasks()

    def _do_tasks(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._todo.get_nowait()()

    def _on_message(self, actor: ProcessActor) -> None:
        if not actor.on_message():
            self._selector.unregister(actor.connection)

    def _on_output(self, actor: ProcessActor, fd: int) -> None:
        if not actor.on_output(fd):
            self._selector.unregister(fd)

    def _on_notice(self, server: _Server) -> None:
        try:
            data = server.control.recv(wire.NOTICE.size, socket.MSG_WAITALL)
        except ConnectionError:  # it died with requests unread
            data = b""
        if len(data) < wire.NOTICE.size:
            self._on_server_gone(server)
            return
        kind, number, value, killed = wire.NOTICE.unpack(data)
        if kind == wire.STARTED:
            server.actors[number].pid = value
        else:
            self._bury(server.actors.pop(number), value, killed)

    def _on_server_gone(self, server: _Server) -> None:
        """The fork server died by itself: its workers died with it, and what they started must."""
        with self._lock:
            if self._servers.get(server.modules) is server:
                del self._servers[server.modules]
        self._selector.unregister(server.control)
        for actor in list(server.actors.values()):
            if actor.pid is not None:
                lifeline.kill_group(actor.pid)
            self._bury(actor, None, killed=False)
        server.actors.clear()
        server.close()

    def _bury(self, actor: ProcessActor, exitcode: int | None, killed: bool) -> None:
        """Takes what a dead worker left in its pipes, then tells the end and frees them."""
        self._do_tasks()  # start_actor may have handed over what is to be freed here
        registered = self._selector.get_map()
        if actor.connection.fileno() in registered:
            while actor.connection.poll() and actor.on_message():
                pass
            self._selector.unregister(actor.connection)
        for fd in actor.pipes:
            while actor.on_output(fd):
                pass
            if fd in registered:
                self._selector.unregister(fd)
            os.close(fd)
        actor.died(exitcode, killed)
        actor.connection.close()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            servers = list(self._servers.values())
            self._servers.clear()
        self._wakeup_in.send(b"\0")
        if self._reader.is_alive():
            self._reader.join()
        for server in servers:
            server.close()
            for actor in list(server.actors.values()):
                self._bury(actor, None, killed=True)
        self._selector.close()
        self._wakeup_out.close()
        self._wakeup_in.close()


ENGINE = ProcessEngine
