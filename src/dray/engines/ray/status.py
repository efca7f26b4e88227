"""The status of a Ray cluster, as far as Ray reports it."""

from __future__ import annotations

import functools
from typing import Any

import ray

from dray.engines.ray.placement_groups import all_groups
from dray.engines.runtime import Describable, Described
from dray.status import ActorStatus, NodeStatus, ProgramStatus, TaskStatus, WaitingStatus

_PATIENCE_S = 10
_OVER = ("FINISHED", "FAILED")


def status(nodes: list[Described]) -> ProgramStatus:
    """Return nodes, actors, tasks and what waits for what.

    Tasks are known to Ray's dashboard alone, which not every cluster has; then a note says so.

    Args:
        nodes: As `dray.nodes` shows them.
    """
    address = ray.get_runtime_context().gcs_address
    found = functools.partial(
        ProgramStatus,
        engine="ray",
        address=address,
        nodes=[NodeStatus.of(node) for node in nodes],
        actors=_actors(),
        waiting=_pending_groups(),
    )
    try:
        unfinished = [("state", "!=", name) for name in _OVER]
        tasks = _listed("tasks", timeout=_PATIENCE_S, filters=unfinished, detail=True)
    except Exception as error:  # noqa: BLE001 (the dashboard may be missing, away, or another one)
        return found(
            note=f"Ray's dashboard, which knows of tasks, does not answer: {error}".strip()
        )
    return found(tasks=[_task(task) for task in tasks], task_count=len(tasks))


def described(what: Describable) -> list[Described]:
    """Return what Ray knows of the living processes, of objects, of programs or of what has run."""
    if what == "timeline":
        events: list[Described] = ray.timeline()
        return events
    rows = _listed(what, filters=[("is_alive", "=", True)] if what == "workers" else None)
    return [
        {name: getattr(value, "value", value) for name, value in vars(row).items()} for row in rows
    ]


def _listed(what: str, **how: Any) -> list[Any]:
    """Return what Ray's dashboard lists, as far as it does."""
    from ray.util import state
    from ray.util.state.common import RAY_MAX_LIMIT_FROM_API_SERVER

    found: list[Any] = getattr(state, f"list_{what}")(
        address=ray.get_runtime_context().gcs_address,
        limit=RAY_MAX_LIMIT_FROM_API_SERVER,
        raise_on_missing_output=False,
        **how,
    )
    return found


def _pending_groups() -> list[WaitingStatus]:
    return [
        WaitingStatus(what=f"placement group {group['name'] or group['placement_group_id']}")
        for group in all_groups()
        if group["state"] == "PENDING"
    ]


def _task(task: Any) -> TaskStatus:
    return TaskStatus(
        task_id=task.task_id,
        name=task.name,
        function=task.func_or_class_name,
        type=task.type,
        actor_id=task.actor_id,
        state=task.state,
        pid=task.worker_pid,
        node_id=task.node_id,
        resources=dict(task.required_resources or {}),
        job_id=task.job_id,
        worker_id=task.worker_id,
        group_id=task.placement_group_id,
        parent_task_id=task.parent_task_id,
        attempt=task.attempt_number,
    )


def _actors() -> list[ActorStatus]:
    return [
        ActorStatus(
            actor_id=actor["ActorID"],
            class_name=actor["ActorClassName"],
            name=actor["Name"] or None,
            state=actor["State"],
            pid=actor["Pid"],
            node_id=actor["Address"]["NodeID"],
            job_id=actor["JobID"],
            detached=actor["IsDetached"],
            restarts=actor["NumRestarts"],
        )
        for actor in ray._private.state.actors().values()
        if actor["State"] != "DEAD"
    ]
