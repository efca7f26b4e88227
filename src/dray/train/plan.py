"""What a run would do: which worker goes where with what, or why it cannot start now."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray import host
from dray.engines import labels
from dray.engines.contract import Engine, Node, Rehearsal, Request
from dray.engines.room import UNIT, from_fixed, to_fixed
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
        ConfigError: The workers' accelerators and the framework do not go together.
    """
    workers, rehearsal = choose_size(engine, scaling)
    if not rehearsal.fits:
        return _refusal(engine, scaling, config, workers, rehearsal)
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
        sizes = _with_room(sizes, scaling, _all_of(engine)) or sizes[:1]
    rehearsal = engine.rehearse(scaling.request(sizes[-1]))
    if rehearsal.fits or len(sizes) == 1:
        return sizes[-1], rehearsal
    size = _largest(engine, scaling, _with_room(sizes[:-1], scaling, rehearsal.free))
    return (size or sizes[0]), engine.rehearse(scaling.request(size or sizes[0]))


def largest_that_fits(engine: Engine, scaling: ScalingConfig, workers: int) -> int:
    """Returns the largest number of workers up to this one that would fit now; 0 for none."""
    sizes = range(scaling.step, workers + 1, scaling.step)
    if not sizes:
        return 0
    rehearsal = engine.rehearse(scaling.request(sizes[0]))
    if not rehearsal.fits or len(sizes) == 1:
        return sizes[0] if rehearsal.fits else 0
    return _largest(engine, scaling, _with_room(sizes, scaling, _all_of(engine)))


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
        reason = f"{_amounts(_times(scaling.bundle, workers))} asked; others use what is missing."
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
    found: dict[str, str] = {}
    bundle = scaling.bundle
    selectors = scaling.request(scaling.max_workers).selectors[: scaling.max_workers] or [{}]
    for node, left in free:
        short = [name for name, quantity in bundle.items() if left.get(name, 0) < quantity]
        if not any(labels.matches(selector, node.all_labels) for selector in selectors):
            found[node.title] = "its labels do not match"
        elif short:
            found[node.title] = ", ".join(
                _lack(name, left.get(name, 0), node.resources.get(name, 0), bundle[name])
                for name in short
            )
    return found


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
    if scaling.tpu_slice is not None:
        hosts = scaling.tpu_slice.hosts
        missing = (workers - fitting) // hosts
        kind = f"{scaling.tpu_slice.accelerator_type} of topology {scaling.tpu_slice.topology}"
        slices = "slice" if missing == 1 else "slices"
        return f"{would}; {workers} needs {missing} more whole {slices} of {kind}."
    more = _missing(scaling, workers, free)
    if not more:
        return f"{would}; {workers} do not fit the nodes under {scaling.placement_strategy}."
    kind = scaling.accelerator_type or ""
    type_ = f" of type {kind}" if kind and scaling.accelerator in more else ""
    return f"{would}; {workers} needs {_amounts(more, ' more')}{type_}."


def _missing(scaling: ScalingConfig, workers: int, free: _Free) -> dict[str, float]:
    """Returns how much more there had to be, on nodes of the right type."""
    type_ = f"{ACCELERATOR_TYPE}{scaling.accelerator_type}"
    there = [
        to_fixed({name: max(0.0, quantity) for name, quantity in left.items()})
        for _, left in free
        if scaling.accelerator_type is None or left.get(type_)
    ]
    more = {
        name: units * workers - sum(left.get(name, 0) // units * units for left in there)
        for name, units in to_fixed(scaling.bundle).items()
        if not name.startswith(ACCELERATOR_TYPE)
    }
    return from_fixed({name: units for name, units in more.items() if units > 0})


# In words.


def _times(bundle: Mapping[str, float], count: int) -> dict[str, float]:
    return from_fixed({name: units * count for name, units in to_fixed(bundle).items()})


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
