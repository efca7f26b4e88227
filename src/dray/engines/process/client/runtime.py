"""Tasks, actors and objects for any process of a session, by way of the hub.

The driver calls the hub directly, and a worker sends it messages. The operations are the `on_...`
methods in `hub/`.
"""

from __future__ import annotations

import dataclasses
import weakref
from _blake2 import blake2b  # hashlib loads all of OpenSSL
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.engines.process.client.conversation import accepted
from dray.engines.process.client.values import Values
from dray.engines.process.leader_follower import LeaderFollowers
from dray.engines.process.objects import references
from dray.engines.process.objects.references import (
    FunctionRef,
    ProcessActor,
    ProcessGenerator,
    ProcessGroup,
    ProcessRef,
    WeakActor,
)
from dray.engines.rpc import serialization
from dray.engines.rpc.framing import Message
from dray.engines.rpc.serialization import Buffer, Packed, pack
from dray.engines.runtime import (
    ActorBackend,
    ActorOptions,
    Args,
    CallOptions,
    Describable,
    Described,
    Function,
    Group,
    GroupSpec,
    Kwargs,
    Placement,
    ReturnCount,
    Returned,
    Submit,
    TaskOptions,
    WorkOptions,
    warn_not_detached,
)
from dray.engines.runtime_env import RuntimeEnv
from dray.interrupts import leave, mark_shielded, pending, shielded, watch

if TYPE_CHECKING:
    from dray.status import ProgramStatus


# So many of a function's options are known to the hub as long as the function is there, besides
# those that somebody uses: many programs call `function.options(...).remote()` again and again.
_LATEST = 16


class _Told:
    """A function or class as it was pickled, and the latest options with which the hub knows it."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.latest: deque[FunctionRef] = deque(maxlen=_LATEST)


class ProcessRuntime(Values):
    """A process's half of the conversation with the hub, with all that can be said."""

    def __init__(self, number: int, job_id: str, turns: LeaderFollowers) -> None:
        super().__init__(number, job_id, turns)
        self.on_exit: Callable[[], None] = lambda: None  # called as this process's actor exits
        self._known: weakref.WeakValueDictionary[bytes, FunctionRef] = weakref.WeakValueDictionary()
        self._pickled: weakref.WeakKeyDictionary[object, _Told] = weakref.WeakKeyDictionary()
        references.set_runtime(self)

    def new_ref(self, number: int) -> ProcessRef:
        return ProcessRef(self, number)

    # Tasks.

    def _kind(self, what: str, target: object, options: WorkOptions, name: str) -> FunctionRef:
        """Tell the hub of a function or class with its options, unless it knows them."""
        origin = options.origin or target
        told = self._pickled.get(origin)
        if told is None:
            told = self._pickled[origin] = _Told(pack(target, name))
        packed = told.packed
        group = options.placement.group
        rest = _fields(options, "given", "origin", "placement")
        if "retry_exceptions" in rest:
            rest["retry_exceptions"] = serialization.pack_types(rest["retry_exceptions"])
        if "methods" in rest:
            rest["methods"] = _with_types(serialization.pack_types, rest["methods"])
        place = _fields(options.placement)
        place["group"] = group.number if isinstance(group, ProcessGroup) else None
        group_here, environment_here = self.passed_on()
        if options.placement.kind == "default" and group_here is not None:
            place.update(kind="group", group=group_here, bundle=-1, capture=True)
        if environment_here:
            rest["runtime_env"] = RuntimeEnv.parse(environment_here, "it") | options.runtime_env
        given = pack((rest, place), f"the options of {name}")
        key = _digest(packed.data, *packed.buffers, given.data)
        known = self._known.get(key)
        if known is None:
            blob = (packed.data, [bytes(b) for b in packed.buffers])
            refs = [ref.number for ref in packed.refs]
            known = self._tell_function(key, what, blob, refs, rest, place)
            self._known[key] = known
            told.latest.append(known)
        return known

    def passed_on(self) -> tuple[Any, Any]:
        """Return the group that captures what starts here, and the runtime environment of that."""
        here = self.here()
        inside = "task_id" in here or "actor" in here
        return here["group"] if here.get("captures") else None, (
            here.get("runtime_env") if inside else None
        )

    @shielded
    def _tell_function(self, key: bytes, *told: object) -> FunctionRef:
        number = next(self._ids)
        self.keep(number)
        ref = FunctionRef(self, number, key)
        self.demand("kind", key, number, *told)
        return ref

    def bind_function(self, function: Function, options: TaskOptions) -> Submit:
        kind = self._kind("task", function, options, options.name)
        return self._submit(("submit", kind.key), options.num_returns, options.name, kind)

    def bind_method(self, actor: ProcessActor, method: str, options: CallOptions) -> Submit:
        details = (
            method,
            options.name,
            options.concurrency_group,
            options.max_task_retries,
            serialization.pack_types(options.retry_exceptions),
            options.most_unread,
        )
        callee = f"{actor.class_name}.{method}"
        return self._submit(("call", actor.number, details), options.num_returns, callee)

    def _submit(
        self, head: Message, count: ReturnCount, callee: str, kind: FunctionRef | None = None
    ) -> Submit:
        """Return what submits tasks or calls, and keeps their function."""
        ids, tell = self._ids, self.teller(*head)

        @mark_shielded
        def place(packed: Packed | bytes, deps: Sequence[int]) -> Returned:
            payload, refs = self.stored(packed)
            number = next(ids)
            numbers: tuple[int, ...] = (number,)
            if isinstance(count, int) and count != 1:
                numbers = (number, *(next(ids) for _ in range(count - 1))) if count else ()
            parent = self.here().get("task_id")
            refusal = self.post_new(
                numbers, tell, number, numbers, payload, deps, refs, count, parent
            )
            if refusal is not None:
                for made in numbers:
                    ProcessRef(self, made)  # its end is told
                raise serialization.error_of(refusal)
            if count == 1 or count == "dynamic":
                return ProcessRef(self, number)
            if count == "streaming":
                return ProcessGenerator(self, number)
            return [ProcessRef(self, made) for made in numbers] if count else None

        def submit(args: Args, kwargs: Kwargs, _kept: object = kind) -> Returned:
            packed, deps = self._pack_arguments(args, kwargs, callee)
            watch()
            try:
                return place(packed, deps)
            finally:
                if pending:
                    leave()

        return submit

    def _pack_arguments(
        self, args: Args, kwargs: Kwargs, callee: str
    ) -> tuple[Packed | bytes, Sequence[int]]:
        """Return the arguments, and the references at the top, which are awaited."""
        plain = serialization.pack_plain(args, kwargs)
        if plain is not None:
            return plain, ()
        deps: list[int] = []
        for value in args:
            if type(value) is ProcessRef:
                args = tuple(self._stand_in(value, deps) for value in args)
                break
        for value in kwargs.values():
            if type(value) is ProcessRef:
                kwargs = {name: self._stand_in(value, deps) for name, value in kwargs.items()}
                break
        return serialization.pack_arguments(args, kwargs, callee), deps

    def _stand_in(self, value: object, deps: list[int]) -> object:
        if type(value) is not ProcessRef:
            return value
        deps.append(self._number_of(value))
        return Awaited(len(deps) - 1)

    @shielded
    def cancel(self, ref: ObjectRef | ObjectRefGenerator, *, force: bool, recursive: bool) -> None:
        message = ("cancel", self._number_of(ref), force, recursive)
        if self.lock.is_mine() or self._readers.reads_here():  # a finaliser's
            self.order(*message)
            return
        question, waiter = self.ask(*message)
        try:
            self._readers.wait(waiter)
        except BaseException:
            self._asked.pop(question, None)  # there is nothing to undo
            raise
        accepted(waiter.value)

    # Actors.

    def bind_class(
        self, kind: type, options: ActorOptions
    ) -> Callable[[Args, Kwargs], ActorBackend]:
        if options.detached:
            warn_not_detached(f"actor {options.class_name}", "process")
        known = self._kind("actor", kind, options, options.class_name)

        @shielded
        def place(packed: Packed | bytes, deps: Sequence[int]) -> ActorBackend:
            payload, refs = self.stored(packed)
            number = next(self._ids)
            self.keep(number)
            actor = ProcessActor(self, number, options.class_name, options.methods)
            found = self.demand("create", known.key, number, payload, deps, refs)
            return actor if found is None else self._actor(*found)

        def create(args: Args, kwargs: Kwargs) -> ActorBackend:
            return place(*self._pack_arguments(args, kwargs, options.class_name))

        return create

    def _actor(self, number: int, class_name: str, methods: Mapping[str, Any]) -> WeakActor:
        return WeakActor(self, number, class_name, _with_types(serialization.types_of, methods))

    def kill(self, actor: ActorBackend, *, no_restart: bool) -> None:
        self.order("kill", self._number_of(actor), no_restart)

    def named_actor(self, name: str, namespace: str | None) -> ActorBackend | None:
        found = self.demand("named", name, namespace)
        return None if found is None else self._actor(*found)

    def named_actors(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.demand("query", "names")
        return found

    def own_actor(self) -> ActorBackend | None:
        here = self.here()
        number = here.get("actor")
        return None if number is None else self._actor(number, here["name"], here["methods"])

    # Placement groups.

    @shielded
    def make_group(self, spec: GroupSpec) -> Group:
        if spec.detached:
            warn_not_detached(f"placement group {spec.name!r}", "process")
        number, ready = next(self._ids), next(self._ids)
        self.keep(ready)
        ref = ProcessRef(self, ready)
        self.demand("group", number, ready, spec)
        return ProcessGroup(self, number, spec.bundles, ref)

    @shielded
    def named_group(self, name: str) -> Group | None:
        found = self.demand("named_group", name)
        return None if found is None else self._group(found)

    def _group(self, found: tuple[int, Any, int]) -> ProcessGroup:
        number, bundles, ready = found
        return ProcessGroup(self, number, bundles, self._known_ref(ready))

    @shielded
    def group_of(self, number: int) -> ProcessGroup:
        return self._group(self.demand("group_of", number))

    def groups(self) -> list[Described]:
        found: list[Described] = self.demand("query", "groups")
        return found

    # What there is.

    def nodes(self) -> list[Described]:
        found: list[Described] = self.demand("query", "nodes")
        return found

    def cluster_resources(self) -> dict[str, float]:
        found: dict[str, float] = self.demand("query", "total")
        return found

    def available_resources(self) -> dict[str, float]:
        found: dict[str, float] = self.demand("query", "available")
        return found

    def described(self, what: Describable) -> list[Described]:
        found: list[Described] = self.demand("query", what)
        return found

    def status(self) -> ProgramStatus:
        found: ProgramStatus = self.demand("query", "status")
        return found

    def exit_actor(self) -> None:
        self.on_exit()
        raise SystemExit(0)


def _fields(options: WorkOptions | Placement, *without: str) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(options) if field.name not in without]
    return {name: getattr(options, name) for name in names}


def _with_types(
    convert: Callable[[Any], Any], methods: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return methods' options with the types of exceptions packed, or unpacked."""
    name = "retry_exceptions"
    return {
        method: {**given, name: convert(given[name])} if name in given else given
        for method, given in methods.items()
    }


class Awaited:
    """Stands, among a call's arguments, for the value of one of its references."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[object, ...]:
        return (Awaited, (self.index,))


def _digest(*parts: Buffer) -> bytes:
    """Return what tells byte strings, and where each ends, from others."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return bytes(digest.digest())
