"""Explanations, in the words of ScalingConfig, of why workers do not fit, and changes that help."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

from dray.accelerators import family_of
from dray.accelerators.node_names import ACCELERATOR_TYPE, POD_TYPE_LABEL, TOPOLOGY_LABEL
from dray.accelerators.tpu_topology import Slice
from dray.errors import InfeasibleError
from dray.errors.shortfall import Change, Shortfall
from dray.host import bytes_in_words
from dray.scheduling import labels
from dray.scheduling.capacity import UNIT, from_fixed, to_fixed
from dray.scheduling.requests import Node
from dray.scheduling.tpu_slices import hosts_of_slices
from dray.train.scaling import ScalingConfig

_FLAGS = {"GPU": "use_gpu=True", "TPU": "use_tpu=True"}
# Nodes with their free resources; of accelerators, the part workers can use (`Ledger.preview`).
Free = Sequence[tuple[Node, Mapping[str, float]]]


def infeasible(error: InfeasibleError) -> str:
    """Return why workers can never start, with advice on another request."""
    found = error.shortfall
    return str(error) if found is None else found.sentence(_advice(found))


def _advice(found: Shortfall) -> str:
    absent = found.accelerator
    flag = _FLAGS.get(absent, f"{absent!r} in resources_per_worker")
    words: dict[Change, str] = {
        "slices": "Ask for fewer slices (num_workers)",
        "each": "Ask for less per worker (resources_per_worker)",
        "else": "Ask for something else (resources_per_worker)",
        "absent": f"Ask for no {absent} (leave out {flag} and its other options)",
        "less": "Ask for less (num_workers, resources_per_worker)",
    }
    if found.proposed:
        how = "Ask for fewer workers, or for less per worker" if found.several else "Ask for less"
        return f"{how} (resources_per_worker={dict(found.proposed)})"
    return words.get(found.change, "")


def lacks(scaling: ScalingConfig, free: Free) -> dict[str, str]:
    """Return, for each node that cannot take one more worker, the reason."""
    bundle, selectors = scaling.bundle, _selectors(scaling)
    found = {
        node.title: _wrong_labels(scaling.tpu_slice, selectors, node)
        or ", ".join(
            _lack(name, left.get(name, 0), node.resources.get(name, 0), needed)
            for name, needed in bundle.items()
            if left.get(name, 0) < needed
        )
        for node, left in free
    }
    return {node: text for node, text in found.items() if text}


def _selectors(scaling: ScalingConfig) -> list[Mapping[str, str]]:
    """Return the different label selectors of the workers."""
    different = {tuple(sorted(each.items())): each for each in scaling.selectors}
    return [*different.values()] or [{}]


def _allows(selectors: Sequence[Mapping[str, str]], node: Node) -> bool:
    return any(labels.matches(selector, node.all_labels) for selector in selectors)


def _wrong_labels(wanted: Slice | None, selectors: Sequence[Mapping[str, str]], node: Node) -> str:
    """Return why the labels of a node allow no worker there; "" if they allow one."""
    if _allows(selectors, node):
        return ""
    has = node.all_labels
    if wanted is not None and has.get(POD_TYPE_LABEL) != wanted.pod_type:
        kind, other = has.get(POD_TYPE_LABEL, ""), has.get(TOPOLOGY_LABEL, "")
        instead = f", but of one of {other} ({kind})" if kind and other else ""
        return f"part of no {_title(wanted)}{instead}"
    if len(selectors) > 1:
        return "its labels do not match"
    return ", ".join(
        f"its {name} is {has[name]}, a worker needs {name}={value}"
        if name in has
        else f"no label {name}, a worker needs {name}={value}"
        for name, value in selectors[0].items()
        if not labels.matches({name: value}, has)
    )


def _lack(name: str, left: float, total: float, needed: float) -> str:
    if name.startswith(ACCELERATOR_TYPE):
        return f"no {name.removeprefix(ACCELERATOR_TYPE)}"
    if not total:
        return f"no {name}"
    free, of = _amount(name, left), _amount(name, total)
    return f"{free} of {of} free, a worker needs {_amount(name, needed)}"


def nearest_change(scaling: ScalingConfig, workers: int, fitting: int, free: Free) -> str:
    """Return the nearest change: fewer workers now, or the missing resources."""
    would = f"num_workers={fitting} would fit now" if fitting else "not one worker fits now"
    if fitting and isinstance(scaling.label_selector, Sequence):
        would += f" with the first {fitting} of label_selector"
    selectors, wanted = _selectors(scaling), scaling.tpu_slice
    there = [(node, left) for node, left in free if _allows(selectors, node)]
    if scaling.label_selector and not there:
        return f"{would}; no node has the labels that you ask for."
    if wanted is not None:
        missing = workers // wanted.hosts - _free_slices(wanted, there)
        if missing > 0:
            slices = "slice" if missing == 1 else "slices"
            return (
                f"{would}; {workers} needs {missing} more whole {slices} of "
                f"{wanted.accelerator_type} of topology {wanted.topology}."
            )
    kind = scaling.accelerator_type or ""
    if kind and not any(left.get(f"{ACCELERATOR_TYPE}{kind}") for _, left in there):
        return f"{would}; no node has accelerators of type {kind}."
    more = _missing(scaling, workers, there)
    if more:
        type_ = f" of type {kind}" if kind and scaling.accelerator in more else ""
        return f"{would}; {workers} needs {amounts(more, ' more')}{type_}."
    if workers == 1:
        return f"{would}; no single node has all of it free."
    where = "slices" if wanted is not None else f"nodes under {scaling.placement_strategy}"
    return f"{would}; {workers} do not fit the {where}."


def _free_slices(wanted: Slice, there: Free) -> int:
    """Return the number of complete slices whose chips are all free."""
    slices = hosts_of_slices([node for node, _ in there]).values()
    idle = [left.get("TPU", 0) >= wanted.chips_per_host for _, left in there]
    return sum(len(hosts) == wanted.hosts and all(idle[i] for i in hosts) for hosts in slices)


def _missing(scaling: ScalingConfig, workers: int, there: Free) -> dict[str, float]:
    """Return the least resources that would have to be added, on nodes of the right type."""
    type_ = f"{ACCELERATOR_TYPE}{scaling.accelerator_type}"
    free = [
        to_fixed({name: max(0.0, quantity) for name, quantity in left.items()})
        for _, left in there
        if scaling.accelerator_type is None or left.get(type_)
    ]
    strategy = "STRICT_SPREAD" if scaling.tpu_slice is not None else scaling.placement_strategy
    more = {
        name: _short_of(name, units, [left.get(name, 0) for left in free], workers, strategy)
        for name, units in to_fixed(scaling.bundle).items()
        if not name.startswith(ACCELERATOR_TYPE)
    }
    return from_fixed({name: units for name, units in more.items() if units > 0})


def _short_of(name: str, units: int, free: Sequence[int], workers: int, strategy: str) -> int:
    """Return the least quantity of one resource that the nodes lack for so many workers.

    Args:
        free: The free quantity of the resource on each node.
    """
    room = sorted((_times(name, units, left) for left in free), reverse=True)
    if strategy == "STRICT_PACK":
        room = room[:1]
    if strategy == "STRICT_SPREAD":
        if len(room) < workers:
            return 0  # nodes are missing, not this resource
        room = [(1, 0) if times else (0, rest) for times, rest in room]
    missing = max(0, workers - sum(times for times, _ in room))
    if units < UNIT and family_of(name) is not None:
        on_one = 1 if strategy == "STRICT_SPREAD" else UNIT // units
        return math.ceil(missing / on_one) * UNIT
    return missing * units - sum(heapq.nlargest(missing, (rest for _, rest in room)))


def _times(name: str, units: int, free: int) -> tuple[int, int]:
    """Return how many workers a resource of a node is enough for, and the rest that helps another.

    The rest of a device whose shares are too small for another worker helps none.
    """
    times, rest = divmod(free, units)
    return times, 0 if units < UNIT and family_of(name) is not None else rest


# Texts.


def _title(wanted: Slice) -> str:
    return f"{wanted.accelerator_type} slice of topology {wanted.topology}"


def _amount(name: str, quantity: float) -> str:
    if name == "memory":
        return f"{bytes_in_words(quantity)} of memory"
    return f"{quantity:g} {name}"


def amounts(bundle: Mapping[str, float], more: str = "") -> str:
    """Return quantities as in "2 more CPU, 1 more GPU"; `more` is put after each number."""
    parts = [
        name.removeprefix(ACCELERATOR_TYPE)
        if name.startswith(ACCELERATOR_TYPE)
        else _amount(name, quantity).replace(" ", f"{more} ", 1)
        for name, quantity in bundle.items()
    ]
    return ", ".join(parts)
