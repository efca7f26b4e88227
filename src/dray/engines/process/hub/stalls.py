"""Stalls: work that waits for resources which no running work is going to free.

Actors, placement groups and trainings keep their resources until the program ends them. If no task
is running that would free resources at its end, all work that waits for resources waits for ever,
and the program is silent. So the driver looks for a stall when no worker has sent a message for a
while.
"""

from __future__ import annotations

from collections import Counter

from dray.engines.process.hub.actors import Actors
from dray.engines.process.hub.records import SchedulingClass, WorkerProcess
from dray.engines.process.hub.tasks import Tasks

_MOST_NAMED = 5


def describe_stall(tasks: Tasks, actors: Actors) -> str | None:
    """Return what waits, for what, and what holds it; None if something is under way."""
    if any(_is_at_work(worker) for worker in tasks.pool.all.values()):
        return None
    waiting = _waiting(tasks, actors)
    if not waiting:
        return None
    (name, shape), _ = waiting.most_common(1)[0]
    others = sum(waiting.values()) - 1
    asked = ", ".join(f"{quantity:g} {what}" for what, quantity in shape.resources.items())
    free, total = shape.ledger.available(), shape.ledger.total()
    there = " and ".join(
        f"{free.get(what, 0):g} of {total.get(what, 0):g} {what}" for what in shape.resources
    )
    enough = all(free.get(what, 0) >= units for what, units in shape.resources.items())
    where = "on one node" if shape.group is None else "in one bundle"
    but = f", but not {where}" if enough else ""
    return (
        f"{name}{f' and {others} more' if others else ''} cannot start: it asks for {asked}, of "
        f"which {there} are free{but}, and no running work will free more. {_holders(actors)}End "
        "actors that you no longer need (dray.kill), let actors take less (num_cpus=0), or "
        "offer more with dray.init(num_cpus=...); `dray status` shows all of them"
    )


def _waiting(tasks: Tasks, actors: Actors) -> Counter[tuple[str, SchedulingClass]]:
    """Return what waits for resources, by name and request."""
    found: Counter[tuple[str, SchedulingClass]] = Counter()
    for shape in tasks.kinds.shapes.values():
        found.update((task.kind.name, shape) for task in shape.waiting if not task.over)
    for actor in actors.all.values():
        kind = actor.creation.kind
        if actor.state == "waiting" and not actor.creation.unready:
            found[f"actor {kind.name}", kind.shape] += 1
    return found


def _holders(actors: Actors) -> str:
    names = Counter(
        actor.creation.kind.name
        for actor in actors.all.values()
        if actor.held is not None and any(actor.creation.kind.shape.resources.values())
    )
    if not names:
        return ""
    named = [f"{count} x {name}" for name, count in names.most_common(_MOST_NAMED)]
    return f"Actors keep what they hold until they end ({', '.join(named)}). "


def _is_at_work(worker: WorkerProcess) -> bool:
    """Return whether a worker runs a task that waits for nothing, or trains."""
    client = worker.client
    return worker.task is not None and (not client.blocked or bool(client.leases))
