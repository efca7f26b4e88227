"""The contract of an engine: the operations that dray needs from the part that runs its workers.

An engine knows nothing of training. It reserves resources, starts actors in them, carries calls to
actors and messages back, and reports when an actor's process has started and ended. Nothing here
polls: calls are answered through futures, and everything else is pushed into a mailbox.
`docs/new-engine.md` is the checklist for writing an engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dray.engines.runtime_env import RuntimeEnv
from dray.errors import EngineError, InfeasibleError
from dray.scheduling.requests import Node, PlacementPreview, Request, Reservation

if TYPE_CHECKING:
    from dray.engines.runtime import Runtime

T = TypeVar("T")

# The error message of calls after `close()`.
CLOSED = "this engine is closed; call dray.init() again"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a session; None and empty stand for the engine's own defaults.

    Attributes:
        num_cpus: CPUs that this machine offers.
        num_gpus: GPUs that this machine offers.
        resources: Further resources that this machine offers.
        labels: Labels of this machine.
        address: The cluster to connect to.
        namespace: Namespace of this program's named actors in the cluster.
        runtime_env: Runtime environment of every worker of this program.
        nodes: Simulated nodes instead of this machine, each as `dray.init` takes them.
        object_store_memory: Bytes of memory that objects may take.
        wait_for_nodes_s: For how long nodes may yet come that can hold what none can now.
        log_to_driver: Whether what workers print is shown here.
        of_a_cluster: Arguments, in Ray's words, of a Ray cluster that is started for this program.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    namespace: str | None = None
    runtime_env: RuntimeEnv = field(default_factory=RuntimeEnv)
    nodes: Sequence[Mapping[str, Any]] = ()
    object_store_memory: int | None = None
    wait_for_nodes_s: float = 0
    log_to_driver: bool = True
    of_a_cluster: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Started:
    """An actor's process runs; its calls are answered from now on.

    Attributes:
        node_id: The node it runs on.
        address: That node's address.
        devices: Resource name to the ids of the devices that the process holds, in node order.
    """

    actor: Actor
    node_id: str
    address: str
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Posted:
    """An actor pushed a message."""

    actor: Actor
    message: Any


@dataclass(frozen=True)
class Output:
    """An actor's process wrote to its standard output or error."""

    actor: Actor
    stream: str
    data: bytes


@dataclass(frozen=True)
class Died:
    """An actor's process ended, or never came to be. The last event of every actor.

    Attributes:
        error: Error of a call that it did not answer; most often a `WorkerDiedError`.
        expected: Whether dray stopped or killed it, rather than something else.
    """

    actor: Actor
    error: EngineError
    expected: bool


class Mailbox(Protocol):
    """A queue into which an engine pushes `Started`, `Posted`, `Output` and `Died`."""

    def put(self, item: object, /) -> None:
        """Take one event; never blocks."""


class Actor(ABC):
    """An object that lives in a worker; its methods are called from here.

    Attributes:
        pid: Its process, once that is known.
    """

    name: str
    pid: int | None

    @abstractmethod
    def call(self, method: str, /, *args: object) -> Future[Any]:
        """Call a method on the actor's main thread, after all earlier calls.

        The future gets what it returns or raises (with `RemoteTraceback` as the cause), or
        the error of `Died` if the process ends first.
        """

    @abstractmethod
    def signal(self, method: str, /, *args: object) -> None:
        """Call a method on the actor's control thread, at once, even during a call."""

    @abstractmethod
    def stop(self) -> None:
        """Let the calls made so far finish, then end the process cleanly."""

    @abstractmethod
    def kill(self) -> None:
        """End the process, and every process it started, at once."""


class Post(Protocol):
    """Pushes a message from an actor to its mailbox."""

    def __call__(self, message: Any, /, *, quiet: bool = False) -> None:
        """Push a message.

        Args:
            message: Of plain values and importable classes.
            quiet: Whether nobody need be woken for it: it may come 0.1 s late, but before all that
                is said after it, and before anybody's end.
        """


# Called in the worker to make the actor's object.
ActorFactory = Callable[[Post], Any]


@dataclass(frozen=True, kw_only=True)
class ActorSpec:
    """The description of an actor to start.

    Attributes:
        factory: Makes the actor's object in the worker.
        name: Its name in messages.
        bundle: In which bundle of the reservation, from 0.
        runtime_env: Runtime environment, on top of the session's.
        modules: The modules given to `prepare`.
    """

    factory: ActorFactory
    name: str
    reservation: Reservation
    bundle: int
    mailbox: Mailbox
    runtime_env: RuntimeEnv = field(default_factory=RuntimeEnv)
    modules: Sequence[str] = ()


class PendingRequests:
    """Requests that are not answered yet; `close()` cancels them."""

    def __init__(self) -> None:
        self._futures: set[Future[Any]] = set()
        self._closed = False

    def add(self, future: Future[T]) -> Future[T]:
        """Take a request and return it; one that comes too late is cancelled at once."""
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        if self._closed:
            future.cancel()
        return future

    def close(self) -> None:
        """Cancel what is not answered, and all that comes from now on."""
        self._closed = True
        for future in list(self._futures):
            future.cancel()


class Engine(ABC):
    """Runs actors somewhere. One subclass an engine, found by name in `dray.engines`."""

    name: str
    # What every worker of this engine finds in its environment, of what the user has said.
    env_vars: Mapping[str, str]
    # Whether actors live in processes of their own, with output to collect and ranks beyond 0.
    distributed: bool
    # Whether all of them run on the driver's host, and read and write its files.
    one_host: bool = False
    # Whether what workers print is shown.
    shows_output: bool
    # Whether `close` has begun to end it.
    closed: bool = False

    def __init__(self, options: Options) -> None:
        self.env_vars = options.runtime_env.env_vars
        self.shows_output = options.log_to_driver
        self._asked = PendingRequests()  # which `close` is to close

    @abstractmethod
    def nodes(self) -> list[Node]:
        """Return the machines, with what each offers in all."""

    @abstractmethod
    def available(self) -> dict[str, float]:
        """Return what is free now, over all nodes."""

    @abstractmethod
    def prepare(self, modules: Sequence[str], runtime_env: RuntimeEnv) -> None:
        """Begin to import modules where workers with this environment will need them.

        Return at once.
        """

    @abstractmethod
    def check(self, request: Request, runtime_env: RuntimeEnv) -> None:
        """Return if actors with this runtime environment can be placed so, now or later.

        Raises:
            InfeasibleError: This engine can never offer the bundles.
            ConfigError: It cannot make that runtime environment.
        """

    def await_nodes(self, request: Request) -> None:
        """Wait, as long as `dray.init` said, for nodes that can hold a request if none can now.

        An engine whose nodes come and go overrides this.
        """
        return None

    def lacking(self, request: Request) -> InfeasibleError | None:
        """Return what the nodes of today lack for a request that `check` lets pass, if anything.

        An engine whose nodes come and go overrides this.
        """
        return None

    @abstractmethod
    def preview(self, request: Request) -> PlacementPreview:
        """Return where bundles would lie if they were reserved now; reserve nothing."""

    @abstractmethod
    def reserve(self, request: Request) -> Future[Reservation]:
        """Ask for bundles of resources; the future is done when they are free.

        Cancelling the future takes the request back. `close` cancels waiting requests, and a later
        request gets a cancelled future. A request that has become infeasible after `check` waits,
        because a node may come back.
        """

    @abstractmethod
    def start_actor(self, spec: ActorSpec) -> Actor:
        """Begin to start an actor; `Started` or `Died` says what came of it."""

    def hear_out(self, then: Callable[[], object]) -> None:
        """Call something, on any thread, once mailboxes have all that actors have said until now.

        An engine that lets quiet messages lie overrides this.
        """
        then()

    def drive(self, loop: Callable[[], T]) -> T:
        """Run the loop that waits on a mailbox, while actors work; return what it returns."""
        return loop()

    def show(self, subject: str, describe: Callable[[], object]) -> Callable[[], None]:
        """Have `dray status` show something of this program, where the engine answers it.

        Args:
            subject: The key in the answer; what several describe under one is a list there.
            describe: Returns what is true now, as JSON-compatible values. Called from any thread.

        Returns:
            What ends it when it is called.
        """
        return lambda: None

    def watch_leaving(self, tell: Callable[[], object]) -> Callable[[], None]:
        """Call something, on any thread, as a node turns out to be about to go.

        An engine whose nodes may be taken away overrides this.

        Returns:
            What ends it when it is called.
        """
        return lambda: None

    def until_closed(self) -> Future[None]:
        """Return a future that `close` cancels, for who waits for nothing else of this engine."""
        return self._asked.add(Future())

    @property
    def lost(self) -> bool:
        """True once it is of no use any more, though nobody has closed it.

        An engine whose ground others may take away overrides this; the session starts another one.
        """
        return False

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """Tasks, actors and objects of this engine, as the driver sees them."""

    @abstractmethod
    def close(self) -> None:
        """End every actor and free everything. A second call does nothing."""
