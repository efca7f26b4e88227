"""References to objects in a Ray cluster: Ray's own, with dray's errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakSet

import ray
from ray import cloudpickle
from ray.exceptions import (
    RayError,
    TaskCancelledError,
    TaskPlacementGroupRemoved,
    WorkerCrashedError,
)

from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.engines.ray.connect import own_connection
from dray.engines.ray.errors import result_error
from dray.engines.ray.waits import ends_with_session, hear_signals
from dray.engines.ray.workers import forked_worker
from dray.engines.result_lists import DynamicObjectRefGenerator
from dray.engines.runtime import OF_ENDED_SESSION, Args, Described, Kwargs, ReturnCount, Returned
from dray.errors import ConfigError, DrayError, ObjectLostError


class OfConnection:
    """Something of Ray's that one connection knows: asked of it later, Ray may hang or abort."""

    __slots__ = ("_connection", "_rays")

    def __init__(self, rays: Any) -> None:
        self._rays = rays
        self._connection = own_connection()

    @property
    def rays(self) -> Any:
        """Return Ray's own, as `check` allows."""
        self.check()
        return self._rays

    def check(self) -> None:
        """Return if the connection is there."""
        if self._connection is not own_connection():
            raise ObjectLostError(OF_ENDED_SESSION.format(self))


class RayRef(OfConnection, ObjectRef):
    """A reference of Ray's. Pickled with that inside, so Ray counts it wherever it travels.

    Only Ray's own pickler says who owns a reference, without which it is never ready elsewhere.
    """

    __slots__ = ("__weakref__",)

    def binary(self) -> bytes:
        binary: bytes = self._rays.binary()
        return binary

    def future(self) -> Future[Any]:
        answer = ends_with_session(Future())

        def pass_on(done: Future[Any]) -> None:
            if answer.done() or not answer.set_running_or_notify_cancel():
                return
            error = done.exception()
            if error is None:
                answer.set_result(shown(done.result()))
            else:
                answer.set_exception(
                    error_of([self], error) if isinstance(error, RayError) else error
                )

        self.rays.future().add_done_callback(pass_on)
        return answer

    def __await__(self) -> Generator[object, None, Any]:
        return self.as_future().__await__()

    def __eq__(self, other: object) -> bool:
        return type(other) is RayRef and bool(other._rays == self._rays)

    def __hash__(self) -> int:
        return hash(self._rays)

    def __reduce__(self) -> tuple[object, ...]:
        return (_arrived, (cloudpickle.dumps(self.rays),))


def _arrived(pickled: bytes) -> RayRef:
    forked_worker.join()  # a reference that was there before is not counted
    return RayRef(pickle.loads(pickled))


class RayRefGenerator(OfConnection, ObjectRefGenerator):
    """The generator that Ray gives for a call that yields.

    Ray waits for it, and cancels it, as for a reference.
    """

    __slots__ = ()

    def __next__(self) -> ObjectRef:
        with hear_signals():
            return self._item(next(self.rays))

    async def __anext__(self) -> ObjectRef:
        return self._item(await anext(self.rays))

    def _item(self, ray_ref: Any) -> RayRef:
        item = RayRef(ray_ref)
        if self in _removed_with_group:
            _removed_with_group.add(item)
        return item

    def completed(self) -> ObjectRef:
        return RayRef(self.rays.completed())

    def next_ready(self) -> bool:
        return bool(self.rays.next_ready())

    def is_finished(self) -> bool:
        return bool(self.rays.is_finished())


# Results of tasks whose placement group was removed while they ran or waited.
_removed_with_group: WeakSet[Any] = WeakSet()


def end_with_group(refs: Iterable[RayRef | RayRefGenerator]) -> None:
    """Cancel the tasks of a placement group that is removed: Ray would try them again for ever.

    Cancelled before, they could take a CPU of the cluster with them for good.
    """
    unfinished = [ref for ref in refs if not _is_over(ref)]
    _removed_with_group.update(unfinished)  # all of them first: a task may have several results
    for ref in unfinished:
        ray.cancel(ref.rays, recursive=False)


def _is_over(ref: RayRef | RayRefGenerator) -> bool:
    last = ref.rays if isinstance(ref, RayRef) else ref.rays.completed()
    return bool(ray.wait([last], timeout=0, fetch_local=False)[0])


def error_of(refs: Iterable[Any], error: RayError) -> DrayError:
    """Return what getting some references raises, for what Ray raises."""
    ended = isinstance(error, TaskCancelledError | WorkerCrashedError)
    if ended and any(ref in _removed_with_group for ref in refs):
        return result_error(TaskPlacementGroupRemoved())
    return result_error(error)


# Types of Ray's, each with what returns a value of it as dray shows it.
_SHOWN: dict[type, Callable[[Any], Any]] = {
    # The references of a "dynamic" call.
    ray.DynamicObjectRefGenerator: lambda refs: DynamicObjectRefGenerator([*map(RayRef, refs)])
}


def show_as(kind: type, show: Callable[[Any], Any]) -> None:
    """Have values of a type of Ray's shown as something of dray's."""
    _SHOWN[kind] = show


def shown(value: Any) -> Any:
    """Return a value as dray shows it."""
    show = _SHOWN.get(type(value))
    return value if show is None else show(value)


def ray_refs(refs: Sequence[Any]) -> list[Any]:
    """Return the references of Ray's that some references stand for."""
    try:
        return [ref.rays for ref in refs]
    except AttributeError:
        raise ConfigError(
            "a reference was made by another engine, which has been shut down since; its value is "
            "gone with that engine"
        ) from None


def wrapper(num_returns: ReturnCount) -> Callable[[Any], Returned]:
    """Return what makes dray's references of what a call of Ray's returned."""
    if num_returns == "streaming":
        return RayRefGenerator
    if num_returns in (1, "dynamic"):
        return RayRef
    if num_returns == 0:
        return lambda nothing: None
    return lambda refs: [RayRef(ref) for ref in refs]


def bare(args: Args) -> list[Any]:
    """Return arguments with references of Ray's in place of dray's: Ray awaits those."""
    return [arg.rays if type(arg) is RayRef else arg for arg in args]


def bare_named(kwargs: Kwargs) -> Described:
    """Return arguments that were given by name, in the same way."""
    return {k: arg.rays if type(arg) is RayRef else arg for k, arg in kwargs.items()}
