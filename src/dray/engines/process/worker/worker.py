"""The worker's side: a process that runs tasks, or the calls of one actor, and talks to the hub."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from dray import session
from dray.engines import thread_limits
from dray.engines.launch.learned_imports import IF_REPEATED, Teller
from dray.engines.process.leader_follower import Waiter
from dray.engines.process.objects import references
from dray.engines.process.objects.shared_memory import Arena, SpillFile
from dray.engines.process.worker.actor_calls import ActorCalls
from dray.engines.process.worker.results import Results
from dray.engines.process.worker.runtime import WorkerRuntime, running
from dray.engines.rpc import actor_host, lifeline, serialization, wire
from dray.engines.rpc.actor_host import ExitForkedChildren, exit_status, is_intended
from dray.engines.rpc.framing import Inbox, Message
from dray.engines.rpc.serialization import Payload
from dray.engines.rpc.sockets import socket_of
from dray.engines.runtime import ReturnCount
from dray.errors import EngineError
from dray.interrupts import LOST_S

if TYPE_CHECKING:
    from dray.engines.process.hub.records import Grant


class TaskWorker:
    """Runs what the hub sends; the main thread runs tasks and the calls of plain actors.

    Args:
        sock: To the hub, for work and answers.
        control: To the fork server, for what must be heard during work.
        attaching: To the driver, for sockets of training workers.
    """

    def __init__(
        self,
        sock: socket.socket,
        control: socket.socket,
        arena: Arena,
        disk: SpillFile,
        attaching: socket.socket,
    ) -> None:
        self._control = control
        self._sock = sock
        self._arena = arena
        self._disk = disk
        self._attaching = attaching
        self._imports = Teller(control.fileno(), IF_REPEATED)
        self._work: deque[Message] = deque()
        self._idle: Waiter | None = None
        self._kinds: dict[bytes, tuple[Any, Mapping[str, Any]]] = {}
        self._blobs: dict[bytes, tuple[Any, Mapping[str, Any]]] = {}
        self._current = 0
        self._cancelled = 0
        self._beginning = threading.Lock()
        self._begun = 0  # the number of the latest dispatch that was reached
        self._recalled: set[int] = set()  # dispatches beyond it that are not to begin
        self._over = False
        self._status = 0
        self._threads = 0
        self.calls: ActorCalls | None = None
        self.runtime: WorkerRuntime
        self._results: Results

    def serve(self) -> int:
        """Work until the hub says stop, or what it runs exits; return the exit status."""
        inbox = Inbox(self._sock)
        messages = _first(inbox)
        begin = messages.pop(0)[1]
        actor_host.enter_environment(begin["environment"])
        self.runtime = WorkerRuntime(
            self._sock, inbox, self._arena, self._disk, begin, self._take, self._attaching
        )
        self._results = Results(self.runtime)
        session.enter_worker(lambda: self.runtime)
        signal.signal(signal.SIGINT, self._on_interrupt)
        threading.Thread(target=self._listen, name="dray-control", daemon=True).start()
        for message in messages:
            self._take(message)
        while not self._over:
            if self._work:
                self._do(self._work.popleft())
                self._imports.look()
            else:
                self._rest()
        if self.calls is not None:
            self.calls.end()
        return self._status

    def _rest(self) -> None:
        if self.runtime.table.dropped or self.runtime.table.unpinned:
            self.runtime.settle()
        if self.runtime.read_for_work(self._work):
            return
        waiter = self._idle = Waiter()
        if not self._work and not self._over:  # another thread may have ended it meanwhile
            self.runtime.wait_for_work(waiter)
        self._idle = None

    def _take(self, message: Message) -> None:
        """Take a message that is work, in whatever thread reads."""
        if message[0] == "call" and self.calls is not None and self.calls.take(message):
            return
        self._work.append(message)
        idle, self._idle = self._idle, None
        if idle is not None:
            self.runtime.finish(idle)

    def _do(self, message: Message) -> None:
        kind = message[0]
        if kind == "run":
            if self._begins():
                self._run(*message[1:])
        elif kind == "call":
            assert self.calls is not None
            self.calls.run(message)
        elif kind == "kind":
            self._blobs[message[1]] = message[3:]
        elif kind == "forget":
            for key in message[1]:
                del self._blobs[key]
                self._kinds.pop(key, None)
        elif kind == "make":
            self._make(*message[1:])
        elif kind == "stop" and self.calls is not None:
            self.calls.exit()
        elif kind == "stop":
            self._over = True

    def _begins(self) -> bool:
        """Reach the next task; return whether it is not recalled."""
        with self._beginning:
            self._begun += 1
            if self._begun in self._recalled:
                self._recalled.discard(self._begun)
                return False
        return True

    # What runs.

    def kind(self, key: bytes) -> tuple[Any, Mapping[str, Any]]:
        """Return a function or class, and what is known of it; compute with its threads."""
        found = self._kinds.get(key)
        _, info = found or self._blobs[key]
        if info["threads"] != self._threads:
            self._threads = info["threads"]
            thread_limits.use(self._threads)
        if found is None:
            (data, buffers), _ = self._blobs[key]
            found = self._kinds[key] = serialization.unpack(data, buffers), info
        return found

    def _run(
        self,
        grant: Grant | None,
        number: int,
        key: bytes,
        payload: Payload,
        deps: Sequence[Payload],
        returns: ReturnCount,
        details: Any,
    ) -> None:
        _, info = self._blobs[key]
        self._current = number
        devices, variables = grant or ({}, {})
        before = actor_host.set_variables(variables)
        unread = [payload, *deps]
        try:
            if self._cancelled == number:
                raise KeyboardInterrupt
            function, info = self.kind(key)
            here = {"task_id": number, "task_name": info["name"], "devices": devices}
            running.set({**info, **here, "function": function, "began": time.time()})
            self._results.output.begin(info["name"])
            args, kwargs = self._results.arguments(unread)
            with ExitForkedChildren():
                value = function(*args, **kwargs)
                del args, kwargs
                values = self._results.pack_results(
                    value, returns, info["name"], number, info["most_unread"]
                )
            self._current = 0
        except SystemExit as error:  # as a crash: it is tried again, or fails
            self._current = 0
            self.leave(exit_status(error))
        except BaseException as error:  # noqa: BLE001 (all of it belongs to the caller)
            self._current = 0
            self._results.tell_error(
                number, error, f"task {info['name']}", info.get("retry_exceptions")
            )
        else:
            self._results.tell_results(number, values)
            del value  # not before: references in it are the hub's to hold from now on
        finally:
            actor_host.set_variables(before)
            if unread:
                self.runtime.return_unread(unread)

    def _make(
        self,
        details: tuple[Any, ...],
        number: int,
        key: bytes,
        payload: Payload,
        deps: Sequence[Payload],
        returns: ReturnCount,
        nothing: None,
    ) -> None:
        _, info = self._blobs[key]
        try:
            name, was_restarted, *_, methods, grant = details
            devices, variables = grant or ({}, {})
            actor_host.set_variables(variables)
            kind, info = self.kind(key)
            around = {
                **info,
                "devices": devices,
                "actor": number,
                "actor_name": name,
                "methods": methods,
                "was_restarted": was_restarted,
            }
            running.set(around)
            self.runtime.around = around
            self.calls = ActorCalls(self._results, self.leave, kind, around, details)
            self.runtime.on_exit = self.calls.exit
            args, kwargs = self._results.arguments([payload, *deps])
            self.runtime.may_be_interrupted = self.calls.has_threads
            self.calls.make(args, kwargs)
        except SystemExit as error:
            if is_intended(error):
                self.runtime.say("exiting", number)
            self.leave(exit_status(error))
        except BaseException as error:  # noqa: BLE001 (it belongs to whoever made it)
            self.calls = None
            self._results.tell_error(
                number, error, f"actor {info['name']}.__init__", None, "unmade"
            )
        else:
            self._results.output.end()
            self.runtime.say("made", number)

    def leave(self, status: int = 0) -> None:
        """End the process after what runs now."""
        self._over, self._status = True, status
        idle = self._idle
        if idle is not None:
            self.runtime.finish(idle)

    # What is heard during work.

    def _listen(self) -> None:
        size = wire.CANCELLED.size
        with contextlib.suppress(OSError):
            while len(data := self._heard(size)) == size:
                (number,) = wire.CANCELLED.unpack(data)
                if number & wire.RECALLED:
                    self._recall(number ^ wire.RECALLED)
                else:
                    self._cancel(number)
                    self.runtime.say("cancel_acknowledged", number)
        if not self._over:
            lifeline.end_with_family()

    def _heard(self, size: int) -> bytes:
        """Wait for a message; send a signal meanwhile once more that the task has not heard."""
        arrival = select.poll()
        arrival.register(self._control, select.POLLIN)
        while not arrival.poll(1000 * LOST_S if self._is_cancelling() else None):
            if self._is_cancelling():
                self._send_interrupt()
        return self._control.recv(size, socket.MSG_WAITALL)

    def _is_cancelling(self) -> bool:
        return 0 != self._cancelled == self._current

    def _recall(self, dispatch: int) -> None:
        with self._beginning:  # until it is said, so that nothing is heard before of what follows
            if given_back := dispatch > self._begun:
                self._recalled.add(dispatch)
            self.runtime.say("recalled", dispatch, given_back)

    def _cancel(self, number: int) -> None:
        if self.calls is not None:
            self.calls.cancel(number)
        else:
            self._cancelled = number
            if self._current != number:
                return  # it has ended, or has not begun: then it never will
            self.runtime.cancelled.add(number)
            self._send_interrupt()

    def _send_interrupt(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _on_interrupt(self, signum: int, frame: object) -> None:
        """End the task that is to be cancelled, unless it has ended just before."""
        if self._cancelled and self._cancelled == self._current:
            self._cancelled = 0
            raise KeyboardInterrupt


def run(control: int, fds: Sequence[int]) -> NoReturn:
    """Run a worker process to its end.

    Args:
        control: The socket on which it hears of what is cancelled, and of its server's end.
        fds: Its socket for work, the shared memory, the disk's file and the attach socket.
    """

    def serve() -> int:
        sock, arena, disk, far = fds
        work, cancelled, attaching = map(socket_of, (sock, control, far))
        return TaskWorker(work, cancelled, Arena(arena), SpillFile(disk), attaching).serve()

    actor_host.run_to_end(serve, waits_for_children=False)


def attach_when_used(sock: socket.socket) -> None:
    """Let a training worker use tasks, actors and objects of its session, once it wants to.

    Args:
        sock: A socket at which the driver listens.
    """
    session.enter_worker(lambda: _attach(sock))
    references.set_runtime_factory(session.current_runtime)


def _first(inbox: Inbox) -> list[Message]:
    """Return the first messages of the hub; end without a driver that sends them."""
    while not (messages := inbox.receive()):
        if messages is None:
            lifeline.end_with_family()
    return messages


def _attach(sock: socket.socket) -> WorkerRuntime:
    sock.sendall(b"?")
    _, fds, _, _ = socket.recv_fds(sock, 1, 2)
    if not fds:
        raise EngineError(
            "tasks, actors and objects are not available here: a training within the train "
            "function of another one cannot reach the driver; use them in the outer one"
        )
    arena, disk = fds
    inbox = Inbox(sock)
    _, begin = _first(inbox)[0]
    runtime = WorkerRuntime(sock, inbox, Arena(arena), SpillFile(disk), begin, lambda message: None)
    runtime.may_be_interrupted = True  # the user's threads come and go
    pid = os.getpid()
    # Whoever is killed says nothing, so that what it has submitted ends with it.
    atexit.register(lambda: runtime.say("leave") if os.getpid() == pid else None)
    return runtime
