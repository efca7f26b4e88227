"""What a run would do: which worker goes where with what, or why it cannot start now."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import heapq
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray import host
from dray.accelerators import family_of
from dray.accelerators.topology import POD_TYPE_LABEL, SLICE_NAME_LABEL, TOPOLOGY_LABEL, Slice
from dray.engines import labels
from dray.engines.contract import Engine, Node, Rehearsal, Request
from dray.engines.room import UNIT, Devices, from_fixed, to_fixed
from dray.engines.shortfall import ACCELERATOR_TYPE
from dray.errors import InfeasibleError
from dray.train.backend import Backend, BackendConfig
from dray.train.config import RunConfig
from dray.train.cores import asked_threads, threads_per_worker
from dray.train.scaling import ScalingConfig
from dray.train.seats import Place, Position, seat

_LOOPBACK = ("127.0.0.1", "::1")
# More nodes or workers than this are summed up when people read.
_SHOWN = 16

_Free = Sequence[tuple[Node, Mapping[str, float]]]


@dataclass(frozen=True)
class PlannedWorker:
    """Where one worker would run, and with what.

    Attributes:
        rank: Its rank among all.
        node: Its node's id.
        address: Its node's address.
        node_rank: The rank of its node.
        local_rank: Its rank among those of its node.
        devices: The ids of its accelerators by resource name; empty where it has none, or where a
            cluster chooses them later.
        threads: How many threads it would compute with.
    """

    rank: int
    node: str
    address: str
    node_rank: int
    local_rank: int
    devices: Mapping[str, Sequence[str]]
    threads: int


@dataclass(frozen=True)
class Plan:
    """What a run would do if it started now.

    Attributes:
        fits: Whether it could start now.
        possible: Whether it could if everything were free, or a cluster grew.
        num_workers: How many workers it would start, or would like to.
        resources_per_worker: What each would get.
        workers: Where each would run, by rank; empty if they do not fit now.
        backend: How they would talk to each other.
        interface: The network interface for that; None where only the nodes know.
        master_address: Where they would meet.
        reason: Why they do not fit now; "" if they do.
        nodes: For each node that is too small or busy now, what it lacks for one worker.
        advice: The nearest change that would fit; "" if nothing is near.
        notes: What else the user should know.
    """

    fits: bool
    possible: bool
    num_workers: int
    resources_per_worker: Mapping[str, float]
    workers: Sequence[PlannedWorker] = ()
    backend: str = ""
    interface: str | None = None
    master_address: str | None = None
    reason: str = ""
    nodes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    advice: str = ""
    notes: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON can say it."""
        return dataclasses.asdict(self)

    @property
    def why(self) -> str:
        """Why it does not fit now, node by node, and the nearest change, in a paragraph."""
        return " ".join(filter(None, (self.reason, _listing(self.nodes), self.advice)))

    def __str__(self) -> str:
        """Returns the plan as people read it."""
        each = _amounts(self.resources_per_worker)
        count = f"{self.num_workers} worker{'s' if self.num_workers != 1 else ''}, {each} each"
        if not self.fits:
            verdict = "cannot start now" if self.possible else "can never start here"
            parts = [f"{count}: {verdict}", f"  {self.reason}"]
            shown = list(self.nodes.items())
            parts += [f"  {node}: {text}" for node, text in shown[:_SHOWN]]
            if len(shown) > _SHOWN:
                parts.append(f"  ... and {len(shown) - _SHOWN} more nodes")
            return "\n".join([*parts, *([f"  {self.advice}"] if self.advice else [])])
        interface = f" over {self.interface}" if self.interface else ""
        head = f"{count}: fits now\n  {self.backend}{interface}, meeting at {self.master_address}"
        lines = [_line(worker) for worker in self.workers[:_SHOWN]]
        if len(self.workers) > _SHOWN:
            lines.append(f"  ... and {len(self.workers) - _SHOWN} more workers")
        return "\n".join([head, *lines, *(f"  note: {note}" for note in self.notes)])


class Planned(SystemExit):
    """Ends a script at its first `fit()`, when it is only asked for the plan.

    Args:
        plan: The plan.
        path: Where to write it, for `dray plan`; if there is one already, that stays.
    """

    def __init__(self, plan: Plan, path: Path) -> None:
        super().__init__(0 if plan.fits else 1)
        with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
            json.dump({"text": str(plan), "plan": plan.to_dict()}, file)

    def __reduce__(self) -> tuple[object, ...]:
        return (SystemExit, (self.code,))


def make_plan(
    engine: Engine,
    scaling: ScalingConfig,
    config: RunConfig,
    backend: tuple[Backend, BackendConfig],
) -> Plan:
    """Returns what a run would do if it started now; starts and reserves nothing.

    Raises:
        ConfigError: The workers' accelerators and the framework do not go together, or the engine
            cannot make the workers' runtime environment.
    """
    workers, rehearsal = choose_size(engine, scaling)
    if not rehearsal.fits:
        return _refusal(engine, scaling, config, workers, rehearsal)
    engine.check(Request([]), config.runtime_env)  # the bundles fit, as is known by now
    places = [
        Place(node, devices)
        for node, devices in zip(rehearsal.nodes[:workers], rehearsal.devices, strict=False)
    ]
    positions = seat(places)
    hooks, options = backend
    variables = {**os.environ, **engine.env_vars, **config.runtime_env.env_vars}
    name, note = hooks.collectives(positions, options, variables)
    return Plan(
        fits=True,
        possible=True,
        num_workers=workers,
        resources_per_worker=scaling.bundle,
        workers=_planned(positions, scaling, variables, known=not rehearsal.chooser),
        backend=name,
        interface=_interface(positions[0].place.node.address, name, variables),
        master_address=positions[0].place.node.address,
        notes=[*filter(None, (note, _choice(rehearsal)))],
    )


def _choice(rehearsal: Rehearsal) -> str:
    if not rehearsal.chooser:
        return ""
    return f"{rehearsal.chooser} chooses among the nodes that fit; this is one way"


def choose_size(engine: Engine, scaling: ScalingConfig) -> tuple[int, Rehearsal]:
    """Returns how many workers to start, as many as fit, and where they would go.

    If not even the least fit, that is how many to wait for.
    """
    if not engine.distributed:
        return 1, engine.rehearse(scaling.request(1))
    sizes = scaling.sizes
    if len(sizes) > 1:
        sizes = sizes_with_room(engine, scaling) or sizes[:1]
    rehearsal = engine.rehearse(scaling.request(sizes[-1]))
    if rehearsal.fits or len(sizes) == 1:
        return sizes[-1], rehearsal
    size = _largest(engine, scaling, _with_room(sizes[:-1], scaling, rehearsal.free))
    return (size or sizes[0]), engine.rehearse(scaling.request(size or sizes[0]))


def sizes_with_room(engine: Engine, scaling: ScalingConfig) -> range:
    """Returns the numbers of workers for which there is enough, if nobody else used it."""
    return _with_room(scaling.sizes, scaling, _all_of(engine))


def _largest(engine: Engine, scaling: ScalingConfig, sizes: range) -> int:
    """Returns the largest of some sizes, in ascending order, that would fit now; 0 for none."""

    def too_many(size: int) -> bool:
        return not engine.rehearse(scaling.request(size)).fits

    if not sizes or not too_many(sizes[-1]):  # as a rule, what nodes have decides
        return sizes[-1] if sizes else 0
    at = bisect.bisect_left(sizes, True, key=too_many)
    return sizes[at - 1] if at else 0


def _all_of(engine: Engine) -> _Free:
    """Returns what nodes would have free if nobody used them."""
    return [(node, node.resources) for node in engine.nodes()]


def _with_room(sizes: range, scaling: ScalingConfig, there: _Free) -> range:
    """Returns those of some sizes, in ascending order, for which quantities alone would do."""
    bundle = to_fixed(scaling.bundle)
    most = sum(
        min(int(left.get(name, 0) * UNIT + 0.5) // units for name, units in bundle.items())
        for _, left in there
    )
    return sizes[: bisect.bisect_right(sizes, most)]


def _planned(
    positions: Sequence[Position],
    scaling: ScalingConfig,
    variables: Mapping[str, str],
    *,
    known: bool,
) -> list[PlannedWorker]:
    asked = asked_threads(variables)
    cpus, here = (scaling.resources_per_worker or {}).get("CPU"), host.cpu_count()

    def threads(node: Node, local_world_size: int) -> int:
        cores = here if node.address in _LOOPBACK else int(node.resources.get("CPU", 1))
        own = max(1, cores // local_world_size) if scaling.pin_workers else 0
        return asked or threads_per_worker(cores, local_world_size, cpus, own)

    return [
        PlannedWorker(
            position.rank,
            position.place.node.node_id,
            position.place.node.address,
            position.node_rank,
            position.local_rank,
            {name: tuple(ids) for name, ids in position.place.devices.items()} if known else {},
            threads(position.place.node, position.local_world_size),
        )
        for position in positions
    ]


def _interface(address: str, backend: str, variables: Mapping[str, str]) -> str | None:
    name = "NCCL_SOCKET_IFNAME" if "nccl" in backend else "GLOO_SOCKET_IFNAME"
    return variables.get(name) or host.interface_of(address)


# Why it does not fit.


def _refusal(
    engine: Engine, scaling: ScalingConfig, config: RunConfig, workers: int, rehearsal: Rehearsal
) -> Plan:
    request = scaling.request(workers)
    possible, reason = True, ""
    try:
        engine.check(request, config.runtime_env)
        lacking = engine.lacking(request)
    except InfeasibleError as error:
        possible, lacking = False, error
    if lacking is not None:
        reason = str(lacking)
        if scaling.trainer_resources and _fits_alone(engine, request, workers):
            own = _amounts(scaling.trainer_resources)
            reason = f"The workers would fit, but trainer_resources ({own}) do not fit beside them."
    else:
        reason = (
            f"{_amounts(_multiple(scaling.bundle, workers))} asked; others use what is missing."
        )
    smaller = range(scaling.step, workers, scaling.step)
    fitting = _largest(engine, scaling, _with_room(smaller, scaling, rehearsal.free))
    return Plan(
        fits=False,
        possible=possible,
        num_workers=workers,
        resources_per_worker=scaling.bundle,
        reason=reason,
        nodes=_lacks(scaling, rehearsal.free),
        advice=_advice(scaling, workers, fitting, rehearsal.free),
    )


def _fits_alone(engine: Engine, request: Request, workers: int) -> bool:
    """Returns whether the workers alone would fit now, without what the controller is to have."""
    alone = dataclasses.replace(
        request, bundles=request.bundles[:workers], selectors=request.selectors[:workers]
    )
    return engine.rehearse(alone).fits


def _lacks(scaling: ScalingConfig, free: _Free) -> dict[str, str]:
    """Returns for each node why it cannot take one more worker; nodes that can are left out."""
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
    """Returns the selectors of the workers, each once."""
    different = {tuple(sorted(each.items())): each for each in scaling.selectors}
    return [*different.values()] or [{}]


def _allows(selectors: Sequence[Mapping[str, str]], node: Node) -> bool:
    return any(labels.matches(selector, node.all_labels) for selector in selectors)


def _wrong_labels(wanted: Slice | None, selectors: Sequence[Mapping[str, str]], node: Node) -> str:
    """Returns why no worker may run on a node whatever is free there; "" if one may."""
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


def _advice(scaling: ScalingConfig, workers: int, fitting: int, free: _Free) -> str:
    """Returns the nearest change: fewer workers now, or how much more there had to be."""
    would = f"num_workers={fitting} would fit now" if fitting else "not one worker fits now"
    selectors, wanted = _selectors(scaling), scaling.tpu_slice
    there = [(node, left) for node, left in free if _allows(selectors, node)]
    if scaling.label_selector and not there:
        return f"{would}; no node has the labels that are asked for."
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
        return f"{would}; {workers} needs {_amounts(more, ' more')}{type_}."
    if workers == 1:
        return f"{would}; no single node has all of it free."
    where = "slices" if wanted is not None else f"nodes under {scaling.placement_strategy}"
    return f"{would}; {workers} do not fit the {where}."


def _free_slices(wanted: Slice, there: _Free) -> int:
    """Returns how many slices are whole and have all their chips free."""
    hosts, idle = Counter[str](), Counter[str]()
    for node, left in there:
        name = node.labels.get(SLICE_NAME_LABEL, "")
        hosts[name] += 1
        idle[name] += left.get("TPU", 0) >= node.resources.get("TPU", 0)
    return sum(number == idle[name] == wanted.hosts for name, number in hosts.items())


def _missing(scaling: ScalingConfig, workers: int, there: _Free) -> dict[str, float]:
    """Returns how much more there had to be at least, on nodes of the right type."""
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
    """Returns how much of one resource had to be added to nodes, at least, for so many workers.

    Args:
        name: The resource.
        units: How much of it each worker needs.
        free: How much of it each node has free.
        workers: How many there are to be.
        strategy: How they spread over the nodes.
    """
    room = sorted((_times(name, units, left) for left in free), reverse=True)
    if strategy == "STRICT_PACK":
        room = room[:1]
    if strategy == "STRICT_SPREAD":
        if len(room) < workers:
            return 0  # it is nodes that are missing
        room = [(1, 0) if times else (0, rest) for times, rest in room]
    missing = max(0, workers - sum(times for times, _ in room))
    if units < UNIT and family_of(name) is not None:
        on_one = 1 if strategy == "STRICT_SPREAD" else UNIT // units
        return math.ceil(missing / on_one) * UNIT
    return missing * units - sum(heapq.nlargest(missing, (rest for _, rest in room)))


def _times(name: str, units: int, free: int) -> tuple[int, int]:
    """Returns for how many workers a node has enough of something, and what is left then."""
    if family_of(name) is None:
        return divmod(free, units)
    if units < UNIT:
        return Devices.of(free).times(units), 0
    return divmod(free // UNIT * UNIT, units)


# In words.


def _multiple(bundle: Mapping[str, float], count: int) -> dict[str, float]:
    return from_fixed({name: units * count for name, units in to_fixed(bundle).items()})


def _title(wanted: Slice) -> str:
    return f"{wanted.accelerator_type} slice of topology {wanted.topology}"


def _amount(name: str, quantity: float) -> str:
    if name == "memory":
        return f"{quantity / 2**30:.1f} GiB of memory"
    return f"{quantity:g} {name}"


def _amounts(bundle: Mapping[str, float], more: str = "") -> str:
    parts = [
        name.removeprefix(ACCELERATOR_TYPE)
        if name.startswith(ACCELERATOR_TYPE)
        else _amount(name, quantity).replace(" ", f"{more} ", 1)
        for name, quantity in bundle.items()
    ]
    return ", ".join(parts)


def _listing(nodes: Mapping[str, str]) -> str:
    shown = [f"{node}: {text}" for node, text in nodes.items()]
    rest = f"; and {len(shown) - _SHOWN} more nodes" if len(shown) > _SHOWN else ""
    return f"{'; '.join(shown[:_SHOWN])}{rest}." if shown else ""


def _line(worker: PlannedWorker) -> str:
    devices = "".join(f", {name} {','.join(ids)}" for name, ids in worker.devices.items() if ids)
    threads = f"{worker.threads} thread{'s' if worker.threads != 1 else ''}"
    where = "" if worker.address in _LOOPBACK else f" ({worker.address})"
    return f"  rank {worker.rank}: {worker.node}{where}{devices}, {threads}"
