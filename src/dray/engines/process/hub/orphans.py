"""Orphans: tasks and actors of a lost process that nothing else refers to.

A process is lost if it is killed or crashes during a task or a training, or as an actor in service.
Nothing will collect the results it waited for, and if it runs again it submits the same tasks once
more. If a process ends in the ordinary way, the work that it has submitted continues. So do calls
of actors to which other processes have handles.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dray.engines.process.hub.actors import Actors
from dray.engines.process.hub.records import ActorRecord, Client, Task, WorkerProcess
from dray.engines.process.hub.tasks import Tasks


class Bequest(NamedTuple):
    """The tasks that a lost process had submitted, and the actors that it held or called."""

    tasks: list[Task]
    actors: list[ActorRecord]


def bequest_of_attached(client: Client, tasks: Tasks, actors: Actors) -> Bequest:
    """Return what an attached client that has ended leaves; nothing if it was not lost."""
    if client.leaves:
        return Bequest([], [])
    submitted = [task for task in tasks.table.running.values() if task.client is client]
    return _bequest(client, submitted, actors)


def bequest_of(worker: WorkerProcess, tasks: Tasks, actors: Actors) -> Bequest:
    """Return what a process of tasks or an actor that has ended leaves; nothing if not lost."""
    table, actor = tasks.table, worker.actor
    if actor is not None:
        if not actor.killed and (actor.exiting or actor.worker is not worker):
            return Bequest([], [])
        submitted = [task for task in table.running.values() if task.client is worker.client]
    elif worker.task is not None:
        submitted = list(table.children.get(worker.task.number, {}).values())
    else:
        return Bequest([], [])
    return _bequest(worker.client, submitted, actors)


def _bequest(client: Client, submitted: Iterable[Task], actors: Actors) -> Bequest:
    called = {task.actor.number for task in submitted if task.actor is not None}
    known = actors.all.keys() & (client.holds | called)
    return Bequest(
        [task for task in submitted if task.actor is None],
        [actors.all[number] for number in known],
    )


def end_orphans(left: Bequest, tasks: Tasks, actors: Actors) -> None:
    """End what nobody refers to, now that nothing of the process counts any more."""
    store = tasks.hub.store

    def is_held(task: Task) -> bool:
        return any(map(store.exists, task.results))

    for task in reversed(left.tasks):  # those first that have others as arguments
        if not task.over and not is_held(task):
            tasks.cancel(task, force=True, recursive=False)
    for actor in left.actors:
        if actor.state != "dead" and not store.exists(actor.number):
            calls = [*actor.running.values(), *actor.calls_unsent()]
            if not any(is_held(call) or not call.client.gone for call in calls):
                actors.kill(actor, True, "ended with the process that had its last handle")
