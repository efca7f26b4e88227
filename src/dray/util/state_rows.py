"""The rows of `dray.util.state`: actors, tasks, objects, workers and so on, under Ray's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class State:
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
class ActorState(State):
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
    job_id: str | None = None
    ray_namespace: str | None = None
    placement_group_id: str | None = None
    is_detached: bool = False
    num_restarts: int = 0


@dataclass(frozen=True)
class TaskState(State):
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
    job_id: str | None = None
    worker_id: str | None = None
    placement_group_id: str | None = None
    parent_task_id: str | None = None
    attempt_number: int = 0


@dataclass(frozen=True)
class NodeState(State):
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
class PlacementGroupState(State):
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


@dataclass(frozen=True)
class WorkerState(State):
    """A process of the session: of tasks, of an actor, or the program itself.

    Example:
        >>> from dray.util.state import list_workers
        >>> [worker.is_alive for worker in list_workers(filters=[("worker_type", "=", "DRIVER")])]
        [True]
    """

    worker_id: str
    is_alive: bool
    worker_type: str
    node_id: str
    ip: str
    pid: int


@dataclass(frozen=True)
class ObjectState(State):
    """An object, as one process refers to it; its size is -1 where that is not known.

    Example:
        >>> import dray
        >>> from dray.util.state import get_objects
        >>> ref = dray.put(b"x" * 1000)
        >>> [(state.type, state.object_size > 1000) for state in get_objects(ref.hex())]
        [('DRIVER', True)]
    """

    object_id: str
    object_size: int
    task_status: str
    reference_type: str
    type: str
    pid: int
    ip: str


@dataclass(frozen=True)
class JobState(State):
    """A program.

    Example:
        >>> import dray
        >>> from dray.util.state import get_job
        >>> get_job(dray.get_runtime_context().get_job_id()).status
        'RUNNING'
    """

    job_id: str | None
    type: str
    status: str
    entrypoint: str
    submission_id: str | None = None
