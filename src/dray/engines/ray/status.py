"""What a Ray cluster is doing now, as far as Ray tells."""

from __future__ import annotations

from typing import Any

import ray

_PATIENCE_S = 5
_MANY = 1000
_OVER = ("FINISHED", "FAILED")


def status(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns nodes, actors, tasks and what waits for what, as JSON can say it.

    Tasks are known to Ray's dashboard alone, which not every cluster has; then a note says so.
    """
    found: dict[str, Any] = {"engine": "ray", "nodes": nodes}
    try:
        from ray.util import state

        address = ray.get_runtime_context().gcs_address
        limits = {
            "address": address,
            "limit": _MANY,
            "timeout": _PATIENCE_S,
            "raise_on_missing_output": False,
        }
        actors = state.list_actors(filters=[("state", "!=", "DEAD")], **limits)
        over = [("state", "!=", name) for name in _OVER]
        tasks = state.list_tasks(filters=over, detail=True, **limits)
        groups = state.list_placement_groups(filters=[("state", "=", "PENDING")], **limits)
    except Exception as error:  # noqa: BLE001 (the dashboard may be missing, away, or another one)
        found["note"] = f"Ray's dashboard, which knows of tasks, does not answer: {error}".strip()
        return {**found, "actors": _actors_from_gcs(), "tasks": [], "waiting": []}
    found["actors"] = [
        {
            "actor_id": actor.actor_id,
            "class_name": actor.class_name,
            "name": actor.name or None,
            "state": actor.state,
            "pid": actor.pid,
            "node_id": actor.node_id,
        }
        for actor in actors
    ]
    shown = [
        {
            "task_id": task.task_id,
            "name": task.name,
            "state": task.state,
            "node_id": task.node_id,
            "resources": dict(task.required_resources or {}),
        }
        for task in tasks
    ]
    found["tasks"] = [task for task in shown if not task["state"].startswith("PENDING")]
    found["waiting"] = [
        *(task for task in shown if task["state"].startswith("PENDING")),
        *({"group_id": group.placement_group_id, "state": group.state} for group in groups),
    ]
    return found


def _actors_from_gcs() -> list[dict[str, Any]]:
    return [
        {
            "actor_id": actor["ActorID"],
            "class_name": actor["ActorClassName"],
            "name": actor["Name"] or None,
            "state": actor["State"],
            "pid": actor["Pid"],
            "node_id": actor["Address"]["NodeID"],
        }
        for actor in ray._private.state.actors().values()
        if actor["State"] != "DEAD"
    ]
