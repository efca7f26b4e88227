"""The hub's records of each process, task and actor, as plain data."""

from __future__ import annotations

import itertools
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dray.engines.rpc.framing import Inbox, Outbox
from dray.engines.rpc.serialization import Payload, Result, Stored
from dray.engines.runtime import GroupSpec, ReturnCount
from dray.errors import ActorDiedError, EngineError, InfeasibleError, WorkerDiedError
from dray.scheduling.bundle_ledger import BundleLedger
from dray.scheduling.ledger import Held, Ledger
from dray.scheduling.placement import Demand
from dray.scheduling.requests import Node, Reservation

Room = tuple[Any, ...]  # the beginning of a payload: a place in memory or on the disk
Item = tuple[int, int]  # a stream, and the index of one of its items
# A method, the call's name, its concurrency group, retries, retried exceptions, and how many items
# a generator may be ahead of its reader.
CallDetails = tuple[str, str, str | None, int | None, bool | bytes, int]
# The ids of a process's accelerators, and the variables that show it only those.
Grant = tuple[Mapping[str, Sequence[str]], Mapping[str, str | None]]
# Of an actor: its name, whether it was made before, its concurrency, that of its groups, whether it
# is async, the group of each method, and its accelerators.
MakeDetails = tuple[
    str | None, bool, int, dict[str, int], bool, dict[str, Mapping[str, Any]], Grant | None
]
# An actor or a group, as a process that has looked for it makes a handle: its number, its class or
# its bundles, and the options of the actor's methods, or the object that is there when it is.
FoundActor = tuple[int, str, dict[str, Mapping[str, Any]]]
FoundGroup = tuple[int, list[dict[str, float]], int]
# The variables of a runtime environment, as pairs, and its directory.
RuntimeKey = tuple[tuple[tuple[str, str], ...], str | None]
# Of so many tasks that begin while several depths wait, one is of the least.
_DEEP_IN_A_ROW = 8


class Channel:
    """A socket to a process that talks to the hub."""

    client: Client

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.inbox = Inbox(sock)
        self.outbox = Outbox(sock)
        self.gone = False

    def close(self) -> None:
        self.sock.close()


class WorkerProcess(Channel):
    """One worker process for tasks and actors.

    Attributes:
        number: Unique in the engine.
        kind: The function of that task, or of the last one.
        known: The functions and classes that it was told of.
        forgotten: Those of them that are not used any more, until it is told so.
        ahead: Tasks that were sent to it before it was done with `task`.
        dispatches: Number of tasks that were sent to it.
        since: When it began with `task`, as far as is known.
        doomed: Whether its process is being ended.
    """

    def __init__(
        self,
        number: int,
        node: Node,
        runtime_env: RuntimeKey,
        sock: socket.socket,
        on_exit: Callable[..., None],
    ) -> None:
        super().__init__(sock)
        self.number = number
        self.node = node
        self.runtime_env = runtime_env
        self.pid: int | None = None
        self.task: Task | None = None
        self.kind: FunctionDescriptor | None = None
        self.actor: ActorRecord | None = None
        self.shape: SchedulingClass | None = None
        self.lease: Held | None = None
        self.known: set[bytes] = set()
        self.forgotten: list[bytes] = []
        self.calls: dict[bytes, int] = {}
        self.ahead: deque[Task] = deque()
        self.dispatches = 0
        self.doomed = False
        self.since = 0.0
        self._on_exit = on_exit

    @property
    def title(self) -> str:
        """The mark of its output."""
        if self.actor is not None:
            return self.actor.creation.kind.name
        return self.kind.name if self.kind is not None else "worker"

    def on_start(self, pid: int, node: Node) -> None:
        self.pid = pid

    def on_exit(self, exitcode: int | None, killed: bool) -> None:
        self._on_exit(self, WorkerDiedError(exitcode))

    def on_failure(self, error: EngineError) -> None:
        self._on_exit(self, error)


@dataclass(eq=False, repr=False)
class Client:
    """A process that talks to the hub: the driver, a worker, or an attached client.

    Attributes:
        reply: Takes the number of a question and its answer.
        worker: The worker process it is, if it is one.
        questions: Pending waits: what gives each up.
        blocked: Number of its waits that lend its CPUs.
        turn: Number of reservations that its worker has had: waits from before the last one, of
            threads that a task has left, lend nothing of it.
        leases: Those of an engine within a worker.
        leaves: Whether it is about to end in the ordinary way; only an attached client says so.
        gone: Whether it has ended.
    """

    number: int
    reply: Callable[[int, object], None]
    worker: WorkerProcess | None = None
    holds: set[int] = field(default_factory=set)
    pins: dict[int, int] = field(default_factory=dict)
    rooms: dict[Room, Sequence[int]] = field(default_factory=dict)
    questions: dict[int, Callable[[], None]] = field(default_factory=dict)
    reading: list[Stored] = field(default_factory=list)
    blocked: int = 0
    turn: int = 0
    leases: dict[int, Future[Reservation]] = field(default_factory=dict)
    leaves: bool = False
    gone: bool = False


@dataclass(eq=False, repr=False, slots=True)
class WaitRequest:
    """A process that waits for objects: for all of some, or for a number of them.

    Attributes:
        came: Called with each missing object when it is there.
        items: The same for the missing items of streams.
    """

    client: Client
    question: int
    numbers: Sequence[int | Item]
    need: int
    wants_values: bool
    ready: int = 0
    blocked_in: int | None = None
    came: Callable[[int | Item], None] | None = None
    items: list[tuple[Item, Callable[[], None]]] = field(default_factory=list)


class TaskQueue:
    """Tasks that can run: those of the greatest depth first, and of one depth in order.

    Now and then one of the least depth has its turn, or a task that submits others without end
    would hold up all that is not its own.
    """

    def __init__(self) -> None:
        self._levels: list[deque[Task]] = [deque()]  # by depth; the last has some, if any has
        self._deep = 0  # taken while there were several depths

    def __bool__(self) -> bool:
        return bool(self._levels[-1])

    def __len__(self) -> int:
        return sum(map(len, self._levels))

    def __iter__(self) -> Iterator[Task]:
        return itertools.chain.from_iterable(reversed(self._levels))

    @property
    def first(self) -> Task:
        """The task whose turn it is."""
        return self._next()[0]

    def append(self, task: Task) -> None:
        """Put a task behind those of its depth."""
        self._level(task.depth).append(task)

    def appendleft(self, task: Task) -> None:
        """Put a task before those of its depth."""
        self._level(task.depth).appendleft(task)

    def popleft(self) -> Task:
        levels = self._levels
        task = self._next().popleft()
        if len(levels) > 1:
            self._deep += 1
            while not levels[-1] and len(levels) > 1:
                levels.pop()
        return task

    def _next(self) -> deque[Task]:
        if len(self._levels) > 1 and self._deep % _DEEP_IN_A_ROW == _DEEP_IN_A_ROW - 1:
            return next(filter(None, self._levels), self._levels[-1])
        return self._levels[-1]

    def skip_over(self, running: Mapping[int, Task]) -> None:
        """Drop what is over from the front; what a task that is over has left is no deeper now.

        Args:
            running: All tasks and calls that are not over.
        """
        while self:
            first = self.first
            if not first.over and (not first.depth or first.parent in running):
                return
            self.popleft()
            if not first.over:
                first.depth = 0
                self.append(first)

    def _level(self, depth: int) -> deque[Task]:
        while len(self._levels) <= depth:
            self._levels.append(deque())
        return self._levels[depth]


@dataclass(eq=False)
class SchedulingClass:
    """Tasks that ask for the same, and so can take each other's place.

    Attributes:
        key: Tells it from others.
        demand: Resources of one of them.
        resources: The same quantities, as the tasks see them.
        waiting: Those that can run.
        followed: Workers to which tasks were sent ahead that are not recalled.
        asked: The request of this shape that the ledger has.
        kinds: Number of the functions and classes that ask for it.
        aside: Reservations of its last tasks, for the next ones unless somebody asks meanwhile.
        capture: Whether what they start runs there as well.
        removed: The placement group of theirs that was removed, by its title.
        elsewhere: Demand in place of this one when the node is lost that they prefer.
        infeasible: Reason why no node is left for them.
    """

    key: object
    demand: Demand
    ledger: Ledger
    runtime_env: RuntimeKey
    resources: Mapping[str, float]
    waiting: TaskQueue = field(default_factory=TaskQueue)
    followed: set[WorkerProcess] = field(default_factory=set)
    asked: Future[Reservation] | None = None
    kinds: int = 0
    aside: list[Held] = field(default_factory=list)
    group: int | None = None
    capture: bool = False
    removed: str = ""
    elsewhere: Demand | None = None
    infeasible: InfeasibleError | None = None


@dataclass(eq=False)
class FunctionDescriptor:
    """A function or class, with its options, as a process has told of it.

    Attributes:
        number: The object that is there as long as it is used.
        tasks: Number of its tasks and calls that are not over, which hold that object together.
    """

    key: bytes
    number: int
    what: Literal["task", "actor"]
    blob: tuple[bytes, list[bytes]]
    options: Mapping[str, Any]
    shape: SchedulingClass
    name: str
    short: bool = False
    tasks: int = 0


@dataclass(eq=False, repr=False, slots=True)
class Task:
    """A task, or a call of an actor's method.

    Attributes:
        number: Its number, which is that of its first result.
        kind: Task, method or creation.
        deps: The objects that are awaited before it runs.
        nested: The objects that its arguments refer to.
        returns: Number of results, or "streaming".
        depth: Number of tasks, each of the next, that may wait for it.
        unready: Number of `deps` that are not there yet.
        retries: Runs left after the first; -1 is without limit.
        details: Of a call: method, name, concurrency group, retries, retried exceptions.
        dispatch: Its number among those that were sent to its worker.
    """

    number: int
    kind: FunctionDescriptor
    results: Sequence[int]
    payload: Payload | None
    deps: Sequence[int]
    nested: Iterable[int]
    returns: ReturnCount
    client: Client
    parent: int | None
    unready: int = 0
    retries: int = 0
    worker: WorkerProcess | None = None
    actor: ActorRecord | None = None
    details: CallDetails | None = None
    cancelled: bool = False
    over: bool = False
    attempt: int = 0
    since: float = 0.0
    dispatch: int = 0
    forced: bool = False
    depth: int = 0

    @property
    def name(self) -> str:
        """Its name, as programs know it: of a call its class's and method's, unless it has one."""
        if self.actor is None:
            return self.kind.name
        method, name, *_ = self.details or ("__init__", "__init__")
        return name if name != method else self.function

    @property
    def function(self) -> str:
        """The name of its function, or of its class and method."""
        if self.actor is None:
            return str(self.kind.options["function_name"])
        method = "__init__" if self.details is None else self.details[0]
        return f"{self.kind.name.rpartition('.')[2]}.{method}"

    @property
    def title(self) -> str:
        if self.actor is not None and self.details is None:
            return f"actor {self.actor.title}"
        if self.actor is not None and self.details is not None:
            return f"method {self.details[1]} of actor {self.actor.title}"
        return f"task {self.kind.name}"


class CallListener(Protocol):
    """Hears of the calls of an actor, which stand in the same table as tasks."""

    def on_call_ready(self, task: Task) -> None:
        """Send a call on: all that it has waited for is there."""

    def on_call_left(self, number: int, worker: WorkerProcess) -> None:
        """Send further calls: a worker is done with one."""

    def on_call_over(self, task: Task, payload: Payload, nested: Sequence[int]) -> None:
        """Let go of a call, or of the making of an actor, that has ended with an error."""


@dataclass(eq=False)
class ActorRecord:
    """An actor.

    Attributes:
        number: Its number; handles count as references to it.
        calls: Hears of its calls.
        state: "waiting", "starting", "alive", "restarting" or "dead".
        waiting: Calls that can be sent, in order.
        held_up: Calls that wait for an argument, or behind one that does, by line.
        in_order: Whether the calls of a caller stand in one line; else each call is its own.
        most_pending: Most calls of a caller that may wait or run; 0 or less is any number.
        pending: Number of calls of each caller that are not over, if that is limited.
        most_ahead: So many are sent at most.
        restarts: Restarts left; -1 is without limit.
        ending: Whether it ends when its calls are done, because nobody has a handle any more.
        death: The error that its calls get, once it is dead.
        unstarted: Reason why no process could be started for it.
    """

    number: int
    creation: Task
    calls: CallListener
    state: str = "waiting"
    worker: WorkerProcess | None = None
    asked: Future[Reservation] | None = None
    held: Held | None = None
    waiting: deque[Task] = field(default_factory=deque)
    held_up: dict[Client | Task, deque[Task]] = field(default_factory=dict)
    in_order: bool = True
    running: dict[int, Task] = field(default_factory=dict)
    most_pending: int = 0
    pending: dict[Client, int] = field(default_factory=dict)
    most_ahead: int = 0
    restarts: int = 0
    times_restarted: int = 0
    name: str | None = None
    namespace: str = ""
    ending: bool = False
    detached: bool = False
    exiting: bool = False
    killed: bool = False
    death: Result | None = None
    unstarted: EngineError | None = None

    def line_of(self, task: Task) -> Client | Task:
        """Return the line in which a call stands if it cannot be sent yet."""
        return task.client if self.in_order else task

    def calls_unsent(self) -> list[Task]:
        return [*self.waiting, *itertools.chain.from_iterable(self.held_up.values())]

    def count_calls(self, client: Client, change: int) -> None:
        """Take note of a caller's calls that have come, or are over."""
        self.pending[client] = self.pending.get(client, 0) + change
        if not self.pending[client]:
            del self.pending[client]

    @property
    def actor_id(self) -> str:
        return f"{self.number:032x}"

    @property
    def title(self) -> str:
        kind = self.creation.kind.name
        return kind if self.name is None else f"{kind} ({self.name!r})"

    def died(
        self, exitcode: int | None, why: str, *, out_of_memory: bool = False
    ) -> ActorDiedError:
        """Return the error of its calls, once it is gone."""
        return ActorDiedError(
            exitcode, out_of_memory=out_of_memory, details=why, actor_id=self.actor_id
        )


@dataclass(eq=False)
class GroupRecord:
    """A placement group.

    Attributes:
        ready: The object that is there when its bundles are set aside.
        ledger: Contents of its bundles.
        held: Bundles that are set aside for it.
        asked: Request for bundles that are not there yet.
        nodes: The node of each bundle; none before they are set aside.
    """

    number: int
    ready: int
    spec: GroupSpec
    ledger: BundleLedger
    held: list[Held] = field(default_factory=list)
    asked: Future[Reservation] | None = None
    state: str = "PENDING"
    nodes: dict[int, Node] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.spec.title(f"{self.number:032x}")
