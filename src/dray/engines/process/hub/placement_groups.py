"""Placement groups in the hub: each has a ledger of its own, whose nodes are its bundles.

A group exists until it is removed, and the hub knows its state as long as a handle exists.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence, Set

from dray.engines.placement_group import PlacementGroup
from dray.engines.process.hub.actors import Actors
from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.records import Client, FoundGroup, GroupRecord
from dray.engines.process.hub.tasks import Tasks, group_removed
from dray.engines.process.objects.references import arrived_group
from dray.engines.rpc.serialization import failed
from dray.engines.runtime import Described, GroupSpec, group_name_taken
from dray.errors import DrayError, GroupRemovedError, InfeasibleError
from dray.scheduling.bundle_ledger import BundleLedger
from dray.scheduling.ledger import Held
from dray.scheduling.placement import Demand, demand_of
from dray.scheduling.requests import Reservation


class Groups:
    """All placement groups of a session."""

    def __init__(self, hub: Hub, tasks: Tasks, actors: Actors) -> None:
        self._hub = hub
        self._tasks = tasks
        self._actors = actors
        self._names: dict[str, int] = {}

    def on_group(
        self, client: Client, question: int, number: int, ready: int, spec: GroupSpec
    ) -> None:
        self._hub.own(client, (ready,))
        if spec.name in self._names:
            self._hub.refuse(client, question, group_name_taken(spec.name))
            return
        try:
            demand = self._tasks.ledger.check(spec.request)
        except DrayError as error:
            self._hub.refuse(client, question, error)
            return
        ledger = BundleLedger(spec.bundles, self._tasks.ledger.device_names)
        record = GroupRecord(number, ready, spec, ledger)
        self._hub.store.hold(ready)  # until it is removed
        self._hub.store.when_unused(ready, lambda: self._tasks.kinds.forget_group(number))
        self._tasks.kinds.groups[number] = record
        if spec.name:
            self._names[spec.name] = number
        self._hub.reply(client, question, None)
        self._ask(record, demand, range(len(spec.bundles)))

    def _ask(self, record: GroupRecord, demand: Demand, numbers: Sequence[int]) -> None:
        """Ask for some of a group's bundles."""
        added = record.ledger.expect(numbers)
        asked = record.asked = self._tasks.ledger.reserve_checked(demand)

        def granted(held: Reservation) -> None:
            assert isinstance(held, Held)
            if record.asked is not asked:
                held.release()
                return
            record.asked = None
            record.held.append(held)
            record.ledger.settle_on(held, added)
            record.nodes.update(zip(numbers, held.nodes, strict=True))
            if record.state == "PENDING":
                # Without the reference to this very value, which would keep it for ever.
                group = PlacementGroup(arrived_group(record.number, record.spec.bundles))
                self._hub.store.seal(record.ready, pickle.dumps(group, 5))
            record.state = "CREATED"
            if held.broken:  # a node of it has died since it was granted
                self.settle_losses()

        self._hub.when_granted(asked, granted)

    def _forgo(self, record: GroupRecord) -> None:
        """Ask no more for bundles that are not there."""
        asked, record.asked = record.asked, None
        record.ledger.forgo()
        if asked is not None:
            asked.cancel()

    def settle_losses(self) -> None:
        """Have the bundles of nodes that are gone lie elsewhere, if they can."""
        alive = {node.node_id for node in self._tasks.ledger.alive()}
        for record in self._tasks.kinds.groups.values():
            lost = [n for n, node in record.nodes.items() if node.node_id not in alive]
            if record.state == "PENDING":
                self._give_up(record)
            elif lost and record.state != "REMOVED":
                self._reschedule(record, lost, alive)

    def _give_up(self, record: GroupRecord) -> None:
        """Fail a group that waits for bundles, if no nodes are left for them."""
        try:
            self._tasks.ledger.check(record.spec.request)
        except InfeasibleError as error:
            self._forgo(record)
            self._hub.store.seal(record.ready, failed(error))

    def _reschedule(self, record: GroupRecord, lost: Sequence[int], alive: Set[str]) -> None:
        record.state = "RESCHEDULING"
        self._forgo(record)
        for number in lost:
            record.ledger.remove_node(record.nodes[number].node_id)
        left = {node.node_id for node in record.nodes.values()}
        try:
            demand = self._tasks.ledger.check(record.spec.request_of(lost, alive - left))
        except InfeasibleError:
            return  # what asks for these bundles fails
        self._ask(record, demand, lost)

    def on_remove_group(self, client: Client, question: int, number: int) -> None:
        record = self._tasks.kinds.groups.get(number)
        if record is not None and record.state != "REMOVED":
            self.remove(record)
        self._hub.reply(client, question, None)

    def remove(self, record: GroupRecord) -> None:
        """Give the bundles of a group back, and kill what runs in them."""
        record.state = "REMOVED"
        self._names.pop(record.spec.name, None)
        for shape in self._tasks.kinds.shapes.values():
            if shape.group == record.number:
                shape.removed = record.title
        for task in list(self._tasks.table.running.values()):
            if task.kind.shape.group == record.number and task.actor is None:
                worker = task.worker
                task.retries = 0
                self._tasks.table.end(task, group_removed(task, record.title))
                if worker is not None:
                    worker.doomed = True  # it may be done in this moment, and would get other work
                    self._tasks.stop(worker)
        for actor in list(self._actors.all.values()):
            inside = actor.creation.kind.shape.group == record.number
            if inside and actor.state != "dead":
                actor.restarts = 0
                self._actors.kill(actor, True, f"ended with its {record.title}, which was removed")
        error = failed(GroupRemovedError(f"{record.title} was removed"))
        self._forgo(record)
        if record.held:
            self._release_when_free(record)
            self._hub.store.replace(record.ready, error)
        else:
            self._hub.store.seal(record.ready, error)
        self._hub.store.drop(record.ready)

    def _release_when_free(self, record: GroupRecord) -> None:
        """Give the bundles back when the processes that were killed in them are gone."""

        def release() -> None:
            for held in record.held:
                held.release()

        if not record.ledger.living:  # all were lost with their nodes
            release()
            return
        everything = record.ledger.reserve_checked(demand_of(record.ledger.everything()))
        everything.add_done_callback(lambda _: self._hub.lock.later(release))

    def _found(self, client: Client, record: GroupRecord) -> FoundGroup:
        self._hub.give(client, record.ready)
        return record.number, [dict(bundle) for bundle in record.spec.bundles], record.ready

    def on_named_group(self, client: Client, question: int, name: str) -> None:
        number = self._names.get(name)
        record = None if number is None else self._tasks.kinds.groups[number]
        found = None if record is None else self._found(client, record)
        self._hub.reply(client, question, found)

    def on_group_of(self, client: Client, question: int, number: int) -> None:
        record = self._tasks.kinds.groups.get(number)
        if record is None:
            self._hub.refuse(client, question, GroupRemovedError("the placement group is gone"))
        else:
            self._hub.reply(client, question, self._found(client, record))

    def table(self) -> list[Described]:
        """Return what is known of every group, as JSON-compatible values."""
        return [
            record.spec.describe(
                f"{record.number:032x}", record.state, [n for _, n in sorted(record.nodes.items())]
            )
            for record in self._tasks.kinds.groups.values()
        ]
