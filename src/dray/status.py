"""The status of a program, for `dray status`: one format for all engines, and its text.

Fields that an engine does not know keep their defaults. `read` accepts the output of `asdict` of
any version of dray: missing fields get their defaults, and unknown fields are ignored.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from dray.errors import visible
from dray.host import bytes_in_words

# A status lists at most so many tasks, and counts the rest.
MOST_TASKS = 100

_T = TypeVar("_T")
_MOST_METRICS = 8


@dataclass(frozen=True, kw_only=True)
class DeviceStatus:
    """An accelerator, with its free share, and the pid of another program that holds it."""

    resource: str = ""
    id: str = ""
    free: float = 0
    held_by: int | None = None


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """A node, with its resources, and its free resources if the engine knows them."""

    node_id: str = ""
    address: str = ""
    alive: bool = True
    resources: dict[str, float] = field(default_factory=dict)
    available: dict[str, float] | None = None
    labels: dict[str, str] = field(default_factory=dict)
    devices: list[DeviceStatus] = field(default_factory=list)

    @classmethod
    def of(cls, entry: dict[str, Any], **more: Any) -> NodeStatus:
        """Return the status of an entry of `dray.nodes()`, whose keys are Ray's."""
        return cls(
            node_id=entry["NodeID"],
            address=entry["NodeManagerAddress"],
            alive=entry["Alive"],
            resources=dict(entry["Resources"]),
            labels=dict(entry["Labels"]),
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class ActorStatus:
    """An actor that has not ended."""

    actor_id: str = ""
    class_name: str = ""
    name: str | None = None
    state: str = ""
    pid: int | None = None
    node_id: str | None = None
    resources: dict[str, float] = field(default_factory=dict)
    calls_waiting: int = 0
    calls_running: int = 0
    job_id: str | None = None
    namespace: str | None = None
    group_id: str | None = None
    detached: bool = False
    restarts: int = 0


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """A task that has not ended; `why` is the reason why it waits."""

    task_id: str = ""
    name: str = ""
    function: str = ""
    type: str = ""
    actor_id: str | None = None
    state: str = ""
    why: str = ""
    pid: int | None = None
    node_id: str | None = None
    seconds: float | None = None
    resources: dict[str, float] = field(default_factory=dict)
    job_id: str | None = None
    worker_id: str | None = None
    group_id: str | None = None
    parent_task_id: str | None = None
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class WaitingStatus:
    """Waiting requests for the same resources; `why` has the free quantity of each resource."""

    what: str = ""
    requests: int = 1
    bundles: list[dict[str, float]] = field(default_factory=list)
    strategy: str = ""
    seconds: float | None = None
    why: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ObjectsStatus:
    """The number and the size of the stored objects."""

    objects: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """A rank of a training."""

    rank: int = 0
    pid: int | None = None
    node: str = ""
    address: str = ""
    devices: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """A `fit()` that has not returned.

    Attributes:
        seconds: Seconds since `fit()` was called.
        report: The number of rank 0's newest report, whose metrics are in `metrics`.
        since_report_s: Seconds since that report.
        waits: The ranks that others wait for, in words.
    """

    name: str = ""
    path: str = ""
    state: str = ""
    attempt: int = 0
    seconds: float = 0
    workers: list[WorkerStatus] = field(default_factory=list)
    report: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    since_report_s: float | None = None
    checkpoint: str | None = None
    waits: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ProgramStatus:
    """A program of this machine, or a cluster; `task_count` includes tasks that are not listed."""

    engine: str = ""
    pid: int | None = None
    address: str | None = None
    note: str = ""
    nodes: list[NodeStatus] = field(default_factory=list)
    trainings: list[TrainingStatus] = field(default_factory=list)
    actors: list[ActorStatus] = field(default_factory=list)
    tasks: list[TaskStatus] = field(default_factory=list)
    task_count: int = 0
    waiting: list[WaitingStatus] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    workers: int | None = None
    objects: ObjectsStatus | None = None


def read(kind: type[_T], data: Any) -> _T:
    """Return the status from the output of `asdict`, of this version of dray or another one."""
    hints = get_type_hints(kind)
    known = {f.name: hints[f.name] for f in fields(kind) if f.name in data}  # type: ignore[arg-type]
    return kind(**{name: _value(hint, data[name]) for name, hint in known.items()})


def _value(hint: Any, data: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not types.NoneType)
    if data is None:
        return None
    if get_origin(hint) is list:
        return [_value(get_args(hint)[0], item) for item in data]
    return read(hint, data) if hasattr(hint, "__dataclass_fields__") else data


def text(programs: Iterable[ProgramStatus]) -> str:
    """Return the status of programs as text."""
    lines = [visible(line) for program in programs for line in _program(program)]
    return "\n".join(lines or ["No program of yours uses dray on this machine now."])


def _program(program: ProgramStatus) -> Iterator[str]:
    where = f"pid {program.pid}" if program.pid is not None else f"cluster {program.address}"
    yield f"Program {where}, {program.engine} engine"
    for node in program.nodes:
        yield f"  node {node.node_id}{'' if node.alive else ' (dead)'}: {_room(node)}"
        for device in node.devices:
            yield f"    {_device(device)}"
    if program.objects is not None:
        yield f"  {_objects(program.objects)}"
    for training in program.trainings:
        yield from (f"  {line}" for line in _training(training))
    for actor in program.actors:
        name = f" {actor.name!r}" if actor.name else ""
        calls = actor.calls_waiting + actor.calls_running
        parts = [_state(actor.state), _pid(actor.pid), f"{calls} calls" if calls else ""]
        yield f"  actor {actor.class_name}{name}: {_joined(parts)}"
    tasks = program.tasks[:MOST_TASKS]
    for task in tasks:
        state = f"{_state(task.state)} {task.why}".strip()
        place = "" if task.why else _pid(task.pid) or _node(task.node_id)
        yield f"  {task.name}: {_joined([state, place, _seconds(task.seconds)])}"
    if program.task_count > len(tasks):
        yield f"  ... and {program.task_count - len(tasks)} more tasks"
    for waiting in program.waiting:
        yield f"  {_waiting(waiting)}"
    if program.note:
        yield f"  {program.note}"


def _training(training: TrainingStatus) -> Iterator[str]:
    count = len(training.workers)
    workers = f"{count} worker{'s' if count != 1 else ''}" if count else ""
    attempt = f"attempt {training.attempt}" if training.attempt else ""
    parts = [training.state, _seconds(training.seconds), workers, attempt, training.checkpoint]
    yield f"training {training.name}: {_joined(parts)}, in {training.path}"
    for worker in training.workers:
        devices = [f"{name} {', '.join(ids)}" for name, ids in worker.devices.items()]
        place = [f"rank {worker.rank}", _pid(worker.pid), _node(worker.node), *devices]
        yield f"  {_joined(place)}"
    if training.report is not None:
        shown = list(training.metrics.items())[:_MOST_METRICS]
        metrics = " ".join(f"{name}={value}" for name, value in shown)
        age = (
            f", {training.since_report_s:.0f} s ago" if training.since_report_s is not None else ""
        )
        yield f"  report {training.report}{age}: {metrics}"
    for wait in training.waits:
        yield f"  waiting for {wait}"


def _waiting(waiting: WaitingStatus) -> str:
    what = waiting.what or str(waiting.requests)
    why = "; ".join(f"{name}: {reason}" for name, reason in waiting.why.items())
    since = f", {_seconds(waiting.seconds)}" if waiting.seconds is not None else ""
    return f"{what} waiting for resources{since}{f': {why}' if why else ''}"


def _joined(parts: Iterable[str | None]) -> str:
    return ", ".join(part for part in parts if part)


def _state(state: str) -> str:
    """Return a state in words; Ray has states such as PENDING_NODE_ASSIGNMENT."""
    return state.lower().replace("_", " ")


def _pid(pid: int | None) -> str:
    return "" if pid is None else f"pid {pid}"


def _node(node: str | None) -> str:
    return f"node {node[:24]}" if node else ""


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:g} s"


def _room(node: NodeStatus) -> str:
    parts = []
    for name, total in node.resources.items():
        if name.startswith("node:"):  # Ray's resource for placing work on this node
            continue
        amount = bytes_in_words if "memory" in name else "{:.4g}".format
        left = ""
        if node.available is not None:
            left = f"{amount(node.available.get(name, 0))} of "
        parts.append(f"{name} {left}{amount(total)}{' free' if left else ''}")
    return ", ".join(parts)


def _device(device: DeviceStatus) -> str:
    title = f"{device.resource} {device.id}"
    if device.held_by is not None:
        return f"{title}: used by pid {device.held_by}"
    return f"{title}: {device.free:.4g} free"


def _objects(objects: ObjectsStatus) -> str:
    limit = bytes_in_words(objects.memory_limit_bytes)
    disk = f", {bytes_in_words(objects.disk_bytes)} on the disk" if objects.disk_bytes else ""
    memory = f"{bytes_in_words(objects.memory_bytes)} of {limit} of shared memory"
    return f"{objects.objects} objects, {memory}{disk}"
