"""The runtime context of the calling code: `dray.get_runtime_context`."""

from __future__ import annotations

from typing import Any, overload

from dray import session
from dray.accelerators import families
from dray.compat.attributes import AbsentMember
from dray.compat.ids import Id
from dray.core.actor import ActorHandle
from dray.engines.runtime import ExecutionContext
from dray.errors import ConfigError
from dray.user_warnings import warn_user


class DeviceId(str):
    """The id of a device: an index on its node, or a UUID."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self) if self.isdecimal() else super().__repr__()


class RuntimeContext:
    """The job, node, worker, task and actor of the calling code.

    Example:
        >>> import dray
        >>> @dray.remote(num_cpus=2)
        ... def assigned():
        ...     return dray.get_runtime_context().get_assigned_resources()
        >>> dray.get(assigned.remote())
        {'CPU': 2}
    """

    worker = AbsentMember()

    def __init__(self, here: ExecutionContext) -> None:
        self._here = here

    def get(self) -> dict[str, Any]:
        """Return the ids of the job, the node, the task and the actor, and the namespace."""
        here = self._here
        ids = {
            "job_id": here.job_id,
            "node_id": here.node_id,
            "task_id": here.task_id,
            "actor_id": here.actor_id,
        }
        known = {name: Id(value) for name, value in ids.items() if value is not None}
        return {**known, "namespace": here.namespace}

    def get_job_id(self) -> str:
        """Return the id of the program."""
        return self._here.job_id

    def get_node_id(self) -> str:
        """Return the id of the node."""
        return self._here.node_id

    def get_worker_id(self) -> str:
        """Return the id of the process."""
        return self._here.worker_id

    def get_task_id(self) -> str | None:
        """Return the id of the task or the actor's call; None in the driver."""
        return self._here.task_id

    def get_task_name(self) -> str | None:
        """Return its name."""
        return self._here.task_name

    def is_canceled(self) -> bool:
        """Return whether the task or the actor's call has been cancelled.

        A call of an actor whose methods are not async runs on when it is cancelled, so that the
        actor's state stays whole: one that takes long asks now and then. Nobody gets what it
        returns then.

        Raises:
            ConfigError: The code runs in none.
        """
        if self._here.task_id is None:
            raise ConfigError("is_canceled(): this code runs in no task and no call of an actor")
        return session.current_runtime().is_cancelled()

    def get_task_function_name(self) -> str | None:
        """Return the name of the task's function in its module; None in the driver."""
        return self._here.task_function

    def get_actor_id(self) -> str | None:
        """Return the id of the actor; None outside one."""
        return self._here.actor_id

    def get_actor_name(self) -> str | None:
        """Return the actor's name; None if it has none, or outside one."""
        return self._here.actor_name

    @property
    def namespace(self) -> str:
        """The namespace of the program's named actors."""
        return self._here.namespace

    def get_assigned_resources(self) -> dict[str, float]:
        """Return what the task or actor holds, name to quantity."""
        return dict(self._here.resources)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the ids of the devices that are the task's or actor's own.

        Returns:
            Resource name to ids, in the node's order; every kind that dray knows has an entry. An
            id is a string, shown without quotes if it is a number.
        """
        none: dict[str, list[str]] = {family.resource: [] for family in families()}
        held = self._here.accelerator_ids
        return {**none, **{name: [DeviceId(i) for i in ids] for name, ids in held.items()}}

    def get_resource_ids(self) -> dict[str, list[str]]:
        """Return the same as `get_accelerator_ids`, under its older name."""
        return self.get_accelerator_ids()

    def get_node_labels(self) -> dict[str, str]:
        """Return the labels of the node."""
        nodes = session.nodes()
        own = (node["Labels"] for node in nodes if node["NodeID"] == self._here.node_id)
        return dict(next(own, {}))

    def get_session_name(self) -> str:
        """Return the name of the session, which no other session has."""
        return self._here.session or f"session_{self._here.job_id}"

    def get_temp_dir(self) -> str:
        """Return where temporary files of the session go."""
        import tempfile  # slow to import, as json is

        return self._here.directory or tempfile.gettempdir()

    @property
    def gcs_address(self) -> str | None:
        """The address of the Ray cluster; None on the other engines, which have none."""
        return self._here.cluster or None

    @property
    def current_placement_group_id(self) -> Id | None:
        """The id of the placement group; None outside one."""
        found = self.get_placement_group_id()
        return None if found is None else Id(found)

    @property
    def job_id(self) -> Id:
        """Deprecated: `get_job_id()`."""
        return _deprecated("job_id", self.get_job_id())

    @property
    def node_id(self) -> Id:
        """Deprecated: `get_node_id()`."""
        return _deprecated("node_id", self.get_node_id())

    @property
    def task_id(self) -> Id | None:
        """Deprecated: `get_task_id()`."""
        return _deprecated("task_id", self.get_task_id())

    @property
    def actor_id(self) -> Id | None:
        """Deprecated: `get_actor_id()`."""
        return _deprecated("actor_id", self.get_actor_id())

    def get_runtime_env_string(self) -> str:
        """Return what the task or actor finds around itself, as JSON."""
        import json

        return json.dumps(self._here.runtime_env)

    def get_placement_group_id(self) -> str | None:
        """Return the id of the placement group; None outside one."""
        return None if self._here.group is None else self._here.group.group_id

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """True if what is started here runs in the same placement group."""
        return self._here.captures

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """True if the actor has been made again after its process died."""
        return self._here.was_restarted

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The runtime environment of the task or actor."""
        return dict(self._here.runtime_env)

    @property
    def current_actor(self) -> ActorHandle:
        """A handle of the actor that the calling code runs in.

        Raises:
            ConfigError: It runs in none.
        """
        actor = session.current_runtime().own_actor()
        if actor is None:
            raise ConfigError("current_actor: this code does not run in an actor")
        return ActorHandle(actor)


@overload
def _deprecated(name: str, value: str) -> Id: ...
@overload
def _deprecated(name: str, value: str | None) -> Id | None: ...
def _deprecated(name: str, value: str | None) -> Id | None:
    warn_user(f"RuntimeContext.{name} is deprecated; use get_{name}()", DeprecationWarning)
    return None if value is None else Id(value)


def get_gpu_ids() -> list[int] | list[str]:
    """Return the ids of the GPUs that are the calling task's or actor's own.

    Returns:
        Numbers, or strings where an id is none, such as a UUID; empty in the driver.

    Example:
        >>> import dray
        >>> dray.get_gpu_ids()
        []
    """
    ids = session.current_runtime().execution_context().accelerator_ids.get("GPU", ())
    if all(device.isdecimal() for device in ids):
        return [int(device) for device in ids]
    return list(ids)


def get_runtime_context() -> RuntimeContext:
    """Return where the calling code runs.

    Example:
        >>> import dray
        >>> dray.get_runtime_context().get_task_id() is None
        True
    """
    return RuntimeContext(session.current_runtime().execution_context())
