"""The loss of a simulated node: waiting work moves to another node if allowed, or fails."""

from __future__ import annotations

from dray.engines.process.hub.actors import Actors
from dray.engines.process.hub.functions import of_lost_bundles
from dray.engines.process.hub.placement_groups import Groups
from dray.engines.process.hub.records import SchedulingClass
from dray.engines.process.hub.tasks import Tasks
from dray.engines.rpc.serialization import failed
from dray.errors import InfeasibleError


def settle_losses(tasks: Tasks, actors: Actors, groups: Groups) -> None:
    """Deal with all that waits and can run on no node any more. With the lock held."""
    groups.settle_losses()
    for shape in list(tasks.kinds.shapes.values()):
        try:
            shape.ledger.check_demand(shape.demand)
        except InfeasibleError as error:
            _redirect(shape, error if shape.group is None else of_lost_bundles(error))
            _settle(shape, tasks, actors)


def _redirect(shape: SchedulingClass, error: InfeasibleError) -> None:
    """Have a shape ask for what there is, if it does not insist on what is gone."""
    if shape.elsewhere is None:
        shape.infeasible = error
    else:
        shape.demand, shape.elsewhere = shape.elsewhere, None


def _settle(shape: SchedulingClass, tasks: Tasks, actors: Actors) -> None:
    """Fail what waits of a shape, or ask for it anew."""
    if shape.asked is not None and shape.asked.cancel():
        shape.asked = None
    while shape.waiting and shape.infeasible is not None:
        tasks.table.end(shape.waiting.popleft(), failed(shape.infeasible))
    tasks.pump(shape)
    for actor in list(actors.all.values()):
        ours = actor.creation.kind.shape is shape and actor.state == "waiting"
        if ours and actor.asked is not None and actor.asked.cancel():
            actors.place(actor)
