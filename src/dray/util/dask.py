"""Graphs of Dask as tasks: a scheduler for `compute()` of its collections."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from dray.checks import require
from dray.compat.arguments import check_arguments
from dray.compat.attributes import attach_getattr
from dray.core.objects import get, put
from dray.core.remote import remote
from dray.errors import ConfigError

__all__ = ["disable_dask_on_ray", "enable_dask_on_ray", "ray_dask_get", "ray_dask_get_sync"]

attach_getattr(__name__)

_ABSENT = ("ray_callbacks", "ray_persist", "_ray_enable_progress_bar")


def enable_dask_on_ray(
    shuffle: str | None = "tasks", use_shuffle_optimization: bool | None = True
) -> Any:
    """Have Dask compute by `ray_dask_get`, for good or as a context manager.

    Args:
        shuffle: The way in which Dask's frames exchange rows: "tasks" or "disk".
        use_shuffle_optimization: Nothing; Ray's.

    Returns:
        The result of `dask.config.set`, a context manager that undoes it at its end.

    Raises:
        MissingDependencyError: Dask is not installed.

    Example:
        >>> import dask
        >>> from dray.util.dask import enable_dask_on_ray
        >>> with enable_dask_on_ray():
        ...     dask.delayed(abs)(-1).compute()
        1
    """
    return _configured(ray_dask_get, shuffle)


def disable_dask_on_ray() -> Any:
    """Have Dask compute by its own schedulers again.

    Example:
        >>> import dask
        >>> from dray.util.dask import disable_dask_on_ray, enable_dask_on_ray
        >>> _ = enable_dask_on_ray()
        >>> _ = disable_dask_on_ray()
        >>> dask.config.get("scheduler") is None
        True
    """
    return _configured(None, None)


def _configured(scheduler: object, shuffle: str | None) -> Any:
    require("dask", "dask")
    import dask

    return dask.config.set({"scheduler": scheduler, "dataframe.shuffle.method": shuffle})


def ray_dask_get(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Compute keys of a graph of Dask, each step in a task; a scheduler for `compute()`.

    `persist()` keeps its results in this process.

    Args:
        dsk: The graph, or the expression of one.
        keys: The keys, in lists of any depth.
        kwargs: `ray_remote_args`, options of all tasks, which `dask.annotate(ray_remote_args=...)`
            changes for some (from Dask 2025.4 on); others are Dask's.

    Returns:
        The values, in lists as the keys.

    Raises:
        ConfigError: Resources are asked for in Dask's way.
        MissingDependencyError: Dask is not installed.

    Example:
        >>> import dask
        >>> from dray.util.dask import ray_dask_get
        >>> dask.delayed(sum)([1, 2]).compute(scheduler=ray_dask_get)
        3
    """
    require("dask", "dask")
    import dask
    from dask._task_spec import Alias, DataNode, convert_legacy_graph
    from dask.core import flatten
    from dask.local import nested_get
    from dask.order import order
    from dask.utils import key_split

    check_arguments("ray_dask_get", {n: kwargs[n] for n in _ABSENT if kwargs.get(n)}, ())
    of_all: dict[str, Any] = dask.get_annotations()
    of_keys: dict[str, Any] = getattr(dsk, "__dask_annotations__", dict)()
    if "resources" in {**kwargs, **of_all, **of_keys}:
        raise ConfigError("ask for resources by ray_remote_args={'resources': ...}")
    options = {**kwargs.get("ray_remote_args", {}), **of_all.get("ray_remote_args", {})}
    own = of_keys.get("ray_remote_args", {})

    @functools.cache
    def task(name: str) -> Any:
        return remote(_compute).options(name=name, **options)

    graph = convert_legacy_graph(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__())
    turns = order(graph)
    refs: dict[Any, Any] = {}
    for key in sorted(graph, key=turns.__getitem__):
        node = graph[key]
        if isinstance(node, Alias):
            refs[key] = refs[node.target]
        elif isinstance(node, DataNode):
            refs[key] = put(node())
        else:
            needed = list(node.dependencies)
            step = task(key_split(key)).options(**own.get(key, {}))
            refs[key] = step.remote(node, needed, *map(refs.__getitem__, needed))
    asked = keys if isinstance(keys, list) else [keys]
    refs = {key: refs[key] for key in set(flatten(asked))}  # others go with the last task of theirs
    values = nested_get(asked, dict(zip(refs, get(list(refs.values())), strict=True)))
    return values if asked is keys else values[0]


# The same: tasks are not submitted by threads.
ray_dask_get_sync = ray_dask_get


def _compute(node: Any, names: Sequence[object], *values: object) -> object:
    return node(dict(zip(names, values, strict=True)))
