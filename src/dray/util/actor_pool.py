"""A pool of actors that share a list of work."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from dray.checks import seconds
from dray.compat.attributes import attach_getattr
from dray.core.actor import ActorHandle
from dray.core.objects import get, wait
from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.errors import ActorDiedError, ArgumentTypeError, ConfigError, GetTimeoutError, shown

__all__ = ["ActorPool"]

attach_getattr(__name__)

V = TypeVar("V")
Awaited = ObjectRef | ObjectRefGenerator
Returned = Awaited | list[ObjectRef]  # several of a method with num_returns
Outcome = tuple[object, Exception | None]  # what a call has returned, or raised
Call = Callable[[ActorHandle, V], Returned]


class ActorPool:
    """Gives work to whichever of its actors is free; an actor that has died leaves the pool.

    Args:
        actors: The actors; each works on one value at a time.

    Example:
        >>> import dray
        >>> from dray.util import ActorPool
        >>> @dray.remote
        ... class Doubler:
        ...     def double(self, x):
        ...         return 2 * x
        >>> pool = ActorPool([Doubler.remote(), Doubler.remote()])
        >>> list(pool.map(lambda actor, x: actor.double.remote(x), [1, 2, 3]))
        [2, 4, 6]
    """

    def __init__(self, actors: Sequence[ActorHandle]) -> None:
        self._idle = list(actors)
        self._waiting: deque[tuple[int, Call[Any], object]] = deque()
        self._running: dict[Awaited, tuple[int, ActorHandle, Returned]] = {}
        self._finished: dict[int, Outcome] = {}  # in the order in which they finished
        self._wanted: dict[int, None] = {}  # numbers of results not yet taken, oldest first
        self._count = 0

    def map(self, fn: Call[V], values: Iterable[V]) -> Iterator[Any]:
        """Submit all values; return the results in the order of the values.

        Results of earlier submissions that nobody has taken are dropped.

        Args:
            fn: Calls an actor's method with a value: `lambda actor, x: actor.work.remote(x)`.
            values: The values.
        """
        self._submit_all(fn, values)
        return self._results(self.get_next)

    def map_unordered(self, fn: Call[V], values: Iterable[V]) -> Iterator[Any]:
        """Submit all values; return the results as they come. Otherwise like `map`."""
        self._submit_all(fn, values)
        return self._results(self.get_next_unordered)

    def submit(self, fn: Call[V], value: V) -> None:
        """Give a value to a free actor, or to the next one that becomes free.

        Args:
            fn: Calls an actor's method with a value.
            value: The value.
        """
        self._wanted[self._count] = None
        self._waiting.append((self._count, fn, value))
        self._count += 1
        self._start_waiting()

    def has_next(self) -> bool:
        """Return whether there are results, or will be, that nobody has taken."""
        return bool(self._wanted)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the oldest submission's result.

        Args:
            timeout: Seconds to wait; None is without limit.
            ignore_if_timedout: Whether a result that does not come in time is dropped.

        Raises:
            GetTimeoutError: It did not come in time (also a TimeoutError).
            ConfigError: No actor is left to do the work, which is dropped.
            StopIteration: There is nothing to wait for.
        """
        oldest = self._oldest()
        return self._take(
            lambda: oldest if oldest in self._finished else None, timeout, ignore_if_timedout
        )

    def get_next_unordered(
        self, timeout: float | None = None, ignore_if_timedout: bool = False
    ) -> Any:
        """Return the result that comes first. Otherwise like `get_next`."""
        self._oldest()
        return self._take(lambda: next(iter(self._finished), None), timeout, ignore_if_timedout)

    def has_free(self) -> bool:
        """Return whether an actor has nothing to do, as far as results were taken."""
        return bool(self._idle)

    def pop_idle(self) -> ActorHandle | None:
        """Take an actor that has nothing to do out of the pool; None if there is none."""
        return self._idle.pop() if self._idle else None

    def push(self, actor: ActorHandle) -> None:
        """Add an actor to the pool.

        Raises:
            ConfigError: It is in the pool already (also a ValueError).
        """
        if actor in self._idle or any(actor == busy for _, busy, _ in self._running.values()):
            raise ConfigError(f"{actor!r} is in this pool already")
        self._idle.append(actor)
        self._start_waiting()

    def _submit_all(self, fn: Call[V], values: Iterable[V]) -> None:
        self._wanted.clear()
        self._waiting.clear()
        self._finished.clear()
        for value in values:
            self.submit(fn, value)

    def _results(self, take: Callable[[], object]) -> Iterator[object]:
        while self.has_next():
            yield take()

    def _oldest(self) -> int:
        if not self._wanted:
            raise StopIteration("no results are left to get")
        return next(iter(self._wanted))

    def _take(self, find: Callable[[], int | None], timeout: float | None, drop: bool) -> object:
        limit = seconds(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        while (number := find()) is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._collect(left):
                if drop:
                    self._drop(self._oldest())
                raise GetTimeoutError(f"no result came within {timeout} seconds")
        del self._wanted[number]
        value, error = self._finished.pop(number)
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # which holds this frame

    def _collect(self, timeout: float | None) -> bool:
        """Wait until a running call ends; return whether one has."""
        if not self._running:
            self._drop(self._oldest())
            raise ConfigError("no actor is left in the pool to do this work: push() one")
        ended, _ = wait(list(self._running), timeout=timeout, fetch_local=False)
        for ref in ended:
            number, actor, returned = self._running[ref]
            outcome = _outcome_of(returned)
            del self._running[ref]
            if number in self._wanted:
                self._finished[number] = outcome
            if not _has_died(actor, outcome):
                self._idle.append(actor)
        self._start_waiting()
        return bool(ended)

    def _drop(self, number: int) -> None:
        del self._wanted[number]
        self._waiting = deque(entry for entry in self._waiting if entry[0] != number)

    def _start_waiting(self) -> None:
        while self._idle and self._waiting:
            number, fn, value = self._waiting.popleft()
            try:
                returned = fn(self._idle[0], value)
                first = _first_of(returned)
            except BaseException:
                self._wanted.pop(number)  # there will be no result
                raise
            self._running[first] = number, self._idle.pop(0), returned


def _first_of(returned: object) -> Awaited:
    first = returned[0] if isinstance(returned, list) and returned else returned
    if not isinstance(first, Awaited):
        raise ArgumentTypeError(
            f"the function of a pool must return what .remote() returned, not {shown(returned)}"
        )
    return first


def _outcome_of(returned: Returned) -> Outcome:
    try:
        return get(returned), None
    except Exception as error:  # noqa: BLE001 (it belongs to whoever takes the result)
        return None, error


def _has_died(actor: ActorHandle, outcome: Outcome) -> bool:
    """Return whether a call failed because its actor is dead, and not another one."""
    _, error = outcome
    return isinstance(error, ActorDiedError) and error.actor_id in (None, actor._actor_id)
