"""The state of the session: its actors, tasks, objects, nodes and so on.

Only what there is now is known: a task that has ended is not listed any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from dray import session
from dray.compat.attributes import attach_getattr
from dray.core.context import get_runtime_context
from dray.engines.runtime import Describable
from dray.errors import ConfigError
from dray.status import ActorStatus, ProgramStatus, TaskStatus
from dray.util.state_rows import (
    ActorState,
    JobState,
    NodeState,
    ObjectState,
    PlacementGroupState,
    State,
    TaskState,
    WorkerState,
)
from dray.util.state_summaries import Summary, of_actors, of_objects, of_tasks

__all__ = [
    "ActorState",
    "JobState",
    "NodeState",
    "ObjectState",
    "PlacementGroupState",
    "TaskState",
    "WorkerState",
    "get_actor",
    "get_job",
    "get_node",
    "get_objects",
    "get_placement_group",
    "get_task",
    "get_worker",
    "list_actors",
    "list_jobs",
    "list_nodes",
    "list_objects",
    "list_placement_groups",
    "list_tasks",
    "list_workers",
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


S = TypeVar("S", bound=State)


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


def list_workers(
    address: str | None = None,
    filters: Filters | None = None,
    limit: int = 100,
    timeout: float = 30,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[WorkerState]:
    """Return the processes of the program and of its tasks and actors; the arguments are as above.

    Example:
        >>> from dray.util.state import list_workers
        >>> list_workers(filters=[("worker_type", "=", "DRIVER")])[0].is_alive
        True
    """
    return _chosen(_described("workers", WorkerState), WorkerState, filters, limit)


def list_objects(
    address: str | None = None,
    filters: Filters | None = None,
    limit: int = 100,
    timeout: float = 30,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[ObjectState]:
    """Return the objects, once for each process that refers to it; the arguments are as above.

    Those of functions and actors are left out; the inline engine knows none.

    Example:
        >>> import dray
        >>> from dray.util.state import list_objects
        >>> ref = dray.put(1)
        >>> ref.hex() in [state.object_id for state in list_objects()]
        True
    """
    return _chosen(_described("objects", ObjectState), ObjectState, filters, limit)


def list_jobs(
    address: str | None = None,
    filters: Filters | None = None,
    limit: int = 100,
    timeout: float = 30,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[JobState]:
    """Return the programs: this one, or those of the cluster; the arguments are as above.

    Example:
        >>> from dray.util.state import list_jobs
        >>> [job.type for job in list_jobs()]
        ['DRIVER']
    """
    return _chosen(_described("jobs", JobState), JobState, filters, limit)


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


def get_worker(
    id: str, address: str | None = None, timeout: float = 30, _explain: bool = False
) -> WorkerState | None:
    """Return the process of this id; None if there is none.

    Example:
        >>> import dray
        >>> from dray.util.state import get_worker
        >>> get_worker(dray.get_runtime_context().get_worker_id()).worker_type
        'DRIVER'
    """
    return _only(list_workers(limit=_ALL), "worker_id", id)


def get_objects(
    id: str, address: str | None = None, timeout: float = 30, _explain: bool = False
) -> list[ObjectState]:
    """Return the object of this id, once for each process that refers to it.

    Example:
        >>> import dray
        >>> from dray.util.state import get_objects
        >>> len(get_objects(dray.put(1).hex()))  # no reference is left
        0
    """
    return [state for state in list_objects(limit=_ALL) if state.object_id == id]


def get_job(
    id: str, address: str | None = None, timeout: float = 30, _explain: bool = False
) -> JobState | None:
    """Return the program of this id; None if there is none.

    Example:
        >>> from dray.util.state import get_job
        >>> get_job("0") is None
        True
    """
    return _only(list_jobs(limit=_ALL), "job_id", id)


def summarize_actors(
    address: str | None = None,
    timeout: float = 30,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> Summary:
    """Return for each class how many actors are in which state.

    Example:
        >>> from dray.util.state import summarize_actors
        >>> counts = summarize_actors()["cluster"]["summary"]
        >>> "Nobody" in counts
        False
    """
    return of_actors(list_actors(limit=_ALL))


def summarize_tasks(
    address: str | None = None,
    timeout: float = 30,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> Summary:
    """Return for each name how many tasks, or calls of actors, are in which state.

    Example:
        >>> from dray.util.state import summarize_tasks
        >>> summarize_tasks()["cluster"]["summary_by"]
        'func_name'
    """
    return of_tasks(list_tasks(limit=_ALL))


def summarize_objects(
    address: str | None = None,
    timeout: float = 30,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> Summary:
    """Return how many references there are to objects, and the size of these in MiB.

    As on Ray, all are under the name `disabled`, since nobody notes where they are made. Beside
    Ray's figures there are bytes in memory and on the disk, where the engine tells.

    Example:
        >>> import dray
        >>> from dray.util.state import summarize_objects
        >>> ref = dray.put(1)
        >>> summarize_objects()["cluster"]["total_objects"] > 0
        True
    """
    stored = _status().objects
    beside = {} if stored is None else asdict(stored)
    return of_objects(list_objects(limit=_ALL), beside)


_ALL = 1 << 62


def _status() -> ProgramStatus:
    return session.current_runtime().status()


def _described(what: Describable, kind: type[S]) -> list[S]:
    names = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    rows = session.current_runtime().described(what)
    return [kind(**{name: row.get(name) for name in names}) for row in rows]


def _actor(entry: ActorStatus) -> ActorState:
    here = get_runtime_context()
    return ActorState(
        actor_id=entry.actor_id,
        class_name=entry.class_name.rpartition(".")[2],
        state=_ACTORS.get(entry.state, entry.state),
        name=entry.name,
        pid=entry.pid,
        node_id=entry.node_id,
        required_resources=dict(entry.resources),
        job_id=entry.job_id or here.get_job_id(),
        ray_namespace=entry.namespace or here.namespace,
        placement_group_id=entry.group_id,
        is_detached=entry.detached,
        num_restarts=entry.restarts,
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
        job_id=entry.job_id or get_runtime_context().get_job_id(),
        worker_id=entry.worker_id,
        placement_group_id=entry.group_id,
        parent_task_id=entry.parent_task_id,
        attempt_number=entry.attempt,
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
