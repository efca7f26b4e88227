"""Where bundles of resources go: which node takes which, under a strategy."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dray.engines.contract import Request, Slices
from dray.engines.room import UNIT, Room, to_fixed

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

Selector = tuple[tuple[str, str], ...]
Wanted = tuple[tuple[str, int], ...]


class Bundle(NamedTuple):
    """What one bundle asks for: quantities in fixed point, and labels of its node."""

    quantities: Wanted
    selector: Selector = ()


class Demand(NamedTuple):
    """The shape of a request; requests of one shape are met in turn."""

    bundles: tuple[Bundle, ...]
    strategy: str
    lasting: bool = True
    slices: Slices | None = None


def demand_of(request: Request) -> Demand:
    """Returns the shape of a request.

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
    slices = request.slices
    for number in range(slices.count if slices is not None else 0):
        assert slices is not None
        first = bundles[number * slices.hosts]
        head = (*first.quantities, (slices.head, UNIT))
        bundles[number * slices.hosts] = first._replace(quantities=tuple(sorted(head)))
    return Demand(tuple(bundles), request.strategy, request.lasting, slices)


def place(demand: Demand, rooms: Sequence[Room], allowed: Sequence[set[int]]) -> list[int] | None:
    """Returns a node's index for each bundle, or None if they do not fit together.

    One bundle after another goes to the node whose turn it is among those with room for it. When
    they are packed, it is the turn of the node with most bundles of this demand, then of the first
    one; when they are spread, of that with fewest, then with most free CPU, then of the first one.

    Args:
        demand: The bundles.
        rooms: What is free on each node; they are left as they are.
        allowed: For each bundle the nodes that it may lie on.
    """
    strategy = demand.strategy
    if len(demand.bundles) == 1:
        index = _place_one(demand.bundles[0].quantities, strategy, rooms, allowed[0])
        return None if index is None else [index]
    kinds = _kinds(demand.bundles, allowed)
    if strategy == "STRICT_PACK" and kinds:
        index = _node_for_all(kinds, rooms)
        return None if index is None else [index] * len(demand.bundles)
    once = strategy == "STRICT_SPREAD"
    if _too_little(kinds, rooms, once):
        return None
    return _fill(kinds, rooms, spread=once or strategy == "SPREAD", once=once)


def _place_one(
    wanted: Wanted, strategy: str, rooms: Sequence[Room], allowed: set[int]
) -> int | None:
    nodes: Sequence[int] = range(len(rooms)) if len(allowed) == len(rooms) else sorted(allowed)
    if strategy.endswith("SPREAD"):
        nodes = sorted(nodes, key=lambda index: -_cpus(rooms[index]))
    for index in nodes:
        if rooms[index].fits(wanted):
            return index
    return None


def _cpus(room: Room) -> int:
    return room.quantities.get("CPU", 0)


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


def _in_turn(kinds: Sequence[_Kind]) -> Iterator[tuple[int, int]]:
    """Yields the position and the kind's number of each bundle, in the order they are placed.

    Bundles that few nodes may take go first, or freer ones would take their places.
    """
    turns = sorted(
        (len(kind.nodes), position, number)
        for number, kind in enumerate(kinds)
        for position in kind.positions
    )
    return ((position, number) for _, position, number in turns)


def _sums(kinds: Iterable[_Kind]) -> Wanted:
    sums: Counter[str] = Counter()
    for kind in kinds:
        for name, units in kind.wanted:
            sums[name] += units * len(kind.positions)
    return tuple(sums.items())


def _too_little(kinds: Iterable[_Kind], rooms: Sequence[Room], once: bool) -> bool:
    """Returns whether a look at each kind, or at the sums, shows that not all will fit."""
    if once and sum(len(kind.positions) for kind in kinds) > len(rooms):
        return True
    for name, units in _sums(kinds):
        # What is lent and used again is negative for a while.
        if sum(max(0, room.quantities.get(name, 0)) for room in rooms) < units:
            return True
    for kind in kinds:
        missing = len(kind.positions)
        for index in kind.nodes:
            missing -= rooms[index].times(kind.wanted, 1 if once else missing)
            if not missing:
                break
        else:
            return True
    return False


def _node_for_all(kinds: Sequence[_Kind], rooms: Sequence[Room]) -> int | None:
    """Returns the first node that takes all bundles."""
    sums = _sums(kinds)
    wanted = [kinds[number].wanted for _, number in _in_turn(kinds)]
    for index in sorted(frozenset.intersection(*{kind.nodes for kind in kinds})):
        room = rooms[index]
        if any(room.quantities.get(name, 0) < units for name, units in sums):
            continue
        counts = ((kind.wanted, len(kind.positions)) for kind in kinds)
        if any(room.times(each, count) < count for each, count in counts):
            continue
        if len(kinds) == 1 or _takes(room.copy(), wanted):
            return index
    return None


def _takes(room: Room, bundles: Iterable[Wanted]) -> bool:
    for wanted in bundles:
        if not room.fits(wanted):
            return False
        room.add(wanted, room.choose(wanted), -1)
    return True


def _fill(
    kinds: Sequence[_Kind], rooms: Sequence[Room], *, spread: bool, once: bool
) -> list[int] | None:
    filling = _Filling(rooms, spread, once)
    lines = [_Line(filling, kind) for kind in kinds]
    chosen = [-1] * sum(len(kind.positions) for kind in kinds)
    for position, number in _in_turn(kinds):
        index = lines[number].next()
        if index is None:
            return None
        filling.put(kinds[number].wanted, index)
        chosen[position] = index
    return chosen


class _Filling:
    """Nodes that bundles are put on one by one.

    Attributes:
        rooms: What is left on each node.
        used: How many bundles each has got.
        history: The nodes that bundles were put on, one after another.
        spread: Whether it is the turn of the node with fewest bundles, not of that with most.
        once: Whether a node takes at most one.
    """

    def __init__(self, rooms: Sequence[Room], spread: bool, once: bool) -> None:
        self.rooms = list(rooms)  # each is copied before it is changed
        self.used = [0] * len(rooms)
        self.history: list[int] = []
        self.spread, self.once = spread, once
        self._sorted: dict[frozenset[int], list[int]] = {}

    def turn(self, index: int) -> tuple[int, int, int]:
        """Returns what is smaller for a node whose turn is earlier."""
        if self.spread:
            return self.used[index], -_cpus(self.rooms[index]), index
        return -self.used[index], 0, index

    def in_turn(self, nodes: frozenset[int]) -> list[int]:
        """Returns nodes in the order of their turns at the start."""
        if nodes not in self._sorted:
            self._sorted[nodes] = sorted(nodes, key=self.turn)
        return self._sorted[nodes]

    def put(self, wanted: Wanted, index: int) -> None:
        """Puts a bundle on a node that has room for it."""
        if not self.once:
            if not self.used[index]:
                self.rooms[index] = self.rooms[index].copy()
            room = self.rooms[index]
            room.add(wanted, room.choose(wanted), -1)
        self.used[index] += 1
        self.history.append(index)


class _Line:
    """The nodes that bundles of one kind may go to, in the order of their turns.

    Rooms only shrink: a node that has too little for this kind leaves the line for good.
    """

    def __init__(self, filling: _Filling, kind: _Kind) -> None:
        self._filling, self._kind = filling, kind
        self._nodes = filling.in_turn(kind.nodes)
        self._unused = (
            index
            for index in self._nodes
            if not filling.used[index] and filling.rooms[index].fits(kind.wanted)
        )
        self._heap: list[tuple[int, int, int]] = []  # of those used: their turns, past ones too
        self._seen = 0  # of the history

    def next(self) -> int | None:
        """Returns the node whose turn it is, on which the caller must put a bundle."""
        if not self._filling.spread:
            index = self._next_used()
            return next(self._unused, None) if index is None else index
        index = next(self._unused, None)
        return self._next_used() if index is None and not self._filling.once else index

    def _next_used(self) -> int | None:
        self._catch_up()
        filling, wanted = self._filling, self._kind.wanted
        while self._heap:
            turn = heapq.heappop(self._heap)
            index = turn[-1]
            if turn == filling.turn(index) and filling.rooms[index].fits(wanted):
                return index
        return None

    def _catch_up(self) -> None:
        """Takes note of the nodes that got bundles, of any kind, since the last call."""
        filling, nodes = self._filling, self._nodes
        news = filling.history[self._seen :]
        self._seen = len(filling.history)
        if len(news) > len(nodes):
            self._heap = [filling.turn(index) for index in nodes if filling.used[index]]
            heapq.heapify(self._heap)
            return
        for index in self._kind.nodes.intersection(news):
            heapq.heappush(self._heap, filling.turn(index))
