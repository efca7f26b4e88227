"""The driver's end of fork servers: requests for workers, and for the servers' end."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dray.engines.base import CLOSED
from dray.engines.launch import driver_fork, system_limits
from dray.engines.launch.driver_fork import Clone
from dray.engines.launch.fresh_interpreter import interpreter
from dray.engines.launch.requests import Requests, is_shortage
from dray.engines.launch.system_limits import OpenFiles
from dray.engines.rpc import lifeline, wire
from dray.engines.rpc.io_thread import Reader
from dray.errors import EngineError
from dray.scheduling.requests import Node

if TYPE_CHECKING:
    import subprocess

_OWN = __name__.partition(".")[0]


class Basis(NamedTuple):
    """The modules and variables of a fork server, there before it makes workers.

    Attributes:
        variables: Additions to the driver's environment; libraries read it as they are
            imported, and the C library as a process begins.
    """

    modules: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()


class Forked(Protocol):
    """A worker in its driver's hands, which hears what becomes of its process."""

    number: int
    pid: int | None

    def on_start(self, pid: int, node: Node) -> None: ...

    def on_exit(self, exitcode: int | None, killed: bool) -> None: ...

    def on_failure(self, error: EngineError) -> None: ...


class Server:
    """The driver's end of one fork server process.

    Args:
        entry: The module of its workers, see `fork_server.Entry`.
        share_imports: Whether it may be a fork of the driver.
        run: Has the thread that calls `hear` do something.

    Raises:
        EngineError: There is no room for its process, or for what leads to it.
    """

    def __init__(
        self,
        basis: Basis,
        entry: str,
        method: str,
        share_imports: bool,
        open_files: OpenFiles,
        run: Callable[[Callable[[], object]], object],
    ) -> None:
        self.basis = basis
        self.actors: dict[int, tuple[Forked, Node]] = {}
        self._run = run
        self._is_gone = False
        self._environment = dict(os.environ)
        self._modules = frozenset(basis.modules)
        with contextlib.ExitStack() as theirs, system_limits.opening("the fork server") as ours:
            self.control, far = system_limits.socket_pair(ours, theirs)
            lifeline_read, self._lifeline = system_limits.pipe(theirs, ours)
            open_files.make_room(self._lifeline)
            fds = (far.fileno(), lifeline_read)
            self._process = _start_server(fds, entry, method, basis, share_imports, open_files)
        self._requests = Requests(self.control, open_files, self._on_refused)
        if isinstance(self._process, Clone):
            self._modules |= frozenset(sys.modules)

    def has(self, basis: Basis) -> bool:
        """Return whether it has what is asked for; a fork of the driver has all that was there.

        Modules of dray may be missing from such a fork: they take a worker little time.
        """
        missing = set(basis.modules) - self._modules
        if isinstance(self._process, Clone):
            missing = {name for name in missing if name.partition(".")[0] != _OWN}
        return self.basis.variables == basis.variables and not missing

    def fork(self, actor: Forked, node: Node, fds: Sequence[int], *, learned: bool = True) -> None:
        """Ask for a worker process for an actor.

        Args:
            actor: Hears what becomes of it.
            node: Node that it counts as running on.
            fds: Descriptors of its standard output and error, and those that its entry takes.
            learned: Whether it may have what earlier workers have imported.

        Raises:
            EngineError: The server is gone, or the system gives no more.
        """
        self.actors[actor.number] = (actor, node)
        as_before = learned and os.environ == self._environment
        unlearned = 0 if as_before else wire.UNLEARNED
        try:
            self._requests.send(wire.FORK, actor.number, len(fds) | unlearned, fds)
        except OSError as error:
            self.actors.pop(actor.number, None)
            if is_shortage(error):
                raise _not_started(error.errno or 0) from error
            self._is_gone = True
            raise EngineError(
                f"the fork server is gone (status {self._process.poll()}): {error}"
            ) from error

    def _on_refused(self, number: int, error: OSError) -> None:
        actor, _ = self.actors.pop(number)
        self._run(functools.partial(actor.on_failure, _not_started(error.errno or 0)))

    def hear(self) -> Callable[[], object] | None:
        """Take a notice; return what tells the worker that it is of, or None if this has ended."""
        try:
            data = self.control.recv(wire.NOTICE.size, socket.MSG_WAITALL)
        except ConnectionError:  # it died with requests unread
            data = b""
        if len(data) < wire.NOTICE.size:
            return None
        kind, number, value, killed = wire.NOTICE.unpack(data)
        if kind != wire.EXITED:
            self._requests.take_answer()
        if kind == wire.STARTED:
            actor, node = self.actors[number]
            return functools.partial(actor.on_start, value, node)
        actor, _ = self.actors.pop(number)
        if kind == wire.FAILED:
            return functools.partial(actor.on_failure, _not_started(value))
        return functools.partial(actor.on_exit, value, killed)

    def bury(self) -> list[Callable[[], object]]:
        """Take note that the process is gone, and its workers with it: end what they started.

        Returns:
            What tells each of the workers.
        """
        self.close()  # first: `lifeline.end_well_without_parent` says why
        lost = [actor for actor, _ in self.actors.values()]
        self.actors.clear()
        for actor in lost:
            if actor.pid is not None:
                lifeline.kill_worker(actor.pid)
        return [self._told_of_end(actor) for actor in lost]

    def _told_of_end(self, actor: Forked) -> Callable[[], object]:
        status = self._process.poll()
        if actor.pid is None and status is not None and status > 0:  # not killed: it gave up
            error = EngineError(
                f"the fork server ended with status {status}; its output on the script's "
                "standard error says why"
            )
            return functools.partial(actor.on_failure, error)
        return functools.partial(actor.on_exit, None, False)

    def ended(self) -> bool:
        """Return whether the server process is over, or about to be."""
        return self._is_gone or self._process.poll() is not None

    def kill(self, number: int) -> None:
        """Ask for a worker's end; nothing happens if it is over already."""
        with contextlib.suppress(OSError):
            self._requests.send(wire.KILL, number)

    def cancel(self, number: int, task: int) -> None:
        """Have a worker hear that a task is cancelled; nothing happens if it is over already."""
        with contextlib.suppress(OSError):
            self._requests.send(wire.CANCEL, number, task)

    def dismiss_if_idle(self) -> bool:
        """Ask the server to end, if it has no workers; return whether it will."""
        with contextlib.suppress(OSError):
            if not self.actors:
                self.control.shutdown(socket.SHUT_WR)
        return not self.actors

    def close(self) -> None:
        """End the server, which ends its workers, and wait until it is gone."""
        self.control.close()
        os.close(self._lifeline)
        self._process.wait()
        self._requests.close()


class Servers:
    """The fork servers of one process.

    Args:
        gives_way: Returns whether a server without workers ends when another one starts, by the
            basis of both.
        on_gone: Takes one that has ended on its own, before its workers' ends are told.
    """

    def __init__(
        self,
        start: Callable[[Basis], Server],
        reader: Reader,
        gives_way: Callable[[Basis, Basis], bool],
        on_gone: Callable[[Server], object],
    ) -> None:
        self._start = start
        self._reader = reader
        self._gives_way = gives_way
        self._on_gone = on_gone
        self._servers: dict[Basis, Server] = {}
        self._dismissed: set[Server] = set()
        self._lock = threading.Lock()
        self._closed = False

    def all(self) -> list[Server]:
        """Return those that were not dismissed."""
        with self._lock:
            return list(self._servers.values())

    def of(self, worker: int) -> list[Server]:
        """Return the server that has made a worker, if that is not gone."""
        return [server for server in self.all() if worker in server.actors]

    def get(self, basis: Basis) -> Server:
        """Return a server that has this basis, and start it if there is none."""
        with self._lock:
            if self._closed:
                raise EngineError(CLOSED)
            for server in self._servers.values():
                if not server.ended() and server.has(basis):
                    return server
            for old, server in list(self._servers.items()):
                if self._gives_way(old, basis) and server.dismiss_if_idle():
                    self._dismissed.add(self._servers.pop(old))
            new = self._start(basis)
            try:
                self._reader.start()
            except EngineError:  # nobody would hear of its workers
                new.close()
                raise
            self._servers[basis] = new
            self._reader.watch(new.control, lambda: self._on_notice(new))
            return new

    def forget(self, server: Server) -> None:
        """Give it to nobody any more."""
        with self._lock:
            if self._servers.get(server.basis) is server:
                del self._servers[server.basis]
            self._dismissed.discard(server)

    def close(self) -> list[Server]:
        """Start no more; return those that run, which the caller closes."""
        with self._lock:
            self._closed = True
            servers = [*self._servers.values(), *self._dismissed]
            self._servers.clear()
        return servers

    def _on_notice(self, server: Server) -> None:
        """Hear what becomes of a worker, or that the server is gone. On the reader's thread."""
        told = server.hear()
        if told is not None:
            self._reader.isolate(told)
            return
        self.forget(server)
        self._reader.unwatch(server.control)
        self._on_gone(server)
        for told in server.bury():
            self._reader.isolate(told)


def _not_started(number: int) -> EngineError:
    return EngineError(f"its process could not be started: {system_limits.describe(number)}")


def _start_server(
    fds: tuple[int, int],
    entry: str,
    method: str,
    basis: Basis,
    share_imports: bool,
    open_files: OpenFiles,
) -> Clone | subprocess.Popen[bytes]:
    """Start a fork server: as a fork of this process, or an interpreter of its own."""
    modules, variables = basis
    numbers = (*fds, os.getpid(), open_files.at_first)
    if share_imports and method == "fork" and not variables and driver_fork.can_share(modules):
        from dray.engines.launch import fork_server  # slow to import, and needed by a fork alone

        serve = functools.partial(fork_server.serve, *numbers, method, entry, modules)
        shared = driver_fork.fork_driver(serve, keep=fds)
        if shared is not None:
            return shared
    import subprocess  # slow to import, and not needed by a fork

    arguments = (*map(str, numbers), method, entry, *modules)
    command = interpreter(sys.path, "serve", *arguments)
    environ = {**os.environ, **dict(variables)}
    with _without_interrupts():
        return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, env=environ)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block Ctrl-C in what this thread starts, until that lets it through."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
