"""Where the calling code runs: `dray.get_runtime_context`."""

from __future__ import annotations

from typing import Any

from dray import session
from dray.accelerators import families
from dray.core.actor import ActorHandle
from dray.engines.runtime import Whereabouts
from dray.errors import ConfigError


class DeviceId(str):
    """The id of a device: an index on its node, or a UUID."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self) if self.isdecimal() else super().__repr__()


class RuntimeContext:
    """What the calling code can know of its job, node, worker, task and actor."""

    def __init__(self, here: Whereabouts) -> None:
        self._here = here

    def get_job_id(self) -> str:
        """Returns the id of the program."""
        return self._here.job_id

    def get_node_id(self) -> str:
        """Returns the id of the node."""
        return self._here.node_id

    def get_worker_id(self) -> str:
        """Returns the id of the process."""
        return self._here.worker_id

    def get_task_id(self) -> str | None:
        """Returns the id of the task or the actor's call; None in the driver."""
        return self._here.task_id

    def get_task_name(self) -> str | None:
        """Returns its name."""
        return self._here.task_name

    def get_actor_id(self) -> str | None:
        """Returns the id of the actor; None outside one."""
        return self._here.actor_id

    def get_actor_name(self) -> str | None:
        """Returns the actor's name; None if it has none, or outside one."""
        return self._here.actor_name

    @property
    def namespace(self) -> str:
        """Where named actors of the program live."""
        return self._here.namespace

    def get_assigned_resources(self) -> dict[str, float]:
        """Returns what the task or actor holds, name to quantity."""
        return dict(self._here.resources)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Returns the ids of the devices that are the task's or actor's own.

        Returns:
            Resource name to ids, in the node's order; every kind that dray knows has an entry. An
            id is a string, shown without quotes if it is a number.
        """
        none: dict[str, list[str]] = {family.resource: [] for family in families()}
        held = self._here.accelerator_ids
        return {**none, **{name: [DeviceId(i) for i in ids] for name, ids in held.items()}}

    def get_placement_group_id(self) -> str | None:
        """Returns the id of the placement group; None outside one."""
        return None if self._here.group is None else self._here.group.group_id

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether what is started here runs in the same placement group."""
        return self._here.captures

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor has been made again after its process died."""
        return self._here.was_restarted

    @property
    def runtime_env(self) -> dict[str, Any]:
        """What the task or actor finds around itself."""
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


def get_runtime_context() -> RuntimeContext:
    """Returns where the calling code runs.

    Example:
        >>> import dray
        >>> dray.get_runtime_context().get_task_id() is None
        True
    """
    return RuntimeContext(session.current_runtime().whereabouts())
