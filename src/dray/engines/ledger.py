"""The ledger: who holds which resources of which node, in exact fixed point.

Quantities are integers of 1/10000, so thirds and tenths add up and come back whole. Requests are
met first in, first out for each shape of demand, and a shape that does not fit now does not hold
up a smaller one behind it. Devices (GPU, TPU, ...) will join as vectors of one quantity a unit.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from dray.engines.contract import Node, Placement, Reservation
from dray.errors import ConfigError, InfeasibleError

UNIT = 10_000
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

Quantities = dict[str, int]
Bundles = tuple[tuple[tuple[str, int], ...], ...]


def to_fixed(resources: Mapping[str, float]) -> Quantities:
    """Returns quantities in units of 1/10000, zeros dropped.

    Raises:
        ConfigError: A quantity is negative, not a number, or finer than 1/10000.
    """
    fixed: Quantities = {}
    for name, quantity in resources.items():
        if isinstance(quantity, bool) or not isinstance(quantity, int | float):
            raise ConfigError(f"the quantity of {name} must be a number, not {quantity!r}")
        if not 0 <= quantity < float("inf"):
            raise ConfigError(f"the quantity of {name} must be 0 or more, not {quantity!r}")
        units = round(quantity * UNIT)
        if quantity and not units:
            raise ConfigError(f"the quantity of {name} must be at least 1/{UNIT}, not {quantity!r}")
        if units:
            fixed[name] = units
    return fixed


def from_fixed(quantities: Mapping[str, int]) -> dict[str, float]:
    """Returns quantities as plain numbers: whole ones as int."""
    return {k: v // UNIT if v % UNIT == 0 else v / UNIT for k, v in quantities.items()}


class _Held(Reservation):
    def __init__(
        self, ledger: Ledger, placements: list[Placement], claims: list[tuple[int, Quantities]]
    ):
        self.placements = placements
        self._ledger = ledger
        self._claims = claims

    def release(self) -> None:
        claims, self._claims = self._claims, []
        self._ledger._give_back(claims)


class Ledger:
    """Reserves bundles of resources on nodes. Safe to use from several threads."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)
        self._total = [to_fixed(node.resources) for node in nodes]
        self._free = [dict(total) for total in self._total]
        self._waiting: list[tuple[Bundles, str, Future[Reservation]]] = []
        self._lock = threading.Lock()

    def available(self) -> dict[str, float]:
        """Returns what is free now, summed over the nodes."""
        with self._lock:
            names = dict.fromkeys(name for total in self._total for name in total)
            return from_fixed({n: sum(free.get(n, 0) for free in self._free) for n in names})

    def check(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> Bundles:
        """Returns bundles in fixed point; see `Engine.check`."""
        if strategy not in STRATEGIES:
            raise ConfigError(
                f"placement strategy {strategy!r} is not one of {', '.join(STRATEGIES)}"
            )
        demand: Bundles = tuple(tuple(sorted(to_fixed(bundle).items())) for bundle in bundles)
        if _place(demand, strategy, self._total) is None:
            raise self._infeasible(demand, strategy)
        return demand

    def reserve(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> Future[Reservation]:
        """Asks for bundles; see `Engine.reserve`."""
        demand = self.check(bundles, strategy)
        future: Future[Reservation] = Future()
        with self._lock:
            self._waiting.append((demand, strategy, future))
        self._grant()
        return future

    def _give_back(self, claims: Sequence[tuple[int, Quantities]]) -> None:
        with self._lock:
            for index, quantities in claims:
                for name, units in quantities.items():
                    self._free[index][name] += units
        if claims:
            self._grant()

    def _grant(self) -> None:
        """Meets what can be met now, oldest first; what does not fit waits for its turn."""
        granted: list[tuple[Future[Reservation], Reservation]] = []
        with self._lock:
            waiting, self._waiting = self._waiting, []
            stuck: set[tuple[Bundles, str]] = set()
            for demand, strategy, future in waiting:
                if future.cancelled():
                    continue
                chosen = None
                if (demand, strategy) not in stuck:
                    chosen = _place(demand, strategy, self._free)
                if chosen is None:
                    stuck.add((demand, strategy))
                    self._waiting.append((demand, strategy, future))
                elif future.set_running_or_notify_cancel():
                    granted.append((future, self._take(demand, chosen)))
        for future, reservation in granted:  # outside the lock: callbacks may reserve again
            future.set_result(reservation)

    def _take(self, demand: Bundles, chosen: Sequence[int]) -> Reservation:
        claims = [(index, dict(bundle)) for index, bundle in zip(chosen, demand, strict=True)]
        for index, quantities in claims:
            for name, units in quantities.items():
                self._free[index][name] -= units
        placements = [Placement(self.nodes[i], from_fixed(quantities)) for i, quantities in claims]
        return _Held(self, placements, claims)

    def _infeasible(self, demand: Bundles, strategy: str) -> InfeasibleError:
        asked: Quantities = {}
        for bundle in demand:
            for name, units in bundle:
                asked[name] = asked.get(name, 0) + units
        names = {name for total in self._total for name in total}
        unknown = [name for name in asked if name not in names]
        nearest = max(
            range(len(self.nodes)),
            key=lambda i: sum(min(self._total[i].get(n, 0) / asked[n], 1.0) for n in asked),
        )
        total = {n: sum(t.get(n, 0) for t in self._total) for n in (*names, *asked)}
        short = [name for name in asked if total[name] < asked[name]]
        if unknown:
            reason = f"no node offers {', '.join(unknown)} (nodes offer {', '.join(sorted(names))})"
        elif short:
            reason = "; ".join(
                f"{_amount(n, asked[n])} {n} asked, {_amount(n, total[n])} {n} exist" for n in short
            )
        else:
            reason = f"the {len(demand)} bundles do not fit the nodes under strategy {strategy}"
        return InfeasibleError(
            f"The request can never be met: {reason}. Nearest node: {self.nodes[nearest].node_id} "
            f"with {_describe(self._total[nearest])}. {_advice(demand, short, total)}"
            "or declare more with dray.init(num_cpus=..., resources=...).",
            asked=from_fixed(asked),
            available=from_fixed(self._total[nearest]),
        )


def _advice(demand: Bundles, short: Sequence[str], total: Mapping[str, int]) -> str:
    """Returns what to ask for instead, as something to copy."""
    shares = {n: total[n] // len(demand) * 100 // UNIT / 100 for n in short if n != "memory"}
    if not shares or not all(shares.values()):
        return "Ask for less (num_workers, resources_per_worker), "
    return f"Ask for fewer workers, or for less each (resources_per_worker={shares}), "


def _amount(name: str, units: int) -> str:
    if name == "memory":
        return f"{units / UNIT / 2**30:.1f} GiB"
    return f"{units / UNIT:g}"


def _describe(quantities: Quantities) -> str:
    return ", ".join(f"{_amount(name, units)} {name}" for name, units in quantities.items())


def _place(demand: Bundles, strategy: str, free: Sequence[Quantities]) -> list[int] | None:
    """Returns a node's index for each bundle, or None if they do not fit together."""
    if strategy == "STRICT_PACK":
        for index in range(len(free)):
            if _fill(demand, [index], free, spread=False):
                return [index] * len(demand)
        return None
    if strategy == "STRICT_SPREAD" and len(demand) > len(free):
        return None
    chosen = _fill(
        demand,
        range(len(free)),
        free,
        spread=strategy.endswith("SPREAD"),
        once=strategy == "STRICT_SPREAD",
    )
    return chosen


def _fill(
    demand: Bundles,
    nodes: Sequence[int],
    free: Sequence[Quantities],
    *,
    spread: bool,
    once: bool = False,
) -> list[int] | None:
    left = {index: dict(free[index]) for index in nodes}
    used = dict.fromkeys(nodes, 0)
    chosen: list[int] = []
    for bundle in demand:
        order = sorted(nodes, key=lambda i: used[i] if spread else -used[i])
        for index in order:
            if once and used[index]:
                continue
            if all(left[index].get(name, 0) >= units for name, units in bundle):
                break
        else:
            return None
        for name, units in bundle:
            left[index][name] -= units
        used[index] += 1
        chosen.append(index)
    return chosen
