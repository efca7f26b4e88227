"""The hub's status: nodes, actors, tasks, and the objects or resources that they wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from dray.engines.local import describe_job, describe_node, describe_worker, nodes_of
from dray.engines.process.hub.actors import Actors
from dray.engines.process.hub.placement_groups import Groups
from dray.engines.process.hub.records import ActorRecord, Client, Task
from dray.engines.process.hub.tasks import Tasks
from dray.engines.rpc.serialization import INLINE, STORED, Payload, is_error
from dray.engines.runtime import Described
from dray.status import (
    MOST_TASKS,
    ActorStatus,
    ObjectsStatus,
    ProgramStatus,
    TaskStatus,
    WaitingStatus,
)


def answer(
    what: str, tasks: Tasks, actors: Actors, groups: Groups, driver: Client, job_id: str
) -> object:
    """Return what somebody asks about the session."""
    ledger = tasks.ledger
    answers: dict[str, Callable[[], object]] = {
        "names": lambda: [{"name": name, "namespace": space} for space, name in actors.names],
        "groups": groups.table,
        "nodes": lambda: [
            describe_node(node, alive=i in ledger.living) for i, node in enumerate(ledger.nodes)
        ],
        "total": ledger.total,
        "available": ledger.available,
        "workers": lambda: [worker for _, worker in _processes(tasks, driver)],
        "objects": lambda: _objects(tasks, actors, driver),
        "jobs": lambda: [describe_job(job_id)],
        "timeline": lambda: list(tasks.table.timeline.events),
        "status": lambda: _status(tasks, actors, groups, None),
        "overview": lambda: _status(tasks, actors, groups, MOST_TASKS),
    }
    return answers[what]()


def _status(tasks: Tasks, actors: Actors, groups: Groups, most: int | None) -> ProgramStatus:
    running = tasks.table.running.values()
    calls = [task for task in running if task.actor is None or task.details is not None]
    return ProgramStatus(
        engine="process",
        nodes=nodes_of(tasks.ledger),
        actors=[_actor(actor) for actor in actors.all.values()],
        tasks=[_task(task) for task in calls[:most]],
        task_count=len(calls),
        waiting=_waiting(tasks),
        groups=groups.table(),
        workers=len(tasks.pool.all),
        objects=ObjectsStatus(**tasks.hub.store.status()),
    )


def _actor(actor: ActorRecord) -> ActorStatus:
    worker = actor.worker
    return ActorStatus(
        actor_id=actor.actor_id,
        class_name=actor.creation.kind.name,
        name=actor.name,
        state=actor.state,
        pid=None if worker is None else worker.pid,
        node_id=None if worker is None else worker.node.node_id,
        resources=dict(actor.creation.kind.shape.resources),
        calls_waiting=len(actor.calls_unsent()),
        calls_running=len(actor.running),
        namespace=actor.namespace,
        group_id=_group(actor.creation),
        detached=actor.detached,
        restarts=actor.times_restarted,
    )


def _task(task: Task) -> TaskStatus:
    if task.worker is not None and task.worker.task is not task and task.actor is None:
        state, why = "waiting", "for a short task before it on its worker"
    elif task.worker is not None:
        state, why = "running", ""
    elif task.unready:
        state, why = "waiting", f"for {task.unready} of its arguments"
    elif task.actor is not None:
        state, why = "waiting", "for its actor"
    else:
        state, why = "waiting", "for resources"
    return TaskStatus(
        task_id=f"{task.number:032x}",
        name=task.name,
        function=task.function,
        type="task" if task.actor is None else "call",
        actor_id=None if task.actor is None else task.actor.actor_id,
        state=state,
        why=why,
        pid=None if task.worker is None else task.worker.pid,
        node_id=None if task.worker is None else task.worker.node.node_id,
        seconds=round(time.monotonic() - task.since, 1),
        resources={} if task.actor else dict(task.kind.shape.resources),
        worker_id=None if task.worker is None else f"{task.worker.number:08x}",
        group_id=_group(task),
        parent_task_id=None if task.parent is None else f"{task.parent:032x}",
        attempt=max(0, task.attempt - 1),
    )


def _group(task: Task) -> str | None:
    number = task.kind.shape.group
    return None if number is None else f"{number:032x}"


def _processes(tasks: Tasks, driver: Client) -> list[tuple[Client, Described]]:
    """Return the program and the workers that have begun."""
    here = describe_worker(f"{0:08x}", os.getpid(), tasks.ledger.nodes[0], is_driver=True)
    return [(driver, here)] + [
        (worker.client, describe_worker(f"{worker.number:08x}", worker.pid, worker.node))
        for worker in tasks.pool.all.values()
        if worker.pid is not None
    ]


def _objects(tasks: Tasks, actors: Actors, driver: Client) -> list[Described]:
    """Return the objects, once for each process that refers to one."""
    store, found = tasks.hub.store, []
    for client, process in _processes(tasks, driver):
        for number in sorted(client.holds):
            payload = store.find(number).payload
            if number in actors.all or payload == b"":  # it stands for an actor or a function
                continue
            pinned = type(payload) is tuple and payload[0] == STORED and payload[1] in client.pins
            found.append(
                {
                    "object_id": f"{number:032x}",
                    "object_size": _size(payload),
                    "task_status": _progress(tasks.table.maker_of(number)),
                    "reference_type": "PINNED_IN_MEMORY" if pinned else "LOCAL_REFERENCE",
                    "type": process["worker_type"],
                    "pid": process["pid"],
                    "ip": process["ip"],
                }
            )
    return found


def _size(payload: Payload | None) -> int:
    """Return the bytes of a value; -1 if it is not there, or an error."""
    if isinstance(payload, bytes):
        return len(payload)
    if payload is None or is_error(payload):
        return -1
    if payload[0] == INLINE:
        return len(payload[1]) + sum(map(len, payload[2]))
    return sum(payload[-2])


def _progress(maker: Task | None) -> str:
    if maker is None:
        return "FINISHED"
    if maker.unready:
        return "PENDING_ARGS_AVAIL"
    return "PENDING_NODE_ASSIGNMENT" if maker.worker is None else "RUNNING"


def _waiting(tasks: Tasks) -> list[WaitingStatus]:
    """Return what waits for resources: each shape of demand, how many, and since when."""
    counts = {shape.demand: len(shape.waiting) for shape in tasks.kinds.shapes.values()}
    found = []
    ledger = tasks.ledger
    free, largest = ledger.available(), ledger.most_free_devices()
    for entry, demand in ledger.waiting():
        lacks = {}
        for name, quantity in ((n, q) for bundle in entry["bundles"] for n, q in bundle.items()):
            lacks[name] = f"{quantity:g} asked, {free.get(name, 0):g} free in all"
            if quantity < 1 and name in largest:
                lacks[name] += f", at most {largest[name]:g} on one device"
        entry["requests"] = max(entry["requests"], counts.get(demand, 0))
        found.append(WaitingStatus(**entry, why=lacks))
    return found
