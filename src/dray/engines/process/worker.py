"""The worker's side: a process that runs tasks, or the calls of one actor, and talks to the hub."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from dray import session
from dray.engines import actor_host, lifeline, threads, wire
from dray.engines.actor_host import EndOfForks, exit_status, is_intended
from dray.engines.listed import DynamicObjectRefGenerator
from dray.engines.process import packing, refs
from dray.engines.process.arena import Arena, DiskArena
from dray.engines.process.calls import ActorCalls
from dray.engines.process.conversation import Message
from dray.engines.process.frames import Inbox
from dray.engines.process.packing import RAISED, pack
from dray.engines.process.runtime import Awaited
from dray.engines.process.turns import Waiter
from dray.engines.process.worker_runtime import WorkerRuntime, running
from dray.errors import EngineError


class Worker:
    """Runs what the hub sends; the main thread runs tasks and the calls of plain actors.

    Args:
        sock: To the hub, for work and answers.
        control: To the fork server, for what must be heard during work.
        arena: The shared memory.
        disk: Where objects are that are not in memory.
    """

    def __init__(
        self, sock: socket.socket, control: socket.socket, arena: Arena, disk: DiskArena
    ) -> None:
        self._control = control
        self._sock = sock
        self._arena = arena
        self._disk = disk
        self._work: deque[Message] = deque()
        self._idle: Waiter | None = None
        self._kinds: dict[bytes, tuple[Any, Mapping[str, Any]]] = {}
        self._blobs: dict[bytes, tuple[Any, Mapping[str, Any]]] = {}
        self._current = 0
        self._cancelled = 0
        self._over = False
        self._status = 0
        self._threads = 0
        self._kept: Any = None  # what must live until its references are the hub's to hold
        self.calls: ActorCalls | None = None
        self.runtime: WorkerRuntime

    def serve(self) -> int:
        """Works until the hub says stop, or what it runs exits; returns the exit status."""
        inbox = Inbox(self._sock)
        messages: list[Message] = []
        while not messages:
            received = inbox.receive()
            if received is None:
                os._exit(0)
            messages = received
        begin = messages.pop(0)[1]
        actor_host.take_surroundings(begin["surroundings"])
        self.runtime = WorkerRuntime(
            self._sock, inbox, self._arena, self._disk, begin, self._take, may_pass_on=True
        )
        session.be_worker(lambda: self.runtime)
        signal.signal(signal.SIGINT, self._on_interrupt)
        threading.Thread(target=self._listen, name="dray-control", daemon=True).start()
        for message in messages:
            self._take(message)
        while not self._over:
            if self._work:
                self._do(self._work.popleft())
            else:
                self._rest()
        return self._status

    def _rest(self) -> None:
        if self.runtime.table.dropped or self.runtime.table.unpinned:
            self.runtime.settle()
        waiter = self._idle = Waiter()
        if not self._work:
            self.runtime.wait_for_work(waiter)
        self._idle = None

    def _take(self, message: Message) -> None:
        """Takes a message that is work, in whatever thread reads."""
        if message[0] == "call" and self.calls is not None and self.calls.take(message):
            return
        self._work.append(message)
        idle = self._idle
        if idle is not None:
            self.runtime.finish(idle)

    def _do(self, message: Message) -> None:
        kind = message[0]
        if kind == "run":
            self._run(*message[1:])
        elif kind == "call":
            self._call(message)
        elif kind == "kind":
            self._blobs[message[1]] = message[3:]
        elif kind == "make":
            self._make(*message[1:])
        elif kind == "stop":
            self._over = True

    # What runs.

    def kind(self, key: bytes) -> tuple[Any, Mapping[str, Any]]:
        """Returns a function or class, and what is known of it; computes with its threads."""
        found = self._kinds.get(key)
        _, info = found or self._blobs[key]
        if info["threads"] != self._threads:
            self._threads = info["threads"]
            threads.use(self._threads)
        if found is None:
            (data, buffers), _ = self._blobs[key]
            found = self._kinds[key] = packing.unpack(data, buffers), info
        return found

    def arguments(
        self, payload: Any, deps: Sequence[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of a task or call."""
        args, kwargs = self.runtime.load(payload)
        if deps:
            values = [self.runtime.load(dep) for dep in deps]
            args = tuple(values[a.index] if type(a) is Awaited else a for a in args)
            kwargs = {k: values[v.index] if type(v) is Awaited else v for k, v in kwargs.items()}
        return args, kwargs

    def _run(
        self,
        grant: Any,
        number: int,
        key: bytes,
        payload: Any,
        deps: Sequence[Any],
        returns: Any,
        details: Any,
    ) -> None:
        info: Mapping[str, Any] = {"name": "a task"}
        self._current = number
        devices, variables = grant or ({}, {})
        before = actor_host.set_variables(variables)
        try:
            if self._cancelled == number:
                raise KeyboardInterrupt
            function, info = self.kind(key)
            here = {"task_id": number, "task_name": info["name"], "devices": devices}
            running.set({**info, **here, "function": function})
            args, kwargs = self.arguments(payload, deps)
            with EndOfForks():
                value = function(*args, **kwargs)
                del args, kwargs
                unread = info["most_unread"]
                values = self.pack_results(value, returns, info["name"], number, unread)
            self._current = 0
        except SystemExit as error:  # as a crash: it is tried again, or fails
            self._current = 0
            self.leave(exit_status(error))
        except BaseException as error:  # noqa: BLE001 (all of it belongs to the caller)
            self._current = 0
            self.tell_error(number, error, f"task {info['name']}", info.get("retry_exceptions"))
        else:
            self.runtime.say("done", number, values)
            del value  # not before: references in it are the hub's to hold from now on
        finally:
            actor_host.set_variables(before)

    def pack_results(
        self, value: Any, returns: Any, name: str, number: int, most_unread: int = 0
    ) -> list[Any]:
        """Returns the payloads of what a task or call has returned."""
        if returns == 1:
            return [self._pack(value, name)]
        if returns == "stream":
            for index, item in enumerate(value):
                self.send_item(number, index, item, name)
                self.keep_pace(number, index, most_unread)
            return [self._pack(None, name)]
        if returns == "dynamic":
            self._kept = [self.runtime.put(item) for item in value]
            return [self._pack(DynamicObjectRefGenerator(self._kept), name)]
        if returns == 0:
            return []
        several = isinstance(value, list | tuple) or inspect.isgenerator(value)
        values = list(value) if several else [value]
        if len(values) != returns:
            raise ValueError(f"{name} returned {len(values)} values, but num_returns is {returns}")
        return [self._pack(item, name) for item in values]

    def send_item(self, number: int, index: int, item: Any, name: str) -> None:
        """Sends what a generator has yielded."""
        payload, nested = self._pack(item, name)
        self.runtime.say("item", number, index, next(self.runtime._ids), payload, nested)

    def keep_pace(self, number: int, index: int, most_unread: int) -> None:
        """Waits until a stream's reader is near enough."""
        if most_unread and index + 1 >= most_unread:
            self.runtime.await_answer("pace", number, index + 1 - most_unread)

    def _pack(self, value: Any, name: str) -> tuple[Any, Sequence[int]]:
        packed = pack(value, f"the return value of {name}")
        return self.runtime.store(packed), packed.refs

    def tell_error(
        self, number: int, error: BaseException, where: str, retried: Any, word: str = "raised"
    ) -> None:
        """Tells the hub what a task or call has raised."""
        payload = (
            RAISED,
            wire.dump_error(error, actor_host.users_part(error)),
            f"{where} (pid {os.getpid()}, node {self.runtime._begin['node_id']})",
        )
        retried = packing.types_of(retried)
        retriable = retried is True or (bool(retried) and isinstance(error, tuple(retried)))
        retriable = retriable and isinstance(error, Exception)
        self.runtime.say(word, number, payload, *([retriable] if word == "raised" else []))

    def _make(
        self,
        details: tuple[Any, ...],
        number: int,
        key: bytes,
        payload: Any,
        deps: Sequence[Any],
        returns: Any,
        nothing: Any,
    ) -> None:
        """Makes the actor that lives in this process."""
        info: Mapping[str, Any] = {"name": "an actor"}
        try:
            name, was_restarted, *_, grant = details
            devices, variables = grant or ({}, {})
            actor_host.set_variables(variables)
            kind, info = self.kind(key)
            around = {
                **info,
                "devices": devices,
                "actor": number,
                "actor_name": name,
                "was_restarted": was_restarted,
            }
            running.set(around)
            self.calls = ActorCalls(self, kind, around, details, running)
            args, kwargs = self.arguments(payload, deps)
            self.runtime.may_be_interrupted = self.calls.has_threads
            self.calls.make(args, kwargs)
        except SystemExit as error:
            if is_intended(error):
                self.runtime.say("exiting", number)
            self.leave(exit_status(error))
        except BaseException as error:  # noqa: BLE001 (it belongs to whoever made it)
            self.calls = None
            self.tell_error(number, error, f"actor {info['name']}.__init__", None, "unmade")
        else:
            self.runtime.say("made", number)

    def _call(self, message: Message) -> None:
        assert self.calls is not None
        self.calls.run(message)

    def leave(self, status: int = 0) -> None:
        """Ends the process after what runs now."""
        self._over, self._status = True, status
        idle = self._idle
        if idle is not None:
            self.runtime.finish(idle)

    # What is heard during work.

    def _listen(self) -> None:
        size = wire.CANCELLED.size
        with contextlib.suppress(OSError):
            while len(data := self._control.recv(size, socket.MSG_WAITALL)) == size:
                (number,) = wire.CANCELLED.unpack(data)
                self._cancel(number)
                self.runtime.say("heard", number)
        if not self._over:
            lifeline.end_with_family()

    def _cancel(self, number: int) -> None:
        if self.calls is not None:
            self.calls.cancel(number)
        else:
            self._cancelled = number
            if self._current != number:
                return  # it has ended, or has not begun: then it never will
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _on_interrupt(self, signum: int, frame: Any) -> None:
        """Ends the task that is to be cancelled, unless it has ended just before."""
        if self._cancelled and self._cancelled == self._current:
            self._cancelled = 0
            raise KeyboardInterrupt


def run(control: int, fds: Sequence[int]) -> None:
    """Runs a worker process to its end; never returns.

    Args:
        control: The socket on which it hears of what is cancelled, and of its server's end.
        fds: Its socket for work, the shared memory and the disk's file.
    """

    def serve() -> int:
        sock, arena, disk = fds
        size = os.fstat(arena).st_size
        return Worker(
            socket.socket(fileno=sock),
            socket.socket(fileno=control),
            Arena(arena, size),
            DiskArena(disk),
        ).serve()

    actor_host.run_to_end(serve)


def be_guest(door: socket.socket) -> None:
    """Lets a training worker use tasks, actors and objects of its session, once it wants to.

    Args:
        door: A socket at which the driver listens.
    """
    session.be_worker(lambda: _join(door))
    refs.settle_in_later(session.current_runtime)


def _join(door: socket.socket) -> WorkerRuntime:
    door.sendall(b"?")
    _, fds, _, _ = socket.recv_fds(door, 1, 2)
    if not fds:
        raise EngineError(
            "tasks, actors and objects are not available here: a training within the train "
            "function of another one has no way to the driver; use them in the outer one"
        )
    arena, disk = fds
    inbox = Inbox(door)
    messages: list[tuple[Any, ...]] = []
    while not messages:
        messages = inbox.receive() or []
    size = os.fstat(arena).st_size
    runtime = WorkerRuntime(
        door, inbox, Arena(arena, size), DiskArena(disk), messages[0][1], lambda message: None
    )
    runtime.may_be_interrupted = True  # the user's threads come and go
    return runtime
