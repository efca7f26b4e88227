"""Tasks, actors and objects in this process, for debugging.

A task runs when it is submitted, on the thread that submits it, and so do the methods of actors. A
generator continues when the next item is requested. Only an actor with async methods has a thread
of its own, for its event loop, because one of its calls may wait for another one. Values are copied
by pickling, as they would be on the way to another process. No task waits for resources, but a
request that can never be met is refused.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import math
import os
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

from dray.engines.inline.actor import InlineGroup, InlineObject
from dray.engines.inline.execution import Host, InlineGenerator, Work, current, submit
from dray.engines.inline.values import InlineRef, Stored, ref_to
from dray.engines.local import describe_job, describe_node, describe_worker, nodes_of
from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.engines.rpc.serialization import pack, pack_arguments
from dray.engines.runtime import (
    GROUP_REMOVED,
    NOT_BY_FORCE,
    ActorBackend,
    ActorOptions,
    Args,
    Describable,
    Described,
    ExecutionContext,
    Function,
    Group,
    GroupSpec,
    Kwargs,
    Returned,
    Runtime,
    Submit,
    TaskOptions,
    WorkOptions,
    actor_name_taken,
    group_name_taken,
    not_in_time,
    own_name,
    warn_not_detached,
)
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ConfigError, InfeasibleError, ObjectLostError
from dray.scheduling.capacity import to_fixed
from dray.scheduling.labels import NODE_ID
from dray.scheduling.ledger import Held, Ledger
from dray.scheduling.requests import Node, Request, Reservation
from dray.status import ProgramStatus


class InlineRuntime(Runtime):
    """Tasks, actors and objects of the inline engine.

    Args:
        variables: Returns the environment variables that limit a process to devices.
    """

    def __init__(
        self,
        ledger: Ledger,
        runtime_env: RuntimeEnv,
        namespace: str | None,
        variables: Callable[[Mapping[str, tuple[str, ...]], Node], dict[str, str | None]],
    ) -> None:
        self._variables = variables
        self.runtime_env = runtime_env
        self.home = ExecutionContext(
            job_id=uuid.uuid4().hex[:8],
            node_id=ledger.nodes[0].node_id,
            worker_id=str(os.getpid()),
            namespace=namespace or "default",
            runtime_env=runtime_env.as_dict(),
        )
        self._ledger = ledger
        # Copies of functions, by what fixes their globals.
        self._functions: weakref.WeakKeyDictionary[object, Any] = weakref.WeakKeyDictionary()
        self._actors: weakref.WeakSet[InlineObject] = weakref.WeakSet()
        self._detached: list[InlineObject] = []  # they need no handle to live on
        self._groups: list[InlineGroup] = []
        self._forgotten: deque[Reservation] = deque()

    def bind_function(self, function: Function, options: TaskOptions) -> Submit:
        origin = options.origin or function
        copied = self._functions.get(origin)
        if copied is None:
            copied = Stored(pack(function, f"remote function {options.name}")).load()
            self._functions[origin] = copied

        def call(args: Args, kwargs: Kwargs) -> Returned:
            group = self._place(options)
            devices = self._first_devices(options)  # a task ends before another one begins
            here, around = self._surroundings(options, group, devices)
            function_name = f"{function.__module__}.{own_name(function)}"
            work = Work(
                title=f"task {options.name}",
                find=lambda: copied,
                host=Host(),  # tasks of several threads do not wait for each other
                here=replace(
                    here,
                    task_id=uuid.uuid4().hex,
                    task_name=options.name,
                    task_function=function_name,
                ),
                num_returns=options.num_returns,
                retries=options.max_retries,
                retry_on=options.retry_exceptions,
                runtime_env=around,
            )
            return submit(work, args, kwargs)

        return call

    def bind_class(
        self, kind: type, options: ActorOptions
    ) -> Callable[[Args, Kwargs], ActorBackend]:
        def create(args: Args, kwargs: Kwargs) -> ActorBackend:
            if options.detached:
                warn_not_detached(f"actor {options.class_name}", "inline")
            if options.name and (found := self.named_actor(options.name, options.namespace)):
                if options.get_if_exists:
                    return found
                raise actor_name_taken(options.name)
            group = self._place(options)
            copied = Stored(pack(kind, f"actor class {options.class_name}")).load()
            arguments = Stored(pack_arguments(args, kwargs, options.class_name))
            held = None if group is not None else self._hold(options)
            devices = held.devices[0] if held else self._first_devices(options)
            here, around = self._surroundings(options, group, devices)
            actor = InlineObject(copied, options, arguments, here, around, held, self._forgotten)
            self._actors.add(actor)
            if options.detached:
                self._detached.append(actor)
            if group is not None:
                group.actors.add(actor)
            return actor

        return create

    def _request(self, options: WorkOptions, resources: Mapping[str, float]) -> Request:
        placement = options.placement
        selector = {**options.label_selector, **placement.hard_labels}
        if placement.kind == "node" and not placement.soft:
            selector[NODE_ID] = placement.node_id
        return Request([resources], selectors=[selector])

    def _place(self, options: WorkOptions) -> InlineGroup | None:
        """Return the placement group to run in, if any."""
        placement, resources = options.placement, options.placement_resources
        here = self.execution_context()
        self._ledger.check(self._request(options, resources))
        options.runtime_env.local_directory("inline")
        inherits = placement.kind == "default" and here.captures
        group = here.group if inherits else placement.group
        if group is None:
            return None
        assert isinstance(group, InlineGroup)
        if group.removed:
            raise ConfigError(GROUP_REMOVED)
        bundles = group.bundles if placement.bundle < 0 else [group.bundles[placement.bundle]]
        asked = to_fixed(resources).items()
        if not any(
            all(to_fixed(b).get(name, 0) >= units for name, units in asked) for b in bundles
        ):
            raise InfeasibleError(
                "This can never run: no bundle of its placement group is large enough",
                asked=resources,
                available=self._ledger.total(),
            )
        return group

    def _surroundings(
        self,
        options: WorkOptions,
        group: InlineGroup | None,
        devices: Mapping[str, tuple[str, ...]],
    ) -> tuple[ExecutionContext, RuntimeEnv]:
        """Return what a task or an actor can know of itself, and what is put around it."""
        placement, runtime_env = options.placement, self.runtime_env | options.runtime_env
        shown = self._variables(devices, self._ledger.nodes[0])
        here = replace(
            self.home,
            resources=options.resources,
            group=group,
            captures=group is not None and (placement.kind == "default" or placement.capture),
            runtime_env=runtime_env.as_dict(),
            accelerator_ids=devices,
        )
        variables = {name: value for name, value in shown.items() if value is not None}
        return here, RuntimeEnv(variables) | runtime_env

    def _first_devices(self, options: WorkOptions) -> dict[str, tuple[str, ...]]:
        ids = self._ledger.nodes[0].devices
        asked = options.resources.items()
        return {name: tuple(ids[name][: math.ceil(n)]) for name, n in asked if name in ids}

    def _hold(self, options: ActorOptions) -> Held | None:
        """Take what an actor holds, as long as it is free; nothing here waits for it."""
        self._sweep()
        if not options.resources:
            return None
        asked = self._ledger.reserve(self._request(options, options.resources))
        return None if asked.cancel() else cast("Held", asked.result())

    def _sweep(self) -> None:
        """Free what actors have held whose last handle is gone."""
        while self._forgotten:
            self._forgotten.popleft().release()

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        own = [_own(ref) for ref in refs]
        _, missing = concurrent.futures.wait([ref.outcome for ref in own], timeout_s)
        if missing:
            raise not_in_time(len(missing), len(own), timeout_s)
        return [ref.value() for ref in own]

    def put(self, value: object) -> ObjectRef:
        return ref_to(value, "the value")

    def wait(
        self, refs: Sequence[ObjectRef], num_returns: int, timeout_s: float | None, fetch: bool
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        outcomes: list[Future[Any]] = [
            ref.upcoming() if isinstance(ref, InlineGenerator) else _own(ref).outcome
            for ref in refs
        ]
        with contextlib.suppress(concurrent.futures.TimeoutError):
            coming = concurrent.futures.as_completed(outcomes, timeout_s)
            deque(itertools.islice(coming, num_returns), maxlen=0)
        done = [ref for ref, outcome in zip(refs, outcomes, strict=True) if outcome.done()]
        ready = set(done[:num_returns])
        return [ref for ref in refs if ref in ready], [ref for ref in refs if ref not in ready]

    def cancel(self, ref: ObjectRef | ObjectRefGenerator, *, force: bool, recursive: bool) -> None:
        own = ref if isinstance(ref, InlineGenerator) else _own(ref)
        if force and own.of_actor:
            raise ConfigError(NOT_BY_FORCE)
        own.cancel()

    def kill(self, actor: ActorBackend, *, no_restart: bool) -> None:
        assert isinstance(actor, InlineObject)
        if no_restart:
            actor.end("it was killed")
        else:
            actor.restart()

    def named_actor(self, name: str, namespace: str | None) -> ActorBackend | None:
        return self._names().get((namespace or self.home.namespace, name))

    def named_actors(self) -> list[dict[str, str]]:
        return [{"name": name, "namespace": space} for space, name in self._names()]

    def _names(self) -> dict[tuple[str, str], InlineObject]:
        """Return the actors that have a name, by their namespace and that."""
        named = [(actor, actor.options.name) for actor in self._living()]
        own = self.home.namespace
        return {(actor.options.namespace or own, name): actor for actor, name in named if name}

    def _living(self) -> list[InlineObject]:
        return [actor for actor in self._actors if actor.gone is None]

    def make_group(self, spec: GroupSpec) -> Group:
        if spec.detached:
            warn_not_detached(f"placement group {spec.name!r}", "inline")
        if spec.name and self.named_group(spec.name):
            raise group_name_taken(spec.name)
        self._sweep()
        group = InlineGroup(spec, self._ledger.reserve(spec.request))
        self._groups.append(group)
        return group

    def named_group(self, name: str) -> Group | None:
        return next((g for g in self._groups if g.spec.name == name and not g.removed), None)

    def groups(self) -> list[Described]:
        return [group.describe() for group in self._groups]

    @contextlib.contextmanager
    def holding(
        self, resources: Mapping[str, float], devices: Mapping[str, tuple[str, ...]]
    ) -> Iterator[None]:
        """Let code outside of tasks and actors know what it holds, as in a train function."""
        before = self.home
        self.home = replace(before, resources=resources, accelerator_ids=devices)
        try:
            yield
        finally:
            self.home = before

    def execution_context(self) -> ExecutionContext:
        work = current.get()
        return self.home if work is None else work.here

    def own_actor(self) -> ActorBackend | None:
        work = current.get()
        return work.host if work is not None and isinstance(work.host, InlineObject) else None

    def exit_actor(self) -> None:
        own = self.own_actor()
        assert isinstance(own, InlineObject)
        own.exit()

    def nodes(self) -> list[Described]:
        return [describe_node(node) for node in self._ledger.nodes]

    def cluster_resources(self) -> dict[str, float]:
        return self._ledger.total()

    def available_resources(self) -> dict[str, float]:
        self._sweep()
        return self._ledger.available()

    def described(self, what: Describable) -> list[Described]:
        if what == "jobs":
            return [describe_job(self.home.job_id)]
        node = self._ledger.nodes[0]
        here = describe_worker(self.home.worker_id, os.getpid(), node, is_driver=True)
        return [here] if what == "workers" else []  # nobody counts references here

    def status(self) -> ProgramStatus:
        self._sweep()
        return ProgramStatus(  # without tasks: whoever could ask runs in one
            engine="inline",
            nodes=nodes_of(self._ledger),
            actors=[actor.describe() for actor in self._living()],
            groups=self.groups(),
        )

    def close(self) -> None:
        """End all actors and give everything back."""
        for actor in self._living():
            actor.end("the session is over")
        self._detached.clear()
        for group in self._groups:
            group.remove()
        self._sweep()


def _own(ref: object) -> InlineRef:
    if not isinstance(ref, InlineRef):
        raise ObjectLostError(f"{ref!r} is of an earlier session, which dray.shutdown() ended")
    return ref
