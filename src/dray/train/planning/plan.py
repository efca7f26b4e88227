"""The plan of a run: the node and devices of each worker, or the reason why it cannot start."""

from __future__ import annotations

import bisect
import contextlib
import copy
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dray import host, session
from dray.engines.base import Engine
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import DrayError, InfeasibleError
from dray.scheduling.capacity import UNIT, from_fixed, to_fixed
from dray.scheduling.requests import Node, PlacementPreview, Request
from dray.train.backend import Backend, BackendConfig
from dray.train.config import RunConfig
from dray.train.planning.explain import Free, amounts, infeasible, lacks, nearest_change
from dray.train.planning.ranks import RankAssignment, WorkerPlacement, assign_ranks
from dray.train.scaling import ScalingConfig
from dray.train.worker.cpu_affinity import asked_threads, threads_per_worker

_LOOPBACK = ("127.0.0.1", "::1")
# The text of a plan lists at most so many nodes and workers, and counts the rest.
_SHOWN = 16


@dataclass(frozen=True)
class PlannedWorker:
    """The planned node and devices of one worker.

    Attributes:
        rank: The worker's rank.
        node: The id of its node.
        address: The address of its node.
        node_rank: The rank of its node.
        local_rank: Its rank on its node.
        devices: The ids of its accelerators by resource name; empty if it has none, or if a cluster
            assigns them later.
        threads: Number of threads that it would compute with.

    Example:
        >>> from dray.train import DataParallelTrainer, ScalingConfig
        >>> trainer = DataParallelTrainer(print, scaling_config=ScalingConfig(num_workers=2))
        >>> [(worker.rank, worker.local_rank) for worker in trainer.plan().workers]
        [(0, 0), (1, 1)]
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
    """The plan of a run, if it started now.

    Attributes:
        fits: Whether the run could start now.
        possible: Whether it could start if all resources were free, or a cluster grew.
        num_workers: Number of workers that it would start; if they do not fit, the number that it
            asks for.
        resources_per_worker: Resources that each worker would get.
        workers: Placement of each worker, by rank; empty if they do not fit now.
        backend: Backend that would connect the workers.
        interface: The network interface of the backend; None if only the nodes know it.
        master_address: Address of the rendezvous.
        reason: Reason why the workers do not fit now; "" if they fit.
        nodes: For each node that is too small or busy now, the resources that it lacks for one
            worker.
        advice: The nearest change that would fit; "" if there is none.
        notes: Further notes for the user.

    Example:
        >>> from dray.train import DataParallelTrainer, ScalingConfig
        >>> trainer = DataParallelTrainer(print, scaling_config=ScalingConfig(num_workers=2))
        >>> plan = trainer.plan()
        >>> plan.fits, plan.num_workers, plan.resources_per_worker
        (True, 2, {'CPU': 1})
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
        """Return the plan as JSON-compatible values."""
        return dataclasses.asdict(self)

    @property
    def why(self) -> str:
        """The reason why the run does not fit now, node by node, and the nearest change."""
        return " ".join(filter(None, (self.reason, _listing(self.nodes), self.advice)))

    def __str__(self) -> str:
        """Return the plan as text."""
        each = amounts(self.resources_per_worker)
        count = f"{self.num_workers} worker{'s' if self.num_workers != 1 else ''}, {each} each"
        if not self.fits:
            can = "cannot start now" if self.possible else "can never start here"
            parts = [f"{count}: {can}", f"  {self.reason}"]
            shown = list(self.nodes.items())
            parts += [f"  {node}: {text}" for node, text in shown[:_SHOWN]]
            if len(shown) > _SHOWN:
                parts.append(f"  ... and {len(shown) - _SHOWN} more nodes")
            return "\n".join([*parts, *([f"  {self.advice}"] if self.advice else [])])
        interface = f" over {self.interface}" if self.interface else ""
        head = (
            f"{count}: fits now\n  {self.backend}{interface}, rendezvous at {self.master_address}"
        )
        lines = [_line(worker) for worker in self.workers[:_SHOWN]]
        if len(self.workers) > _SHOWN:
            lines.append(f"  ... and {len(self.workers) - _SHOWN} more workers")
        return "\n".join([head, *lines, *(f"  note: {note}" for note in self.notes)])


def end_script(plan: Plan, path: Path) -> NoReturn:
    """Write the plan for `dray plan`, and end the script at its first `fit()`.

    In a task or an actor, raise an error instead, because a task that exits is tried again.

    Args:
        path: File to write the plan to; if it exists already, it stays as it is.
    """
    with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
        json.dump({"text": str(plan), "plan": plan.to_dict()}, file)
    here = session.current_runtime().execution_context()
    if here.task_id or here.actor_id:
        raise DrayError("fit() does not train under `dray plan`, which only needs its plan")
    sys.exit(0 if plan.fits else 1)


def make_plan(
    engine: Engine,
    scaling: ScalingConfig,
    config: RunConfig,
    backend: tuple[Backend, BackendConfig],
    impossible: InfeasibleError | None = None,
) -> Plan:
    """Return the plan of a run that would start now; start and reserve nothing.

    Args:
        impossible: The engine's error, if it has found already that the run can never start.

    Raises:
        ConfigError: The workers' accelerators and the framework do not go together, or the engine
            cannot make the workers' runtime environment.
    """
    workers, preview = choose_size(engine, scaling)
    if preview.nodes is None:
        impossible = impossible or _impossible(engine, scaling, config, workers)
        if scaling.trainer_bundle:
            return _without_trainer(engine, scaling, config, backend, possible=impossible is None)
        return _refusal(engine, scaling, workers, preview, impossible)
    engine.check(Request([]), config.runtime_env)  # the preview has shown that the bundles fit
    places = [
        WorkerPlacement(node, devices)
        for node, devices in zip(preview.nodes[:workers], preview.devices, strict=False)
    ]
    positions = assign_ranks(places)
    hooks, options = backend
    own = RuntimeEnv(engine.env_vars) | config.runtime_env
    variables = {**os.environ, **own.expanded(os.environ)}
    name, note = hooks.collectives(positions, options, variables)
    chosen = f"{preview.chooser} chooses among the nodes that fit; this is one possible placement"
    return Plan(
        fits=True,
        possible=True,
        num_workers=workers,
        resources_per_worker=scaling.bundle,
        workers=_planned(positions, scaling, variables, known=not preview.chooser),
        backend=name,
        interface=_interface(positions[0].place.node.address, name, variables),
        master_address=positions[0].place.node.address,
        notes=[*filter(None, (note, preview.chooser and chosen))],
    )


def choose_size(engine: Engine, scaling: ScalingConfig) -> tuple[int, PlacementPreview]:
    """Return the number of workers that fit now, and their placement.

    If the minimum does not fit, the number is the minimum, for which the run waits.
    """
    if not engine.distributed:
        return 1, engine.preview(scaling.request(1))
    sizes = scaling.sizes
    if len(sizes) > 1:
        sizes = sizes_with_room(engine, scaling) or sizes[:1]
    preview = engine.preview(scaling.request(sizes[-1]))
    if preview.fits or len(sizes) == 1:
        return sizes[-1], preview
    size = largest_size(engine, scaling, _with_room(sizes[:-1], scaling, preview.free))
    return (size or sizes[0]), engine.preview(scaling.request(size or sizes[0]))


def sizes_with_room(engine: Engine, scaling: ScalingConfig) -> range:
    """Return the numbers of workers for which the nodes have enough resources, held or free."""
    free = [(node, node.resources) for node in engine.nodes() if not node.leaves]
    return _with_room(scaling.sizes, scaling, free)


def largest_size(engine: Engine, scaling: ScalingConfig, sizes: range) -> int:
    """Return the largest of some sizes, in ascending order, that would fit now; 0 for none."""

    def too_many(size: int) -> bool:
        return not engine.preview(scaling.request(size)).fits

    if not sizes or not too_many(sizes[-1]):  # usually the quantities decide, and the largest fits
        return sizes[-1] if sizes else 0
    at = bisect.bisect_left(sizes, True, key=too_many)
    return sizes[at - 1] if at else 0


def _with_room(sizes: range, scaling: ScalingConfig, there: Free) -> range:
    """Return those of some sizes, in ascending order, for which the quantities are enough."""
    bundle = to_fixed(scaling.bundle)
    most = sum(
        min(int(left.get(name, 0) * UNIT + 0.5) // units for name, units in bundle.items())
        for _, left in there
    )
    return sizes[: bisect.bisect_right(sizes, most)]


def _planned(
    positions: Sequence[RankAssignment],
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
    over_nccl = ("nccl", "JAX on cuda", "JAX on rocm", "JAX on gpu")
    name = "GLOO_SOCKET_IFNAME" if "gloo" in backend else ""  # JAX's gloo does not read it
    if any(part in backend for part in over_nccl):
        name = "NCCL_SOCKET_IFNAME"
    return variables.get(name) or host.interface_of(address)


# Refusals.


def _impossible(
    engine: Engine, scaling: ScalingConfig, config: RunConfig, workers: int
) -> InfeasibleError | None:
    try:
        engine.check(scaling.request(workers), config.runtime_env)
    except InfeasibleError as error:
        return error
    return None


def _refusal(
    engine: Engine,
    scaling: ScalingConfig,
    workers: int,
    preview: PlacementPreview,
    impossible: InfeasibleError | None,
) -> Plan:
    lacking = impossible or engine.lacking(scaling.request(workers))
    if lacking is not None:
        reason = infeasible(lacking)
    else:
        asked = {name: units * workers for name, units in to_fixed(scaling.bundle).items()}
        taken = f": {'; '.join(preview.taken)}" if preview.taken else ""
        reason = f"{amounts(from_fixed(asked))} asked, but other work uses some of it{taken}."
    smaller = range(scaling.step, workers, scaling.step)
    fitting = largest_size(engine, scaling, _with_room(smaller, scaling, preview.free))
    return Plan(
        fits=False,
        possible=impossible is None,
        num_workers=workers,
        resources_per_worker=scaling.bundle,
        reason=reason,
        nodes=lacks(scaling, preview.free),
        advice=nearest_change(scaling, workers, fitting, preview.free),
    )


def _without_trainer(
    engine: Engine,
    scaling: ScalingConfig,
    config: RunConfig,
    backend: tuple[Backend, BackendConfig],
    *,
    possible: bool,
) -> Plan:
    """Return why workers and the controller's share do not fit, from a plan without the share."""
    alone = copy.copy(scaling)
    alone.trainer_resources = None
    plan = make_plan(engine, alone, config, backend)
    reason = plan.reason
    if plan.fits:
        reason = "The workers would fit, but not together with trainer_resources."
    elif plan.possible and not possible:
        reason = (
            "The workers would fit when other work is done, but never together with "
            "trainer_resources."
        )
    leave_out = (
        f"Leave out trainer_resources ({amounts(scaling.trainer_bundle)}): the controller needs "
        "nothing."
    )
    return dataclasses.replace(
        plan,
        fits=False,
        possible=possible,
        workers=(),
        reason=reason,
        advice=f"{plan.advice} {leave_out}".lstrip(),
    )


def _listing(nodes: Mapping[str, str]) -> str:
    shown = [f"{node}: {text}" for node, text in nodes.items()]
    rest = f"; and {len(shown) - _SHOWN} more nodes" if len(shown) > _SHOWN else ""
    return f"{'; '.join(shown[:_SHOWN])}{rest}." if shown else ""


def _line(worker: PlannedWorker) -> str:
    devices = "".join(f", {name} {','.join(ids)}" for name, ids in worker.devices.items() if ids)
    threads = f"{worker.threads} thread{'s' if worker.threads != 1 else ''}"
    where = "" if worker.address in _LOOPBACK else f" ({worker.address})"
    return f"  rank {worker.rank}: {worker.node}{where}{devices}, {threads}"
