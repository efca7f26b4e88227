"""Placement of bundles on nodes, under a strategy: bin packing, exact in most practical cases.

A demand is a list of bundles; a placement gives each a node, and the devices there. The strategies
are Ray's: PACK and SPREAD prefer few or many nodes, STRICT_PACK wants one, STRICT_SPREAD one each.
All functions are pure: capacities are copied before they are changed.

In general this is vector bin packing, which is NP-hard. But most bundles of a demand are alike: the
workers of a run, the bundles of a group. So bundles are sorted into kinds (the same quantities, on
the same nodes). Placement then goes through these steps, each only if the one before has not
decided:

    one bundle             the first node with room, preferably without devices that the bundle does
                           not ask for, so that they stay usable (spread: the node whose last turn
                           is longest ago)
    one node for all       first by sums, then a real placement
    `_too_little`          sums, and each kind alone: a proof that not all fit
    greedy, in order       kinds that few nodes may take first; each bundle goes to the next node
                           (packed: the node with most bundles of this demand; spread:
                           that with fewest)
      `augment`            a bundle that finds no node lets others move, one on each node
    greedy, scarce first   once more in another order, for mixtures

`augment` makes the greedy method exact for bundles of one size. It searches breadth-first for the
shortest chain in which each bundle takes the place of another and the last one goes where there is
room: an augmenting path in the bipartite graph of bundles and places. By Berge's theorem (1957)
there is no such chain only if no placement of one bundle more exists. So None is a proof in three
cases: all bundles want the same quantities, all but one want the same on the same nodes, or the
strategy is strict. There is one exception: if bundles that want different fractions of devices
share a node, the fractions may be placed so that one bundle finds no room. For other mixtures a
placement may be missed as well; the request then waits.

The nodes of a kind are in a `_NodeQueue`: a heap of those in use, and an iterator over the others.
Out-of-date entries of the heap are dropped when they reach its top. Capacities only shrink while a
demand is placed, so a node that has too little for a kind leaves its queue for good. With B bundles
of k kinds on N nodes that is O(k N log N + k B log N). A search for a chain looks at each node at
most once for each kind, and is rare. 10,000 bundles on 1,000 nodes take a fraction of a second.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dray.scheduling.capacity import UNIT, Capacity, DeviceShare, to_fixed
from dray.scheduling.requests import Request, Slices

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

Selector = tuple[tuple[str, str], ...]
Wanted = tuple[tuple[str, int], ...]


class Bundle(NamedTuple):
    """The demand of one bundle.

    Attributes:
        offered: Quantities that its node must have in all, be they free or not.
    """

    quantities: Wanted
    selector: Selector = ()
    offered: Wanted = ()


class Demand(NamedTuple):
    """The shape of a request; requests of one shape are met in turn."""

    bundles: tuple[Bundle, ...]
    strategy: str
    long_lived: bool = True
    slices: Slices | None = None


def demand_of(request: Request) -> Demand:
    """Return the shape of a request.

    Raises:
        ConfigError: A quantity is malformed.
    """
    # Workers ask for the same, as the same objects: each is looked at once.
    selectors = request.selectors or [{}] * len(request.bundles)
    pairs = list(zip(request.bundles, selectors, strict=True))
    different = {(id(bundle), id(selector)): (bundle, selector) for bundle, selector in pairs}
    known = {
        key: Bundle(tuple(sorted(to_fixed(bundle).items())), tuple(sorted(selector.items())))
        for key, (bundle, selector) in different.items()
    }
    bundles = [known[id(bundle), id(selector)] for bundle, selector in pairs]
    if request.slices is not None:
        also = map(request.slices.held_at, range(len(bundles)))
        bundles = [_with(bundle, held) for bundle, held in zip(bundles, also, strict=True)]
    return Demand(tuple(bundles), request.strategy, request.long_lived, request.slices)


def _with(bundle: Bundle, more: Mapping[str, int]) -> Bundle:
    quantities = Counter(dict(bundle.quantities))
    quantities.update({name: number * UNIT for name, number in more.items()})
    return bundle._replace(quantities=tuple(sorted((+quantities).items())))


class BundlePlacement(NamedTuple):
    """The place of a bundle: its node and devices."""

    node: int
    parts: Mapping[str, Sequence[DeviceShare]]


def place(
    demand: Demand, capacities: Sequence[Capacity], allowed: Sequence[set[int]]
) -> list[BundlePlacement] | None:
    """Return a placement for each bundle, or None if they do not fit together.

    One bundle after another goes to the node whose turn it is among those with room for it. When
    they are packed, it is the turn of the node with most bundles of this demand, then of the first
    one; when they are spread, of that with fewest, then with most free CPU, then of the first one.
    A bundle that finds no room lets others move, one a node; then all is tried in another order.

    Args:
        capacities: Free capacity of each node, which is not changed.
        allowed: For each bundle the nodes that it may lie on.
    """
    strategy = demand.strategy
    if len(demand.bundles) == 1:
        wanted = demand.bundles[0].quantities
        index = _place_one(wanted, strategy, capacities, allowed[0])
        return None if index is None else [BundlePlacement(index, capacities[index].choose(wanted))]
    kinds = _kinds(demand.bundles, allowed)
    if strategy == "STRICT_PACK" and kinds:
        return _on_one_node(kinds, demand.bundles, capacities)
    once = strategy == "STRICT_SPREAD"
    if _too_little(kinds, capacities, once):
        return None
    spread = once or strategy == "SPREAD"
    placements = _fill(_PartialPlacement(kinds, capacities, spread, once), _in_order(kinds))
    if placements is None and not once and len({kind.wanted for kind in kinds}) > 1:
        placements = _fill(
            _PartialPlacement(kinds, capacities, spread, once),
            _scarce_first(kinds, capacities),
            True,
        )
    return placements


def place_in_order(
    order: Iterable[tuple[int, int]], bundles: Sequence[Bundle], capacities: Sequence[Capacity]
) -> list[BundlePlacement] | None:
    """Return the placements of bundles on the nodes that are given, or None if one finds no room.

    Args:
        order: The position and the node of each, in the order in which they take their devices.
        capacities: Free capacity of each node, which is not changed.
    """
    left: dict[int, Capacity] = {}
    placements: dict[int, BundlePlacement] = {}
    for position, node in order:
        capacity = left[node] = left.get(node) or capacities[node].copy()
        wanted = bundles[position].quantities
        if not capacity.fits(wanted):
            return None
        placements[position] = BundlePlacement(node, capacity.take(wanted))
    return [placements[position] for position in range(len(placements))]


def _place_one(
    wanted: Wanted, strategy: str, capacities: Sequence[Capacity], allowed: set[int]
) -> int | None:
    """Return the node for a bundle; it spares devices for those that will ask for them."""
    names, spread = {name for name, _ in wanted}, strategy.endswith("SPREAD")

    def is_wasteful(index: int) -> bool:
        return not capacities[index].devices.keys() <= names

    nodes: Sequence[int] = (
        range(len(capacities)) if len(allowed) == len(capacities) else sorted(allowed)
    )
    if spread:
        nodes = sorted(nodes, key=lambda i: (capacities[i].last_taken, is_wasteful(i)))
    fitting = (index for index in nodes if capacities[index].fits(wanted))
    first = next(fitting, None)
    if spread or first is None or not is_wasteful(first):
        return first
    return next((index for index in fitting if not is_wasteful(index)), first)


class _Kind(NamedTuple):
    """Bundles that want the same, of the same nodes, by their places in the demand."""

    wanted: Wanted
    nodes: frozenset[int]
    positions: list[int]


def _kinds(bundles: Iterable[Bundle], allowed: Sequence[set[int]]) -> list[_Kind]:
    once_each = {id(nodes): nodes for nodes in allowed}  # mostly they are one and the same
    frozen = {key: frozenset(nodes) for key, nodes in once_each.items()}
    kinds: dict[tuple[Wanted, frozenset[int]], _Kind] = {}
    for position, (bundle, some) in enumerate(zip(bundles, allowed, strict=True)):
        key = bundle.quantities, frozen[id(some)]
        if key not in kinds:
            kinds[key] = _Kind(*key, [])
        kinds[key].positions.append(position)
    return list(kinds.values())


def _in_order(kinds: Sequence[_Kind]) -> Iterator[tuple[int, int]]:
    """Yield the position and the kind's number of each bundle, in the order they are placed.

    Bundles that few nodes may take go first, or freer ones would take their places.
    """
    return _sorted_by([len(kind.nodes) for kind in kinds], kinds)


def _scarce_first(
    kinds: Sequence[_Kind], capacities: Sequence[Capacity]
) -> Iterator[tuple[int, int]]:
    """Yield the same by how many of a kind would fit, but those that have no like before all."""
    places = [
        (len(k.positions) > 1, sum(capacities[i].times(k.wanted, sys.maxsize) for i in k.nodes))
        for k in kinds
    ]
    return _sorted_by(places, kinds)


def _sorted_by(keys: Sequence[Any], kinds: Sequence[_Kind]) -> Iterator[tuple[int, int]]:
    order = sorted(
        (keys[number], position, number)
        for number, kind in enumerate(kinds)
        for position in kind.positions
    )
    return ((position, number) for _, position, number in order)


def _sums(kinds: Iterable[_Kind]) -> Wanted:
    sums: Counter[str] = Counter()
    for kind in kinds:
        for name, units in kind.wanted:
            sums[name] += units * len(kind.positions)
    return tuple(sums.items())


def _too_little(kinds: Iterable[_Kind], capacities: Sequence[Capacity], once: bool) -> bool:
    """Return whether a look at each kind, or at the sums, show that not all will fit."""
    if once and sum(len(kind.positions) for kind in kinds) > len(capacities):
        return True
    for name, units in _sums(kinds):
        # What is lent and used again is negative for a while.
        if sum(max(0, capacity.quantities.get(name, 0)) for capacity in capacities) < units:
            return True
    for kind in kinds:
        missing = len(kind.positions)
        for index in kind.nodes:
            missing -= capacities[index].times(kind.wanted, 1 if once else missing)
            if not missing:
                break
        else:
            return True
    return False


def _on_one_node(
    kinds: Sequence[_Kind], bundles: Sequence[Bundle], capacities: Sequence[Capacity]
) -> list[BundlePlacement] | None:
    """Return the placements of all bundles on the first node that takes them all."""
    sums = _sums(kinds)
    order = list(_in_order(kinds))
    for index in sorted(frozenset.intersection(*{kind.nodes for kind in kinds})):
        capacity = capacities[index]
        if any(capacity.quantities.get(name, 0) < units for name, units in sums):
            continue
        counts = ((kind.wanted, len(kind.positions)) for kind in kinds)
        if any(capacity.times(each, count) < count for each, count in counts):
            continue
        placements = place_in_order(
            ((position, index) for position, _ in order), bundles, capacities
        )
        if placements is not None:
            return placements
    return None


def _fill(
    partial: _PartialPlacement, order: Iterable[tuple[int, int]], with_care: bool = False
) -> list[BundlePlacement] | None:
    """Return a placement for each bundle.

    Args:
        order: The position and the kind's number of each bundle, in the order they are placed.
        with_care: Whether those that have no like go where they take least from others.
    """
    queues = [_NodeQueue(partial, kind) for kind in partial.kinds]
    for position, number in order:
        lone = with_care and len(partial.kinds[number].positions) == 1
        index = partial.least_disruptive_node(number) if lone else queues[number].next()
        if index is None:
            index = partial.augment(number)
        if index is None:
            return None
        partial.put(position, number, index)
    return [partial.placements[position] for position in range(len(partial.placements))]


class _PartialPlacement:
    """Nodes that bundles are put on one by one.

    Attributes:
        placements: Nodes of the bundles, by position.
        history: The nodes that bundles were put on, one after another.
        spread: Whether it is the turn of the node with fewest bundles, not of that with most.
        once: Whether a node takes at most one.
    """

    def __init__(
        self, kinds: Sequence[_Kind], capacities: Sequence[Capacity], spread: bool, once: bool
    ) -> None:
        self.kinds = kinds
        self.capacities = list(capacities)  # each is copied before it is changed
        self.used = [0] * len(capacities)
        self.placements: dict[int, BundlePlacement] = {}
        self.history: list[int] = []
        self.spread, self.once = spread, once
        self._sorted: dict[frozenset[int], list[int]] = {}

    def order_key(self, index: int) -> tuple[int, int, int]:
        """Return what is smaller for a node whose turn is earlier."""
        if self.spread:
            return self.used[index], -self.capacities[index].quantities.get("CPU", 0), index
        return -self.used[index], 0, index

    def in_order(self, nodes: frozenset[int]) -> list[int]:
        """Return nodes in the order of their turns at the start."""
        if nodes not in self._sorted:
            self._sorted[nodes] = sorted(nodes, key=self.order_key)
        return self._sorted[nodes]

    def put(self, position: int, number: int, index: int) -> None:
        """Put a bundle of a kind on a node that has room for it."""
        wanted = self.kinds[number].wanted
        if self.once:
            parts = self.capacities[index].choose(wanted)
        else:
            if not self.used[index]:
                self.capacities[index] = self.capacities[index].copy()
            parts = self.capacities[index].take(wanted)
        self.placements[position] = BundlePlacement(index, parts)
        self.used[index] += 1
        self.history.append(index)

    def _take_away(self, position: int, number: int) -> int:
        index, parts = self.placements.pop(position)
        if not self.once:
            self.capacities[index].add(self.kinds[number].wanted, parts, 1)
        self.used[index] -= 1
        return index

    def least_disruptive_node(self, number: int) -> int | None:
        """Return the node on which a bundle takes fewest places of the most frequent others."""
        kind = self.kinds[number]
        others = [other for other in self.kinds if other is not kind]
        most = max(others, key=lambda other: len(other.positions))
        count = len(most.positions)

        def missed(index: int) -> int:
            if index not in most.nodes:
                return 0
            capacity = self.capacities[index].copy()
            before = capacity.times(most.wanted, count)
            capacity.take(kind.wanted)
            return before - capacity.times(most.wanted, count)

        fitting = (index for index in kind.nodes if self.capacities[index].fits(kind.wanted))
        return min(fitting, key=lambda index: (missed(index), self.order_key(index)), default=None)

    def augment(self, number: int) -> int | None:
        """Move bundles, one a node, until a node has room for one more of a kind.

        It looks for the shortest chain of moves. That is an augmenting path, as in bipartite
        matching; Berge (1957) shows that if there is none, no placement of one bundle more exists,
        where each takes the place of another.

        Returns:
            The node; None if there is no such chain.
        """
        numbers = {p: n for n, kind in enumerate(self.kinds) for p in kind.positions}
        on: dict[int, dict[int, int]] = {}  # node -> kind -> one bundle of that kind there
        for position, placement in self.placements.items():
            on.setdefault(placement.node, {})[numbers[position]] = position
        comer: dict[int, int] = {}  # node -> the bundle that would come; -1 is the new one
        reached = {number}
        queue = deque([(-1, number)])
        while queue:
            position, number = queue.popleft()
            wanted = self.kinds[number].wanted
            for index in self.in_order(self.kinds[number].nodes):
                if index in comer:
                    continue
                if self._fits(index, wanted):
                    return self._move(position, index, comer, numbers)
                for other, leaving in on.get(index, {}).items():
                    if other not in reached and self._fits_without(leaving, other, wanted):
                        reached.add(other)
                        comer[index] = position
                        queue.append((leaving, other))
        return None

    def _fits(self, index: int, wanted: Wanted) -> bool:
        return not (self.once and self.used[index]) and self.capacities[index].fits(wanted)

    def _fits_without(self, leaving: int, number: int, wanted: Wanted) -> bool:
        index, parts = self.placements[leaving]
        if self.once:
            return self.capacities[index].fits(wanted)
        capacity = self.capacities[index].copy()
        capacity.add(self.kinds[number].wanted, parts, 1)
        return capacity.fits(wanted)

    def _move(
        self, position: int, index: int, comer: Mapping[int, int], numbers: Mapping[int, int]
    ) -> int:
        """Move a bundle to a node, to its place the one that would come there, and so on."""
        while position >= 0:
            left = self._take_away(position, numbers[position])
            self.put(position, numbers[position], index)
            index, position = left, comer[left]
        return index


class _NodeQueue:
    """The nodes that bundles of one kind may go to, in the order of their turns.

    Rooms only shrink: a node that has too little for this kind leaves the line for good.
    """

    def __init__(self, partial: _PartialPlacement, kind: _Kind) -> None:
        self._partial, self._kind = partial, kind
        self._nodes = partial.in_order(kind.nodes)
        self._unused = (
            index
            for index in self._nodes
            if not partial.used[index] and partial.capacities[index].fits(kind.wanted)
        )
        self._heap: list[tuple[int, int, int]] = []  # of those used: their turns, past ones too
        self._seen = 0  # of the history

    def next(self) -> int | None:
        """Return the node whose turn it is, on which the caller must put a bundle."""
        if not self._partial.spread:
            index = self._next_used()
            return next(self._unused, None) if index is None else index
        index = next(self._unused, None)
        return self._next_used() if index is None and not self._partial.once else index

    def _next_used(self) -> int | None:
        self._catch_up()
        partial, wanted = self._partial, self._kind.wanted
        while self._heap:
            order_key = heapq.heappop(self._heap)
            index = order_key[-1]
            if order_key == partial.order_key(index) and partial.capacities[index].fits(wanted):
                return index
        return None

    def _catch_up(self) -> None:
        """Take note of the nodes that got bundles, of any kind, since the last call."""
        partial, nodes = self._partial, self._nodes
        news = partial.history[self._seen :]
        self._seen = len(partial.history)
        if len(news) > len(nodes):
            self._heap = [partial.order_key(index) for index in nodes if partial.used[index]]
            heapq.heapify(self._heap)
            return
        for index in self._kind.nodes.intersection(news):
            heapq.heappush(self._heap, partial.order_key(index))
