"""The process engine: workers are processes of this machine, and there is no daemon.

A fork server makes the workers. Each worker has a socket pair to the driver for calls, answers and
messages, and two pipes for its output. One thread here waits on all of them. It passes answers to
futures, and everything else to mailboxes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from dray.engines.base import Actor, ActorSpec, Mailbox, Options, Started
from dray.engines.console import fill_standard_descriptors
from dray.engines.launch import system_limits
from dray.engines.launch.server import Basis, Server, Servers
from dray.engines.launch.system_limits import MemoryWatch, OpenFiles
from dray.engines.local import LocalEngine, nodes_of
from dray.engines.process.lock import IN_A_FINALISER
from dray.engines.rpc import wire
from dray.engines.rpc.io_thread import Reader
from dray.engines.rpc.remote_actor import RemoteActor
from dray.engines.runtime_env import RuntimeEnv
from dray.engines.status_socket import StatusSocket
from dray.errors import ConfigError, EngineError, NodeDiedError
from dray.interrupts import shielded, unwrap
from dray.scheduling.device_locks import DeviceLocks
from dray.scheduling.ledger import Held
from dray.scheduling.requests import Node
from dray.settings import Settings

if TYPE_CHECKING:
    from dray.engines.process.hub.driver import DriverRuntime
    from dray.engines.process.hub.leases import LeasedReservation
    from dray.engines.process.hub.records import WorkerProcess
    from dray.engines.runtime import Described
    from dray.status import ProgramStatus

_PRELOADED = ("numpy", "pandas", "torch")
_ENTRY = "dray.engines.process.worker.entry"


class TrainingActor(RemoteActor):
    """An actor in a process of this machine."""

    may_rest = True

    def __init__(
        self,
        server: Server,
        number: int,
        name: str,
        mailbox: Mailbox,
        reader: Reader,
        devices: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__(number, name, mailbox, reader)
        self._server = server
        self._devices = devices
        self._lost_node: Node | None = None
        self._memory = MemoryWatch()

    def kill(self) -> None:
        self._server.kill(self.number)

    def lose(self, node: Node) -> None:
        """End the process, because its node is gone."""
        self._lost_node = node
        self.kill()

    def on_start(self, pid: int, node: Node) -> None:
        self.pid = pid
        self.mailbox.put(Started(self, node.node_id, node.address, self._devices))

    def on_failure(self, error: EngineError) -> None:
        self.on_death(error, expected=False)

    def on_exit(self, exitcode: int | None, killed: bool) -> None:
        if self._lost_node is not None:
            why = f"its process ended, because its node {self._lost_node.title} is gone"
            self.on_death(NodeDiedError(exitcode, details=why), expected=False)
            return
        starved = self._memory.was_starved(exitcode, killed)
        error, expected = self.death_of(exitcode, killed=killed, starved=starved)
        self.on_death(error, expected=expected)


class ProcessEngine(LocalEngine):
    """Runs actors as processes of this machine."""

    name = "process"
    distributed = True
    one_host = True

    def __init__(self, options: Options, settings: Settings) -> None:
        super().__init__(options)
        fill_standard_descriptors()
        self._open_files = OpenFiles()
        self._method = settings.start_method or ("fork" if sys.platform == "linux" else "spawn")
        self._share_imports = settings.share_imports
        self._stall_warning_s = settings.stall_warning_s
        self._numbers = itertools.count(1)  # the driver itself is 0
        self._watching_nodes: list[Callable[[], object]] = []
        self._attach_sockets: set[socket.socket] = set()  # of workers that may use tasks and actors
        self._lock = threading.Lock()
        self._runtime: DriverRuntime | None = None
        self._options = options
        # Started after the first server: one that shares the driver's imports needs it unthreaded.
        self._reader = Reader(self._on_crash)
        self._status_socket = StatusSocket(self._reader, self._status)
        self._servers = Servers(
            self._start_server,
            self._reader,
            lambda old, new: bool(old.variables and new.variables),  # which runs have brought
            self._on_server_gone,
        )
        names = self.lock_names()
        self._device_locks = DeviceLocks(names, self._watch, self._ledger.readmit)
        self._ledger.device_locks = self._device_locks if names else None

    def _watch(self, fd: int, callback: Callable[[], object] | None) -> None:
        if callback is None:
            self._reader.run(lambda: self._reader.unwatch(fd))
            self._reader.run(lambda: os.close(fd))
        else:
            self._reader.start()
            self._reader.watch(fd, callback)

    def hear_out(self, then: Callable[[], object]) -> None:
        if self._reader.is_running:
            self._reader.run(then)
        else:
            then()

    @shielded
    def prepare(self, modules: Sequence[str], runtime_env: RuntimeEnv) -> None:
        variables = (self._runtime_env | runtime_env).expanded(os.environ)
        self._servers.get(_basis(modules, variables))

    @property
    def runtime(self) -> DriverRuntime:
        runtime = self._runtime
        if runtime is None:
            runtime = self._make_runtime()
        return runtime

    @shielded
    def _make_runtime(self) -> DriverRuntime:
        # First: before the first thread, it may be a fork of this process; and beside this import.
        self._task_server()
        from dray.engines.process.hub.driver import DriverRuntime  # training alone needs no hub

        with self._lock, system_limits.opening("what runs tasks and actors"):
            if self._runtime is None:
                self._runtime = DriverRuntime(
                    self._ledger,
                    self._reader,
                    self._fork_worker,
                    self._kill_worker,
                    self._tell_cancelled,
                    lambda: next(self._numbers),
                    self._options,
                    self.variables,
                    self._open_files,
                    self._stall_warning_s,
                )
                self._status_socket.open()
            return self._runtime

    def _status(self) -> Described:
        runtime = self._runtime
        return asdict(runtime.demand("query", "overview") if runtime else self._own_status())

    def _own_status(self) -> ProgramStatus:
        from dray.status import ProgramStatus

        return ProgramStatus(engine=self.name, nodes=nodes_of(self._ledger))

    def show(self, subject: str, describe: Callable[[], object]) -> Callable[[], None]:
        return self._status_socket.show(subject, describe)

    def announce_loss(self, node_id: str, at: float | None) -> None:
        """Say that a simulated node is about to be taken away, at a time since the epoch."""
        self._check_known(node_id)
        self._ledger.announce_loss(node_id, at)
        for tell in list(self._watching_nodes):
            tell()

    def watch_leaving(self, tell: Callable[[], object]) -> Callable[[], None]:
        self._watching_nodes.append(tell)
        return lambda: self._watching_nodes.remove(tell)

    def _check_known(self, node_id: str) -> None:
        known = [node.node_id for node in self._ledger.nodes]
        if node_id not in known:
            raise ConfigError(f"there is no node {node_id!r}; there are {', '.join(known)}")

    @shielded
    def lose_node(self, node_id: str) -> None:
        """End a simulated node, as if its machine were gone."""
        self._check_known(node_id)
        self._ledger.remove_node(node_id)
        if self._runtime is not None:  # first: what dies finds where else it may run
            self._runtime.settle_losses()
        for server in self._servers.all():
            for number, (actor, node) in list(server.actors.items()):
                if node.node_id != node_id:
                    continue
                if isinstance(actor, TrainingActor):
                    actor.lose(node)
                else:
                    server.kill(number)

    def _task_server(self) -> Server:
        """Return a server that makes workers for tasks: any without variables of a run will do."""
        for server in self._servers.all():
            if not server.basis.variables and not server.ended():
                return server
        # What the driver has imported, its tasks will most likely need.
        return self._servers.get(Basis(tuple(name for name in _PRELOADED if name in sys.modules)))

    def _fork_worker(self, worker: WorkerProcess, fds: Sequence[int]) -> None:
        # Modules that read other variables as they are imported were learned without these.
        learned = not (worker.runtime_env[0] or self._runtime_env.env_vars)
        try:
            self._task_server().fork(worker, worker.node, fds, learned=learned)
        except EngineError:  # a server that was killed: the next one serves
            self._task_server().fork(worker, worker.node, fds, learned=learned)

    def _kill_worker(self, worker: WorkerProcess) -> None:
        for server in self._servers.of(worker.number):
            server.kill(worker.number)

    def _tell_cancelled(self, worker: WorkerProcess, task: int) -> None:
        for server in self._servers.of(worker.number):
            server.cancel(worker.number, task)

    def _start_server(self, basis: Basis) -> Server:
        open_files, run = self._open_files, self._reader.run
        return Server(basis, _ENTRY, self._method, self._share_imports, open_files, run)

    @shielded
    def start_actor(self, spec: ActorSpec) -> Actor:
        reservation, bundle = cast("Held | LeasedReservation", spec.reservation), spec.bundle
        payload = wire.dump(spec.factory, spec.name)
        runtime_env = self._runtime_env | spec.runtime_env
        own = runtime_env.expanded(os.environ)
        basis = _basis(spec.modules, own)
        directory = runtime_env.local_directory(self.name)
        node, devices = reservation.nodes[bundle], reservation.devices[bundle]
        around = {
            "resources": reservation.bundles[bundle],
            "devices": devices,
            "runtime_env": runtime_env.as_dict(),
        }
        try:
            actor = self._fork(self._servers.get(basis), spec, node, around)
        except EngineError:  # a server that was killed: the next one serves
            actor = self._fork(self._servers.get(basis), spec, node, around)
        variables = {**self.variables(devices, node, own), **own}
        actor.begin(wire.Begin.like_here(variables, directory, payload))
        return actor

    def _fork(
        self, server: Server, spec: ActorSpec, node: Node, around: Mapping[str, Any]
    ) -> TrainingActor:
        number, devices = next(self._numbers), around["devices"]
        actor = TrainingActor(server, number, spec.name, spec.mailbox, self._reader, devices)
        with contextlib.ExitStack() as theirs:
            sock, (out, err), fds = self._open(actor, theirs)
            # Before the worker exists: its end may come at any time after.
            self._attach_sockets.add(sock)
            self._reader.watch(sock, lambda: self._on_attach(sock, node.node_id, around))
            actor.attach_output(out, "stdout")
            actor.attach_output(err, "stderr")
            try:
                server.fork(actor, node, fds)
            except EngineError:
                self._reader.run(lambda: actor.on_exit(None, killed=True))
                if server.ended():
                    self._servers.forget(server)
                raise
        return actor

    def _open(
        self, actor: TrainingActor, theirs: contextlib.ExitStack
    ) -> tuple[socket.socket, tuple[int, int], Sequence[int]]:
        """Open a worker's attach socket, the pipes of its output, and its own descriptors.

        Raises:
            EngineError: This process may open no more.
        """
        with system_limits.opening(actor.name) as ours:
            line, far = system_limits.socket_pair(ours, theirs)
            sock, far_attach = system_limits.socket_pair(ours, theirs)
            out, far_out = system_limits.pipe(ours, theirs)
            err, far_err = system_limits.pipe(ours, theirs)
        self._open_files.make_room(far_err)
        actor.attach(line)
        doorbell = self._reader.doorbell.fileno()
        return sock, (out, err), (far_out, far_err, far.fileno(), far_attach.fileno(), doorbell)

    # What follows runs on the reader thread.

    def _on_crash(self) -> None:
        """Nobody may wait for ever for what will not come."""
        if self._runtime is not None:
            self._runtime.begin_close("the thread that watches workers has ended")
        for server in self._servers.all():
            for actor, _ in list(server.actors.values()):
                self._reader.isolate(functools.partial(actor.on_exit, None, killed=False))

    def _attach_client(self, sock: socket.socket, node_id: str, around: Mapping[str, Any]) -> None:
        self.runtime.attach_client(sock, node_id, around)

    def _on_attach(self, sock: socket.socket, node_id: str, around: Mapping[str, Any]) -> None:
        """A worker wants to use tasks and actors, or it is gone."""
        self._reader.unwatch(sock)
        self._attach_sockets.discard(sock)
        with contextlib.suppress(EngineError):  # the session ends
            if sock.recv(1):
                self._attach_client(sock, node_id, around)
                return
        sock.close()

    def _on_server_gone(self, server: Server) -> None:
        """The fork server died on its own: its workers died with it, and what they started must."""
        if self._runtime is not None:
            from dray.engines.process.hub.records import WorkerProcess

            actors = [actor for actor, _ in server.actors.values()]
            self._runtime.lose([each for each in actors if isinstance(each, WorkerProcess)])

    @shielded
    def close(self) -> None:
        if self._runtime is not None and self._runtime.lock.is_mine():
            raise EngineError(IN_A_FINALISER)
        with self._lock:
            if self.closed:
                return
            self.closed = True
            if self._runtime is not None:
                self._runtime.begin_close("dray.shutdown() was called")
        servers = self._servers.close()
        self._ledger.close()
        self._asked.close()
        self._reader.stop()
        for server in servers:
            server.close()
            for actor, _ in list(server.actors.values()):
                actor.on_exit(None, killed=True)
        if self._runtime is not None:
            self._runtime.close()
        self._status_socket.close()
        self._device_locks.close()
        self._reader.do_tasks()
        for sock in self._attach_sockets:
            sock.close()
        self._reader.close()
        self._open_files.restore()
        unwrap()


def _basis(modules: Sequence[str], variables: Mapping[str, str]) -> Basis:
    """Return what a fork server has to have: of variables those that are not here already."""
    new = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    return Basis(tuple(modules), tuple(sorted(new.items())))
