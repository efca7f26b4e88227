"""Why a request can never be met, in words: what is missing, the nearest node, what to ask for."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence

from dray.accelerators import Family, family_of
from dray.accelerators.types import known_types
from dray.engines.contract import Node
from dray.engines.placing import Demand, Selector
from dray.engines.room import UNIT, Quantities, from_fixed
from dray.errors import InfeasibleError

# A node with accelerators of a type has 1 of a resource of this name, and a request takes a bit.
ACCELERATOR_TYPE = "accelerator_type:"


def families_on(resources: Mapping[str, float]) -> dict[str, Family]:
    """Returns the families of the accelerators that a node offers, by resource name."""
    types = [name.removeprefix(ACCELERATOR_TYPE) for name in resources if ACCELERATOR_TYPE in name]
    return {
        name: family
        for name, quantity in resources.items()
        if quantity and (family := family_of(name, types)) is not None
    }


def infeasible(
    demand: Demand,
    nodes: Sequence[Node],
    totals: Sequence[Quantities],
    unmatched: Sequence[Selector],
    remedy: str,
) -> InfeasibleError:
    """Returns the error of a request that no nodes can meet.

    Args:
        demand: What was asked for.
        nodes: What there is.
        totals: What each node offers in all.
        unmatched: The selectors that no node matches.
        remedy: How a user gets more.
    """
    asked: Quantities = {}
    for bundle in demand.bundles:
        for name, units in bundle.quantities:
            asked[name] = asked.get(name, 0) + units
    nearest = max(
        range(len(nodes)),
        key=lambda i: sum(min(totals[i].get(n, 0) / asked[n], 1.0) for n in asked),
    )
    names = {name for total in totals for name in total}
    total = {n: sum(t.get(n, 0) for t in totals) for n in (*names, *asked)}
    short = [name for name in asked if total[name] < asked[name]]
    return InfeasibleError(
        f"The nodes cannot offer this: {_reason(demand, asked, names, total, unmatched)}. Nearest "
        f"node: {nodes[nearest].title} with {_describe(totals[nearest])}. "
        f"{_advice(demand, short, total)}or {remedy}.",
        asked=from_fixed(asked),
        available=from_fixed(totals[nearest]),
    )


def _reason(
    demand: Demand,
    asked: Quantities,
    names: Iterable[str],
    total: Quantities,
    unmatched: Sequence[Selector],
) -> str:
    unknown = [name for name in asked if name not in names]
    if unknown:
        offered = sorted(name for name in names if not name.startswith("node:"))
        missing, there = ", ".join(unknown), ", ".join(offered)
        return f"no node offers {missing} (nodes offer {there}){_near(unknown, offered)}"
    short = [name for name in asked if total[name] < asked[name]]
    if short:
        return "; ".join(
            f"{_amount(n, asked[n])} {n} asked, {_amount(n, total[n])} {n} exist" for n in short
        )
    if unmatched:
        wanted = ", ".join(f"{name}={value}" for name, value in unmatched[0])
        return f"no node has the labels {wanted}"
    labels = any(bundle.selector for bundle in demand.bundles)
    return (
        f"the {len(demand.bundles)} bundles do not fit the nodes under strategy {demand.strategy}"
        + (" and their label selectors" if labels else "")
    )


def _near(unknown: Iterable[str], offered: Sequence[str]) -> str:
    """Returns what may have been meant: something that is offered, or a type that exists."""
    kinds = [name.removeprefix(ACCELERATOR_TYPE) for name in offered if ACCELERATOR_TYPE in name]
    near: list[str] = []
    for name in unknown:
        kind = name.removeprefix(ACCELERATOR_TYPE)
        among = offered if kind == name else (*kinds, *known_types())
        near += [n for n in difflib.get_close_matches(kind, dict.fromkeys(among), 3) if n != kind][
            :2
        ]
    return f"; did you mean {' or '.join(near)}" if near else ""


def _advice(demand: Demand, short: Sequence[str], total: Mapping[str, int]) -> str:
    """Returns what to ask for instead, as something to copy."""
    if not demand.lasting:  # a task
        return "Ask for less, "
    if demand.slices is not None:
        return "Ask for fewer slices (num_workers), "
    count = len(demand.bundles)
    shares = {n: _share(n, total[n], count) for n in short if n != "memory"}
    if not shares or not all(shares.values()):
        return "Ask for less (num_workers, resources_per_worker), "
    return f"Ask for fewer workers, or for less each (resources_per_worker={shares}), "


def _share(name: str, total: int, count: int) -> float:
    """Returns how much of what there is each of so many could get; 0 if not all can get some."""
    family = family_of(name)
    each = total / UNIT / count
    if family is None:
        return int(each * 100) / 100
    if each >= 1:
        return max((size for size in family.sizes if size <= each), default=int(each))
    if not family.fractions or total < UNIT:
        return 0
    return int(100 / math.ceil(count / (total // UNIT))) / 100  # a device takes a whole number


def _amount(name: str, units: int) -> str:
    if name == "memory":
        return f"{units / UNIT / 2**30:.1f} GiB"
    return f"{units / UNIT:g}"


def _describe(quantities: Quantities) -> str:
    return ", ".join(
        f"{_amount(name, units)} {name}"
        for name, units in sorted(quantities.items())
        if not name.startswith("node:")  # Ray gives every node one of its own
    )
