"""The state of the session: its actors, tasks, nodes and placement groups.

Only what there is now is known: a task that has ended is not listed any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from dray import session
from dray.compat.attributes import attach_getattr
from dray.errors import ConfigError
from dray.status import ActorStatus, ProgramStatus, TaskStatus

__all__ = [
    "ActorState",
    "NodeState",
    "PlacementGroupState",
    "TaskState",
    "get_actor",
    "get_node",
    "get_placement_group",
    "get_task",
    "list_actors",
    "list_nodes",
    "list_placement_groups",
    "list_tasks",
    "summarize_actors",
    "summarize_objects",
    "summarize_tasks",
]

attach_getattr(__name__)

Filters = Sequence[tuple[str, str, Any]]

# The process engine's words for the states of actors and tasks in Ray's.
_ACTORS = {
    "waiting": "PENDING_CREATION",
    "starting": "PENDING_CREATION",
    "alive": "ALIVE",
    "restarting": "RESTARTING",
    "dead": "DEAD",
}
_WAITING = {"for resources": "PENDING_NODE_ASSIGNMENT", "for its actor": "SUBMITTED_TO_WORKER"}
_TASK_TYPES = {"task": "NORMAL_TASK", "call": "ACTOR_TASK"}


class _State:
    """A state, whose fields can also be had as items, as of a dict."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or the default if there is none of that name."""
        return vars(self).get(name, default)

    def keys(self) -> Iterator[str]:
        """Return the names of the fields."""
        return iter(vars(self))

    def asdict(self) -> dict[str, Any]:
        """Return it as a dict."""
        return dict(vars(self))


@dataclass(frozen=True)
class ActorState(_State):
    """An actor.

    Example:
        >>> import dray
        >>> from dray.util.state import get_actor
        >>> @dray.remote
        ... class Greeter:
        ...     def greet(self):
        ...         return "hello"
        >>> greeter = Greeter.remote()
        >>> dray.get(greeter.greet.remote())
        'hello'
        >>> state = get_actor(greeter._actor_id)
        >>> state.class_name, state.state
        ('Greeter', 'ALIVE')
    """

    actor_id: str
    class_name: str
    state: str
    name: str | None = None
    pid: int | None = None
    node_id: str | None = None
    required_resources: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskState(_State):
    """A task, or a call of an actor, that runs or waits.

    Example:
        >>> from dray.util.state import TaskState
        >>> state = TaskState(task_id="1", name="square", state="RUNNING")
        >>> state.name, state["state"]
        ('square', 'RUNNING')
    """

    task_id: str
    name: str
    state: str
    func_or_class_name: str = ""
    type: str = ""
    actor_id: str | None = None
    worker_pid: int | None = None
    node_id: str | None = None
    required_resources: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeState(_State):
    """A node.

    Example:
        >>> from dray.util.state import list_nodes
        >>> [(node.state, node["node_ip"]) for node in list_nodes()]
        [('ALIVE', '127.0.0.1')]
    """

    node_id: str
    node_ip: str
    state: str
    node_name: str
    resources_total: dict[str, float]
    labels: dict[str, str]
    is_head_node: bool = False
    state_message: str | None = None


@dataclass(frozen=True)
class PlacementGroupState(_State):
    """A placement group.

    Example:
        >>> from dray.util import placement_group, remove_placement_group
        >>> from dray.util.state import list_placement_groups
        >>> group = placement_group([{"CPU": 1}], name="shown")
        >>> [state.bundles for state in list_placement_groups(filters=[("name", "=", "shown")])]
        [{0: {'CPU': 1}}]
        >>> remove_placement_group(group)
    """

    placement_group_id: str
    name: str
    state: str
    strategy: str | None
    bundles: dict[int, dict[str, float]]


S = TypeVar("S", bound=_State)


def list_actors(
    address: str | None = None,
    filters: Filters | None = None,
    limit: int = 100,
    timeout: float = 30,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[ActorState]:
    """Return the actors of the session.

    Args:
        address: Without effect, as the rest below: it is the session of this program.
        filters: Such as `[("state", "=", "ALIVE")]`; also with "!=", without regard to case.
        limit: Largest number of rows.
        timeout: Without effect.
        detail: Without effect: everything known is there.
        raise_on_missing_output: Without effect.
        _explain: Without effect.

    Raises:
        ConfigError: A filter is malformed.

    Example:
        >>> import dray
        >>> dray.util.state.list_actors(filters=[("class_name", "=", "Nobody")])
        []
    """
    return _chosen([_actor(entry) for entry in _status().actors], ActorState, filters, limit)


def list_tasks(
    address: str | None = None,
    filters: Filters | None = None,
    limit: int = 100,
    timeout: float = 30,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[TaskState]:
    """Return the tasks and the actors' calls that run or wait; the arguments are as above.

    Example:
        >>> from dray.util.state import list_tasks
        >>> list_tasks(filters=[("name", "=", "nobody")])
        []
    """
    return _chosen([_task(entry) for entry in _status().tasks], TaskState, filters, limit)


def list_nodes(
    address: str | None = None,
    filters: Filters | None = None,
    limit: int = 100,
    timeout: float = 30,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[NodeState]:
    """Return the nodes, dead ones included; the arguments are as above.

    Example:
        >>> from dray.util.state import list_nodes
        >>> [node.state for node in list_nodes()]
        ['ALIVE']
    """
    found = [
        NodeState(
            node_id=entry["NodeID"],
            node_ip=entry["NodeManagerAddress"],
            state="ALIVE" if entry["Alive"] else "DEAD",
            node_name=entry["NodeName"],
            resources_total=dict(entry["Resources"]),
            is_head_node="node:__internal_head__" in entry["Resources"],
            labels=dict(entry["Labels"]),
        )
        for entry in session.nodes()
    ]
    return _chosen(found, NodeState, filters, limit)


def list_placement_groups(
    address: str | None = None,
    filters: Filters | None = None,
    limit: int = 100,
    timeout: float = 30,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[PlacementGroupState]:
    """Return the placement groups; the arguments are as above.

    Example:
        >>> from dray.util.state import list_placement_groups
        >>> list_placement_groups(filters=[("name", "=", "nobody")])
        []
    """
    names = {entry.name for entry in fields(PlacementGroupState)}
    found = [
        PlacementGroupState(**{name: entry[name] for name in names})
        for entry in session.current_runtime().groups()
    ]
    return _chosen(found, PlacementGroupState, filters, limit)


def get_actor(
    id: str, address: str | None = None, timeout: float = 30, _explain: bool = False
) -> ActorState | None:
    """Return the actor of this id; None if there is none.

    Example:
        >>> from dray.util.state import get_actor
        >>> get_actor("0" * 32) is None  # there is none with this id
        True
    """
    return _only(list_actors(limit=_ALL), "actor_id", id)


def get_task(
    id: str, address: str | None = None, timeout: float = 30, _explain: bool = False
) -> TaskState | None:
    """Return the task of this id; None if there is none any more.

    Example:
        >>> from dray.util.state import get_task
        >>> get_task("0" * 32) is None
        True
    """
    return _only(list_tasks(limit=_ALL), "task_id", id)


def get_node(
    id: str, address: str | None = None, timeout: float = 30, _explain: bool = False
) -> NodeState | None:
    """Return the node of this id; None if there is none.

    Example:
        >>> from dray.util.state import get_node, list_nodes
        >>> get_node(list_nodes()[0].node_id).state
        'ALIVE'
    """
    return _only(list_nodes(limit=_ALL), "node_id", id)


def get_placement_group(
    id: str, address: str | None = None, timeout: float = 30, _explain: bool = False
) -> PlacementGroupState | None:
    """Return the placement group of this id; None if there is none.

    Example:
        >>> from dray.util import placement_group, remove_placement_group
        >>> from dray.util.state import get_placement_group
        >>> group = placement_group([{"CPU": 1}])
        >>> group.wait()
        True
        >>> get_placement_group(group.id).state
        'CREATED'
        >>> remove_placement_group(group)
    """
    return _only(list_placement_groups(limit=_ALL), "placement_group_id", id)


def summarize_actors(
    address: str | None = None,
    timeout: float = 30,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> dict[str, dict[str, int]]:
    """Return for each class how many actors are in which state.

    Example:
        >>> from dray.util.state import summarize_actors
        >>> summary = summarize_actors()
    """
    return _summary(list_actors(limit=_ALL), "class_name")


def summarize_tasks(
    address: str | None = None,
    timeout: float = 30,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> dict[str, dict[str, int]]:
    """Return for each name how many tasks are in which state.

    Example:
        >>> from dray.util.state import summarize_tasks
        >>> summary = summarize_tasks()
    """
    return _summary(list_tasks(limit=_ALL), "name")


def summarize_objects(
    address: str | None = None,
    timeout: float = 30,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> dict[str, int]:
    """Return how many objects there are, and their bytes in memory and on the disk.

    Empty where the engine does not tell.

    Example:
        >>> from dray.util.state import summarize_objects
        >>> summary = summarize_objects()
    """
    objects = _status().objects
    return {} if objects is None else asdict(objects)


_ALL = 1 << 62


def _status() -> ProgramStatus:
    return session.current_runtime().status()


def _actor(entry: ActorStatus) -> ActorState:
    return ActorState(
        actor_id=entry.actor_id,
        class_name=entry.class_name.rpartition(".")[2],
        state=_ACTORS.get(entry.state, entry.state),
        name=entry.name,
        pid=entry.pid,
        node_id=entry.node_id,
        required_resources=dict(entry.resources),
    )


def _task(entry: TaskStatus) -> TaskState:
    state = entry.state
    if state == "waiting":
        state = _WAITING.get(entry.why, "PENDING_ARGS_AVAIL")
    return TaskState(
        task_id=entry.task_id,
        name=entry.name,
        state=state.upper(),
        func_or_class_name=entry.function,
        type=_TASK_TYPES.get(entry.type, entry.type),
        actor_id=entry.actor_id,
        worker_pid=entry.pid,
        node_id=entry.node_id,
        required_resources=dict(entry.resources),
    )


def _chosen(found: list[S], kind: type[S], filters: Filters | None, limit: int) -> list[S]:
    names = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    for entry in filters or ():
        if not isinstance(entry, list | tuple) or len(entry) != 3 or entry[1] not in ("=", "!="):
            raise ConfigError(
                f"a filter is (field, '=' or '!=', value), such as ('state', '=', 'ALIVE'), not "
                f"{entry!r}"
            )
        name, sign, value = str(entry[0]).lower(), *entry[1:]
        if name not in names:
            raise ConfigError(f"there is no field {name!r} to filter by; there are {names}")
        wanted, equal = str(value).lower(), sign == "="
        found = [state for state in found if (str(state[name]).lower() == wanted) == equal]
    return found[:limit]


def _only(found: list[S], name: str, value: str) -> S | None:
    return next((state for state in found if state[name] == value), None)


def _summary(found: Sequence[_State], name: str) -> dict[str, dict[str, int]]:
    counts = Counter((state[name], state["state"]) for state in found)
    summary: dict[str, dict[str, int]] = {}
    for (title, state), count in counts.items():
        summary.setdefault(title, {})[state] = count
    return summary
