"""Python's `multiprocessing.Pool` on actors, under the names of Ray."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from multiprocessing import JoinableQueue, TimeoutError
from typing import Any

from dray import session
from dray.checks import is_whole, plain, seconds
from dray.compat.attributes import attach_getattr
from dray.core.actor import ActorHandle
from dray.core.objects import get, kill, put, wait
from dray.core.remote import remote
from dray.engines.object_ref import ObjectRef
from dray.errors import ConfigError, TaskError
from dray.settings import Settings

__all__ = ["JoinableQueue", "Pool", "TimeoutError"]

attach_getattr(__name__)

Function = Callable[..., Any]
Call = tuple[Sequence[object], Mapping[str, object]]  # its arguments
Options = Mapping[str, object]


class Pool:
    """Runs functions in a number of actors, as `multiprocessing.Pool` does in processes.

    The actors hold no CPU, and begin with the pool. One that dies is made again; the work that it
    had raises. Functions of the script see no global variable that `initializer` has set; those
    of a module that is imported do.

    Args:
        processes: Number of actors; by default one for each CPU.
        initializer: Function that each actor calls first.
        initargs: Its arguments.
        maxtasksperchild: Number of pieces of work after which an actor is replaced.
        context: Without effect.
        ray_address: Address for `dray.init`, if that has not been called.
        ray_remote_args: Options of the actors, such as `{"num_cpus": 1}`.

    Raises:
        ConfigError: There are fewer CPUs than processes, or no such number (also a ValueError).

    Example:
        >>> from dray.util.multiprocessing import Pool
        >>> with Pool(2) as pool:
        ...     print(pool.map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Function | None = None,
        initargs: Iterable[object] | None = None,
        maxtasksperchild: int | None = None,
        context: object = None,
        ray_address: str | None = None,
        ray_remote_args: Options | None = None,
    ) -> None:
        for name, number in (("processes", processes), ("maxtasksperchild", maxtasksperchild)):
            _check_count(number, name)
        if not session.is_initialized():
            shared = ray_address is not None or Settings().engine == "ray"
            session.init(ray_address, num_cpus=None if shared else plain(processes))
        self._kind = remote(_Worker).options(**_OPTIONS | dict(ray_remote_args or {}))
        self._first_call = initializer, tuple(initargs or ())
        self._limit = plain(maxtasksperchild)
        self._running = True
        self._actors = [self._new_actor() for _ in range(_number_of_actors(processes))]
        self._left = [self._limit] * len(self._actors)  # pieces of work that each may still get
        self._turns = itertools.cycle(range(len(self._actors)))
        self._replaced: list[ActorHandle] = []
        self._ends: list[ObjectRef] = []
        self._callbacks: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._unsent: set[ResultIterator] = set()  # those that have chunks to give yet
        get([actor.__ray_ready__.remote() for actor in self._actors])

    def apply(
        self,
        func: Function,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        """Run a function in an actor; return its result."""
        return self.apply_async(func, args, kwargs).get()

    def apply_async(
        self,
        func: Function,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """Begin to run a function in an actor.

        Args:
            func: The function.
            args: Its arguments.
            kwargs: Its arguments by name.
            callback: Called with the result, in a thread.
            error_callback: Called with what the function has raised.
        """
        call = self._begin(func, [(args or (), kwargs or {})])
        return AsyncResult(self, [call], True, callback, error_callback)

    def map(self, func: Function, iterable: Iterable[object], chunksize: int | None = None) -> Any:
        """Call a function with each of many values; return the results in their order.

        Args:
            func: The function.
            iterable: The values.
            chunksize: Values that an actor gets at a time.
        """
        return self.map_async(func, iterable, chunksize).get()

    def map_async(
        self,
        func: Function,
        iterable: Iterable[object],
        chunksize: int | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """Begin what `map` does; the callbacks are those of `apply_async`."""
        values = iterable if isinstance(iterable, Sized) else list(iterable)
        tuples = ((value,) for value in values)
        return self._map(func, tuples, len(values), chunksize, callback, error_callback)

    def starmap(
        self, func: Function, iterable: Iterable[Iterable[object]], chunksize: int | None = None
    ) -> Any:
        """Call a function with the arguments in each of many tuples; otherwise like `map`."""
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(
        self,
        func: Function,
        iterable: Iterable[Iterable[object]],
        chunksize: int | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """Begin what `starmap` does; the callbacks are those of `apply_async`."""
        tuples = [tuple(arguments) for arguments in iterable]
        return self._map(func, tuples, len(tuples), chunksize, callback, error_callback)

    def imap(
        self, func: Function, iterable: Iterable[object], chunksize: int | None = 1
    ) -> ResultIterator:
        """Return the results one by one, in order; the iterable is read as far as there is room.

        `close()` reads the rest of it. An error of the iterable comes after the results for the
        values before it.

        Args:
            func: The function.
            iterable: The values to call it with.
            chunksize: Values that an actor gets at a time; an error for one ends them all.
        """
        self._check_running()
        return ResultIterator(self, func, iterable, chunksize, ordered=True)

    def imap_unordered(
        self, func: Function, iterable: Iterable[object], chunksize: int | None = 1
    ) -> ResultIterator:
        """Return the results as they come; otherwise like `imap`."""
        self._check_running()
        return ResultIterator(self, func, iterable, chunksize, ordered=False)

    def close(self) -> None:
        """Take no more work; the actors end when theirs is done."""
        for results in list(self._unsent):
            results.submit_rest(self._turns)
        self._stop()

    def terminate(self) -> None:
        """End the actors at once; the work that they had raises."""
        self._stop()
        for actor in (*self._replaced, *self._actors):
            kill(actor)

    def join(self) -> None:
        """Wait until the actors have ended, and callbacks have returned.

        Raises:
            ConfigError: The pool was neither closed nor terminated (also a ValueError).
        """
        if self._running:
            raise ConfigError("Pool is still running: call close() or terminate() first")
        wait(self._ends, num_returns=len(self._ends))
        for thread in list(self._callbacks):
            thread.join()

    def __enter__(self) -> Pool:
        self._check_running()
        return self

    def __exit__(self, *error: object) -> None:
        self.terminate()

    def _stop(self) -> None:
        if self._running:
            self._running = False
            self._ends += [actor.__ray_terminate__.remote() for actor in self._actors]

    def _map(
        self,
        func: Function,
        tuples: Iterable[Sequence[object]],
        count: int,
        chunksize: int | None,
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> AsyncResult:
        self._check_running()
        _check_count(chunksize, "chunksize")
        size = plain(chunksize) or -(-count // (4 * len(self._actors)))
        function = put(func)
        calls = [self._begin(function, chunk) for chunk in _chunks(tuples, size)]
        return AsyncResult(self, calls, False, callback, error_callback)

    def _begin(self, func: object, calls: Sequence[Call], index: int | None = None) -> ObjectRef:
        """Give some calls of a function to the actor whose turn it is, or to a certain one."""
        self._check_running()
        index = next(self._turns) if index is None else index
        results: ObjectRef = self._actors[index].run.remote(func, calls)
        left = self._left[index]
        if left is not None:
            self._left[index] = left - 1
        if left == 1:
            self._replace(index)
        return results

    def _replace(self, index: int) -> None:
        """Have another actor begin when one has done its work."""
        actor = self._actors[index]
        done = actor.__ray_ready__.options(max_task_retries=-1).remote()
        self._ends += [done, actor.__ray_terminate__.remote()]
        self._replaced.append(actor)
        self._actors[index], self._left[index] = self._new_actor(done), self._limit

    def _new_actor(self, after: ObjectRef | None = None) -> ActorHandle:
        return self._kind.remote(*self._first_call, after)

    def _check_running(self) -> None:
        if not self._running:
            raise ConfigError("Pool not running: it was closed or terminated")


class AsyncResult:
    """A result of `apply_async`, `map_async` or `starmap_async` of a pool, there or to come."""

    def __init__(
        self,
        pool: Pool,
        calls: Sequence[ObjectRef],
        single: bool,
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> None:
        self._calls, self._single = list(calls), single
        self._thread: threading.Thread | None = None
        if callback is not None or error_callback is not None:
            self._thread = threading.Thread(
                target=self._call_back, args=(callback, error_callback), daemon=True
            )
            pool._callbacks.add(self._thread)
            self._thread.start()

    def get(self, timeout: float | None = None) -> Any:
        """Return the result, or raise what the function has raised.

        Args:
            timeout: Seconds to wait; None is without limit.

        Raises:
            multiprocessing.TimeoutError: It did not come in time.
        """
        if not self._has_ended(timeout):
            raise TimeoutError(f"no result came within {timeout} seconds")
        return self._value()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the result is there, and its callback has returned; raise nothing."""
        self._has_ended(timeout)

    def ready(self) -> bool:
        """Return whether the result is there, or an error is."""
        return self._has_ended(0)

    def successful(self) -> bool:
        """Return whether nothing was raised.

        Raises:
            ConfigError: The result is not there yet (also a ValueError).
        """
        if not self.ready():
            raise ConfigError(f"{self!r} is not ready")
        try:
            self._value()
        except Exception:  # noqa: BLE001 (any of the user's)
            return False
        return True

    def _has_ended(self, timeout: float | None) -> bool:
        limit = seconds(timeout)
        if self._thread is not None:
            self._thread.join(limit)
            return not self._thread.is_alive()
        _, unready = wait(self._calls, num_returns=len(self._calls), timeout=limit)
        return not unready

    def _value(self) -> Any:
        values = list(itertools.chain.from_iterable(_results_of(self._calls)))
        return values[0] if self._single else values

    def _call_back(
        self,
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> None:
        try:
            value = self._value()
        except Exception as error:  # noqa: BLE001 (it belongs to whoever gets the result)
            if error_callback is not None:
                error_callback(error)
        else:
            if callback is not None:
                callback(value)


class ResultIterator(Iterator[Any]):
    """Results of `imap` or `imap_unordered` of a pool, one by one."""

    def __init__(
        self,
        pool: Pool,
        func: Function,
        iterable: Iterable[object],
        chunksize: int | None,
        ordered: bool,
    ) -> None:
        _check_count(chunksize, "chunksize")
        self._pool, self._ordered = pool, ordered
        self._function = put(func)
        self._chunks = _chunks(((value,) for value in iterable), plain(chunksize) or 1)
        self._under_way: dict[ObjectRef, int] = {}  # which actor has it
        self._ended: set[ObjectRef] = set()
        self._order: deque[ObjectRef | Exception] = deque()  # in which what has ended is taken
        self._results: deque[Any] = deque()
        pool._unsent.add(self)
        for index in range(len(pool._actors)):
            self._submit(index)

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result, or raise what the function has raised for it.

        Args:
            timeout: Seconds to wait; None is without limit.

        Raises:
            multiprocessing.TimeoutError: It did not come in time.
            StopIteration: There are no more.
        """
        limit = seconds(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        while not self._results:
            first = self._order[0] if self._order else None
            if isinstance(first, Exception):
                self._order.popleft()
                raise first
            if first is not None and first in self._ended:
                self._order.popleft()
                self._ended.remove(first)
                self._results.extend(*_results_of([first]))
            elif not self._under_way:
                if not self._submit(0):
                    raise StopIteration
            elif not self._collect(None if deadline is None else deadline - time.monotonic()):
                raise TimeoutError(f"no result came within {timeout} seconds")
        return self._results.popleft()

    __next__ = next

    def _collect(self, timeout: float | None) -> bool:
        """Wait until an actor has done its chunk, and give it another; return whether one has."""
        left = None if timeout is None else max(0.0, timeout)
        ended, _ = wait(list(self._under_way), timeout=left)
        for call in ended:
            self._ended.add(call)
            if not self._ordered:
                self._order.append(call)
            self._submit(self._under_way.pop(call))
        return bool(ended)

    def submit_rest(self, turns: Iterator[int]) -> None:
        """Give the actors, in turns, all that is left."""
        while self._submit(next(turns)):
            pass

    def _submit(self, index: int) -> bool:
        """Give the next chunk to an actor; return whether there was one, or an error in its place.

        That is of the iterable, or of values that cannot be sent.
        """
        try:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._pool._unsent.discard(self)
                return False
            call = self._pool._begin(self._function, chunk, index)
        except Exception as error:  # noqa: BLE001 (it belongs to whoever gets the result)
            self._order.append(error)
            return True
        self._under_way[call] = index
        if self._ordered:
            self._order.append(call)
        return True


class _Worker:
    """The actor: calls functions."""

    def __init__(self, initializer: Function | None, initargs: Sequence[object], _: object) -> None:
        if initializer is not None:
            initializer(*initargs)

    def run(self, func: Function, calls: Sequence[Call]) -> list[object]:
        return [func(*args, **kwargs) for args, kwargs in calls]


_OPTIONS = {"num_cpus": 0, "max_restarts": -1}


def _number_of_actors(processes: int | None) -> int:
    """Return how many actors a pool has.

    Raises:
        ConfigError: There are fewer CPUs.
    """
    cpus = int(session.cluster_resources().get("CPU", 0))
    if processes is None:
        return max(cpus, 1)
    if processes > cpus:
        raise ConfigError(
            f"a pool of {processes} processes needs as many CPUs, and there are {cpus}: ask for "
            "fewer, or call dray.init(num_cpus=...) first"
        )
    return int(processes)


def _check_count(number: object, name: str) -> None:
    if number is not None and not is_whole(plain(number), 1):
        raise ConfigError(f"{name} must be a whole number, 1 or more, not {number!r}")


def _chunks(tuples: Iterable[Sequence[object]], size: int) -> Iterator[list[Call]]:
    calls: Iterator[Call] = ((arguments, {}) for arguments in tuples)
    while chunk := list(itertools.islice(calls, size)):
        yield chunk


def _results_of(calls: list[ObjectRef]) -> list[list[Any]]:
    """Return what chunks of calls have returned; raise what a function has raised, as it was."""
    try:
        results: list[list[Any]] = get(calls)
    except TaskError as error:
        raise error.cause from error.__cause__
    return results
