"""The ledger: the record of the resources of each node and of their holders, in exact fixed point.

Tasks, actors, placement groups and training submit a `Demand` (bundles, a strategy, labels of
nodes) to it, and get a `Held`, at once or in their turn.

Quantities are integers of 1/10000, so that thirds and tenths add up and come back whole.
Accelerators are also counted device by device (`capacity.py`): a fraction is on one device, never
across two, and 0.5 + 0.5 of two devices are not a whole one.

There are three books of the same form, with a `Capacity` for each node:

    total               the resources of the nodes: a demand that does not fit here never will, and
                        is refused
    free                the resources that are not held now: a demand that fits here is met
    free without tasks  the total less the resources of actors, groups and training (`long_lived`),
                        of other programs, and of tasks that wait for others' work: a demand that
                        fits here is met some day, because the other tasks end by themselves

`placement.py` places the bundles of a demand in a book, `tpu_slices.py` chooses their nodes on
slices, and `request_queue.py` keeps the order of demands that have to wait.

Invariants, which the tests try to break:

* free = total - held - used by other programs (`_excluded`) + lent. Only a loan makes it negative:
  a task that waits for others lends its CPUs, and takes them again at once when it continues, so
  that for a while too many may be in use.
* Bundles are given all or none, and all come back, once, however often `release` is called.
* Resources that are set aside (`Held.set_aside`) are free for any demand. They are taken back
  before any request or query, so nothing is set aside while a request waits.
* A device is locked against other programs (`device_locks.py`) before it is given out. A device
  that another program has locked is excluded, as if taken, until it is unlocked; placement tries
  again.
* A node that has died has no resources and gets none back. A node that is about to go accepts no
  more work.

One lock guards all of it. Futures are set outside the lock, since their callbacks may submit more
demands. A bundle is placed in O(nodes). A pass over the queue costs that for each shape that waits,
not for each request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from dray.errors import ConfigError, InfeasibleError
from dray.interrupts import shielded
from dray.scheduling import labels
from dray.scheduling.allocation import Allocation, device_ids
from dray.scheduling.capacity import UNIT, Capacity, DeviceShare, from_fixed, to_fixed
from dray.scheduling.device_locks import DeviceLocks, Holder
from dray.scheduling.placement import (
    STRATEGIES,
    Bundle,
    BundlePlacement,
    Demand,
    demand_of,
    place,
)
from dray.scheduling.request_queue import NOTHING_KEPT, Kept, RequestQueue, lacking, where_not_kept
from dray.scheduling.requests import Node, PlacementPreview, Request, Reservation
from dray.scheduling.tpu_slices import place_on_slices


class Held(Reservation):
    """Bundles that lie on nodes of a ledger.

    Attributes:
        allocations: Resources held by each bundle; empty once it is released.
    """

    can_exchange = True

    def __init__(self, ledger: Ledger, allocations: list[Allocation], demand: Demand) -> None:
        self.nodes = [ledger.nodes[allocation.node] for allocation in allocations]
        self.devices = device_ids(self.nodes, [each.parts for each in allocations], demand)
        self._demand = demand
        self._ledger = ledger
        self.allocations = allocations
        self.long_lived = demand.long_lived
        self._has_lent_cpus = False

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The resources of each bundle."""
        return [from_fixed(dict(bundle.quantities)) for bundle in self._demand.bundles]

    @property
    def broken(self) -> bool:
        return any(allocation.node not in self._ledger.living for allocation in self.allocations)

    @shielded
    def release(self) -> None:
        self.reacquire_cpus()
        self._ledger._give_back(self)

    def set_aside(self) -> bool:
        """Hold it until anybody asks the ledger for anything; return False if somebody waits.

        Devices are not set aside: other programs may want them, which do not ask here.
        """
        self.reacquire_cpus()
        return not any(self.devices) and self._ledger._set_aside(self)

    def take_up(self) -> bool:
        """Take again what was set aside; return False if it is gone."""
        return self._ledger._aside.pop(self, None) is not None

    @shielded
    def exchange(self, request: Request) -> Held | None:
        self.reacquire_cpus()
        held = self._ledger._retake(self.allocations, self.long_lived, demand_of(request))
        if held is not None:
            self.allocations = []
        return held

    def release_cpus(self) -> None:
        """Let others use the CPUs, while what holds them waits for others' work."""
        if not self._has_lent_cpus:
            self._has_lent_cpus = True
            self._ledger._lend(self, 1)

    def reacquire_cpus(self) -> None:
        """Take them again, at once; there may be too many in use for a while."""
        if self._has_lent_cpus:
            self._has_lent_cpus = False
            self._ledger._lend(self, -1)


class Ledger:
    """Reserves bundles of resources on nodes. Safe to use from several threads.

    Args:
        remedy: Advice on getting more, for messages; see `shortfall`.
    """

    def __init__(
        self, nodes: Sequence[Node], remedy: str = "declare more with dray.init({arguments})"
    ) -> None:
        self.nodes: list[Node] = []
        self._remedy = remedy
        self.device_names: set[str] = set()
        self._books: tuple[list[Capacity], ...] = ([], [], [])
        self._total, self._free, self._free_without_tasks = self._books
        self._queue = RequestQueue()
        self._lock = threading.RLock()
        self.device_locks: DeviceLocks | None = None  # set by an engine that has physical devices
        self._excluded: dict[tuple[str, str], Allocation] = {}
        self._aside: dict[Held, Held] = {}
        self.living: set[int] = set()  # by index
        self._staying: set[int] = set()  # those that take something new
        self._closed = False
        self._unsettled: set[int] = set()  # those that are not there yet, and will be
        self.add_nodes(nodes)

    def close(self) -> None:
        """Cancel what waits, and all that is asked for from now on."""
        with self._lock:
            self._closed = True
            self._aside.clear()
            waiting = self._queue.clear()
        for future in waiting:
            future.cancel()

    def total(self) -> dict[str, float]:
        """Return what there is in all, summed over the nodes that have not died."""
        nodes = [node.resources for node in self.alive()]
        names = dict.fromkeys(name for resources in nodes for name in resources)
        return {name: sum(resources.get(name, 0) for resources in nodes) for name in names}

    def available(self) -> dict[str, float]:
        """Return what is free now, summed over the nodes."""
        with self._lock:
            self._take_back_aside()
            names = dict.fromkeys(name for total in self._total for name in total.quantities)
            free = [capacity.usable() for capacity in self._free]
            return from_fixed({n: sum(f.get(n, 0) for f in free) for n in names})

    def waiting(self) -> list[tuple[dict[str, Any], Demand]]:
        """Return what waits: as JSON-compatible values, and as demands."""
        with self._lock:
            return self._queue.describe()

    def alive(self) -> list[Node]:
        with self._lock:
            return [self.nodes[index] for index in sorted(self.living)]

    def contended(self, demand: Demand) -> bool:
        return self._queue.contended(demand)

    def free_of(self, index: int) -> dict[str, float]:
        with self._lock:
            self._take_back_aside()
            return from_fixed(self._free[index].usable())

    def devices_of(self, index: int) -> list[dict[str, Any]]:
        """Return a node's accelerators, and how much of each is free, as JSON-compatible values."""
        with self._lock:
            self._take_back_aside()
            devices, free = self.nodes[index].devices, self._free[index].devices
            others = self._others()
            return [
                {
                    "resource": name,
                    "id": device,
                    "free": from_fixed({"": free[name].free_of(place)})[""],
                    "held_by": getattr(others.get((name, device)), "pid", None),
                }
                for name, ids in devices.items()
                if name in free
                for place, device in enumerate(ids)
            ]

    def most_free_devices(self) -> dict[str, float]:
        """Return how much is free of the device of each kind that has most."""
        with self._lock:
            self._take_back_aside()
            names = {name for capacity in self._free for name in capacity.devices}
            free = [capacity.devices for capacity in self._free]
            return from_fixed({n: max(d[n].largest for d in free if n in d) for n in names})

    def add_nodes(self, nodes: Sequence[Node]) -> range:
        """Add nodes; return their indices."""
        with self._lock:
            added = range(len(self.nodes), len(self.nodes) + len(nodes))
            self.nodes += nodes
            self.device_names.update(name for node in nodes for name in node.devices)
            whole = [Capacity(to_fixed(node.resources), node.devices) for node in nodes]
            self._total += whole
            for book in (self._free, self._free_without_tasks):
                book += [capacity.copy() for capacity in whole]
            self.living.update(added)
            self._staying.update(added)
        return added

    def remove_node(self, node_id: str) -> None:
        """Take a node away, with all it offers."""
        with self._lock:
            self._take_back_aside()
            for index, node in enumerate(self.nodes):
                if node.node_id == node_id:
                    self.living.discard(index)
                    self._staying.discard(index)
                    for book in self._books:
                        book[index] = Capacity({})

    def announce_loss(self, node_id: str, at: float | None) -> None:
        """Take note that a node is about to be taken away, at a time in seconds since the epoch."""
        with self._lock:
            for index, node in enumerate(self.nodes):
                if node.node_id == node_id:
                    self.nodes[index] = replace(node, leaves=True, leaves_at=at)
                    self._staying.discard(index)
                    self._total[index] = Capacity({})

    def check(self, request: Request) -> Demand:
        """Return the shape of a request; see `Engine.check`."""
        if request.strategy not in STRATEGIES:
            raise ConfigError(
                f"placement strategy {request.strategy!r} is not one of {', '.join(STRATEGIES)}"
            )
        self.check_demand(demand := demand_of(request))
        return demand

    def check_demand(self, demand: Demand) -> None:
        """Raise InfeasibleError if the nodes that have not died can never meet a demand."""
        if self._place(demand, self._total) is None:
            labelled = [bundle._replace(offered=()) for bundle in demand.bundles]
            unmatched = [bundle.selector for bundle in labelled if not self._allowed(bundle)]
            totals = [capacity.quantities for capacity in self._total]
            from dray.scheduling.infeasible import shortfall  # rarely needed

            raise InfeasibleError.of(shortfall(demand, self.nodes, totals, unmatched, self._remedy))

    def preview(self, request: Request) -> PlacementPreview:
        """Return where bundles would lie now; see `Engine.preview`."""
        demand = demand_of(request)
        with self._lock:
            self._take_back_aside()
            others = self._others()
            free = self._without(others)
            chosen = self._place(demand, free)
            if chosen is None:
                wanted = demand.bundles[0].quantities
                left = {i: from_fixed(free[i].usable(wanted)) for i in sorted(self.living)}
                taken = [f"{name} {device} by {who}" for (name, device), who in others.items()]
                return PlacementPreview(free=[(self.nodes[i], left[i]) for i in left], taken=taken)
            nodes = [self.nodes[placement.node] for placement in chosen]
            return PlacementPreview(
                nodes, device_ids(nodes, [placement.parts for placement in chosen], demand)
            )

    def _without(self, others: Iterable[tuple[str, str]]) -> list[Capacity]:
        """Return what is free, without the devices that other programs have."""
        free = list(self._free)
        for name, device in set(others) - self._excluded.keys():
            for index, node in enumerate(self.nodes):
                if device in node.devices.get(name, ()):
                    free[index] = free[index].copy()
                    place = list(node.devices[name]).index(device)
                    left = free[index].devices[name].free_of(place)
                    free[index].add([(name, left)], {name: [DeviceShare(place, left)]}, -1)
        return free

    def reserve(self, request: Request) -> Future[Reservation]:
        """Ask for bundles; see `Engine.reserve`."""
        return self.reserve_checked(self.check(request))

    @shielded
    def reserve_checked(self, demand: Demand) -> Future[Reservation]:
        """Ask for what `check` has returned."""
        future: Future[Reservation] = Future()
        with self._lock:
            self._take_back_aside()
            if self._closed:
                future.cancel()
                return future
            self._queue.add(demand, future)
        self._grant()
        if not future.done():
            future.add_done_callback(self._on_cancel)
        return future

    def _on_cancel(self, future: Future[Reservation]) -> None:
        """Serve the queue again: a cancelled request may have held up others."""
        if future.cancelled():
            self._grant()

    def _give_back(self, held: Held) -> None:
        with self._lock:
            self._aside.pop(held, None)
            is_free = self._free_held(held)
        if is_free:
            self._grant()

    def _free_held(self, held: Held) -> bool:
        """Free what is held; return False if it had been before. With the lock held."""
        allocations, held.allocations = held.allocations, []
        for allocation in allocations:
            if allocation.node in self.living:
                self._add(allocation, held.long_lived, 1)
                self._unlock_devices(allocation)
        return bool(allocations)

    def _set_aside(self, held: Held) -> bool:
        with self._lock:
            if self._queue or self._closed or not held.allocations:
                return False
            self._aside[held] = held
            return True

    def _take_back_aside(self) -> None:
        """Free what is set aside. With the lock held."""
        while self._aside:
            self._free_held(self._aside.popitem()[0])

    def _retake(
        self, allocations: Sequence[Allocation], long_lived: bool, demand: Demand
    ) -> Held | None:
        """Take what a demand asks for in place of these allocations, or nothing."""
        with self._lock:
            if any(allocation.node not in self.living for allocation in allocations):
                return None
            self._take_back_aside()
            for allocation in allocations:
                self._add(allocation, long_lived, 1)
            held = self._take(demand)
            for allocation in allocations:
                if held is None:
                    self._add(allocation, long_lived, -1)
                else:
                    self._unlock_devices(allocation)
        if held is not None:
            self._grant()
        return held

    def _lend(self, held: Held, sign: int) -> None:
        """Lend the CPUs, if the sign is 1, or take them again; all else is kept meanwhile."""
        with self._lock:
            for index, quantities, parts in held.allocations:
                if index in self.living:
                    cpus = [(name, units) for name, units in quantities if name == "CPU"]
                    self._free[index].add(cpus, {}, sign)
                    if not held.long_lived:  # it does not end by itself: others must go on first
                        rest = [pair for pair in quantities if pair not in cpus]
                        self._free_without_tasks[index].add(rest, parts, -sign)
        if sign > 0:
            self._grant()

    def _grant(self) -> None:
        """Meet what can be met now, oldest first; what does not fit waits for its turn."""
        if not self._queue:
            return
        with self._lock:
            granted = self._queue.serve(self._take, self._free_held, self._lacks)
        for future, held in granted:  # outside the lock: callbacks may reserve again
            future.set_result(held)

    def _lacks(self, demand: Demand, kept: Kept) -> Kept:
        """Return what a demand lacks, and where; see `RequestQueue.serve`."""
        if self._place(demand, self._free_without_tasks) is None:
            return {}
        allowed = {bundle: self._allowed(bundle) for bundle in {*demand.bundles}}
        return lacking(allowed, self._free, kept)

    def _take(self, demand: Demand, kept: Kept = NOTHING_KEPT) -> Held | None:
        """Take what a demand asks for, or nothing if it does not fit beside what is kept."""
        while (chosen := self._place(demand, self._free, kept)) is not None:
            allocations = [
                Allocation(placement.node, bundle.quantities, placement.parts)
                for placement, bundle in zip(chosen, demand.bundles, strict=True)
            ]
            for allocation in allocations:
                self._add(allocation, demand.long_lived, -1)
            foreign = self._lock_devices(allocations)
            if foreign is None:
                return Held(self, allocations, demand)
            for allocation in allocations:
                self._add(allocation, demand.long_lived, 1)
            self._exclude(*foreign)
        return None

    def _add(self, allocation: Allocation, long_lived: bool, sign: int) -> None:
        self._free[allocation.node].add(allocation.quantities, allocation.parts, sign)
        if long_lived:
            self._free_without_tasks[allocation.node].add(
                allocation.quantities, allocation.parts, sign
            )

    # Devices that other programs of this machine use.

    def _others(self) -> dict[tuple[str, str], Holder]:
        return {} if self.device_locks is None else self.device_locks.others()

    def _lock_devices(
        self, allocations: Sequence[Allocation]
    ) -> tuple[int, tuple[str, str]] | None:
        """Lock the devices that are about to be given out, all or none.

        Returns:
            One that another program has, with its node; None if there is none.
        """
        if self.device_locks is None:
            return None
        wanted = [
            (device, each.node) for each in allocations for device in each.devices(self.nodes)
        ]
        foreign = self.device_locks.take_all([device for device, _ in wanted])
        return None if foreign is None else (dict(wanted)[foreign], foreign)

    def _unlock_devices(self, allocation: Allocation) -> None:
        """Let other programs use devices, unless another allocation of ours has them too."""
        if self.device_locks is not None:
            for device in allocation.devices(self.nodes):
                self.device_locks.give_back(device)

    def _exclude(self, node: int, device: tuple[str, str]) -> None:
        """Take a device that another program has out of what is free."""
        name, device_id = device
        part = DeviceShare(self.nodes[node].devices[name].index(device_id), UNIT)
        self._excluded[device] = Allocation(node, ((name, UNIT),), {name: [part]})
        self._add(self._excluded[device], True, -1)  # nobody knows for how long

    def readmit(self, device: tuple[str, str]) -> None:
        """Take note that another program may have let a device go."""
        with self._lock:
            excluded = self._excluded.pop(device, None)
            if excluded is not None:
                self._add(excluded, True, 1)
        self._grant()

    def _place(
        self, demand: Demand, capacities: Sequence[Capacity], kept: Kept = NOTHING_KEPT
    ) -> list[BundlePlacement] | None:
        """Return a placement for each bundle, or None if they do not fit together."""
        known = {bundle: self._allowed(bundle) for bundle in {*demand.bundles}}
        if self._unsettled and capacities is not self._total:
            known = {bundle: nodes - self._unsettled for bundle, nodes in known.items()}
        if kept:
            known = {bundle: where_not_kept(bundle, known[bundle], kept) for bundle in known}
        allowed = [known[bundle] for bundle in demand.bundles]
        if demand.slices is not None:
            return place_on_slices(demand, capacities, allowed, self.nodes)
        return place(demand, capacities, allowed)

    def _allowed(self, bundle: Bundle) -> set[int]:
        """Return the nodes that a bundle may lie on, by index."""
        if not (bundle.selector or bundle.offered):
            return self._staying
        wanted, nodes = dict(bundle.selector), self.nodes
        labelled = {i for i in self._staying if labels.matches(wanted, nodes[i].all_labels)}
        return {i for i in labelled if self._total[i].fits(bundle.offered)}
