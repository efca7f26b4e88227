"""The driver's side of tasks, actors and objects: the hub, its workers, its own runtime."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dray import host
from dray.engines.base import Options
from dray.engines.console import show_lines
from dray.engines.launch import system_limits
from dray.engines.launch.system_limits import OpenFiles
from dray.engines.object_ref import ObjectRef
from dray.engines.process.attach_socket import AttachSocket
from dray.engines.process.client.runtime import ProcessRuntime
from dray.engines.process.hub.actors import Actors
from dray.engines.process.hub.generators import Streams
from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.leases import Leases
from dray.engines.process.hub.lost_nodes import settle_losses
from dray.engines.process.hub.orphans import bequest_of, bequest_of_attached, end_orphans
from dray.engines.process.hub.placement_groups import Groups
from dray.engines.process.hub.protocol import operations
from dray.engines.process.hub.records import Channel, Client, RuntimeKey, WorkerProcess
from dray.engines.process.hub.stalls import describe_stall
from dray.engines.process.hub.tasks import Tasks, Variables
from dray.engines.process.hub.waits import Waits
from dray.engines.process.hub.worker_pool import OutputTap, Pool
from dray.engines.process.leader_follower import LONGEST_S, AdaptiveSpin, LeaderFollowers, Waiter
from dray.engines.process.lock import check_depth
from dray.engines.process.polling import READ, WRITE, make_poll
from dray.engines.rpc import serialization, sockets, wire
from dray.engines.rpc.framing import Message, encode
from dray.engines.rpc.io_thread import Reader
from dray.engines.rpc.serialization import Opened, Payload
from dray.engines.runtime import ExecutionContext, not_in_time
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import EngineError, NodeDiedError
from dray.interrupts import arrivals, leave, mark_shielded, pending, wake_main, watch
from dray.scheduling.ledger import Ledger
from dray.scheduling.requests import Node
from dray.settings import Settings

T = TypeVar("T")

_logger = logging.getLogger(__name__)

# Of this machine's memory, what stored objects may take.
_STORE_SHARE = 0.3
# So often does a thread that submits look whether there are answers.
_SUBMITTED = 64
_NO_TASK: Mapping[str, Any] = {}

# Starts a process: the worker, its descriptors, and its standard output and error.
Fork = Callable[[WorkerProcess, Sequence[int]], None]


class DriverRuntime(ProcessRuntime):
    """Tasks, actors and objects, as the driver sees them.

    Args:
        reader: The thread that waits for what workers print.
        cancel: Has one hear that its task or call of this number is cancelled.
        stall_warning_s: After how long without a word from any worker work that waits in vain is
            told of; 0 is never.
    """

    def __init__(
        self,
        ledger: Ledger,
        reader: Reader,
        fork: Fork,
        kill: Callable[[WorkerProcess], None],
        cancel: Callable[[WorkerProcess, int], None],
        number: Callable[[], int],
        options: Options,
        variables: Variables,
        open_files: OpenFiles,
        stall_warning_s: float,
    ) -> None:
        self._fork = fork
        self._open_files = open_files
        self._kill = kill
        self._next_number = number
        self._runtime_env = options.runtime_env
        self._namespace = options.namespace or "default"
        self._job_id = os.urandom(4).hex()
        self._lines: dict[int, Channel] = {}  # by descriptor
        self._flushing: set[int] = set()
        self._attach_socket = AttachSocket()
        self._poll = make_poll()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._poll.register(self._woken, READ)
        self._signals = arrivals()
        self._poll.register(self._signals, READ)
        own_share = system_limits.shareable_bytes(int(host.memory_bytes() * _STORE_SHARE))
        self.hub = Hub(options.object_store_memory or own_share)
        self.pool = Pool(self._start_worker, 2 * max(2, host.cpu_count()))
        self.arena, self.disk = self.hub.store.arena, self.hub.store.disk
        hub, self.streams = self.hub, Streams(self.hub)
        self.tasks = tasks = Tasks(
            hub, self.streams, ledger, self.pool, self._send, kill, cancel, variables
        )
        self.actors = Actors(hub, tasks, self._namespace)
        self._groups = groups = Groups(hub, tasks, self.actors)
        waits, leases = Waits(hub, self.streams, tasks), Leases(hub, ledger)
        self._operations = operations(
            hub, waits, tasks, self.streams, self.actors, groups, leases, self
        )
        self._stall_s = self._quiet_s = stall_warning_s or LONGEST_S
        self._told = ""  # of which stall
        self.tap = OutputTap(reader, show_lines if options.log_to_driver else lambda *_: None)
        self._submitted = 0  # since a thread looked for answers
        self._cores = host.cpu_count()
        self._spin = AdaptiveSpin(self._cores)
        self._look = functools.partial(self._poll.poll, 0)
        super().__init__(0, self._job_id, LeaderFollowers(self.read, self._interrupt))
        self.lock = self.hub.lock
        self.client = Client(0, self.answered)
        self._readers.start_background("dray-hub")

    # The runtime's half.

    def here(self) -> Mapping[str, Any]:
        return _NO_TASK

    def post(self, message: Message) -> None:
        self._operations[message[0]](self.client, *message[1:])

    def _tell(self, what: str, number: int) -> None:
        if not self._closed:
            self._operations[what](self.client, number)

    def teller(self, what: str, *head: object) -> Callable[..., Any]:
        return functools.partial(self._operations[what], self.client, *head)

    def post_new(
        self, numbers: Sequence[int], post: Callable[..., T], *message: object
    ) -> T | None:
        answer = super().post_new(numbers, post, *message)
        self._submitted += 1
        if self._submitted >= _SUBMITTED and not self.lock.is_mine():
            self._submitted = 0
            self._readers.look(_SUBMITTED)
        return answer

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        if len(refs) != 1:
            return super().get(refs, timeout_s)
        watch()
        try:
            opened = self._fetch_one(self._number_of(refs[0]), timeout_s)
        finally:
            if pending:
                leave()
        return [
            serialization.unpack(opened) if type(opened) is bytes else serialization.unpack(*opened)
        ]

    @mark_shielded
    def _fetch_one(self, number: int, timeout_s: float | None) -> bytes | Opened:
        """Get one object, the most common call of all; the hub need not be asked in writing."""
        check_depth()
        store, waiter = self.hub.store, Waiter()

        def take(number: int) -> None:
            waiter.value = self.hub.pin_for(self.client, store.find(number).payload)

        def ready(number: int) -> None:
            take(number)
            self._readers.finish(waiter)

        with self.lock:
            if self._closed:
                self.check_open()
            waiter.done = store.when_ready(number, ready)
            if waiter.done:
                take(number)
        try:
            if not self._readers.wait(waiter, timeout_s):
                raise not_in_time(1, 1, timeout_s)
        except BaseException:
            with self.lock:
                store.forget_call(number, ready)
            self.return_unread([waiter.value])
            raise
        if self._closed:
            self.check_open()
        payload: Payload = waiter.value
        return payload if type(payload) is bytes else self.open(payload)

    def on_query(self, client: Client, question: int, what: str) -> None:
        from dray.engines.process.hub.status import answer  # slow to import, and seldom asked for

        self.hub.reply(
            client,
            question,
            answer(what, self.tasks, self.actors, self._groups, self.client, self._job_id),
        )

    def execution_context(self) -> ExecutionContext:
        return ExecutionContext(
            job_id=self._job_id,
            node_id=self.tasks.ledger.nodes[0].node_id,
            worker_id=f"{0:08x}",
            namespace=self._namespace,
            runtime_env=self._runtime_env.as_dict(),
        )

    def leave_to_parent(self) -> None:
        super().leave_to_parent()
        self.hub.lock = self.lock

    # Workers.

    def _start_worker(self, node: Node, runtime_env: RuntimeKey) -> WorkerProcess:
        variables, directory = runtime_env
        directory = directory or self._runtime_env.local_directory("process")
        environment = (self._runtime_env | RuntimeEnv(dict(variables))).expanded(os.environ)
        number = self._next_number()
        with contextlib.ExitStack() as theirs:
            worker, fds = self._open_worker(number, node, runtime_env, theirs)
            worker.client = Client(number, functools.partial(self._answer, worker), worker)
            self.hub.clients[number] = worker.client
            begin = self._begin(number, node.node_id)
            begin["environment"] = wire.Begin.like_here(environment, directory)
            try:
                self._listen_to(worker)
                self._send(worker, encode(("begin", begin)))
                self._fork(worker, fds)
            except BaseException:
                self._unwatch(worker)
                worker.gone = True
                worker.close()
                del self.hub.clients[number]
                self.tap.forget(worker)
                raise
        return worker

    def _begin(self, number: int, node_id: str) -> dict[str, Any]:
        return {
            "number": number,
            "node_id": node_id,
            "job_id": self._job_id,
            "namespace": self._namespace,
            "runtime_env": self._runtime_env.as_dict(),
            "profiles": Settings().profiling,
        }

    def _open_worker(
        self, number: int, node: Node, runtime_env: RuntimeKey, theirs: contextlib.ExitStack
    ) -> tuple[WorkerProcess, Sequence[int]]:
        """Open what leads to a worker process; return it, and its own descriptors.

        Raises:
            EngineError: This process may open no more.
        """
        with system_limits.opening("a worker process") as ours:
            sock, far = system_limits.socket_pair(ours, theirs)
            out, far_out = system_limits.pipe(ours, theirs)
            err, far_err = system_limits.pipe(ours, theirs)
        self._open_files.make_room(far_err)
        worker = WorkerProcess(number, node, runtime_env, sock, self._on_exit)
        self.tap.watch(worker, out, "stdout")
        self.tap.watch(worker, err, "stderr")
        shared = (self.arena.fd, self.disk.fd, self._attach_socket.far.fileno())
        return worker, (far_out, far_err, far.fileno(), *shared)

    def attach_client(self, sock: socket.socket, node_id: str, around: Mapping[str, Any]) -> None:
        """Let a training worker of this session use its tasks, actors and objects."""
        with self.lock:
            self._attach(sock, node_id, around)

    def on_attach(self, client: Client, node_id: str, around: Mapping[str, Any]) -> None:
        sock = self._attach_socket.take(client.number)  # left there before this was said
        if sock is not None:
            self._attach(sock, node_id, around)

    def _attach(self, sock: socket.socket, node_id: str, around: Mapping[str, Any]) -> None:
        number, line = self._next_number(), Channel(sock)
        line.client = Client(number, functools.partial(self._answer, line))
        begin = {**self._begin(number, node_id), **around, "actor_id": os.urandom(16).hex()}
        with contextlib.suppress(OSError):  # it may have died meanwhile
            self.hub.clients[number] = line.client
            self._listen_to(line)
            sockets.send_fds(sock, b"!", (self.arena.fd, self.disk.fd))
            self._send(line, encode(("begin", begin)))

    def _listen_to(self, line: Channel) -> None:
        self._poll.register(line.sock, READ)  # first, since it may fail
        self._lines[line.sock.fileno()] = line

    def _answer(self, line: Channel, question: int, answer: object) -> None:
        self._send(line, encode(("answer", question, answer)))

    def _send(self, line: Channel, data: bytes) -> None:
        if line.gone:
            return
        if not line.outbox.send(data) and line.sock.fileno() not in self._flushing:
            self._flushing.add(line.sock.fileno())
            self._poll.modify(line.sock, READ | WRITE)

    def read(self, timeout_s: float | None) -> None:
        """Wait for something from workers, and deal with it."""
        poll, quiet_s, events = self._poll.poll, self._quiet_s, None
        # With all cores at work, or several threads that wait, to stay awake is in the way.
        near = len(self.tasks.table.running) < self._cores and not self._readers.crowded
        if near and timeout_s != 0:
            events = self._spin.awake(self._look)
        if not events:
            events = poll(quiet_s if timeout_s is None else min(timeout_s, quiet_s))
        if events:
            self._quiet_s = self._stall_s
        elif timeout_s is None or timeout_s >= quiet_s:
            self._tell_stall()
        for fd, event in events:
            if fd == self._woken.fileno():
                with contextlib.suppress(BlockingIOError):  # read already, in a read within this
                    self._woken.recv(4096)
                continue
            if fd == self._signals.fileno():
                wake_main()
                continue
            line = self._lines.get(fd)
            if line is None:
                continue
            with self.lock:  # which keeps the order of what is heard, and its end, see `_gone`
                messages = self._receive(line) if event & ~WRITE else []
                if event & WRITE and line.outbox.flush():
                    self._flushing.discard(fd)
                    self._poll.modify(fd, READ)
                if messages is None:
                    self._hung_up(line)
                else:
                    self._hear(line, messages)
            if self.table.dropped or self.table.unpinned:
                self.settle()

    def _tell_stall(self) -> None:
        """Warn, once, if work waits for what nothing will free; nothing was heard for a while."""
        self._quiet_s = LONGEST_S  # until something is heard again
        with self.lock:
            found = describe_stall(self.tasks, self.actors)
        if found and found != self._told:
            self._told = found
            _logger.warning("%s", found)

    def _receive(self, line: Channel) -> list[Message] | None:
        """Return what a process has said since; None if nothing will come that makes sense."""
        try:
            return line.inbox.receive()
        except Exception as error:  # noqa: BLE001 (it concerns that process alone)
            self._refuse(line, error)
            return None

    def _hear(self, line: Channel, messages: Sequence[Message]) -> None:
        for message in messages:
            try:
                self._operations[message[0]](line.client, *message[1:])
            except Exception as error:  # noqa: BLE001 (as above)
                self._refuse(line, error)
                if not isinstance(line, WorkerProcess):
                    self._hung_up(line)  # it ends as it sees that; nothing more is heard of it
                    return

    def _refuse(self, line: Channel, error: Exception) -> None:
        """End a process whose message cannot be dealt with: what it does must not hang."""
        _logger.error("a message of a worker cannot be handled", exc_info=error)
        if isinstance(line, WorkerProcess):
            line.doomed = True
            self._kill(line)

    def _hung_up(self, line: Channel) -> None:
        self._unwatch(line)
        if not isinstance(line, WorkerProcess):  # whose end is told by the fork server
            line.gone = True
            left = bequest_of_attached(line.client, self.tasks, self.actors)
            self.hub.forget_client(line.client)
            end_orphans(left, self.tasks, self.actors)
            line.close()

    def _unwatch(self, line: Channel) -> None:
        fd = line.sock.fileno()
        if fd >= 0 and self._lines.pop(fd, None) is not None:
            self._flushing.discard(fd)
            self._poll.unregister(fd)

    def _interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def lose(self, workers: Sequence[WorkerProcess]) -> None:
        """Give no task to workers whose end is about to be told, one after the other."""

        def forget() -> None:
            for worker in workers:
                self.pool.forget(worker)

        self.hub.lock.later(forget)

    def _on_exit(self, worker: WorkerProcess, error: EngineError) -> None:
        """A worker's process has ended, or could not be started. On the reader's thread."""
        self.tap.drain(worker)
        self.hub.lock.later(lambda: self._gone(worker, error))

    def _gone(self, worker: WorkerProcess, error: EngineError) -> None:
        if worker.gone:
            return
        while (messages := self._receive(worker)) or worker.inbox.has_more:  # what it said last
            self._hear(worker, messages or ())
        worker.gone = True
        self._unwatch(worker)
        self.pool.forget(worker)
        if worker.node.node_id not in {node.node_id for node in self.tasks.ledger.alive()}:
            error = NodeDiedError(None, details=f"its node {worker.node.node_id} is gone")
        left = bequest_of(worker, self.tasks, self.actors)
        part = self.tasks if worker.actor is None else self.actors
        part.on_worker_gone(worker, error)
        self.hub.forget_client(worker.client)
        end_orphans(left, self.tasks, self.actors)
        worker.close()

    def settle_losses(self) -> None:
        with self.lock:
            settle_losses(self.tasks, self.actors, self._groups)

    def begin_close(self, why: str) -> None:
        """Take nothing more, and end all that waits."""
        # First: the end of the workers is not to be answered with new ones.
        self._closed = self.hub.lock.closed = True
        self.end_waits(lambda: EngineError(f"{why}; the results will not arrive"))

    def close(self) -> None:
        """End the session; its processes are gone already."""
        self._readers.close()
        self.tap.close()
        with self.lock:  # nobody is in there while it is taken apart
            for line in (*self.pool.all.values(), *self._lines.values()):
                line.close()
            self._poll.close()
            self._attach_socket.close()
            self._woken.close()
            self._wake.close()
            self.hub.store.close()
