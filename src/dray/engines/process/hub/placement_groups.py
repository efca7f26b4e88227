"""Placement groups in the hub: each has a ledger of its own, whose nodes are its bundles.

A group is there until it is removed, and known as such as long as somebody has a handle.
"""

from __future__ import annotations

import functools
import pickle

from dray.engines.placement_group import PlacementGroup
from dray.engines.process.hub.actors import Actors
from dray.engines.process.hub.functions import BUNDLE_LABEL
from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.records import Client, FoundGroup, GroupRecord
from dray.engines.process.hub.tasks import Tasks, group_removed
from dray.engines.process.objects.references import arrived_group
from dray.engines.rpc.serialization import failed
from dray.engines.runtime import Described, GroupSpec, group_name_taken
from dray.errors import DrayError, GroupRemovedError
from dray.scheduling.ledger import Held, Ledger
from dray.scheduling.placement import demand_of
from dray.scheduling.requests import Node, Request, Reservation


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
        # Where the bundles lie is known later; what they hold is known now.
        nodes = [
            Node(
                f"bundle {index}",
                "",
                dict(bundle),
                {BUNDLE_LABEL: str(index)},
                {name: () for name in bundle if name in self._tasks.ledger.device_names},
            )
            for index, bundle in enumerate(spec.bundles)
        ]
        ledger = Ledger(nodes, "make a placement group with larger bundles")
        ledger.pause()
        record = GroupRecord(number, ready, spec, ledger)
        self._hub.store.hold(ready)  # until it is removed
        self._hub.store.when_unused(ready, lambda: self._tasks.kinds.forget_group(number))
        self._tasks.kinds.groups[number] = record
        if spec.name:
            self._names[spec.name] = number
        self._hub.reply(client, question, None)
        record.asked = self._tasks.ledger.reserve_checked(demand)
        self._hub.when_granted(record.asked, functools.partial(self._granted, record))

    def _granted(self, record: GroupRecord, held: Reservation) -> None:
        assert isinstance(held, Held)
        if record.state == "REMOVED":
            held.release()
            return
        record.held, record.state = held, "CREATED"
        record.ledger.settle_on(held)
        # Without the reference to this very value, which would keep it for ever.
        group = PlacementGroup(arrived_group(record.number, record.spec.bundles))
        self._hub.store.seal(record.ready, pickle.dumps(group, 5))

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
        if record.held is not None:
            self._release_when_free(record, record.held)
            self._hub.store.replace(record.ready, error)
        elif record.asked is not None:
            record.asked.cancel()
            self._hub.store.seal(record.ready, error)
        self._hub.store.drop(record.ready)

    def _release_when_free(self, record: GroupRecord, held: Held) -> None:
        """Give the bundles back when the processes that were killed in them are gone."""
        left = sorted(record.ledger.living)  # those that were not lost with their nodes
        if not left:
            held.release()
            return
        every = [{BUNDLE_LABEL: str(index)} for index in left]
        request = Request([record.spec.bundles[index] for index in left], selectors=every)
        everything = record.ledger.reserve_checked(demand_of(request))
        everything.add_done_callback(lambda _: self._hub.lock.later(held.release))

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
            record.spec.describe(f"{record.number:032x}", record.state, record.nodes)
            for record in self._tasks.kinds.groups.values()
        ]
