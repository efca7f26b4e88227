"""Explanations of infeasible requests: the shortfall, the nearest node, a request that fits."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dray.accelerators import family_of
from dray.accelerators.node_names import ACCELERATOR_TYPE, POD_TYPE_LABEL, SLICE_NAME_LABEL
from dray.accelerators.type_names import meant
from dray.errors.shortfall import Change, Shortfall
from dray.host import bytes_in_words
from dray.scheduling import labels
from dray.scheduling.capacity import UNIT, Capacity, Quantities, from_fixed
from dray.scheduling.placement import Bundle, Demand, Selector, place
from dray.scheduling.requests import Node, Slices
from dray.scheduling.tpu_slices import hosts_of_slices

# More names than this are not listed.
_LISTED = 8
_ARGUMENTS = {"CPU": "num_cpus=...", "GPU": "num_gpus=..."}


def shortfall(
    demand: Demand,
    nodes: Sequence[Node],
    totals: Sequence[Quantities],
    unmatched: Sequence[Selector],
    remedy: str,
) -> Shortfall:
    """Return what the nodes lack for a request that they cannot meet.

    Args:
        unmatched: The selectors that no node matches.
        remedy: Advice on getting more; "{arguments}" in it stands for arguments of `dray.init` that
            say what this machine has, "{nodes}" for the one that makes nodes up.
    """
    there = [(n, t) for n, t in zip(nodes, totals, strict=True) if t]  # the others are gone
    if there:
        nodes, totals = [node for node, _ in there], [quantities for _, quantities in there]
    asked = _asked(demand)
    nearest = max(
        range(len(nodes)),
        key=lambda i: sum(min(totals[i].get(n, 0) / asked[n], 1.0) for n in asked),
    )
    total = {n: sum(t.get(n, 0) for t in totals) for n in {*asked, *(n for t in totals for n in t)}}
    short = [name for name in asked if total[name] < asked[name]]
    unknown = [name for name in short if not total[name]]
    change: Change
    if demand.slices is not None and (
        of_slices := _of_slices(demand, demand.slices, nodes, totals)
    ):
        reason, change = of_slices
    elif unknown:
        reason, change = _not_offered(unknown, total, nodes), _instead_of(unknown)
    elif short:
        reason = "; ".join(
            f"{_amount(n, asked[n])} {n} asked, {_amount(n, total[n])} {n} exist" for n in short
        )
        change = "slices" if demand.slices is not None else "less"
    elif unmatched:
        reason, change = _no_such_labels(unmatched[0], nodes), "labels"
    else:
        reason = _do_not_fit(demand)
        change = "slices" if demand.slices is not None else "less"
    accelerators = [name for name in unknown if family_of(name) is not None]
    here = "{arguments}" in remedy  # rather than on nodes of a cluster, or made up
    made_up = "nodes=..." if demand.slices is None else "nodes=dray.testing.tpu_slice(...)"
    declared = made_up
    if demand.slices is None:
        declared = _arguments(unknown or short, () if short else unmatched)
    more = remedy.format(arguments=declared, nodes=made_up)
    offered = _describe(totals[nearest], nodes[nearest : nearest + 1]) or "nothing"
    return Shortfall(
        reason=reason,
        nearest=f"{nodes[nearest].title} with {offered}",
        change=change,
        remedy=f"{more}{', for tests' if here and accelerators else ''}",
        asked=from_fixed(asked),
        available=from_fixed(totals[nearest]),
        accelerator=accelerators[0] if accelerators else "TPU",
        on_this_machine=here,
        several=len(demand.bundles) > 1,
        proposed=_less_each(demand, nodes, totals) if change == "less" else None,
    )


def _asked(demand: Demand) -> Quantities:
    """Return what the bundles ask for in all."""
    asked: Quantities = {}
    for bundle in demand.bundles:
        for name, units in (*bundle.quantities, *bundle.offered):
            asked[name] = asked.get(name, 0) + units
    if demand.slices is not None:  # how slices are taken is nothing to tell
        asked.pop(demand.slices.head, None)
    return asked


# The shortfall.


def _not_offered(unknown: Sequence[str], total: Quantities, nodes: Sequence[Node]) -> str:
    there = [name for name, units in total.items() if units]
    offered = ", ".join(_shown(there, nodes)) or "nothing"
    return f"no node offers {', '.join(unknown)} (nodes offer {offered}){_near(unknown, there)}"


def _near(unknown: Iterable[str], offered: Sequence[str]) -> str:
    """Return a hint at the intended name: one that is offered, or a type that exists.

    The correct name of an accelerator, or of its type, is not taken for a misspelling.
    """
    kinds = [name.removeprefix(ACCELERATOR_TYPE) for name in offered if ACCELERATOR_TYPE in name]
    near: list[str] = []
    for name in unknown:
        if name.startswith(ACCELERATOR_TYPE):
            near += meant(name.removeprefix(ACCELERATOR_TYPE), tuple(kinds))
        elif family_of(name) is None:
            import difflib

            near += difflib.get_close_matches(name, offered, 2)
    return f"; did you mean {' or '.join(near)}" if near else ""


def _no_such_labels(selector: Selector, nodes: Sequence[Node]) -> str:
    asked = [(name, value) for name, value in selector if name != POD_TYPE_LABEL]
    wanted = ", ".join(f"{name}={value}" for name, value in asked)
    kind = {name: value for name, value in selector if name == POD_TYPE_LABEL}
    there = [node.all_labels for node in nodes if labels.matches(kind, node.all_labels)]
    names = sorted({name for each in there for name in each} - {labels.NODE_ID})
    only = f"they have only {_some(names)}" if names else "they have no labels"
    why: list[str] = []
    for name, value in asked:
        values = sorted({each[name] for each in there if name in each})
        if not values:
            why.append(f"none has {name}, {only}")
        elif not any(labels.matches({name: value}, each) for each in there):
            why.append(f"they have {name}={_some(values, ' or ')}")
    return f"no node has the labels {wanted}: {'; '.join(why) or 'no single one has them all'}"


def _do_not_fit(demand: Demand) -> str:
    if len(demand.bundles) == 1:
        (bundle,) = demand.bundles
        where = ", ".join(f"{name}={value}" for name, value in bundle.selector)
        node = f"node with the labels {where}" if where else "single node"
        return f"no {node} has {_describe(_asked(demand))}"
    selectors = any(bundle.selector for bundle in demand.bundles)
    return (
        f"the {len(demand.bundles)} bundles do not fit the nodes under strategy {demand.strategy}"
        + (" and their label selectors" if selectors else "")
    )


def _of_slices(
    demand: Demand, wanted: Slices, nodes: Sequence[Node], totals: Sequence[Quantities]
) -> tuple[str, Change] | None:
    """Return what is missing of whole TPU slices, and what could be another; None if it is not."""
    kind, slices = wanted.kind, hosts_of_slices(nodes)
    kinds = Counter(
        (nodes[hosts[0]].labels.get(POD_TYPE_LABEL, "of a kind"), len(hosts))
        for hosts in slices.values()
    )
    right = [
        hosts
        for hosts in slices.values()
        if len(hosts) == wanted.hosts and nodes[hosts[0]].labels.get(POD_TYPE_LABEL) == kind
    ]
    if len(right) < wanted.count:
        reason = (
            f"{wanted.count} whole TPU {_counted(wanted.count, 'slice')} {kind} of "
            f"{_counted(wanted.hosts, 'host', number=True)} asked, {_slices_there(kinds)}"
        )
        if right:
            return reason, "slices"
        return reason, "topology" if kinds else "absent"
    for name, units in demand.bundles[wanted.hosts - 1].quantities:
        if name == wanted.head:
            continue
        least = sorted(min(totals[host].get(name, 0) for host in hosts) for hosts in right)
        if least[-wanted.count] < units:
            reason = (
                f"each host of a TPU slice {kind} has to offer {_amount(name, units)} {name}, and "
                f"offers {_amount(name, least[-wanted.count])} {name}"
            )
            return reason, "each"
    return None


def _slices_there(kinds: Mapping[tuple[str, int], int]) -> str:
    each = [
        f"{number} {kind} of {_counted(hosts, 'host', number=True)}"
        for (kind, hosts), number in sorted(kinds.items())
    ]
    return f"there {'is' if sum(kinds.values()) == 1 else 'are'} {_some(each) or 'none'}"


# Requests that would fit.


def _instead_of(unknown: Sequence[str]) -> Change:
    """Return what could be another where there is nothing of something."""
    if any(family_of(name) is not None for name in unknown):
        return "absent"
    return "type" if any(name.startswith(ACCELERATOR_TYPE) for name in unknown) else "else"


def _less_each(
    demand: Demand, nodes: Sequence[Node], totals: Sequence[Quantities]
) -> dict[str, float] | None:
    """Return how much each of the bundles like the first one could have so that all fit."""
    capacities = [
        Capacity(total, [name for name in node.devices if total.get(name)])
        for node, total in zip(nodes, totals, strict=True)
    ]
    first = demand.bundles[0]
    allowed = {b: _allowed(b, nodes) for b in {*demand.bundles}}
    types = [(name, units) for name, units in first.quantities if ACCELERATOR_TYPE in name]
    right = [capacities[index] for index in allowed[first] if capacities[index].fits(types)]
    count = demand.bundles.count(first)
    each = {name: _most_of(name, units, right, count) for name, units in first.quantities}
    if not all(each.values()) or each == dict(first.quantities):
        return None
    less = first._replace(quantities=tuple(sorted(each.items())))
    bundles = tuple(less if bundle == first else bundle for bundle in demand.bundles)
    if (
        place(demand._replace(bundles=bundles), capacities, [allowed[b] for b in demand.bundles])
        is None
    ):
        return None
    return from_fixed({n: u for n, u in each.items() if not n.startswith(ACCELERATOR_TYPE)})


def _allowed(bundle: Bundle, nodes: Sequence[Node]) -> set[int]:
    return {i for i, n in enumerate(nodes) if labels.matches(dict(bundle.selector), n.all_labels)}


def _most_of(name: str, units: int, capacities: Sequence[Capacity], count: int) -> int:
    """Return how much of something so many could each get, up to some units; 0 for nothing."""

    def too_much(each: int) -> bool:
        return sum(capacity.times([(name, each)], count) for capacity in capacities) < count

    if not too_much(units):
        return units
    there = max((capacity.quantities.get(name, 0) for capacity in capacities), default=0)
    steps = _steps(name, min(units, there))
    at = bisect.bisect_left(steps, True, key=too_much)
    return steps[at - 1] if at else 0


def _steps(name: str, units: int) -> Sequence[int]:
    """Return the quantities up to some units that may be asked for and are easy to read."""
    family = family_of(name)
    if family is None:
        step = UNIT if name == "memory" else UNIT // 100
        return range(step, units + 1, step)
    parts = range(UNIT // 100, UNIT, UNIT // 100) if family.fractions else ()
    whole = [size * UNIT for size in family.sizes or range(1, units // UNIT + 1)]
    return [step for step in (*parts, *whole) if step <= units]


def _arguments(names: Sequence[str], unmatched: Sequence[Selector]) -> str:
    """Return the arguments of `dray.init` that declare what is missing."""
    if unmatched:
        return "labels=..."
    own = [_ARGUMENTS.get(name, "resources=...") for name in names]
    return ", ".join(dict.fromkeys(own)) or "num_cpus=..., resources=..."


# In words.


def _counted(count: int, noun: str, *, number: bool = False) -> str:
    return f"{f'{count} ' if number else ''}{noun}{'' if count == 1 else 's'}"


def _some(names: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return between.join(names[:_LISTED]) + more


def _amount(name: str, units: int) -> str:
    if name == "memory":
        return bytes_in_words(units / UNIT)
    return f"{units / UNIT:g}"


def _describe(quantities: Quantities, nodes: Iterable[Node] = ()) -> str:
    return ", ".join(
        f"{_amount(name, quantities[name])} {name}" for name in _shown(quantities, nodes)
    )


def _shown(names: Iterable[str], nodes: Iterable[Node]) -> list[str]:
    """Return the resources that are there for users: not those that name a node or a slice."""
    slices = {node.labels.get(SLICE_NAME_LABEL) for node in nodes}
    return sorted(
        name
        for name in names
        if name not in slices
        and not name.startswith("node:")  # Ray gives every node one of its own
        and not (name.startswith("TPU-") and name.endswith("-head"))
    )
