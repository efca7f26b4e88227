"""The ledger: who holds which resources of which node, in exact fixed point.

Quantities are integers of 1/10000, so thirds and tenths add up and come back whole. Requests are
met first in, first out for each shape of demand. A shape that does not fit now lets others pass,
but only for a while: then nobody takes what it lacks, unless what it lacks is held for good.
Accelerators are taken device by device: a fraction lies on one device, never across two.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

from dray.errors import ConfigError
from dray.interrupts import shielded
from dray.scheduling import labels
from dray.scheduling.capacity import UNIT, Capacity, DeviceShare, from_fixed, to_fixed
from dray.scheduling.device_locks import DeviceLocks
from dray.scheduling.infeasible import infeasible
from dray.scheduling.placement import (
    STRATEGIES,
    BundlePlacement,
    Demand,
    Selector,
    demand_of,
    place,
    place_in_order,
)
from dray.scheduling.requests import Node, PlacementPreview, Request, Reservation
from dray.scheduling.tpu_slices import place_on_slices

# Seconds for which a waiting request may be overtaken by those that take what it lacks.
STARVATION_LIMIT_S = 1.0


class Allocation(NamedTuple):
    """The resources that one bundle holds.

    Attributes:
        node: Its node's place in the ledger.
        quantities: How much of what.
        parts: Of accelerators, which devices.
    """

    node: int
    quantities: tuple[tuple[str, int], ...]
    parts: Mapping[str, Sequence[DeviceShare]]


class Held(Reservation):
    """Bundles that lie on nodes of a ledger.

    Attributes:
        nodes: The node of each bundle.
        devices: For each bundle the ids of its accelerators, by resource name.
    """

    def __init__(self, ledger: Ledger, allocations: list[Allocation], demand: Demand) -> None:
        self.nodes = [ledger.nodes[allocation.node] for allocation in allocations]
        self.devices = _devices(
            self.nodes, [allocation.parts for allocation in allocations], demand
        )
        self._demand = demand
        self._ledger = ledger
        self.allocations = allocations
        self.lasting = demand.lasting
        self._has_lent_cpus = False

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The resources of each bundle."""
        return [from_fixed(dict(bundle.quantities)) for bundle in self._demand.bundles]

    @property
    def broken(self) -> bool:
        return any(allocation.node in self._ledger.dead for allocation in self.allocations)

    @shielded
    def release(self) -> None:
        """Give everything back. A second call does nothing."""
        self.take_back()
        allocations, self.allocations = self.allocations, []
        self._ledger._give_back(allocations, self.lasting)

    @shielded
    def exchange(self, request: Request) -> Held | None:
        """Take what a request asks for in place of this, if it fits; see `Reservation`."""
        self.take_back()
        held = self._ledger._retake(self.allocations, self.lasting, demand_of(request))
        if held is not None:
            self.allocations = []
        return held

    def lend(self) -> None:
        """Let others use the CPUs, while what holds them waits for others' work."""
        if not self._has_lent_cpus:
            self._has_lent_cpus = True
            self._ledger._add_cpus(self.allocations, 1)

    def take_back(self) -> None:
        """Take them again, at once; there may be too many in use for a while."""
        if self._has_lent_cpus:
            self._has_lent_cpus = False
            self._ledger._add_cpus(self.allocations, -1)


class Ledger:
    """Reserves bundles of resources on nodes. Safe to use from several threads.

    Args:
        nodes: What there is.
        remedy: How a user gets more, for messages; see `infeasible`.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        remedy: str = "declare more with dray.init({arguments})",
    ) -> None:
        self.nodes = list(nodes)
        self._remedy = remedy
        self.device_names = {name for node in nodes for name in node.devices}
        self._total = [Capacity(to_fixed(node.resources), node.devices) for node in nodes]
        self._free = [total.copy() for total in self._total]
        # The capacity left if every task ended: less only what actors, groups and training hold.
        self._free_without_tasks = [total.copy() for total in self._total]
        self._waiting: dict[Demand, deque[tuple[float, Future[Reservation]]]] = {}
        self._lock = threading.RLock()
        self.device_locks: DeviceLocks | None = None  # set by an engine that has physical devices
        self._excluded: dict[tuple[str, str], Allocation] = {}
        self.dead: set[int] = set()
        self._alive = set(range(len(self.nodes)))
        self._paused = False
        self._closed = False

    def close(self) -> None:
        """Cancel what waits, and all that is asked for from now on."""
        with self._lock:
            self._closed = True
            waiting = [future for queue in self._waiting.values() for _, future in queue]
            self._waiting.clear()
        for future in waiting:
            future.cancel()

    def available(self) -> dict[str, float]:
        """Return what is free now, summed over the nodes."""
        with self._lock:
            names = dict.fromkeys(name for total in self._total for name in total.quantities)
            free = [capacity.usable() for capacity in self._free]
            return from_fixed({n: sum(f.get(n, 0) for f in free) for n in names})

    def waiting(self) -> list[tuple[dict[str, Any], Demand]]:
        """Return what waits: as JSON can say it (what, how many, since when), and as a demand."""
        now = time.monotonic()
        with self._lock:
            return [
                (
                    {
                        "bundles": [from_fixed(dict(b.quantities)) for b in demand.bundles],
                        "strategy": demand.strategy,
                        "requests": len(requests),
                        "seconds": round(now - requests[0][0], 1),
                    },
                    demand,
                )
                for demand, requests in self._waiting.items()
                if requests
            ]

    def alive(self) -> list[Node]:
        """Return the nodes that have not died."""
        return [self.nodes[index] for index in sorted(self._alive)]

    def contended(self, demand: Demand) -> bool:
        """Return whether somebody waits for something else."""
        return any(other != demand for other in tuple(self._waiting))

    def free_of(self, index: int) -> dict[str, float]:
        """Return what is free on a node."""
        with self._lock:
            return from_fixed(self._free[index].usable())

    def devices_of(self, index: int) -> list[dict[str, Any]]:
        """Return the accelerators of a node, and how much of each is free, as JSON can say it."""
        with self._lock:
            devices, free = self.nodes[index].devices, self._free[index].devices
            others = self.device_locks.others() if self.device_locks is not None else {}
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
            found: dict[str, int] = {}
            for capacity in self._free:
                for name, devices in capacity.devices.items():
                    found[name] = max(found.get(name, 0), devices.largest)
            return from_fixed(found)

    def pause(self) -> None:
        """Grant nothing until `settle_on` is called."""
        self._paused = True

    def settle_on(self, held: Held) -> None:
        """Say where what were bundles so far lie, and begin to grant."""
        with self._lock:
            self.nodes = [
                replace(
                    real,
                    resources=ours.resources,
                    labels={**real.labels, **ours.labels},
                    devices=devices,
                )
                for real, ours, devices in zip(held.nodes, self.nodes, held.devices, strict=True)
            ]
            self._paused = False
        self._grant()

    def remove_node(self, node_id: str) -> None:
        """Take a node away, with all it offers."""
        with self._lock:
            for index, node in enumerate(self.nodes):
                if node.node_id == node_id:
                    self.dead.add(index)
                    self._alive.discard(index)
                    for capacities in (self._total, self._free, self._free_without_tasks):
                        capacities[index] = Capacity({})

    def check(self, request: Request) -> Demand:
        """Return the shape of a request; see `Engine.check`."""
        if request.strategy not in STRATEGIES:
            raise ConfigError(
                f"placement strategy {request.strategy!r} is not one of {', '.join(STRATEGIES)}"
            )
        demand = demand_of(request)
        if self._place(demand, self._total) is None:
            raise infeasible(
                demand,
                self.nodes,
                [capacity.quantities for capacity in self._total],
                [
                    bundle.selector
                    for bundle in demand.bundles
                    if not self._allowed(bundle.selector)
                ],
                self._remedy,
            )
        return demand

    def rehearse(self, request: Request) -> PlacementPreview:
        """Return where bundles would lie now; see `Engine.rehearse`."""
        demand = demand_of(request)
        with self._lock:
            others = self.device_locks.others() if self.device_locks is not None else {}
            free = self._without(others)
            chosen = self._place(demand, free)
            if chosen is None:
                wanted = demand.bundles[0].quantities
                left = {i: from_fixed(free[i].usable(wanted)) for i in sorted(self._alive)}
                taken = [f"{name} {device} by {who}" for (name, device), who in others.items()]
                return PlacementPreview(free=[(self.nodes[i], left[i]) for i in left], taken=taken)
            nodes = [self.nodes[placement.node] for placement in chosen]
            return PlacementPreview(
                nodes, _devices(nodes, [placement.parts for placement in chosen], demand)
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
            if self._closed:
                future.cancel()
                return future
            self._waiting.setdefault(demand, deque()).append((time.monotonic(), future))
        self._grant()
        if not future.done():
            future.add_done_callback(self._on_cancel)
        return future

    def _on_cancel(self, future: Future[Reservation]) -> None:
        """Serve the queue again: a cancelled request may have held up others."""
        if future.cancelled():
            self._grant()

    def _give_back(self, allocations: Sequence[Allocation], lasting: bool) -> None:
        with self._lock:
            self._add(allocations, lasting, 1)
        if allocations:
            self._grant()

    def _retake(
        self, allocations: Sequence[Allocation], lasting: bool, demand: Demand
    ) -> Held | None:
        """Take what a demand asks for in place of these allocations, or nothing."""
        with self._lock:
            if any(allocation.node in self.dead for allocation in allocations):
                return None
            for allocation in allocations:
                self._add_one(allocation, lasting, 1)
            held = self._take(demand)
            for allocation in allocations:
                if held is None:
                    self._add_one(allocation, lasting, -1)
                else:
                    self._unlock_devices(allocation)
        if held is not None:
            self._grant()
        return held

    def _add_cpus(self, allocations: Sequence[Allocation], sign: int) -> None:
        with self._lock:
            for index, quantities, _ in allocations:
                if index not in self.dead:
                    cpus = [(name, units) for name, units in quantities if name == "CPU"]
                    self._free[index].add(cpus, {}, sign)
        if sign > 0:
            self._grant()

    def _grant(self) -> None:
        """Meet what can be met now, oldest first; what does not fit waits for its turn."""
        if not self._waiting or self._paused:
            return
        granted: list[tuple[Future[Reservation], Held]] = []
        with self._lock:
            now = time.monotonic()
            kept: set[str] = set()  # resources that an older request has waited for long enough
            for demand in sorted(self._waiting, key=lambda demand: self._waiting[demand][0][0]):
                requests = self._waiting[demand]
                while requests:
                    since, future = requests[0]
                    if future.cancelled():
                        requests.popleft()
                        continue
                    held = None
                    if not kept or not kept.intersection(_names(demand)):
                        held = self._take(demand)
                    if held is None:
                        if now - since > STARVATION_LIMIT_S and self._may_come(demand):
                            kept.update(self._lacks(demand))
                        break
                    requests.popleft()
                    if future.set_running_or_notify_cancel():
                        granted.append((future, held))
                    else:
                        self._add(held.allocations, held.lasting, 1)
                if not requests:
                    del self._waiting[demand]
        for future, reservation in granted:  # outside the lock: callbacks may reserve again
            future.set_result(reservation)

    def _may_come(self, demand: Demand) -> bool:
        """Return whether it would fit if all that ends by itself had ended."""
        return self._place(demand, self._free_without_tasks) is not None

    def _lacks(self, demand: Demand) -> set[str]:
        """Return the resources of which no node has enough for one of its bundles."""
        short = {
            name
            for bundle in demand.bundles
            for name, units in bundle.quantities
            if not any(free.fits([(name, units)]) for free in self._free)
        }
        return short or set(_names(demand))

    def _take(self, demand: Demand) -> Held | None:
        """Take what a demand asks for, or nothing if it does not fit."""
        while (chosen := self._place(demand, self._free)) is not None:
            allocations = [
                Allocation(placement.node, bundle.quantities, placement.parts)
                for placement, bundle in zip(chosen, demand.bundles, strict=True)
            ]
            for allocation in allocations:
                self._add_one(allocation, demand.lasting, -1)
            foreign = self._lock_devices(allocations)
            if foreign is None:
                return Held(self, allocations, demand)
            for allocation in allocations:
                self._add_one(allocation, demand.lasting, 1)
            self._exclude(*foreign)
        return None

    def _add(self, allocations: Sequence[Allocation], lasting: bool, sign: int) -> None:
        for allocation in allocations:
            if allocation.node in self.dead:
                continue
            self._add_one(allocation, lasting, sign)
            self._unlock_devices(allocation)

    def _add_one(self, allocation: Allocation, lasting: bool, sign: int) -> None:
        self._free[allocation.node].add(allocation.quantities, allocation.parts, sign)
        if lasting:
            self._free_without_tasks[allocation.node].add(
                allocation.quantities, allocation.parts, sign
            )

    # Devices that other programs of this machine use.

    def _devices_of(self, allocation: Allocation) -> list[tuple[str, str]]:
        ids = self.nodes[allocation.node].devices
        return [
            (name, ids[name][p.device]) for name, parts in allocation.parts.items() for p in parts
        ]

    def _lock_devices(
        self, allocations: Sequence[Allocation]
    ) -> tuple[int, tuple[str, str]] | None:
        """Lock the devices that are about to be given out, all or none.

        Returns:
            One that another program has, with its node; None if there is none.
        """
        if self.device_locks is None:
            return None
        taken: list[tuple[str, str]] = []
        for allocation in allocations:
            for device in self._devices_of(allocation):
                if not self.device_locks.take(device):
                    for other in taken:
                        self.device_locks.give_back(other)
                    return allocation.node, device
                taken.append(device)
        return None

    def _unlock_devices(self, allocation: Allocation) -> None:
        """Let other programs use devices, unless another allocation of ours has them too."""
        if self.device_locks is not None:
            for device in self._devices_of(allocation):
                self.device_locks.give_back(device)

    def _exclude(self, node: int, device: tuple[str, str]) -> None:
        """Take a device that another program has out of what is free."""
        name, device_id = device
        part = DeviceShare(self.nodes[node].devices[name].index(device_id), UNIT)
        self._excluded[device] = Allocation(node, ((name, UNIT),), {name: [part]})
        self._add_one(self._excluded[device], False, -1)

    def readmit(self, device: tuple[str, str]) -> None:
        """Take note that another program may have let a device go."""
        with self._lock:
            excluded = self._excluded.pop(device, None)
            if excluded is not None:
                self._add_one(excluded, False, 1)
        self._grant()

    def _place(
        self, demand: Demand, capacities: Sequence[Capacity]
    ) -> list[BundlePlacement] | None:
        """Return a placement for each bundle, or None if they do not fit together."""
        known: dict[Selector, set[int]] = {(): self._alive}
        for bundle in demand.bundles:
            if bundle.selector not in known:
                known[bundle.selector] = self._allowed(bundle.selector)
        allowed = [known[bundle.selector] for bundle in demand.bundles]
        if demand.slices is not None:
            chosen = place_on_slices(demand, capacities, allowed, self.nodes)
            return (
                None
                if chosen is None
                else place_in_order(enumerate(chosen), demand.bundles, capacities)
            )
        return place(demand, capacities, allowed)

    def _allowed(self, selector: Selector) -> set[int]:
        """Return the nodes that a selector allows, by index."""
        if not selector:
            return self._alive
        wanted = dict(selector)
        nodes = self.nodes
        return {i for i in self._alive if labels.matches(wanted, nodes[i].all_labels)}


def _devices(
    nodes: Sequence[Node], parts: Sequence[Mapping[str, Sequence[DeviceShare]]], demand: Demand
) -> list[dict[str, tuple[str, ...]]]:
    """Return for each bundle the ids of those devices held for it that it asks for."""
    devices = []
    for bundle, (node, each) in enumerate(zip(nodes, parts, strict=True)):
        spare = demand.slices.held_at(bundle) if demand.slices is not None else {}
        devices.append(
            {
                name: tuple(
                    node.devices[name][p.device] for p in taken[: len(taken) - spare.get(name, 0)]
                )
                for name, taken in each.items()
            }
        )
    return devices


def _names(demand: Demand) -> set[str]:
    return {name for bundle in demand.bundles for name, _ in bundle.quantities}
