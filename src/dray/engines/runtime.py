"""The contract of an engine for tasks, actors and objects, equal in the driver and in workers.

`Runtime` is the half of the contract that `dray.core` uses; `base.py` is the half that training
uses. A function or class is bound to its options once and called many times, so an engine may do
any amount of preparation at that point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ConfigError, GetTimeoutError, NameTakenError
from dray.scheduling.labels import narrowed
from dray.scheduling.requests import Node, Request
from dray.user_warnings import warn_user

if TYPE_CHECKING:
    from dray.status import ProgramStatus


# Special methods that a handle has itself, or that Python calls as objects are made and go.
NOT_METHODS = {
    *("__init__", "__new__", "__del__", "__getattr__", "__getattribute__", "__setattr__"),
    *("__delattr__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__repr__"),
    *("__str__", "__eq__", "__hash__", "__dir__"),
}

# Methods that actors have whatever their class is, as on Ray: the first returns when the actor is
# made, the second calls a function with the actor's object, the third ends the actor.
OF_EVERY_ACTOR = ("__ray_ready__", "__ray_call__", "__ray_terminate__")

# Message of the ObjectLostError for a reference or an actor, which it names.
OF_ENDED_SESSION = (
    "{!r} belongs to a session that has ended, and its value is gone; make it again after "
    "dray.init()"
)
# Message of the ConfigError for work in a placement group that is no more.
GROUP_REMOVED = "the placement group has been removed; make a new one"
# Message of the ConfigError for a call of an actor that is to be cancelled by force.
NOT_BY_FORCE = (
    "force=True does not work for calls of actors, because it would lose the actor's state; "
    "leave it out, or use dray.kill(actor)"
)


@dataclass(frozen=True)
class Placement:
    """A choice of nodes for a task or an actor.

    Attributes:
        kind: "default" (in the group that captures what the caller starts, if there is one),
            "no group", "spread", "group" (a placement group), "node" or "labels".
        group: With "group", the engine's placement group.
        bundle: With "group", the bundle's index, or -1 for any.
        capture: With "group", whether what it starts runs in the group as well.
        node_id: With "node", which one.
        soft: With "node" and "labels", whether another will do.
        hard_labels: With "labels", a selector that must hold.
        soft_labels: With "labels", a selector that should hold.
    """

    kind: Literal["default", "no group", "spread", "group", "node", "labels"] = "default"
    group: Group | None = None
    bundle: int = -1
    capture: bool = False
    node_id: str = ""
    soft: bool = False
    hard_labels: Mapping[str, str] = field(default_factory=dict)
    soft_labels: Mapping[str, str] = field(default_factory=dict)


class Origin:
    """The `@remote` of a function or class, whose globals it fixes as it is first used.

    All that `.options()` makes of it have the same; another `@remote` takes them anew.
    """


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """Options that functions and actors have in common, checked and in dray's own words.

    Attributes:
        resources: Name to quantity that it holds while it runs or lives; no zeros.
        placement_resources: Resources that its node must offer when it starts; no zeros.
        label_selector: Labels that its node must have.
        runtime_env: Runtime environment, on top of the session's.
        given: The options as the user gave them.
        origin: Its `@remote`; None is the function or class itself.
    """

    resources: Mapping[str, float]
    placement_resources: Mapping[str, float]
    label_selector: Mapping[str, str] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    runtime_env: RuntimeEnv = field(default_factory=RuntimeEnv)
    given: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin | None = field(default=None, compare=False)


# Number of references that a call returns.
ReturnCount = int | Literal["streaming", "dynamic"]


@dataclass(frozen=True, kw_only=True)
class TaskOptions(WorkOptions):
    """Options of a remote function.

    Attributes:
        name: Its name in messages.
        num_returns: Number of references that a call returns, "streaming" or "dynamic".
        most_unread: Items that a generator may be ahead of its reader; 0 is without limit.
        max_calls: After how many calls its process is replaced; 0 is never.
        max_retries: Number of retries when its process dies; -1 is without limit.
        retry_exceptions: Exceptions that count as well: all, none, or these types.
    """

    name: str
    num_returns: ReturnCount = 1
    most_unread: int = 0
    max_calls: int = 0
    max_retries: int = 3
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    function_name: str = ""


@dataclass(frozen=True, kw_only=True)
class ActorOptions(WorkOptions):
    """Options of an actor.

    Attributes:
        class_name: Its name in messages.
        name: Its name for `get_actor`.
        namespace: The name's namespace; None is the session's.
        get_if_exists: Whether an actor that has the name already is returned instead.
        detached: Whether it outlives its driver.
        max_restarts: Number of restarts when its process dies; -1 is without limit.
        max_task_retries: Number of retries of its calls when its process dies; -1 is without limit.
        max_concurrency: Number of calls at a time.
        max_pending_calls: Number of calls of one process that may wait; -1 is without limit.
        concurrency_groups: Name of a group of methods to how many of them run at a time.
        methods: Method name to the options that `dray.method` gave it.
        is_async: Whether the class has a method that is a coroutine function.
        in_order: Whether a call that waits for an argument holds up later ones of its caller.
    """

    class_name: str
    name: str | None = None
    namespace: str | None = None
    get_if_exists: bool = False
    detached: bool = False
    max_restarts: int = 0
    max_task_retries: int = 0
    max_concurrency: int = 1
    max_pending_calls: int = -1
    concurrency_groups: Mapping[str, int] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_async: bool = False
    in_order: bool = True


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """Options of one method of an actor, as `dray.method` and `.options` set them.

    Attributes:
        name: Its name in messages.
        num_returns: Number of references that the call returns, "streaming" or "dynamic".
        most_unread: Items that a generator may be ahead of its reader; 0 is without limit.
        concurrency_group: The group it runs in; None is the method's own, or the default one.
        max_task_retries: Number of retries; None leaves it to the actor.
        retry_exceptions: Exceptions that count as well: all, none, or these types.
    """

    name: str
    num_returns: ReturnCount = 1
    most_unread: int = 0
    concurrency_group: str | None = None
    max_task_retries: int | None = None
    retry_exceptions: bool | tuple[type[BaseException], ...] = False


Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Function = Callable[..., Any]  # of the program's
Described = dict[str, Any]  # as JSON can say it
Describable = Literal["workers", "objects", "jobs", "timeline"]
Returned = Any  # an ObjectRef, a list of them, None (num_returns=0), or an ObjectRefGenerator
Submit = Callable[[Args, Kwargs], Returned]


class ActorBackend(ABC):
    """An actor as its handles know it. It can be pickled by what carries arguments and values."""

    class_name: str
    methods: Mapping[str, Mapping[str, Any]]  # all public ones, with what `dray.method` gave them

    @abstractmethod
    def bind(self, method: str, options: CallOptions) -> Submit:
        """Return what calls a method with these options."""

    @property
    @abstractmethod
    def actor_id(self) -> str:
        """Its id, as text."""

    def __repr__(self) -> str:
        return f"Actor({self.class_name}, {self.actor_id})"


class Group(ABC):
    """Bundles of resources, set aside for tasks and actors. It can be pickled like an actor.

    Attributes:
        bundles: Name to quantity, for each bundle.
    """

    bundles: Sequence[Mapping[str, float]]

    @property
    @abstractmethod
    def group_id(self) -> str:
        """Its id, as text."""

    @abstractmethod
    def ready(self) -> ObjectRef:
        """Return a reference to its `PlacementGroup`; ready when all bundles are set aside."""

    @abstractmethod
    def wait(self, timeout_s: float | None) -> bool:
        """Wait until all bundles are set aside; return whether they are."""

    @abstractmethod
    def remove(self) -> None:
        """Give the bundles back, and kill what runs in them."""


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """The description of a placement group to make.

    Attributes:
        bundles: Name to quantity, for each bundle.
        strategy: Spread of the bundles over nodes, as in a `Request`.
        name: Its name for `named_group`; "" is none.
        detached: Whether it outlives its driver.
        selectors: For each bundle the labels that its node must have; or empty.
    """

    bundles: Sequence[Mapping[str, float]]
    strategy: str = "PACK"
    name: str = ""
    detached: bool = False
    selectors: Sequence[Mapping[str, str]] = ()

    @property
    def request(self) -> Request:
        return Request(self.bundles, self.strategy, self.selectors)

    def request_of(self, numbers: Sequence[int], without: Collection[str]) -> Request:
        """Return the request for some of its bundles.

        Args:
            without: Ids of the nodes that have none of the others.
        """
        selectors = [self.selectors[number] if self.selectors else {} for number in numbers]
        if self.strategy == "STRICT_SPREAD":
            selectors = [narrowed(selector, without) for selector in selectors]
        return Request([self.bundles[number] for number in numbers], self.strategy, selectors)

    def title(self, group_id: str) -> str:
        return f"placement group {self.name!r}" if self.name else f"placement group {group_id}"

    def describe(self, group_id: str, state: str, nodes: Sequence[Node]) -> Described:
        """Return a row of `Runtime.groups`; the nodes are those of its bundles, or none yet."""
        return {
            "placement_group_id": group_id,
            "name": self.name,
            "state": state,
            "strategy": self.strategy,
            "bundles": {index: dict(bundle) for index, bundle in enumerate(self.bundles)},
            "bundles_to_node_id": {index: node.node_id for index, node in enumerate(nodes)},
        }


@dataclass(frozen=True)
class ExecutionContext:
    """The execution context of the calling code.

    Attributes:
        task_id: The task or the call, None in the driver.
        actor_id: The actor, None outside one.
        namespace: Namespace of the program's named actors.
        accelerator_ids: Resource name to the ids of the devices that are its own.
        captures: Whether what it starts runs in the group as well.
        was_restarted: Whether the actor has been made again.
        task_function: The name of the task's function, or of the method, in its module.
        session: The session's name; "" leaves it to `dray.core`.
        directory: Directory of the engine's own files; "" is none.
        cluster: The cluster's address; "" is none.
    """

    job_id: str
    node_id: str
    worker_id: str
    namespace: str
    task_id: str | None = None
    task_name: str | None = None
    actor_id: str | None = None
    actor_name: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    accelerator_ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    group: Group | None = None
    captures: bool = False
    was_restarted: bool = False
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    task_function: str | None = None
    session: str = ""
    directory: str = ""
    cluster: str = ""


class Runtime(ABC):
    """Tasks, actors and objects, as one process of a session sees them."""

    @abstractmethod
    def bind_function(self, function: Function, options: TaskOptions) -> Submit:
        """Return what submits a function as a task with these options.

        Calling it raises:
            InfeasibleError: No node can ever meet the request.
            SerializationError: An argument or the function cannot be pickled.
        """

    @abstractmethod
    def bind_class(
        self, kind: type, options: ActorOptions
    ) -> Callable[[Args, Kwargs], ActorBackend]:
        """Return what starts an actor of a class with these options; it raises as above."""

    @abstractmethod
    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        """Return the values, waiting for them.

        Raises:
            GetTimeoutError: They did not come in time.
            TaskError: A task raised; this is also an instance of what it raised.
            WorkerDiedError: A task's or an actor's process died.
            ObjectLostError: A value is gone.
            TaskCancelledError: A task was cancelled.
        """

    @abstractmethod
    def put(self, value: object) -> ObjectRef:
        """Store a value."""

    @abstractmethod
    def wait(
        self, refs: Sequence[ObjectRef], num_returns: int, timeout_s: float | None, fetch: bool
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """Wait until so many are ready; return those, in order, and the others."""

    @abstractmethod
    def cancel(self, ref: ObjectRef | ObjectRefGenerator, *, force: bool, recursive: bool) -> None:
        """Cancel the task that makes a value."""

    @abstractmethod
    def kill(self, actor: ActorBackend, *, no_restart: bool) -> None:
        """End an actor's process at once."""

    @abstractmethod
    def named_actor(self, name: str, namespace: str | None) -> ActorBackend | None:
        """Return the actor of that name that lives, if there is one."""

    @abstractmethod
    def named_actors(self) -> list[dict[str, str]]:
        """Return `{"name": ..., "namespace": ...}` of the named actors that live."""

    @abstractmethod
    def make_group(self, spec: GroupSpec) -> Group:
        """Ask for bundles of resources.

        Raises:
            InfeasibleError: No nodes can ever offer them.
        """

    @abstractmethod
    def named_group(self, name: str) -> Group | None:
        """Return the placement group of that name, if there is one."""

    @abstractmethod
    def groups(self) -> list[Described]:
        """Return all placement groups: id, name, state, strategy, bundles, nodes of bundles."""

    @abstractmethod
    def execution_context(self) -> ExecutionContext:
        """Return where the calling code runs."""

    def is_cancelled(self) -> bool:
        """Return whether the task or call that the calling code runs in has been cancelled."""
        return False

    @abstractmethod
    def own_actor(self) -> ActorBackend | None:
        """Return the actor that the calling code runs in; None outside one."""

    @abstractmethod
    def exit_actor(self) -> None:
        """End the actor that the calling code runs in, as if it had been asked to."""

    @abstractmethod
    def nodes(self) -> list[Described]:
        """Return the nodes, dead ones included, as `dray.nodes` shows them."""

    @abstractmethod
    def cluster_resources(self) -> dict[str, float]:
        """Return all resources there are, summed over the nodes."""

    @abstractmethod
    def available_resources(self) -> dict[str, float]:
        """Return the resources that nobody holds now, summed over the nodes."""

    @abstractmethod
    def described(self, what: Describable) -> list[Described]:
        """Return processes, objects that they refer to, programs or what has run, as Ray does."""

    @abstractmethod
    def status(self) -> ProgramStatus:
        """Return nodes, actors, tasks and what waits for what."""


def own_name(what: object) -> str:
    """Return the name of a function or class, without that of a function it is defined in."""
    return str(getattr(what, "__qualname__", what)).rpartition("<locals>.")[2]


def actor_name_taken(name: str) -> NameTakenError:
    """Return the error of an actor whose name another one has."""
    return NameTakenError(
        f"an actor is called {name!r} already; choose another name, get that one with "
        "dray.get_actor(), or make this one with get_if_exists=True"
    )


def group_name_taken(name: str) -> NameTakenError:
    """Return the error of a placement group whose name another one has."""
    return NameTakenError(
        f"a placement group is called {name!r} already; choose another name, remove that one, or "
        "get it with get_placement_group()"
    )


def no_concurrency_group(name: str, asked: str, groups: Collection[str]) -> ConfigError:
    """Return the error of a call for a concurrency group that its actor does not have."""
    known = ", ".join(sorted(groups)) or "none"
    return ConfigError(f"{name} has no concurrency group {asked!r}; it has {known}")


def not_in_time(missing: int, count: int, timeout_s: float | None) -> GetTimeoutError:
    """Return the error of a `get` that has waited for long enough."""
    return GetTimeoutError(
        f"{missing} of {count} values were not ready after {timeout_s:g} s; wait longer, or use "
        "dray.wait() to take those that are ready"
    )


def warn_not_detached(what: str, engine: str) -> None:
    """Tell who asks for `lifetime="detached"` that the engine ends with the program."""
    warn_user(
        f"{what} outlives its handles, but not this program: the {engine} engine has no daemon "
        "that could keep it. With dray.init(engine='ray') it outlives the program as well"
    )
