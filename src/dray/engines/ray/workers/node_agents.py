"""The driver's end of its agents: one on each node until the session ends, and their workers."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from dray.engines.base import ActorFactory, Died, Mailbox, Output, Posted, Started
from dray.engines.ray.bundles import PlacedBundles
from dray.engines.ray.workers import driver_environment
from dray.engines.ray.workers.agent import Agent, Exited, Failed, Forked, Printed, Ready
from dray.engines.ray.workers.forked_worker import Entry, Membership
from dray.engines.ray.workers.training_actor import RayActor, own_descriptor
from dray.engines.ray.workers.worker_channel import DriverAddress, Hello
from dray.engines.rpc import wire
from dray.engines.rpc.io_thread import Reader
from dray.engines.rpc.remote_actor import RemoteActor
from dray.engines.rpc.sockets import socket_of
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import EngineError, NodeDiedError, OutOfMemoryError, WorkerDiedError

# Within which what a worker has said last comes, after its end.
_LAST_WORDS_S = 1.0
# For how long `close` waits for the ends of workers that it has killed.
_PATIENCE_S = 5.0
# Fields of an environment that need a process that Ray itself has started.
_RAYS_OWN = (
    *("container", "image_uri", "py_executable", "worker_process_setup_hook"),
    *("nsight", "_nsight", "rocprof-sys", "_rocprof_sys"),
)


class ForkedActor(RemoteActor):
    """An actor whose process is a fork of its node's agent.

    Args:
        devices: The ids of the devices that it holds, by resource name.
        on_over: Called when its end is known.
    """

    def __init__(
        self,
        number: int,
        name: str,
        mailbox: Mailbox,
        reader: Reader,
        agent: NodeAgent,
        devices: Mapping[str, Sequence[str]],
        on_over: Callable[[ForkedActor], object],
    ) -> None:
        super().__init__(number, name, mailbox, reader)
        self._agent = agent
        self._on_over = on_over
        self._devices = devices
        self._hung_up = False
        self._end: tuple[EngineError, bool] | None = None
        self._timer: threading.Timer | None = None
        self.over = threading.Event()

    def kill(self) -> None:
        self._agent.kill(self)

    # On the reader thread.

    def on_hello(self, hello: Hello, connection: Connection) -> None:
        """Take the connection that the agent has opened for it."""
        if self.over.is_set():
            connection.close()
        else:
            self.attach(socket_of(own_descriptor(connection)))

    def on_start(self, pid: int) -> None:
        self.pid = pid
        self.mailbox.put(Started(self, *self._agent.place, self._devices))

    def on_hangup(self) -> None:
        self._hung_up = True
        self._tell_end()

    def on_exit(self, exited: Exited) -> None:
        """Take note of the process's end, of which its connection may tell later."""
        _, status, killed, starved = exited
        self._end = self.death_of(status, killed=killed, starved=starved)
        if self._hung_up:
            self._tell_end()
            return
        self._timer = threading.Timer(_LAST_WORDS_S, lambda: self._reader.run(self._tell_end))
        self._timer.daemon = True
        self._timer.start()

    def _tell_end(self) -> None:
        if self._end is not None and not self.over.is_set():
            error, expected = self._end
            self.on_death(error, expected=expected)

    def on_death(self, error: EngineError, *, expected: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._agent.forget(self)
        self._on_over(self)
        super().on_death(error, expected=expected)
        self.over.set()


class NodeAgent:
    """The agent of this session on one node; the mailbox of its actor.

    Args:
        membership: Way of its workers into the cluster, but for what each is there.
        isolate: Calls something that may raise what concerns nobody else.
    """

    def __init__(
        self, membership: Membership, isolate: Callable[[Callable[[], object]], object]
    ) -> None:
        self.place = ("", "")
        self.variables = driver_environment.portable(os.environ)
        self.link: RayActor
        self.over = False
        self._membership = membership
        self._isolate = isolate
        self._lock = threading.RLock()
        self._ready: Ready | None = None
        self._waiting: dict[int, Callable[[], object]] = {}
        self._actors: dict[int, ForkedActor] = {}

    @property
    def is_idle(self) -> bool:
        return not self._actors

    def fork(
        self,
        actor: ForkedActor,
        begin: wire.Begin,
        driver: DriverAddress,
        modules: Sequence[str],
        reservation: PlacedBundles,
        bundle: int,
        directory: str | None,
    ) -> None:
        """Ask for a worker.

        Args:
            actor: Hears what becomes of it.
            directory: Working directory, if one was asked for.

        Raises:
            EngineError: The agent is gone.
        """
        learned = begin.environment == self.variables

        def ask() -> None:
            ready = self._ready
            assert ready is not None
            devices, variables = reservation.shown[bundle]
            membership = self._membership._replace(
                runtime_env=ready.runtime_env,
                actor_id=os.urandom(16).hex(),
                resources=reservation.bundles[bundle],
                devices=devices,
                group=reservation.group.id.hex(),
            )
            shown = {**ready.hidden, **variables}
            own = ready.runtime_env.get("env_vars") or {}
            entry = Entry(membership, ready.inherited, shown, own, directory)
            actor.begin(begin._replace(enter=entry.enter))
            self.link.signal("fork", actor.number, driver, tuple(modules), learned)

        with self._lock:
            if self.over:
                raise EngineError("dray's agent on the node is gone")
            self._actors[actor.number] = actor
            if self._ready is None:
                self._waiting[actor.number] = ask
            else:
                ask()

    def kill(self, actor: ForkedActor) -> None:
        with self._lock:
            unasked = self._waiting.pop(actor.number, None)
        if unasked is None:
            self.link.signal("kill", actor.number)
        else:
            actor._reader.run(
                lambda: actor.on_exit(Exited(actor.number, None, killed=True, starved=False))
            )

    def wait_until_idle(self, deadline: float) -> None:
        """Wait until its workers have ended, but not for longer than that."""
        with self._lock:
            actors = list(self._actors.values())
        for actor in actors:
            actor.over.wait(max(0.0, deadline - time.monotonic()))

    def forget(self, actor: ForkedActor) -> None:
        with self._lock:
            self._actors.pop(actor.number, None)

    # On the reader thread.

    def put(self, event: object) -> None:
        if isinstance(event, Started):
            self.place = (event.node_id, event.address)
        elif isinstance(event, Posted):
            self._hear(event.message)
        elif isinstance(event, Died):
            self._bury(event)

    def _hear(self, message: object) -> None:
        if isinstance(message, Ready):
            with self._lock:
                self._ready = message
                waiting, self._waiting = self._waiting, {}
                for ask in waiting.values():
                    self._isolate(ask)
            return
        assert isinstance(message, Forked | Failed | Printed | Exited)
        actor = self._actors.get(message.number)
        if actor is None:
            return
        if isinstance(message, Forked):
            actor.on_start(message.pid)
        elif isinstance(message, Printed):
            actor.mailbox.put(Output(actor, message.stream, message.data))
        elif isinstance(message, Exited):
            actor.on_exit(message)
        else:
            actor.on_death(EngineError(message.why), expected=False)

    def _bury(self, end: Died) -> None:
        """Have its workers die with it: they see that their connections close."""
        with self._lock:
            self.over = True
            self._waiting.clear()
            actors = list(self._actors.values())
        error = self._cause(end.error)
        for actor in actors:
            actor.on_death(error, expected=end.expected)

    def _cause(self, error: EngineError) -> EngineError:
        """Return what the agent's end means for a worker."""
        if self._ready is None or isinstance(error, NodeDiedError | OutOfMemoryError):
            return error
        return WorkerDiedError(None, details=f"it ended with dray's agent on its node: {error}")


class NodeAgents:
    """The agents of a session, one for each node and runtime environment.

    Args:
        membership: Way of workers into the cluster, but for their node and what each is there.
        isolate: Calls something that may raise what concerns nobody else.
    """

    def __init__(
        self, membership: Membership, isolate: Callable[[Callable[[], object]], object]
    ) -> None:
        self._membership = membership
        self._isolate = isolate
        self._lock = threading.Lock()
        self._agents: dict[tuple[str, str], NodeAgent] = {}
        self._prepared: tuple[str, ...] = ()

    def at(
        self,
        node_id: str,
        environment: RuntimeEnv,
        modules: Sequence[str],
        start: Callable[[ActorFactory, Mailbox], RayActor],
    ) -> NodeAgent:
        """Return the agent on a node, and start it if there is none.

        One that has no workers makes room for another one.

        Args:
            start: Starts an actor, with a mailbox and no resources, on that node.
        """
        described = json.dumps(environment.as_dict(), sort_keys=True, default=repr)
        key = (node_id, described)
        with self._lock:
            self._agents = {k: agent for k, agent in self._agents.items() if not agent.over}
            agent = self._agents.get(key)
            if agent is not None:
                return agent
            for other, idle in list(self._agents.items()):
                if other[0] == node_id and idle.is_idle:
                    self._agents.pop(other).link.stop()
            agent = NodeAgent(self._membership._replace(node_id=node_id), self._isolate)
            more = self._prepared if set(modules) <= set(self._prepared) else modules
            made = functools.partial(Agent, modules=tuple(more), variables=agent.variables)
            agent.link = start(made, agent)
            self._agents[key] = agent
            return agent

    def prepare(self, modules: Sequence[str]) -> None:
        """Have all import what workers will need, those that are still to start as well."""
        with self._lock:
            self._prepared = tuple(modules)
            agents = list(self._agents.values())
        for agent in agents:
            agent.link.signal("prepare", tuple(modules))

    def links(self) -> set[RayActor]:
        with self._lock:
            return {agent.link for agent in self._agents.values()}

    def close(self, *, waits: bool) -> None:
        """End all, once the workers that were killed have ended, and wait for it for a moment.

        Args:
            waits: Whether somebody tells of their ends.
        """
        deadline = time.monotonic() + (_PATIENCE_S if waits else 0)
        with self._lock:
            agents = list(self._agents.values())
        for agent in agents:
            agent.wait_until_idle(deadline)
            if agent.link.pid is None:
                agent.link.kill()  # it has not begun
            else:
                agent.link.stop()
        for agent in agents:
            agent.link.over.wait(max(0.0, deadline - time.monotonic()))


def needs_rays_process(environment: Mapping[str, Any]) -> bool:
    """Return whether workers with this environment are to be processes that Ray has started."""
    return any(environment.get(name) for name in _RAYS_OWN)
