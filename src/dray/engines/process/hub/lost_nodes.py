"""The loss of a simulated node: what waits for it goes elsewhere if it may, or fails."""

from __future__ import annotations

from collections.abc import Set

from dray.engines.process.hub.actors import Actors
from dray.engines.process.hub.functions import of_lost_bundles
from dray.engines.process.hub.records import GroupRecord, SchedulingClass
from dray.engines.process.hub.tasks import Tasks
from dray.engines.rpc.serialization import failed
from dray.errors import InfeasibleError


def settle_losses(tasks: Tasks, actors: Actors) -> None:
    """Deal with all that waits and can run on no node any more. With the lock held."""
    alive = {node.node_id for node in tasks.ledger.alive()}
    for record in tasks.kinds.groups.values():
        if record.state == "PENDING":
            _give_up(record, tasks)
        elif record.state != "REMOVED":
            _lose_bundles(record, alive)
    for shape in list(tasks.kinds.shapes.values()):
        try:
            shape.ledger.check_demand(shape.demand)
        except InfeasibleError as error:
            _redirect(shape, error if shape.group is None else of_lost_bundles(error))
            _settle(shape, tasks, actors)


def _give_up(record: GroupRecord, tasks: Tasks) -> None:
    """Fail a group that waits for bundles, if no nodes are left for them."""
    try:
        tasks.ledger.check(record.spec.request)
    except InfeasibleError as error:
        if record.asked is not None:
            record.asked.cancel()
        tasks.hub.store.seal(record.ready, failed(error))
        for bundle in record.ledger.nodes:
            record.ledger.remove_node(bundle.node_id)


def _lose_bundles(record: GroupRecord, alive: Set[str]) -> None:
    for node_id in {node.node_id for node in record.nodes} - alive:
        record.state = "RESCHEDULING"
        record.ledger.remove_node(node_id)


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
