"""Results of many tasks, in the order in which they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dray.checks import is_whole
from dray.compat.attributes import attach_getattr
from dray.core.objects import get, wait
from dray.core.remote import RemoteFunction
from dray.engines.object_ref import ObjectRef
from dray.errors import ConfigError

__all__ = ["as_completed", "map_unordered"]

attach_getattr(__name__)


def as_completed(
    refs: Sequence[ObjectRef],
    *,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> Iterator[Any]:
    """Yield the values of references as they become ready.

    Args:
        refs: The references, each once.
        chunk_size: Number of results waited for at a time; fewer yield sooner, more cost less.
        yield_obj_refs: Yield the references themselves instead of their values.
        timeout: Seconds to wait for each chunk; values that are not ready then come later.
        fetch_local: On a cluster, whether to bring the values to this machine.

    Raises:
        ConfigError: `chunk_size` is not 1 or more.
        TaskError: A task raised, where its value would be yielded.

    Example:
        >>> import dray
        >>> @dray.remote
        ... def square(x):
        ...     return x * x
        >>> sorted(dray.util.as_completed([square.remote(i) for i in range(4)]))
        [0, 1, 4, 9]
    """
    _check("chunk_size", chunk_size)
    left = list(refs)
    while left:
        count = min(chunk_size, len(left))
        ready, left = wait(left, num_returns=count, timeout=timeout, fetch_local=fetch_local)
        yield from ready if yield_obj_refs else get(ready)


def map_unordered(
    fn: RemoteFunction,
    items: Iterable[object],
    *,
    backpressure_size: int | None = 100,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> Iterator[Any]:
    """Submit a task for each item, and yield the results as they become ready.

    Args:
        fn: The remote function; it is given one item.
        items: The items; no more are taken than there is room for.
        backpressure_size: Number of tasks submitted ahead; None is without limit.
        chunk_size: As in `as_completed`.
        yield_obj_refs: Yield references instead of values.
        timeout: Seconds to wait for each chunk.
        fetch_local: On a cluster, whether to bring the values to this machine.

    Raises:
        ConfigError: A size is not 1 or more.
        TaskError: A task raised, where its value would be yielded.

    Example:
        >>> import dray
        >>> @dray.remote
        ... def square(x):
        ...     return x * x
        >>> sorted(dray.util.map_unordered(square, range(4)))
        [0, 1, 4, 9]
    """
    if backpressure_size is not None:
        _check("backpressure_size", backpressure_size)
    _check("chunk_size", chunk_size)
    options: dict[str, Any] = {"timeout": timeout, "fetch_local": fetch_local}
    left: list[ObjectRef] = []
    for item in items:
        left.append(fn.remote(item))
        if backpressure_size is not None and len(left) >= backpressure_size:
            count = min(chunk_size, len(left))
            ready, left = wait(left, num_returns=count, **options)
            yield from ready if yield_obj_refs else get(ready)
    yield from as_completed(left, chunk_size=chunk_size, yield_obj_refs=yield_obj_refs, **options)


def _check(name: str, size: int) -> None:
    if not is_whole(size, 1):
        raise ConfigError(f"{name} must be 1 or more, not {size!r}")
