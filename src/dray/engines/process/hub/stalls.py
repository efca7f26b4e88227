"""Stalls: work that waits for resources which nothing that runs is going to free.

The driver looks when it has heard nothing from any worker for a while. Actors, placement groups and
trainings keep what they hold until somebody ends them; if no task is at work that would free
something as it ends, whatever waits for resources waits for ever, and the program is silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dray.engines.process.hub.actors import Actors
from dray.engines.process.hub.tasks import Tasks
from dray.engines.process.hub.worker_pool import Pool

_MOST_NAMED = 5


class Stalls:
    """Finds out whether a session's work has stopped for want of resources."""

    def __init__(self, tasks: Tasks, actors: Actors, pool: Pool) -> None:
        self._tasks = tasks
        self._actors = actors
        self._pool = pool

    def describe(self) -> str | None:
        """Return what waits, for what, and what holds it; None if something is under way."""
        if any(worker.task and not worker.client.blocked for worker in self._pool.all.values()):
            return None
        waiting = self._waiting()
        if not waiting:
            return None
        (name, resources), _ = waiting.most_common(1)[0]
        others = sum(waiting.values()) - 1
        return (
            f"{name}{f' and {others} more' if others else ''} cannot start: it asks for "
            f"{_listed(resources)}, of which {self._free(resources)}, and nothing is at work that "
            f"will free more. {self._holders()}End what is not needed (dray.kill), let actors "
            "take less (num_cpus=0), or offer more with dray.init(num_cpus=...); "
            "`dray status` shows all"
        )

    def _waiting(self) -> Counter[tuple[str, tuple[tuple[str, float], ...]]]:
        """Return what waits for resources, by name and request."""
        found: Counter[tuple[str, tuple[tuple[str, float], ...]]] = Counter()
        for shape in self._tasks.kinds.shapes.values():
            for task in shape.waiting:
                if not task.over:
                    found[task.kind.name, tuple(shape.resources.items())] += 1
        for actor in self._actors.all.values():
            creation = actor.creation
            if actor.state == "waiting" and not creation.unready:
                title = f"actor {creation.kind.name}"
                found[title, tuple(creation.kind.shape.resources.items())] += 1
        return found

    def _free(self, resources: Iterable[tuple[str, float]]) -> str:
        ledger = self._tasks.ledger
        free = ledger.available()
        total: dict[str, float] = {}
        for node in ledger.alive():
            for name, quantity in node.resources.items():
                total[name] = total.get(name, 0) + quantity
        return " and ".join(
            f"{free.get(name, 0):g} of {total[name]:g} {name} are free" for name, _ in resources
        )

    def _holders(self) -> str:
        names = Counter(
            actor.creation.kind.name
            for actor in self._actors.all.values()
            if actor.held is not None and any(actor.creation.kind.shape.resources.values())
        )
        if not names:
            return ""
        named = [f"{count} x {name}" for name, count in names.most_common(_MOST_NAMED)]
        return f"Actors keep what they hold until they end ({', '.join(named)}). "


def _listed(resources: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{quantity:g} {name}" for name, quantity in resources)
