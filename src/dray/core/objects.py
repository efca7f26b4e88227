"""Operations on objects, tasks and actors: get, put, wait, cancel, kill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from dray import session
from dray.checks import is_whole, plain, seconds
from dray.compat.arguments import check_arguments
from dray.core.actor import ActorHandle
from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.errors import ArgumentTypeError, ConfigError

if TYPE_CHECKING:
    from typing_extensions import Never

V = TypeVar("V")
G = TypeVar("G", bound=ObjectRefGenerator)
W = TypeVar("W", bound=ObjectRef | ObjectRefGenerator)


@overload  # only Any is a Never: what an actor's method returns, say
def get(
    object_refs: Never, *, timeout: float | None = None, _use_object_store: bool = False
) -> Any: ...
@overload
def get(
    object_refs: ObjectRef[V], *, timeout: float | None = None, _use_object_store: bool = False
) -> V: ...
@overload
def get(
    object_refs: Sequence[ObjectRef[V]],
    *,
    timeout: float | None = None,
    _use_object_store: bool = False,
) -> list[V]: ...
@overload
def get(object_refs: G, *, timeout: float | None = None, _use_object_store: bool = False) -> G: ...
def get(
    object_refs: object, *, timeout: float | None = None, _use_object_store: bool = False
) -> Any:
    """Return the value of a reference, or a list of values for a list of references.

    Args:
        object_refs: Reference that `.remote()` or `put` returned, or a list of them; a generator of
            references is its own value.
        timeout: Seconds to wait; None (or -1, as with Ray) is without limit, 0 looks only.
        _use_object_store: Without effect: dray chooses the way of a value by its size.

    Raises:
        TaskError: A task raised; the error is also an instance of what it raised.
        GetTimeoutError: A value did not come in time.
        WorkerDiedError: A task's or an actor's process died.
        ArgumentTypeError: Something is no reference.

    Example:
        >>> import dray
        >>> dray.get(dray.put("a value"))
        'a value'
    """
    if timeout == -1:  # of Ray's, also for no limit
        timeout = None
    if isinstance(object_refs, ObjectRef):
        return session.current_runtime().get((object_refs,), seconds(timeout))[0]
    if isinstance(object_refs, ObjectRefGenerator):
        return object_refs
    if not isinstance(object_refs, list | tuple):
        raise _no_reference("get", object_refs)
    for index, ref in enumerate(object_refs):
        if not isinstance(ref, ObjectRef):
            raise _no_reference("get", ref, f"item {index}")
    if not object_refs:
        return []
    return session.current_runtime().get(object_refs, seconds(timeout))


def put(value: V, *, _owner: object = None, _tensor_transport: str | None = None) -> ObjectRef[V]:
    """Store a value; return a reference that may be handed to any number of tasks.

    Args:
        value: The value.
        _owner: None; a value lives as long as any reference to it.
        _tensor_transport: None; tensors are passed like all other values.

    Raises:
        SerializationError: The value cannot be pickled.
        ObjectStoreFullError: There is no room for it, in memory or on the disk.
        ArgumentTypeError: The value is a reference already.

    Example:
        >>> import dray
        >>> @dray.remote
        ... def length(text):
        ...     return len(text)
        >>> text = dray.put("a" * 1000)  # stored once, for all tasks
        >>> dray.get([length.remote(text), length.remote(text)])
        [1000, 1000]
    """
    if _owner is not None or _tensor_transport is not None:
        ray_only = {"_owner": _owner, "_tensor_transport": _tensor_transport}
        check_arguments("dray.put", ray_only, ("value",))
    if isinstance(value, ObjectRef):
        raise ArgumentTypeError(
            "put() got a reference, and its value is stored already: pass the reference on as "
            "it is, or put [reference] to store the reference itself"
        )
    return session.current_runtime().put(value)


def wait(
    ray_waitables: Sequence[W],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[W], list[W]]:
    """Wait until some of the references are ready.

    Args:
        ray_waitables: The references, each once; generators count as their next reference.
        num_returns: Number of references wanted.
        timeout: Seconds to wait; None is without limit, 0 looks only.
        fetch_local: On a cluster, whether to bring the values to this machine.

    Returns:
        At most `num_returns` references that are ready, and all the others, both in order.

    Raises:
        ConfigError: A reference stands there twice, or `num_returns` is no count of them.
        ArgumentTypeError: Something is no reference.

    Example:
        >>> import dray
        >>> @dray.remote
        ... def square(x):
        ...     return x * x
        >>> ready, others = dray.wait([square.remote(i) for i in range(4)], num_returns=3)
        >>> len(ready), len(others)
        (3, 1)
    """
    if isinstance(ray_waitables, ObjectRef) or not isinstance(ray_waitables, list | tuple):
        raise ArgumentTypeError(f"wait() takes a list of references, not {_kind(ray_waitables)}")
    for index, ref in enumerate(ray_waitables):
        if not isinstance(ref, ObjectRef | ObjectRefGenerator):
            raise _no_reference("wait", ref, f"item {index}")
    if not ray_waitables:
        return [], []
    if len(set(ray_waitables)) < len(ray_waitables):
        raise ConfigError("wait() got a reference twice; pass each reference once")
    num_returns = plain(num_returns)
    if not is_whole(num_returns, 1):
        raise ConfigError(f"num_returns must be 1 or more, not {num_returns!r}")
    if num_returns > len(ray_waitables):
        raise ConfigError(
            f"num_returns is {num_returns}, but there are {len(ray_waitables)} references"
        )
    runtime = session.current_runtime()
    ended = runtime.wait(ray_waitables, num_returns, seconds(timeout), fetch_local)
    return cast("tuple[list[W], list[W]]", ended)


def cancel(
    ray_waitable: ObjectRef | ObjectRefGenerator, *, force: bool = False, recursive: bool = True
) -> None:
    """Cancel the task or the actor's call that makes a value; getting it then raises.

    A task that has not begun never does. One that runs gets a KeyboardInterrupt. A call of an actor
    is taken back if it has not begun; if it runs, only async actors can cancel it.

    Args:
        ray_waitable: Reference that `.remote()` returned.
        force: Kill the task's process instead; not for actors.
        recursive: Also cancel what the task has submitted.

    Raises:
        ArgumentTypeError: It is no reference.
        ConfigError: `force=True` for a call of an actor (also a ValueError).

    Example:
        >>> import dray, time
        >>> @dray.remote
        ... def forever():
        ...     time.sleep(3600)
        >>> ref = forever.remote()
        >>> dray.cancel(ref)
        >>> try:
        ...     dray.get(ref)
        ... except dray.exceptions.TaskCancelledError:
        ...     print("cancelled")
        cancelled
    """
    if not isinstance(ray_waitable, ObjectRef | ObjectRefGenerator):
        raise _no_reference("cancel", ray_waitable)
    session.current_runtime().cancel(ray_waitable, force=force, recursive=recursive)


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor's process at once; its waiting calls fail.

    Args:
        actor: The actor's handle.
        no_restart: False lets it be made again, if it has restarts left.

    Raises:
        ArgumentTypeError: It is no handle.

    Example:
        >>> import dray
        >>> @dray.remote
        ... class Sleeper:
        ...     def wait(self):
        ...         pass
        >>> sleeper = Sleeper.remote()
        >>> dray.kill(sleeper)
        >>> try:
        ...     dray.get(sleeper.wait.remote())
        ... except dray.exceptions.ActorDiedError:
        ...     print("killed")
        killed
    """
    if not isinstance(actor, ActorHandle):
        raise ArgumentTypeError(
            f"kill() takes an actor's handle, not {_kind(actor)}; tasks are ended by dray.cancel()"
        )
    if not session.has_ended():  # objects that go as Python ends may still want this
        session.current_runtime().kill(actor._actor, no_restart=no_restart)


def _kind(value: object) -> str:
    return f"{type(value).__name__} ({value!r:.60})"


def _no_reference(function: str, value: object, where: str = "") -> ArgumentTypeError:
    hint = ""
    if isinstance(value, ObjectRefGenerator):
        hint = "; iterate over a generator to get its references"
    elif isinstance(value, ActorHandle):
        hint = (
            "; call one of the actor's methods with .remote() and get the reference that this "
            "returns"
        )
    not_this = f"; {where} is {_kind(value)}" if where else f", not {_kind(value)}"
    return ArgumentTypeError(
        f"{function}() takes references, which .remote() and dray.put() return{not_this}{hint}"
    )
