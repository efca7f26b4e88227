"""The options of tasks, actors and calls, as options of Ray.

Options that the user has left out are left out here too, so that Ray's defaults apply.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from ray.util import scheduling_strategies as strategies

from dray.engines.ray.placement_groups import RayGroup
from dray.engines.runtime import ActorOptions, CallOptions, Described, Placement, WorkOptions
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ConfigError
from dray.scheduling.labels import EXISTS
from dray.scheduling.requests import Request

# Options that Ray takes as they are.
_ALIKE = (
    *("num_cpus", "num_gpus", "memory", "resources", "accelerator_type", "label_selector", "name"),
    *("object_store_memory", "enable_task_events", "fallback_strategy"),
)
_TASK = ("num_returns", "max_retries", "retry_exceptions", "_generator_backpressure_num_objects")
_ACTOR = (
    *("namespace", "lifetime", "get_if_exists", "max_restarts", "max_task_retries"),
    *("max_concurrency", "max_pending_calls", "allow_out_of_order_execution"),
)
# Options that `dray.method` and `ray.method` have in common.
_METHOD = (
    *("num_returns", "concurrency_group", "max_task_retries", "retry_exceptions"),
    *("_generator_backpressure_num_objects", "enable_task_events"),
)


def of_remote(options: WorkOptions, environment: RuntimeEnv) -> Described:
    """Return what `.options()` of a remote function, or of an actor class, of Ray's takes."""
    own = _ACTOR if isinstance(options, ActorOptions) else _TASK
    settings = _chosen(options.given, (*_ALIKE, *own))
    if isinstance(options, ActorOptions) and options.placement_resources == options.resources:
        settings.setdefault("num_cpus", 0)  # beside other resources, Ray would hold one for life
    strategy = _strategy(options.placement, options.given.get("scheduling_strategy"))
    if strategy is not None:
        settings["scheduling_strategy"] = strategy
    if variables := (environment | options.runtime_env).as_dict():
        settings["runtime_env"] = variables
    return settings


def of_method(given: Mapping[str, Any]) -> Described:
    """Return what `ray.method` takes."""
    return _chosen(given, _METHOD)


def of_call(method: str, options: CallOptions) -> Described:
    """Return what `.options()` of an actor's method of Ray's takes."""
    retries = options.retry_exceptions
    settings: dict[str, Any] = {
        "num_returns": options.num_returns,
        "retry_exceptions": list(retries) if isinstance(retries, tuple) else retries,
        "max_task_retries": options.max_task_retries,
        "concurrency_group": options.concurrency_group,
        "name": None if options.name == method else options.name,
        "_generator_backpressure_num_objects": options.most_unread or None,
    }
    return _chosen(settings, tuple(settings))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Do not show what Ray deprecates: whether dray offers it as well is dray's own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def request(options: WorkOptions) -> tuple[Request, str] | None:
    """Return what a node must offer, and which node it must be (or ""); None if others know.

    In a placement group, Ray itself compares a request with the bundles.
    """
    place = options.placement
    if place.kind == "group" or options.given.get("fallback_strategy"):
        return None
    selector = {**options.label_selector, **place.hard_labels}
    node_id = place.node_id if place.kind == "node" and not place.soft else ""
    return Request([dict(options.placement_resources)], selectors=[selector]), node_id


def _chosen(given: Mapping[str, Any], names: tuple[str, ...]) -> Described:
    return {name: given[name] for name in names if given.get(name) is not None}


def _strategy(place: Placement, given: Any) -> Any:
    """Return a placement as a strategy of Ray's; None lets what captures its tasks have them."""
    if place.kind == "default":
        return None
    if place.kind == "no group":
        return "DEFAULT"
    if place.kind == "spread":
        return "SPREAD"
    if place.kind == "group":
        if not isinstance(place.group, RayGroup):
            raise ConfigError("the placement group was made by another engine than Ray's")
        return strategies.PlacementGroupSchedulingStrategy(
            place.group.ray_group,
            placement_group_bundle_index=place.bundle,
            # None means as in the task that submits, which only Ray knows.
            placement_group_capture_child_tasks=getattr(
                given, "placement_group_capture_child_tasks", place.capture
            ),
        )
    if place.kind == "node":
        try:
            return strategies.NodeAffinitySchedulingStrategy(place.node_id, soft=place.soft)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return strategies.NodeLabelSchedulingStrategy(
        _expressions(place.hard_labels), soft=_expressions(place.soft_labels)
    )


def _expressions(selector: Mapping[str, str]) -> Described:
    """Return a label selector as the expressions of Ray's node label strategy."""
    found = {}
    for label, value in selector.items():
        wanted = value.removeprefix("!")
        if wanted == EXISTS:
            there = value == EXISTS
            found[label] = strategies.Exists() if there else strategies.DoesNotExist()
            continue
        values = wanted[3:-1].split(",") if wanted.startswith("in(") else [wanted]
        kind = strategies.NotIn if value.startswith("!") else strategies.In
        found[label] = kind(*(part.strip() for part in values))
    return found
