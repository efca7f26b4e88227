"""What an engine is: the few things that dray asks of whatever runs its workers.

An engine knows nothing of training. It reserves resources, starts actors in them, carries calls
to actors and messages back, and says when an actor's process ended. Nothing here polls: calls
answer through futures, everything else is pushed into a mailbox.
"""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """One machine of the engine, and what it offers in all.

    Attributes:
        node_id: A name that is unique in this engine.
        address: Where collectives of this node listen.
        resources: Name to quantity: CPU in cores, memory in bytes, others as declared.
    """

    node_id: str
    address: str
    resources: Mapping[str, float]


@dataclass(frozen=True)
class Placement:
    """Where one bundle of a reservation lies."""

    node: Node
    resources: Mapping[str, float]


class Reservation(ABC):
    """Resources set aside, one placement a bundle, until they are released."""

    placements: Sequence[Placement]

    @abstractmethod
    def release(self) -> None:
        """Gives everything back. A second call does nothing."""


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
    """An actor's process ended.

    Attributes:
        actor: Whose process.
        exitcode: As in `WorkerDiedError`.
        expected: Whether dray stopped or killed it, rather than something else.
        out_of_memory: Whether the kernel ran out of memory meanwhile.
    """

    actor: Actor
    exitcode: int | None
    expected: bool
    out_of_memory: bool = False


class Mailbox(Protocol):
    """Where an engine pushes `Posted`, `Output` and `Died`; `queue.SimpleQueue` is one."""

    def put(self, item: Any, /) -> None:
        """Takes one event; never blocks."""


class Actor(ABC):
    """An object that lives in a worker; its methods are called from here.

    Attributes:
        name: How messages call it.
        pid: Its process, once that is known.
    """

    name: str
    pid: int | None

    @abstractmethod
    def call(self, method: str, /, *args: Any) -> Future[Any]:
        """Calls a method on the actor's main thread, after all earlier calls.

        The future gets what it returns or raises (with `RemoteTraceback` as the cause), or
        `WorkerDiedError` if the process ends first.
        """

    @abstractmethod
    def signal(self, method: str, /, *args: Any) -> None:
        """Calls a method on the actor's control thread, at once, even during a call."""

    @abstractmethod
    def stop(self) -> None:
        """Lets the calls made so far finish, then ends the process in good order."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the process, and every process it started, at once."""


# Called in the worker to make the actor's object; its argument pushes a message to the mailbox.
ActorFactory = Callable[[Callable[[Any], None]], Any]


class Engine(ABC):
    """Runs actors somewhere. One subclass an engine, found by name in `dray.engines`."""

    name: str
    # Whether actors live in processes of their own, with output to collect and ranks beyond 0.
    distributed: bool

    @abstractmethod
    def nodes(self) -> list[Node]:
        """Returns the machines, with what each offers in all."""

    @abstractmethod
    def available(self) -> dict[str, float]:
        """Returns what is free now, over all nodes."""

    @abstractmethod
    def prepare(self, modules: Sequence[str]) -> None:
        """Begins to import modules where workers will need them. Returns at once."""

    @abstractmethod
    def check(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> None:
        """Returns if these bundles can be reserved, now or later.

        Raises:
            InfeasibleError: This engine can never offer them.
        """

    @abstractmethod
    def reserve(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> Future[Reservation]:
        """Asks for bundles of resources; the future is done when they are free.

        Raises:
            InfeasibleError: At once, if this engine can never offer them.
        """

    @abstractmethod
    def start_actor(
        self,
        factory: ActorFactory,
        *,
        name: str,
        placement: Placement,
        environment: Mapping[str, str],
        mailbox: Mailbox,
        modules: Sequence[str] = (),
    ) -> Actor:
        """Starts an actor.

        Args:
            factory: Makes the actor's object in the worker.
            name: How messages call it.
            placement: Where it runs.
            environment: Variables set in the worker on top of the driver's.
            mailbox: Gets the actor's events.
            modules: The modules given to `prepare`.
        """

    @abstractmethod
    def drive(self, loop: Callable[[], T]) -> T:
        """Runs the loop that waits on a mailbox, while actors work; returns what it returns."""

    @abstractmethod
    def close(self) -> None:
        """Ends every actor and frees everything. A second call does nothing."""


Events = queue.SimpleQueue
