"""The visibility variables in Ray's workers: those that dray sets on every engine, or the user's.

For GPUs of AMD and Intel, Ray sets one variable of each family, not the one in its own
documentation; for NVIDIA and all others the two agree. Ray overwrites the variables that the user
sets.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Iterator, Mapping
from typing import Any

import ray

from dray.accelerators import Family, families
from dray.accelerators.detect import detect
from dray.engines.ray.workers.driver_environment import was_given
from dray.engines.rpc.actor_host import set_variables
from dray.engines.runtime import Function

_TYPES = ("AMD-", "Intel-GPU-")
_WRITTEN_BY_RAY = {"amd": "HIP_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}


def differs() -> bool:
    """Return whether the cluster has GPUs for which Ray writes other variables than dray."""
    return any(
        name.startswith(tuple(f"accelerator_type:{kind}" for kind in _TYPES))
        for name in ray.cluster_resources()
    )


def showing(function: Function) -> Function:
    """Return a function that sets the variables first, and restores them at its end."""

    @functools.wraps(function)
    def run(*args: object, **kwargs: Any) -> Any:
        with _variables():
            return function(*args, **kwargs)

    return run


def showing_actor(kind: type) -> type:
    """Return a class whose objects set the variables, for good, before they are made."""

    def begin(self: Any, *args: object, **kwargs: Any) -> None:
        set_variables(_own_variables())
        kind.__init__(self, *args, **kwargs)  # type: ignore[misc]

    async def begin_async(self: Any, *args: object, **kwargs: Any) -> None:
        set_variables(_own_variables())
        await kind.__init__(self, *args, **kwargs)  # type: ignore[misc]

    is_async = inspect.iscoroutinefunction(kind.__init__)  # type: ignore[misc]
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    members = {"__init__": begin_async if is_async else begin, **named, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (kind,), members)


def restore_user_variables(given: Mapping[str, str]) -> None:
    """Set the variables that a runtime environment names to what it says, in a worker.

    Where one of them says which devices, the family's others are unset: each would count within
    what the user's leaves.
    """
    for family in families():
        names = (*family.variables, *family.also_set)
        unset = dict.fromkeys(names if given.keys() & set(family.variables) else ())
        set_variables({**unset, **{name: given[name] for name in names if name in given}})


@contextlib.contextmanager
def _variables() -> Iterator[None]:
    before = set_variables(_own_variables())
    try:
        yield
    finally:
        set_variables(before)


def _own_variables() -> dict[str, str | None]:
    """Return the variables for this worker's GPUs, if Ray has written others."""
    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU") or []
    found = _family()
    written = _WRITTEN_BY_RAY.get(found.name) if found is not None else None
    if not ids or found is None or written is None or written not in os.environ:
        return {}
    if was_given(written):
        return {}  # the node uses it
    # HIP obeys its own variable, which is set, and so not CUDA's.
    hidden = (written, "CUDA_VISIBLE_DEVICES")
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    # HIP counts among what ROCR leaves; Ray's worker dies if HIP's variable is not there.
    left = ",".join(str(place) for place in range(len(ids))) if found.name == "amd" else None
    return {written: left, **found.show(ids, environ, 0)}


@functools.cache
def _family() -> Family | None:
    """Return the family of this machine's GPUs; to look takes AMD's or Intel's library."""
    return next((family for family, _ in detect() if family.resource == "GPU"), None)
