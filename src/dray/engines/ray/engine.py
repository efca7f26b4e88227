"""The Ray engine: placement groups for reservations, actors of Ray's for workers.

Ray schedules, starts processes, makes their environments and reports why they ended. Messages
between driver and workers use the same protocol as on the process engine (`worker_channel.py`). So
no message of a worker waits for a poll, and a run needs no actors besides its workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from dray.engines.base import CLOSED, Actor, ActorFactory, ActorSpec, Engine, Mailbox, Options
from dray.engines.rpc import wire
from dray.engines.runtime_env import RuntimeEnv
from dray.engines.status_socket import StatusSocket
from dray.errors import (
    ClusterUnreachableError,
    ConfigError,
    EngineError,
    InfeasibleError,
    MissingDependencyError,
)
from dray.scheduling.requests import Node, PlacementPreview, Request, Reservation
from dray.settings import Settings

try:
    import ray
except ImportError as missing:
    raise MissingDependencyError(
        "ray", "ray>=2.49", "without engine='ray' and an address dray uses this machine alone"
    ) from missing

from ray.exceptions import ActorUnavailableError
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from dray.engines.ray import cluster, leaving_nodes, waits
from dray.engines.ray.bundles import PlacedBundles, resources_of
from dray.engines.ray.cluster import SilentNodes
from dray.engines.ray.connect import connect, own_connection
from dray.engines.ray.reservations import Reservations
from dray.engines.ray.runtime import RayRuntime
from dray.engines.ray.workers import driver_environment, forked_worker
from dray.engines.ray.workers.forked_worker import Membership
from dray.engines.ray.workers.node_agents import ForkedActor, NodeAgents, needs_rays_process
from dray.engines.ray.workers.training_actor import RayActor
from dray.engines.ray.workers.worker import RayWorker
from dray.engines.ray.workers.worker_channel import VERSIONS, Hello, WorkerListener
from dray.engines.rpc.io_thread import Reader
from dray.engines.rpc.remote_actor import RemoteActor
from dray.engines.runtime import Described, Runtime
from dray.status import ProgramStatus

_LOST = "the program has closed its connection to Ray"


class RayEngine(Engine):
    """Runs actors in a Ray cluster."""

    name = "ray"
    distributed = True

    def __init__(self, options: Options, settings: Settings) -> None:
        super().__init__(options)
        forked_worker.join()
        self._owns_connection = connect(options)
        self._own_connection = own_connection()
        # What Ray has taken for the whole job needs not be said again for every actor.
        self._runtime_env = RuntimeEnv() if self._owns_connection else options.runtime_env
        self._has_working_dir = options.runtime_env.working_dir is not None
        self._patience_s = options.wait_for_nodes_s
        self._numbers = itertools.count()
        self._actors: dict[int, RayActor | ForkedActor] = {}
        self._silent = SilentNodes()
        self._connected = True
        self._connection_lock = threading.RLock()
        self._reader = Reader(self._on_crash)
        self._reservations = Reservations(
            self._connection, self._silent, self._asked, settings.keep_reservation_s
        )
        self._runtime = RayRuntime(self._runtime_env, options.wait_for_nodes_s, self.available)
        context = ray.get_runtime_context()
        self._address = context.gcs_address
        self._forks = (
            settings.agents
            and settings.start_method != "spawn"
            and not needs_rays_process(context.runtime_env)
        )
        membership = Membership(self._address, context.namespace, context.get_job_id())
        self._agents = NodeAgents(membership, self._reader.isolate)
        self._listener_lock = threading.Lock()
        self._status_socket = StatusSocket(self._reader, self._status)
        self._opened_listener: WorkerListener | None = None

    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @contextlib.contextmanager
    def _connection(self) -> Iterator[bool]:
        """Hold up the end of the connection to Ray, and tell whether it is there still.

        For who comes later, Ray would connect to a cluster of its choice, or start one.
        """
        with self._connection_lock:
            yield self._connected and not self.lost

    @property
    def lost(self) -> bool:
        return own_connection() is not self._own_connection

    @property
    def _listener(self) -> WorkerListener:
        """Listen from the first actor on; what runs inside tasks of Ray's needs no wire."""
        with self._listener_lock:
            if self._opened_listener is None:
                host = ray.util.get_node_ip_address()
                self._opened_listener = WorkerListener(host, self._reader, self._on_hello)
                self._reader.start()
            return self._opened_listener

    def show(self, subject: str, describe: Callable[[], object]) -> Callable[[], None]:
        end = self._status_socket.show(subject, describe)
        if not self.closed:
            self._reader.start()
        return end

    def _status(self) -> Described:
        """Return the status of this program; of the cluster, `dray status --address` asks Ray."""
        return dataclasses.asdict(ProgramStatus(engine=self.name, address=self._address))

    def nodes(self) -> list[Node]:
        return cluster.nodes()

    def available(self) -> dict[str, float]:
        free = Counter(ray.available_resources())
        free.update(self._reservations.kept())
        return dict(free)

    def prepare(self, modules: Sequence[str], runtime_env: RuntimeEnv) -> None:
        self._agents.prepare(modules)

    def check(self, request: Request, runtime_env: RuntimeEnv) -> None:
        try:
            ray.runtime_env.RuntimeEnv(**runtime_env.as_dict())
        except (ValueError, TypeError) as error:
            raise ConfigError(f"Ray refuses this runtime environment: {error}") from error
        lacking = cluster.lacking(request, cluster.nodes())
        if lacking is not None and not cluster.autoscales():
            raise lacking

    def await_nodes(self, request: Request) -> None:
        cluster.still_lacking(lambda: cluster.lacking(request, cluster.nodes()), self._patience_s)

    def lacking(self, request: Request) -> InfeasibleError | None:
        return self._reservations.lacking(request)

    def preview(self, request: Request) -> PlacementPreview:
        return self._reservations.preview(request)

    def reserve(self, request: Request) -> Future[Reservation]:
        return self._reservations.reserve(request)

    def start_actor(self, spec: ActorSpec) -> Actor:
        reservation = spec.reservation
        assert isinstance(reservation, PlacedBundles)
        environment, directory = _split(self._runtime_env | spec.runtime_env)
        if self._forks and not needs_rays_process(environment.further):
            try:
                return self._fork(spec, reservation, environment, directory)
            except EngineError:  # an agent that is gone: the next one serves
                return self._fork(spec, reservation, environment, directory)
        bundle = reservation.bundles[spec.bundle]
        place = PlacementGroupSchedulingStrategy(
            reservation.group, placement_group_bundle_index=spec.bundle
        )
        make = functools.partial(_make, place, resources_of(bundle), environment)
        return self._start(spec.factory, spec.name, spec.mailbox, make, spec.modules, directory)

    def _fork(
        self,
        spec: ActorSpec,
        reservation: PlacedBundles,
        environment: RuntimeEnv,
        directory: str | None,
    ) -> ForkedActor:
        """Have a worker forked by the agent of its node."""
        node_id, devices = reservation.places[spec.bundle], reservation.shown[spec.bundle].devices
        start = functools.partial(self._start_agent, node_id, environment)
        with self._connection():
            if self.closed:
                raise EngineError(CLOSED)
            agent = self._agents.at(node_id, environment, spec.modules, start)
            number = next(self._numbers)
            actor = ForkedActor(
                number, spec.name, spec.mailbox, self._reader, agent, devices, self._forget
            )
            begin = self._begin(wire.dump(spec.factory, spec.name))
            self._actors[number] = actor
            address = self._listener.address(number)
            try:
                agent.fork(actor, begin, address, spec.modules, reservation, spec.bundle, directory)
            except EngineError:
                del self._actors[number]
                raise
        return actor

    def _start_agent(
        self, node_id: str, environment: RuntimeEnv, factory: ActorFactory, mailbox: Mailbox
    ) -> RayActor:
        place = NodeAffinitySchedulingStrategy(node_id, soft=False)
        make = functools.partial(_make, place, resources_of({}), environment)
        name = f"dray's agent on node {node_id[:8]}"
        return self._start(factory, name, mailbox, make, (), None, is_agent=True)

    def _start(
        self,
        factory: ActorFactory,
        name: str,
        mailbox: Mailbox,
        make: Callable[[], Any],
        modules: Sequence[str],
        directory: str | None,
        *,
        is_agent: bool = False,
    ) -> RayActor:
        """Have Ray start a process, and serve an actor in it."""
        number = next(self._numbers)
        actor = RayActor(number, name, mailbox, self._reader, self._is_gone, self._forget)
        begin = self._begin(wire.dump(factory, name))
        actor.begin(begin._replace(environment={}, cwd="") if is_agent else begin)
        with self._connection():
            if self.closed:
                raise EngineError(CLOSED)
            handle = make()
            actor.lives_in(lambda: self._kill(handle))
            self._actors[number] = actor
            address = self._listener.address(number)
            life = handle.serve.remote(address, tuple(modules), directory, is_agent=is_agent)
            self._follow(actor, handle, life)
        return actor

    def _begin(self, payload: bytes) -> wire.Begin:
        variables = driver_environment.portable(os.environ)
        # Workers run there if their node has it; Ray has moved them if it was asked to.
        directory = "" if self._has_working_dir else wire.working_directory()
        return wire.Begin(variables, directory, list(sys.path), payload)

    def watch_leaving(self, tell: Callable[[], object]) -> Callable[[], None]:
        return leaving_nodes.watch(self._connection, tell)

    def _is_gone(self, node_id: str) -> bool:
        """Call a node, and return whether it does not answer.

        Raises:
            EngineError: This engine is lost.
        """
        try:
            gone = not self.lost and self._silent.any_gone([node_id])
        except Exception:
            if not self.lost:
                raise
        if self.lost:
            raise EngineError(_LOST)
        return gone

    def _forget(self, actor: RemoteActor) -> None:
        self._actors.pop(actor.number, None)

    def _kill(self, handle: Any) -> None:
        with self._connection() as is_there:
            if is_there:
                ray.kill(handle)

    def _follow(self, actor: RayActor, handle: Any, call: Any) -> None:
        """Tell an actor how its process has ended, which is how a call of it fails."""

        def told(future: Future[Any]) -> None:
            # Once the connection is closed, Ray says that the owner of its actors has died.
            error = EngineError(_LOST) if self.lost else future.exception()
            if isinstance(error, ActorUnavailableError):  # Ray has not heard yet why
                self._reader.run(lambda: self._ask_again(actor, handle))
            else:
                self._reader.run(lambda: actor.on_death_cause(error))

        call.future().add_done_callback(told)

    def _ask_again(self, actor: RayActor, handle: Any) -> None:
        if not actor.over.is_set() and not self.lost:
            self._follow(actor, handle, handle.over.remote())

    # On the reader thread.

    def _on_hello(self, hello: Hello, connection: Connection) -> None:
        actor = self._actors.get(hello.number)
        if actor is None:
            connection.close()
            return
        if hello.versions == VERSIONS or isinstance(actor, ForkedActor):
            actor.on_hello(hello, connection)
            return
        connection.close()
        theirs, ours = (f"dray {v[0]} on Python {v[1]}" for v in (hello.versions, VERSIONS))
        actor.refuse(
            ClusterUnreachableError(
                f"the node {hello.address} has {theirs}, this program has {ours}; install the same "
                "on every node, for example with dray.init(runtime_env={'pip': [...]})"
            )
        )

    def _on_crash(self) -> None:
        for actor in list(self._actors.values()):
            actor.on_death(
                EngineError("dray's reader thread failed; this is a bug"), expected=False
            )

    def close(self) -> None:
        if self.closed:
            return
        with self._connection():
            self.closed = True
        with contextlib.ExitStack() as steps:  # each, also if Ctrl-C interrupts the one before
            for step in (self._disconnect, self._close_wire, self._end_workers):
                steps.callback(step)

    def _end_workers(self) -> None:
        self._reservations.close()
        links = self._agents.links()
        for actor in list(self._actors.values()):
            if actor not in links:
                actor.kill()
        self._agents.close(waits=not self.lost)

    def _close_wire(self) -> None:
        self._reader.stop()
        self._reader.do_tasks()
        for actor in list(self._actors.values()):
            actor.on_death(EngineError("dray.shutdown() was called"), expected=True)
        if self._opened_listener is not None:
            self._opened_listener.close()
        self._status_socket.close()
        self._reader.close()

    def _disconnect(self) -> None:
        with self._connection():
            self._connected = False
            if self._owns_connection and not self.lost:
                waits.shut_down()


@functools.cache
def _worker_class() -> Any:
    """Return Ray's class of training workers.

    Ray draws an id for it. Drawn as this module is imported, that would begin Ray's random numbers
    in the fork server of an agent, and all of its forks would go on with the same ones.
    """
    return ray.remote(RayWorker)


def _make(place: Any, resources: Described, environment: RuntimeEnv) -> Any:
    """Have Ray make an actor; return its handle."""
    try:
        return (
            _worker_class()
            .options(
                **resources,
                max_restarts=0,
                max_task_retries=0,
                runtime_env=environment.as_dict() or None,
                scheduling_strategy=place,
            )
            .remote()
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"Ray refuses this worker: {error}") from error


def _split(environment: RuntimeEnv) -> tuple[RuntimeEnv, str | None]:
    """Return what Ray makes for an actor, and the directory that dray must see to.

    Ray carries a local directory to the nodes for a whole job only; for an actor it takes an URL.
    """
    directory = environment.working_dir
    if directory is None or "://" in directory:
        return environment, None
    rest = dataclasses.replace(environment, working_dir=None)
    return rest, os.path.abspath(os.path.expanduser(directory))
