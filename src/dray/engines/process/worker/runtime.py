"""A worker's half of the conversation with the hub, over a socket."""

from __future__ import annotations

import contextlib
import contextvars
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dray import host, session
from dray.engines.process.attach_socket import leave
from dray.engines.process.client.runtime import ProcessRuntime
from dray.engines.process.leader_follower import AdaptiveSpin, LeaderFollowers, Waiter
from dray.engines.process.objects.shared_memory import Arena, SpillFile
from dray.engines.rpc import lifeline
from dray.engines.rpc.framing import Inbox, Message, encode
from dray.engines.runtime import (
    Args,
    ExecutionContext,
    Function,
    Kwargs,
    Returned,
    Submit,
    TaskOptions,
    own_name,
)
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import EngineError

# The task or call that runs in this thread or coroutine.
running: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar("dray-task")


class WorkerRuntime(ProcessRuntime):
    """A worker's half of the conversation with the hub, over a socket."""

    def __init__(
        self,
        sock: socket.socket,
        inbox: Inbox,
        arena: Arena,
        disk: SpillFile,
        begin: Mapping[str, Any],
        on_work: Callable[[Message], None],
        attaching: socket.socket | None = None,
    ) -> None:
        self._sock = sock
        self._attaching = attaching
        self._inbox = inbox
        self.arena = arena
        self.disk = disk
        self._begin = begin
        self._on_work = on_work
        self._spin = AdaptiveSpin(host.cpu_count())
        # Whether another thread may want to end the main thread's waiting.
        self.may_be_interrupted = False
        # What there is where no task or call runs, as in an actor's threads.
        self.around = begin
        # Tasks and calls that were cancelled, and have not ended.
        self.cancelled: set[int] = set()
        self._idle = False
        self._received: deque[Message] = deque()
        self._arrival = select.poll()
        self._arrival.register(sock, select.POLLIN)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._waker, self._wake = os.pipe()
        self._poll.register(self._waker, select.POLLIN)
        turns = LeaderFollowers(self.read, self._interrupt)
        super().__init__(begin["number"], begin["job_id"], turns)

    def here(self) -> Mapping[str, Any]:
        return running.get(self.around)

    def bind_function(self, function: Function, options: TaskOptions) -> Submit:
        bind = super().bind_function
        bound: tuple[object, Submit] | None = None

        def submit(args: Args, kwargs: Kwargs) -> Returned:
            """Submit a task; a worker serves tasks that pass on other things to what they start."""
            nonlocal bound
            current, passed_on = bound, self.passed_on()
            if current is None or current[0] != passed_on:
                current = bound = passed_on, bind(function, options)
            return current[1](args, kwargs)

        return submit

    def post(self, message: Message) -> None:
        data = encode(message)
        try:
            self._sock.sendall(data)
        except OSError:  # the driver is gone, and with it the reason to live
            lifeline.end_with_family()

    def refuse_forks(self) -> None:
        session.refuse_forks(self._pid)

    def read(self, timeout_s: float | None) -> None:
        """Wait for something from the hub, and deal with it."""
        if self._received:  # within what was received before
            self._deal()
            return
        undisturbed = timeout_s is None and not self.may_be_interrupted
        messages = self._spin.awake(self._look) if undisturbed else None
        if not messages and undisturbed and self._idle:
            # Not in `recv`, which the driver's reading of what this one has sent wakes up as well.
            self._arrival.poll()
            messages = self._inbox.receive()
        elif not messages:
            messages = self._sleep(timeout_s)
        if messages is None:
            lifeline.end_with_family()
        self._received += messages or ()
        self._deal()

    def _look(self) -> list[Message] | None:
        return self._inbox.receive(socket.MSG_DONTWAIT)

    def _sleep(self, timeout_s: float | None) -> list[Message] | None:
        """Sleep until something comes from the hub, or another thread wants this one to look up."""
        ready = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        if any(fd == self._waker for fd, _ in ready):
            os.read(self._waker, 4096)
        return self._look() if any(fd == self._sock.fileno() for fd, _ in ready) else []

    def _deal(self) -> None:
        """Deal with what has been heard, in its order also where that waits and reads on."""
        while self._received:
            message = self._received.popleft()
            if message[0] == "answer":
                self.answered(message[1], message[2])
            else:
                self._on_work(message)

    def _interrupt(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\0")

    def read_for_work(self, work: Collection[Message]) -> bool:
        """Read, if this thread alone does, until something has come; return whether it did."""
        self._idle = True  # nothing runs that a signal might have to interrupt
        try:
            return not self.may_be_interrupted and self._readers.read_for(work)
        finally:
            self._idle = False

    def wait_for_work(self, waiter: Waiter) -> None:
        """Wait until there is work, or perhaps not yet, while other threads read."""
        self._idle = True
        try:
            self._readers.wait(waiter)
        finally:
            self._idle = False

    def finish(self, waiter: Waiter) -> None:
        self._readers.finish(waiter)

    def pass_on(self, sock: socket.socket, node_id: str, around: Mapping[str, Any]) -> None:
        """Tell the driver of a training worker of this process that wants to use tasks and actors.

        Raises:
            EngineError: The driver is not to be reached from here.
        """
        if self._attaching is None:
            raise EngineError("a training within a training cannot reach the driver")
        leave(self._attaching, self._begin["number"], sock)
        self.say("attach", node_id, around)
        sock.close()

    def is_cancelled(self) -> bool:
        return self.here().get("task_id") in self.cancelled

    def execution_context(self) -> ExecutionContext:
        here = self.here()
        group = here.get("group")
        task_id, actor = here.get("task_id"), here.get("actor")
        function, name = here.get("function"), here.get("task_name")
        job = RuntimeEnv.parse(self._begin.get("runtime_env", {}), "it")
        own = here.get("runtime_env", {})
        return ExecutionContext(
            job_id=self._begin["job_id"],
            node_id=self._begin["node_id"],
            worker_id=f"{self._begin['number']:08x}",
            namespace=self._begin["namespace"],
            task_id=None if task_id is None else f"{task_id:032x}",
            task_name=name if function != name or not name else _short_name(here["name"], name),
            actor_id=here.get("actor_id") if actor is None else f"{actor:032x}",
            actor_name=here.get("actor_name"),
            resources=here.get("resources", {}),
            group=None if group is None else self.group_of(group),
            captures=bool(here.get("captures")),
            was_restarted=bool(here.get("was_restarted")),
            runtime_env=(job | RuntimeEnv.parse(own, "it")).as_dict(),
            accelerator_ids=here.get("devices", {}),
            task_function=_name_of(function, here.get("name")),
        )


def _short_name(kind: str, method: str) -> str:
    """Return the name of a call that has no other: its class's own, and its method's."""
    return f"{kind.rpartition('.')[2]}.{method}"


def _name_of(function: Any, title: Any) -> str | None:
    """Return the name of a task's function in its module, or of a method in its actor's class."""
    if isinstance(function, str):
        return f"{title}.{function}"
    if function is None:
        return None
    module = getattr(function, "__module__", None)
    return f"{module}.{own_name(function)}" if module else own_name(function)
