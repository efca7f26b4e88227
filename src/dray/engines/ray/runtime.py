"""Tasks, actors and objects of a Ray cluster: Ray's own, under dray's names and errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
import ray.util
from ray.exceptions import RayError
from ray.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
)

from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.engines.ray import cluster, ray_options
from dray.engines.ray.actor_handles import RayObject, tell_groups
from dray.engines.ray.errors import raise_result, refused
from dray.engines.ray.feasibility import Capacity, check_bundle
from dray.engines.ray.placement_groups import RayGroup, all_groups, group_of
from dray.engines.ray.portable_errors import with_portable_errors, with_portable_methods
from dray.engines.ray.references import RayRef, bare, bare_named, error_of, ray_refs, shown, wrapper
from dray.engines.ray.status import described, status
from dray.engines.ray.waits import hear_signals
from dray.engines.ray.workers import gpu_variables
from dray.engines.ray.workers.forked_worker import own_membership
from dray.engines.runtime import (
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
    Origin,
    Returned,
    Runtime,
    Submit,
    TaskOptions,
    WorkOptions,
    group_name_taken,
)
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ConfigError
from dray.status import ProgramStatus

# Functions and classes that are remembered as sent to the cluster already, at most.
_KEPT = 4096


class RayRuntime(Runtime):
    """Ray as this process sees it, in a driver and in a worker of Ray's alike.

    Args:
        environment: The environment of tasks and actors, where Ray does not know it.
        patience_s: For how long nodes may yet come that can hold what none can now.
        available: Returns the resources that are free for this session.
    """

    def __init__(
        self, environment: RuntimeEnv, patience_s: float, available: Callable[[], dict[str, float]]
    ) -> None:
        self._environment = environment
        self._available = available
        self._capacity = Capacity(patience_s)
        # Ray sends a function to the cluster once for each remote function that it makes of it;
        # `.options()` makes a new one of dray's each time.
        self._function = functools.lru_cache(_KEPT)(_function)
        self._class = functools.lru_cache(_KEPT)(_class)
        self._cancelled: set[bytes] = set()  # ids of results that nobody waits for any more

    # Tasks and actors.

    def bind_function(self, function: Function, options: TaskOptions) -> Submit:
        name = f"task {options.name}"
        self._check(name, options)
        try:
            shows = "GPU" in options.resources and self._shows_variables
            remote = self._function(function, options.origin, options.max_calls, shows)
            with ray_options.quietly():
                submit = remote.options(**ray_options.of_remote(options, self._environment)).remote
        except (ValueError, TypeError) as error:
            raise refused(error, name) from error
        wrap = wrapper(options.num_returns)
        group = options.placement.group

        def call(args: Args, kwargs: Kwargs) -> Returned:
            _check_group(options)
            try:
                returned = wrap(submit(*bare(args), **bare_named(kwargs)))
            except Exception as error:
                raise refused(error, name, function, args, kwargs) from error
            if isinstance(group, RayGroup) and returned is not None:
                group.add_results(returned)
            return returned

        return call

    def bind_class(
        self, kind: type, options: ActorOptions
    ) -> Callable[[Args, Kwargs], ActorBackend]:
        name = f"actor {options.class_name}" + (f" {options.name!r}" if options.name else "")
        self._check(name, options)
        try:
            groups = tuple(sorted(options.concurrency_groups.items()))
            shows = "GPU" in options.resources and self._shows_variables
            remote = self._class(kind, options.origin, groups, shows)
            create = remote.options(**ray_options.of_remote(options, self._environment)).remote
        except (ValueError, TypeError) as error:
            raise refused(error, name) from error

        group = options.placement.group

        def call(args: Args, kwargs: Kwargs) -> ActorBackend:
            try:
                handle = create(*bare(args), **bare_named(kwargs))
                if isinstance(group, RayGroup) and not options.given.get("get_if_exists"):
                    group.add_actor(handle)
                return RayObject(handle)
            except Exception as error:
                raise refused(error, name, kind, args, kwargs) from error

        return call

    @functools.cached_property
    def _shows_variables(self) -> bool:
        return gpu_variables.differs()

    def _check(self, name: str, options: WorkOptions) -> None:
        _check_group(options)
        wanted = ray_options.request(options)
        if wanted is not None:
            self._capacity.check(name, *wanted)
        elif options.placement.bundle >= 0:
            check_bundle(name, options)

    # Objects.

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        try:
            with hear_signals():
                values = ray.get(ray_refs(refs), timeout=timeout_s)
        except RayError as error:
            raise_result(error_of(refs, error), error)
        return [shown(value) for value in values]

    def put(self, value: object) -> ObjectRef:
        try:
            return RayRef(ray.put(value))
        except Exception as error:
            raise refused(error, "the value", value) from error

    def wait(
        self, refs: Sequence[ObjectRef], num_returns: int, timeout_s: float | None, fetch: bool
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        with hear_signals():
            bare_refs = ray_refs(refs)
            found, _ = ray.wait(
                bare_refs, num_returns=num_returns, timeout=timeout_s, fetch_local=fetch
            )
        ready = set(found)  # Ray does not always keep their order
        pairs = list(zip(refs, bare_refs, strict=True))
        return [ref for ref, bare in pairs if bare in ready], [
            ref for ref, bare in pairs if bare not in ready
        ]

    def cancel(self, ref: ObjectRef | ObjectRefGenerator, *, force: bool, recursive: bool) -> None:
        (ray_ref,) = ray_refs([ref])
        if isinstance(ref, RayRef):
            # Ray aborts the driver if a task is cancelled while it ends, so not more than needed:
            # https://github.com/ray-project/ray/pull/54527.
            ended, _ = ray.wait([ray_ref], timeout=0, fetch_local=False)
            if ended or (ref.binary() in self._cancelled and not force):
                return
            self._cancelled.add(ref.binary())
        try:
            ray.cancel(ray_ref, force=force, recursive=recursive)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def kill(self, actor: ActorBackend, *, no_restart: bool) -> None:
        if not isinstance(actor, RayObject):
            raise ConfigError("the actor was made by another engine, and is gone with it")
        ray.kill(actor.rays, no_restart=no_restart)

    # Names.

    def named_actor(self, name: str, namespace: str | None) -> ActorBackend | None:
        try:
            return RayObject(ray.get_actor(name, namespace))
        except ValueError:
            return None

    def named_actors(self) -> list[dict[str, str]]:
        return [dict(entry) for entry in ray.util.list_named_actors(all_namespaces=True)]

    # Placement groups.

    def make_group(self, spec: GroupSpec) -> Group:
        self._capacity.check("the placement group", spec.request)
        if spec.name and self.named_group(spec.name) is not None:
            raise group_name_taken(spec.name)
        selectors = [dict(selector) for selector in spec.selectors]
        further = {"bundle_label_selector": selectors} if selectors else {}
        try:
            return RayGroup(
                placement_group(
                    [dict(bundle) for bundle in spec.bundles],
                    strategy=spec.strategy,
                    name=spec.name,
                    lifetime="detached" if spec.detached else None,
                    **further,
                )
            )
        except Exception as error:
            raise refused(error, f"placement group {spec.name}".rstrip()) from error

    def named_group(self, name: str) -> Group | None:
        try:
            return RayGroup(get_placement_group(name))
        except ValueError:
            return None

    def groups(self) -> list[Described]:
        return all_groups()

    # Where the calling code runs.

    def is_cancelled(self) -> bool:
        context = ray.get_runtime_context()
        if own_membership() is not None or context.worker.core_worker.current_actor_is_asyncio():
            return False  # Ray raises CancelledError there instead
        return bool(context.is_canceled())

    def execution_context(self) -> ExecutionContext:
        context = ray.get_runtime_context()
        here = ExecutionContext(
            context.get_job_id(),
            context.get_node_id(),
            context.get_worker_id(),
            context.namespace,
            runtime_env=dict(context.runtime_env),
            session=_told(context, "get_session_name"),
            directory=_told(context, "get_temp_dir"),
            cluster=context.gcs_address,
        )
        forked = own_membership()
        if forked is not None:
            return replace(
                here,
                job_id=forked.job_id,
                actor_id=forked.actor_id,
                resources=forked.resources,
                accelerator_ids=forked.devices,
                group=group_of(forked.group),
            )
        if context.worker.mode != ray.WORKER_MODE:
            return here
        actor_id = context.get_actor_id()
        group = get_current_placement_group()
        return replace(
            here,
            task_id=context.get_task_id(),
            task_name=context.get_task_name() or None,
            actor_id=actor_id,
            actor_name=context.get_actor_name() or None,
            resources=context.get_assigned_resources(),
            accelerator_ids=context.get_accelerator_ids(),
            group=None if group is None else RayGroup(group),
            captures=context.should_capture_child_tasks_in_placement_group,
            was_restarted=actor_id is not None and self._was_restarted,
            task_function=_told(context, "get_task_function_name") or None,
        )

    @functools.cached_property
    def _was_restarted(self) -> bool:
        """Return whether this process's actor was made again; the cluster is asked once."""
        actor_id = ray.get_runtime_context().get_actor_id()
        return bool(ray._private.state.actors(actor_id=actor_id)["NumRestarts"])

    def own_actor(self) -> ActorBackend | None:
        context = ray.get_runtime_context()
        if context.get_actor_id() is None:
            return None
        return RayObject(context.current_actor)

    def exit_actor(self) -> None:
        ray.actor.exit_actor()

    # The cluster.

    def nodes(self) -> list[Described]:
        return cluster.all_nodes()

    def cluster_resources(self) -> dict[str, float]:
        return dict(ray.cluster_resources())

    def available_resources(self) -> dict[str, float]:
        return self._available()

    def described(self, what: Describable) -> list[Described]:
        return described(what)

    def status(self) -> ProgramStatus:
        return status(self.nodes())


def _check_group(options: WorkOptions) -> None:
    """Return if the placement group that was asked for, if any, is there: Ray would wait for it."""
    if isinstance(options.placement.group, RayGroup):
        options.placement.group.check()


def _told(context: Any, method: str) -> str:
    """Return what a method of Ray's context says; "" with a release that has no such method."""
    ask = getattr(context, method, None)
    return "" if ask is None else ask() or ""


def _function(function: Function, _: Origin | None, max_calls: int, shows: bool) -> Any:
    """Return a remote function of Ray's; how many calls it has is the one thing set for good."""
    if shows and not inspect.isgeneratorfunction(function):
        function = gpu_variables.showing(function)
    return ray.remote(max_calls=max_calls)(with_portable_errors(function))


def _class(
    kind: type, _: Origin | None, concurrency_groups: tuple[tuple[str, int], ...], shows: bool
) -> Any:
    """Return an actor class of Ray's; its concurrency groups are set for good."""
    for name, member in inspect.getmembers(kind, callable):
        given = getattr(member, "__dray_method__", None)
        if given:
            # On the function itself, so that handles which were found by name know of it.
            marked = inspect.getattr_static(kind, name)
            ray.method(**ray_options.of_method(given))(getattr(marked, "__func__", marked))
    kind = with_portable_methods(kind)
    tell_groups(kind, dict(concurrency_groups))
    if shows:
        kind = gpu_variables.showing_actor(kind)
    if concurrency_groups:
        return ray.remote(concurrency_groups=dict(concurrency_groups))(kind)
    return ray.remote(kind)
