"""The agent of a session on one node: an actor of Ray's that forks the session's training workers.

It holds no resources, and has a fork server that has imported the modules of the workers. A worker
talks to the driver over a connection of its own, which the agent has opened. The agent forwards the
worker's output and reports its end.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ray

from dray.accelerators import families
from dray.engines.launch.server import Basis, Server, Servers
from dray.engines.launch.system_limits import MemoryWatch, OpenFiles
from dray.engines.ray.workers import driver_environment
from dray.engines.ray.workers.worker_channel import DriverAddress, Hello, call
from dray.engines.rpc import lifeline
from dray.engines.rpc.io_thread import Reader
from dray.engines.rpc.output_pipe import OutputPipe
from dray.errors import EngineError, text_of
from dray.scheduling.requests import Node

# The module of its workers.
_ENTRY = "dray.engines.ray.workers.forked_worker"


class Ready(NamedTuple):
    """An agent's first word.

    Attributes:
        inherited: Of the driver's variables those that the node does not set itself.
        hidden: The variables by which Ray hides devices from who has asked for none.
        runtime_env: The runtime environment as Ray has made it.
    """

    inherited: tuple[str, ...]
    hidden: Mapping[str, str]
    runtime_env: Mapping[str, Any]


class Forked(NamedTuple):
    """A worker's process is there."""

    number: int
    pid: int


class Failed(NamedTuple):
    """A worker's process could not be started."""

    number: int
    why: str


class Printed(NamedTuple):
    """A worker wrote to its standard output or error."""

    number: int
    stream: str
    data: bytes


class Exited(NamedTuple):
    """A worker's process has ended, and what it started with it.

    Attributes:
        status: As `subprocess` has it; None if nobody knows.
        killed: Whether the driver has asked for it.
        starved: Whether the system has killed it for want of memory.
    """

    number: int
    status: int | None
    killed: bool
    starved: bool


class _Child:
    """One worker, as its agent knows it."""

    def __init__(self, number: int, agent: Agent) -> None:
        self.number = number
        self.pid: int | None = None
        self.outputs: list[OutputPipe] = []
        self._agent = agent
        self._memory = MemoryWatch()

    def on_start(self, pid: int, node: Node) -> None:
        self.pid = pid
        self._agent.tell(Forked(self.number, pid))

    def on_exit(self, exitcode: int | None, killed: bool) -> None:
        starved = self._memory.was_starved(exitcode, killed)
        self._agent.drain(self)
        self._agent.tell(Exited(self.number, exitcode, killed, starved))

    def on_failure(self, error: EngineError) -> None:
        self._agent.drain(self)
        self._agent.tell(Failed(self.number, text_of(error)))


class Agent:
    """Lives in an actor of Ray's, one on each node that a session uses.

    Args:
        modules: Modules that the first workers will need.
        variables: The driver's environment variables, as far as they mean something here.
    """

    def __init__(
        self,
        post: Callable[[object], None],
        *,
        modules: Sequence[str],
        variables: Mapping[str, str],
    ) -> None:
        self.tell = post
        hidden = driver_environment.drop_guesses(
            name for family in families() for name in family.variables
        )
        self._inherited = {n: v for n, v in variables.items() if n not in os.environ}
        self._open_files = OpenFiles()
        self._node = Node("", "", {})
        self._reader = Reader(lifeline.end_with_family)
        self._servers = Servers(self._start, self._reader, lambda *_: True, lambda server: None)
        self._reader.start()
        environment = dict(ray.get_runtime_context().runtime_env)
        self.tell(Ready(tuple(self._inherited), hidden, environment))
        self.prepare(modules)

    # Signals, on the control thread.

    def prepare(self, modules: Sequence[str]) -> None:
        """Begin to import what workers will need."""
        self._server(tuple(modules))

    def fork(
        self, number: int, driver: DriverAddress, modules: Sequence[str], learned: bool
    ) -> None:
        """Start a worker, which calls the driver.

        Args:
            learned: Whether it may have what earlier workers have imported.
        """
        child = _Child(number, self)
        try:
            with contextlib.ExitStack() as theirs:
                fds = self._open(child, driver, theirs)
                server = self._server(tuple(modules))
                server.fork(child, self._node, fds, learned=learned)
        except (EngineError, OSError) as error:
            failure = EngineError(text_of(error))
            self._reader.run(lambda: child.on_failure(failure))

    def kill(self, number: int) -> None:
        for server in self._servers.of(number):
            server.kill(number)

    def close(self) -> None:
        self._reader.stop()
        for server in self._servers.close():
            server.close()
        self._reader.close()

    def _open(
        self, child: _Child, driver: DriverAddress, theirs: contextlib.ExitStack
    ) -> Sequence[int]:
        """Return the descriptors of a worker: two pipes, and a connection to the driver."""
        far: list[int] = []
        for stream in ("stdout", "stderr"):
            here, there = os.pipe()
            theirs.callback(os.close, there)
            take = functools.partial(self._relay, child.number, stream)
            output = OutputPipe(self._reader, here, take, lambda: None)
            child.outputs.append(output)
            output.watch()
            far.append(there)
        connection = call(driver, Hello(driver.number, "wire", 0, "", "", {}))
        theirs.callback(connection.close)
        self._open_files.make_room(connection.fileno())
        return (*far, connection.fileno())

    def _server(self, modules: tuple[str, ...]) -> Server:
        """Return a fork server that has modules, and start it if there is none."""
        basis = Basis(modules, tuple(sorted(self._inherited.items())))
        return self._servers.get(basis)

    def _start(self, basis: Basis) -> Server:
        return Server(basis, _ENTRY, "fork", False, self._open_files, self._reader.run)

    # On the reader thread.

    def _relay(self, number: int, stream: str, data: bytes) -> None:
        """Pass on a piece of what a worker has printed."""
        if data:
            self.tell(Printed(number, stream, data))

    def drain(self, child: _Child) -> None:
        """Pass on the last words of a worker, and close its pipes."""
        for output in child.outputs:
            output.finish()
