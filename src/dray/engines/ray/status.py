"""The status of a Ray cluster, as far as Ray tells."""

from __future__ import annotations

import functools
from typing import Any

import ray

from dray.engines.ray.placement_groups import all_groups
from dray.engines.runtime import Described
from dray.status import ActorStatus, NodeStatus, ProgramStatus, TaskStatus, WaitingStatus

_PATIENCE_S = 5
_MANY = 1000
_OVER = ("FINISHED", "FAILED")


def status(nodes: list[Described]) -> ProgramStatus:
    """Return nodes, actors, tasks and what waits for what.

    Tasks are known to Ray's dashboard alone, which not every cluster has; then a note says so.

    Args:
        nodes: As `dray.nodes` shows them.
    """
    address = ray.get_runtime_context().gcs_address
    found = functools.partial(
        ProgramStatus, engine="ray", address=address, nodes=[NodeStatus.of(node) for node in nodes]
    )
    try:
        from ray.util import state

        limits = {
            "address": address,
            "limit": _MANY,
            "timeout": _PATIENCE_S,
            "raise_on_missing_output": False,
        }
        actors = state.list_actors(filters=[("state", "!=", "DEAD")], **limits)
        over = [("state", "!=", name) for name in _OVER]
        tasks = state.list_tasks(filters=over, detail=True, **limits)
    except Exception as error:  # noqa: BLE001 (the dashboard may be missing, away, or another one)
        note = f"Ray's dashboard, which knows of tasks, does not answer: {error}".strip()
        return found(note=note, actors=_actors_from_gcs(), waiting=_pending_groups())
    return found(
        actors=[
            ActorStatus(
                actor_id=actor.actor_id,
                class_name=actor.class_name,
                name=actor.name or None,
                state=actor.state,
                pid=actor.pid,
                node_id=actor.node_id,
            )
            for actor in actors
        ],
        tasks=[_task(task) for task in tasks],
        task_count=len(tasks),
        waiting=_pending_groups(),
    )


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
        state=task.state,
        pid=task.worker_pid,
        node_id=task.node_id,
        resources=dict(task.required_resources or {}),
    )


def _actors_from_gcs() -> list[ActorStatus]:
    return [
        ActorStatus(
            actor_id=actor["ActorID"],
            class_name=actor["ActorClassName"],
            name=actor["Name"] or None,
            state=actor["State"],
            pid=actor["Pid"],
            node_id=actor["Address"]["NodeID"],
        )
        for actor in ray._private.state.actors().values()
        if actor["State"] != "DEAD"
    ]
