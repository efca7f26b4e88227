"""The options of tasks, actors and method calls: checked, and put into dray's own words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from dray.accelerators import check_quantities, family_of
from dray.accelerators.node_names import ACCELERATOR_TYPE, ACCELERATOR_TYPE_QUANTITY
from dray.checks import check_namespace, is_whole, plain, refuse_arrays
from dray.compat.arguments import known_options
from dray.core.scheduling_strategies import PlacementGroupSchedulingStrategy, as_placement
from dray.engines.runtime import (
    NOT_METHODS,
    OF_EVERY_ACTOR,
    ActorOptions,
    CallOptions,
    Origin,
    Placement,
    ReturnCount,
    TaskOptions,
    own_name,
)
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ArgumentTypeError, ConfigError
from dray.scheduling.capacity import to_fixed
from dray.scheduling.labels import check_selector

# Options as users give them: each has a type of its own.
Options: TypeAlias = Mapping[str, Any]
Default = TypeVar("Default", int, None)

# Each result has a number and an entry of its own.
_MOST_RETURNS = 100_000
_RESOURCES = ("num_cpus", "num_gpus", "memory", "resources", "accelerator_type")
_BACK_PRESSURE = "_generator_backpressure_num_objects"
_GROUP = (
    *("placement_group", "placement_group_bundle_index"),
    "placement_group_capture_child_tasks",
)
_PLACE = ("label_selector", "scheduling_strategy", "runtime_env", *_GROUP)
_ANY_ORDER = "allow_out_of_order_execution"
# Accepted and without effect here: Ray's own tuning.
_RAY_ONLY = (
    *("object_store_memory", "enable_task_events", "fallback_strategy", "_metadata"),
    "_labels",
)
TASK = (
    *(*_RESOURCES, *_PLACE, "name", "num_returns", "max_calls", "max_retries", "retry_exceptions"),
    *(_BACK_PRESSURE, *_RAY_ONLY),
)
ACTOR = (
    *(*_RESOURCES, *_PLACE, "name", "namespace", "lifetime", "get_if_exists", "max_restarts"),
    *("max_task_retries", "max_concurrency", "max_pending_calls", "concurrency_groups"),
    *(_ANY_ORDER, *_RAY_ONLY),
)
CALL = (
    *("name", "num_returns", "concurrency_group", "max_task_retries", "retry_exceptions"),
    *(_BACK_PRESSURE, "enable_task_events"),
)
# So many calls of an async actor run at a time, if nothing else is said.
_ASYNC_CONCURRENCY = 1000
# No option that counts something goes beyond it; Ray's are numbers of 32 bits.
_MOST = 2**31 - 1
# Their name in messages, and in the table of absent names.
CALLS = "calls of an actor's method"


def check_options(given: Options, known: Sequence[str], what: str) -> dict[str, Any]:
    """Return options with plain numbers in place of those of other libraries, such as NumPy's.

    Raises:
        ConfigError: One is unknown, or an array.
    """
    refuse_arrays(given)
    return {name: _plain(value) for name, value in known_options(given, known, what).items()}


def _plain(value: object) -> object:
    if type(value) is dict:
        return {key: plain(part) for key, part in value.items()}
    return plain(value)


def task_options(
    function: Callable[..., object], given: Options, origin: Origin | None = None
) -> TaskOptions:
    """Return a remote function's options.

    Raises:
        ConfigError: One is unknown, or has a value that is not allowed.
    """
    given = check_options(given, TASK, "tasks")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"{function.__qualname__} is an `async def`, which cannot be a task: call it with "
            "asyncio.run(...) in a function, or make it a method of an actor"
        )
    function_name = own_name(function)
    default: int | str = "streaming" if _is_generator(function) else 1
    num_returns = given.get("num_returns")
    resources = _resources(given, default_cpus=1)
    # What a process has taken of an accelerator's memory is free only when the process is gone.
    max_calls = 1 if any(family_of(name) for name in resources) else 0
    return TaskOptions(
        name=_text(given, "name") or function_name,
        function_name=function_name,
        resources=resources,
        placement_resources=resources,
        num_returns=_num_returns(default if num_returns is None else num_returns),
        most_unread=max(0, _count(given, _BACK_PRESSURE, 0, least=-1)),
        max_calls=_count(given, "max_calls", max_calls, least=0),
        max_retries=_count(given, "max_retries", 3, least=-1),
        retry_exceptions=_retry_exceptions(given.get("retry_exceptions")),
        **_place(given),
        given=dict(given),
        origin=origin,
    )


def methods_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods of a class that can be called on its actors, special ones among them."""
    for name, member in inspect.getmembers(kind, callable):
        if name.startswith("__") and name.endswith("__"):
            called = name not in NOT_METHODS and inspect.isfunction(member)  # not Python's own
        else:
            called = not name.startswith("__")
        if called:
            yield name, member


def actor_options(kind: type, given: Options, origin: Origin | None = None) -> ActorOptions:
    """Return an actor class's options.

    Raises:
        ConfigError: One is unknown, or has a value that is not allowed.
    """
    given = check_options(given, ACTOR, "actors")
    name, lifetime = _text(given, "name"), given.get("lifetime")
    if lifetime not in (None, "detached", "non_detached"):
        raise ArgumentTypeError(
            f"lifetime must be 'detached', 'non_detached' or None, not {lifetime!r}"
        )
    if name == "":
        raise ConfigError("name must not be empty")
    if given.get("get_if_exists") and name is None:
        raise ConfigError("get_if_exists=True needs name=..., by which it looks for an actor")
    check_namespace(given.get("namespace"))
    held = _resources(given, default_cpus=0)
    asks_nothing = not any(given.get(option) for option in _RESOURCES) and "num_cpus" not in given
    retries = _count(given, "max_task_retries", 0, least=-1)
    restarts = _count(given, "max_restarts", 0, least=-1)
    groups = given.get("concurrency_groups") or {}
    methods: dict[str, dict[str, object]] = {name: {} for name in OF_EVERY_ACTOR}
    for method, member in methods_of(kind):
        streams = {"num_returns": "streaming"} if _is_generator(member) else {}
        methods[method] = {**streams, **getattr(member, "__dray_method__", {})}
    _check_groups(groups, methods)
    is_async = any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for _, member in inspect.getmembers(kind, inspect.isfunction)
    )
    concurrency = _count(given, "max_concurrency", _ASYNC_CONCURRENCY if is_async else 1, least=1)
    return ActorOptions(
        class_name=own_name(kind),
        resources=held,
        # An actor that asks for nothing is placed where a CPU is, and then holds none.
        placement_resources={"CPU": 1} if asks_nothing else held,
        name=name,
        namespace=_text(given, "namespace"),
        get_if_exists=bool(given.get("get_if_exists")),
        detached=lifetime == "detached",
        max_restarts=restarts,
        max_task_retries=retries,
        max_concurrency=concurrency,
        max_pending_calls=_count(given, "max_pending_calls", -1, least=-1),
        concurrency_groups=dict(groups),
        methods=methods,
        is_async=is_async,
        in_order=not (is_async or groups or concurrency > 1 or given.get(_ANY_ORDER)),
        **_place(given),
        given=dict(given),
        origin=origin,
    )


def call_options(name: str, given: Options) -> CallOptions:
    """Return the options of calls of a method.

    Raises:
        ConfigError: One is unknown, or has a value that is not allowed.
    """
    given = check_options(given, CALL, CALLS)
    num_returns = given.get("num_returns")
    return CallOptions(
        name=_text(given, "name") or name,
        num_returns=_num_returns(1 if num_returns is None else num_returns),
        most_unread=max(0, _count(given, _BACK_PRESSURE, 0, least=-1)),
        concurrency_group=_text(given, "concurrency_group"),
        max_task_retries=_count(given, "max_task_retries", None, least=-1),
        retry_exceptions=_retry_exceptions(given.get("retry_exceptions")),
    )


def resources_of(given: Mapping[str, float], what: str) -> dict[str, float]:
    """Return a bundle's resources, checked, without zeros.

    Raises:
        ConfigError: A quantity is negative, no number, or finer than 1/10000.
    """
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"{what} must map names of resources to quantities, not {given!r}")
    for name in given:
        if not isinstance(name, str):
            raise ArgumentTypeError(
                f"{what} must map names of resources to quantities, not {name!r}"
            )
    to_fixed(given)
    check_quantities(given, what)
    return {name: plain(quantity) for name, quantity in given.items() if quantity}


def _resources(given: Options, default_cpus: float) -> dict[str, float]:
    custom = given.get("resources") or {}
    if not isinstance(custom, Mapping):
        raise ArgumentTypeError(f"resources must be a dict of names to quantities, not {custom!r}")
    for name, option in (("CPU", "num_cpus"), ("GPU", "num_gpus"), ("memory", "memory")):
        if name in custom:
            raise ConfigError(
                f"use {option}={custom[name]!r} instead of resources={{{name!r}: ...}}"
            )
    cpus = given.get("num_cpus")
    quantities = {
        "CPU": default_cpus if cpus is None else cpus,
        "GPU": given.get("num_gpus") or 0,
        "memory": given.get("memory") or 0,
        **custom,
    }
    accelerator = _text(given, "accelerator_type")
    if accelerator is not None:
        quantities[f"{ACCELERATOR_TYPE}{accelerator}"] = ACCELERATOR_TYPE_QUANTITY
    return resources_of(quantities, "resources")


def _place(given: Options) -> dict[str, Any]:
    selector = given.get("label_selector")
    if selector is None:
        selector = {}
    check_selector(selector, "label_selector")
    placement: Placement = as_placement(_strategy(given))
    return {
        "label_selector": dict(selector),
        "placement": placement,
        "runtime_env": RuntimeEnv.parse(given.get("runtime_env"), "runtime_env"),
    }


def _strategy(given: Options) -> object:
    """Return the strategy; the older way of naming a placement group means the same."""
    strategy, group = given.get("scheduling_strategy"), given.get("placement_group", "default")
    index = given.get("placement_group_bundle_index")
    if index not in (None, -1) and strategy is None and group == "default":
        group = None  # refused: a bundle is of a group
    if group == "default" or (group is None and strategy is not None):
        return strategy
    if strategy is not None:
        raise ConfigError(
            "placement_group=... and scheduling_strategy=... both choose where to run; pass "
            "only scheduling_strategy=PlacementGroupSchedulingStrategy(group, ...)"
        )
    return PlacementGroupSchedulingStrategy(
        group, -1 if index is None else index, given.get("placement_group_capture_child_tasks")
    )


def _is_generator(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _num_returns(value: object) -> ReturnCount:
    if value == "streaming" or value == "dynamic":
        return value
    if not is_whole(value, 0):
        raise ArgumentTypeError(
            f"num_returns must be a whole number, 0 or more, or 'streaming', not {value!r}"
        )
    if value > _MOST_RETURNS:
        raise ConfigError(
            f"num_returns must be at most {_MOST_RETURNS:,}, not {value:,}, because each result "
            "is an object of its own; return one list, or yield with num_returns='streaming'"
        )
    return value


def _count(given: Options, name: str, default: Default, *, least: int) -> int | Default:
    value: object = given.get(name)
    if value is None:
        return default
    if not is_whole(value, least):
        unlimited = ", or -1 for no limit" if least == -1 else ""
        raise ArgumentTypeError(
            f"{name} must be a whole number, {max(least, 0)} or more{unlimited}, not {value!r}"
        )
    if value > _MOST:
        raise ConfigError(f"{name} is at most {_MOST:,}, not {value:,}")
    return value


def _text(given: Options, name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise ArgumentTypeError(f"{name} must be a string, not {value!r}")
    return value


def _retry_exceptions(value: object) -> bool | tuple[type[BaseException], ...]:
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, list | tuple) and all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in value
    ):
        return tuple(value)
    raise ArgumentTypeError(
        f"retry_exceptions must be a bool or a list of exception types, not {value!r}"
    )


def _check_groups(groups: object, methods: Mapping[str, Mapping[str, object]]) -> None:
    if not isinstance(groups, Mapping):
        raise ArgumentTypeError(f"concurrency_groups must map names to numbers, not {groups!r}")
    for name, size in groups.items():
        if not is_whole(size, 1):
            raise ArgumentTypeError(f"concurrency_groups[{name!r}] must be 1 or more, not {size!r}")
    for method, options in methods.items():
        group = options.get("concurrency_group")
        if group is not None and group not in groups:
            raise ConfigError(
                f"method {method} is in concurrency group {group!r}, which the actor does not have;"
                f" add it to concurrency_groups={{...}} (there are {sorted(groups) or 'none'})"
            )
