"""The execution of a task or a method on the inline engine."""

from __future__ import annotations

import asyncio
import bdb
import contextlib
import inspect
import itertools
import os
import sys
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from dray.engines.inline.values import InlineRef, Lane, Pickled, Stored, nothing, store
from dray.engines.result_lists import DynamicObjectRefGenerator
from dray.engines.rpc import actor_host, wire
from dray.engines.runtime import ExecutionContext, ObjectRef, ObjectRefGenerator, Returned
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import DrayError, TaskCancelledError, WorkerDiedError, raised_in_task

# Where the calling code runs, and the actor that it belongs to; None in the driver.
current: ContextVar[tuple[ExecutionContext, Any] | None] = ContextVar("dray_inline", default=None)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task, or a call of an actor.

    Attributes:
        title: How messages call it.
        find: Returns the function to call; raises if the actor is gone.
        lane: Where it runs.
        here: What it can know of itself.
        actor: The actor, None for tasks.
        num_returns: How many references it returns, "streaming" or "dynamic".
        retries: How often it runs again if it raises; -1 is without limit.
        retry_on: Which exceptions make it run again: all, none, or these types.
        runtime_env: What it finds around itself.
        gate: What limits how many calls run at a time, in an event loop.
        leave: What to do if it exits; returns the error of this call.
        lost: Returns why it cannot go on, if its actor is gone.
    """

    title: str
    find: Callable[[], Callable[..., Any]]
    lane: Lane
    here: ExecutionContext
    actor: Any = None
    num_returns: int | str = 1
    retries: int = 0
    retry_on: bool | tuple[type[BaseException], ...] = False
    runtime_env: RuntimeEnv = field(default_factory=RuntimeEnv)
    gate: contextlib.AbstractAsyncContextManager[Any] = field(
        default_factory=contextlib.nullcontext
    )
    leave: Callable[[SystemExit], DrayError] = lambda error: WorkerDiedError(
        actor_host.exit_status(error)
    )
    lost: Callable[[], DrayError | None] = lambda: None

    def retries_for(self, error: Exception) -> bool:
        """Return whether an exception is one that makes it run again."""
        return (
            self.retry_on if isinstance(self.retry_on, bool) else isinstance(error, self.retry_on)
        )


def submit(work: Work, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Returned:
    """Run a task or a call, or begin to; return its references.

    Raises:
        SerializationError: An argument cannot be pickled.
    """
    arguments = store((args, dict(kwargs)), f"an argument of {work.title}")
    if work.num_returns == "streaming":
        return InlineGenerator(work, arguments)
    count = work.num_returns if isinstance(work.num_returns, int) else 1
    refs = [InlineRef() for _ in range(count)]

    def deliver(done: Future[list[Stored | DrayError]]) -> None:
        error = _error_of(done, work)
        results = done.result() if error is None else [error]
        for index, ref in enumerate(refs):
            result = results[min(index, len(results) - 1)]  # an error is that of all that follow
            if isinstance(result, Stored):
                ref.outcome.set_result(result)
            else:
                ref.outcome.set_exception(result)
            ref.cancel = nothing  # or it would keep the actor, through the call

    done = work.lane.begin(_perform(work, arguments))
    for ref in refs:
        ref.of_actor = work.actor is not None
        ref.cancel = done.cancel
    done.add_done_callback(deliver)
    if work.num_returns == 0:
        return None
    return refs[0] if len(refs) == 1 else refs


def run(work: Work, arguments: Stored) -> BaseException | None:
    """Run a call to its end; return what it raised."""
    done = work.lane.begin(_perform(work, arguments))
    wait([done])
    return _error_of(done, work)


def _error_of(done: Future[Any], work: Work) -> BaseException | None:
    if done.cancelled():
        return work.lost() or TaskCancelledError(f"{work.title} was cancelled")
    error = done.exception()
    if isinstance(error, DrayError):
        error.__traceback__ = None  # leads through dray only, and would keep the actor
    return error


async def _perform(work: Work, arguments: Stored) -> list[Stored | DrayError]:
    """Run a task or a call to its end, again if it may; what it raised follows its results."""
    with _within(work):
        left = work.retries
        while True:
            args, kwargs = await _resolve(work, arguments)
            if lost := work.lost():
                raise lost
            results: list[Stored | DrayError] = []
            try:
                async with work.gate:
                    value = work.find()(*args, **kwargs)
                    if work.lane.waits and inspect.isawaitable(value):
                        value = await value
                what = f"what {work.title} returned"
                for part in _split(work, value):
                    results.append(store(part, what))
                return results
            except bdb.BdbQuit:  # `q` in the debugger ends the program
                raise
            except SystemExit as error:
                death = work.leave(error)
                if not left or work.lane.waits or work.lost():
                    raise death from None
                left -= 1
            except Exception as error:  # noqa: BLE001 (it belongs to who gets)
                if not left or not work.retries_for(error):
                    if not results:
                        raise _failure(work, error)  # noqa: B904 (its cause is set)
                    return [*results, _failure(work, error)]
                left -= 1


async def _resolve(work: Work, arguments: Stored) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a copy of the arguments, with values in place of references."""
    args, kwargs = arguments.load()

    async def value(argument: Any) -> Any:
        if not isinstance(argument, InlineRef):
            return argument
        return await argument if work.lane.waits else argument.value()

    return (
        tuple([await value(argument) for argument in args]),
        {name: await value(argument) for name, argument in kwargs.items()},
    )


def _split(work: Work, value: Any) -> Iterator[Any]:
    """Yield what each reference of a call gets."""
    if work.num_returns == 1:
        yield value
    elif work.num_returns == "dynamic":
        refs = [InlineRef.of(store(item, f"what {work.title} yielded")) for item in value]
        yield DynamicObjectRefGenerator(refs)
    elif isinstance(work.num_returns, int) and work.num_returns:
        yield from _exactly(work.num_returns, value)


def _exactly(count: int, value: Any) -> Iterator[Any]:
    """Yield the parts of a value, or what a generator yields; it need not go on after that.

    Raises:
        ValueError: There are fewer parts, or a value has more; what came before stays.
    """
    if not inspect.isgenerator(value):
        try:
            value = list(value)
        except TypeError:
            value = [value]
        if len(value) != count:
            raise ValueError(f"returned {len(value)} values, but num_returns is {count}")
    given = 0
    for part in itertools.islice(value, count):
        yield part
        given += 1
    if given != count:
        raise ValueError(f"yielded {given} values, but num_returns is {count}")


@contextlib.contextmanager
def _within(work: Work) -> Iterator[None]:
    """Let code know where it runs; put what a runtime environment asks for around it."""
    token = current.set((work.here, work.actor))
    try:
        # Calls in an event loop take turns, and a process has only one environment.
        with contextlib.nullcontext() if work.lane.waits else surroundings(work.runtime_env):
            yield
    finally:
        current.reset(token)


@contextlib.contextmanager
def surroundings(runtime_env: RuntimeEnv) -> Iterator[None]:
    """Put this process into a runtime environment, and back again."""
    directory = runtime_env.local_directory("inline")
    if not runtime_env.env_vars and directory is None:
        yield
        return
    environment, here, path = dict(os.environ), wire.working_directory(), list(sys.path)
    os.environ.update(runtime_env.env_vars)
    if directory is not None:
        os.chdir(directory)
    sys.path[:0] = wire.import_path(directory, runtime_env.env_vars)
    try:
        yield
    finally:
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        if here:
            os.chdir(here)
        sys.path[:] = path


def _failure(work: Work, error: Exception) -> DrayError:
    """Return what `get` raises for what the user's code raised, which stays its cause."""
    part = actor_host.users_part(error)
    text = "".join(traceback.format_exception(type(error), error, part or error.__traceback__))
    if part is not None:
        error.__traceback__ = part
    where = f"{work.title} (pid {os.getpid()}, node {work.here.node_id})"
    failure = raised_in_task(error, where, text)
    failure.__cause__ = error  # with its traceback, so that a debugger can look into its frames
    return failure


class InlineGenerator(Pickled, ObjectRefGenerator):
    """The items of a generator.

    One that runs on the caller's thread goes on when its next item is asked for; one in an event
    loop goes on by itself.
    """

    def __init__(self, work: Work, arguments: Stored) -> None:
        self._work = work
        self._arguments = arguments
        self._iterator: Any = None
        self._over = False
        # What has not been read yet, and at the end None, which stays there.
        self._slots: deque[Future[Any]] = deque()
        self._pumping: Future[None] | None = None
        self._ended: Future[None] | None = None
        self.of_actor = work.actor is not None
        self.register(uuid.uuid4().hex)
        if work.lane.waits:
            self._slots.append(Future())
            self._ended = Future()
            self._pumping = work.lane.begin(self._pump())
            self._pumping.add_done_callback(self._end)

    async def _pump(self) -> None:
        async with self._work.gate:
            while (item := await self._step()) is not None:
                self._add().set_result(item)

    def _add(self) -> Future[Any]:
        """Return what readers wait for, and give them the next thing to wait for."""
        self._slots.append(Future())
        return self._slots[-2]

    def _end(self, pumping: Future[None]) -> None:
        assert self._ended is not None
        self._pumping = self._iterator = None  # or they would keep the actor, through the call
        if error := _error_of(pumping, self._work):
            self._add().set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)
        self._slots[-1].set_result(None)

    async def _step(self) -> Stored | None:
        """Return the next item; None at the end."""
        work = self._work
        if self._over:
            return None
        self._over = True  # unless all goes well
        with _within(work):
            begun = self._iterator is not None
            args, kwargs = ((), {}) if begun else await _resolve(work, self._arguments)
            if lost := work.lost():
                raise lost
            try:
                if not begun:
                    self._iterator = work.find()(*args, **kwargs)
                if inspect.isasyncgen(self._iterator):
                    item = await anext(self._iterator)
                else:
                    item = next(self._iterator)
                stored = store(item, f"what {work.title} yielded")
            except (StopIteration, StopAsyncIteration):
                return None
            except bdb.BdbQuit:
                raise
            except SystemExit as error:
                raise work.leave(error) from None
            except Exception as error:  # noqa: BLE001 (it belongs to who gets)
                raise _failure(work, error)  # noqa: B904 (its cause is set)
        self._over = False
        return stored

    def upcoming(self) -> Future[Any]:
        """Return what is done when the next reference or the end is there; may run on to it."""
        if not self._slots:
            self._slots.append(self._work.lane.begin(self._step()))
        return self._slots[0]

    def _take(self) -> InlineRef | None:
        """Return the next reference, which is there; None at the end."""
        slot = self._slots[0]
        if slot.exception() is None and slot.result() is None:
            return None
        ref = InlineRef()
        ref.outcome = self._slots.popleft()
        return ref

    def __next__(self) -> ObjectRef:
        wait([self.upcoming()])
        ref = self._take()
        if ref is None:
            raise StopIteration
        return ref

    async def __anext__(self) -> ObjectRef:
        upcoming = self.upcoming()
        if not upcoming.done():
            await asyncio.wait([asyncio.wrap_future(upcoming)])
        ref = self._take()
        if ref is None:
            raise StopAsyncIteration
        return ref

    def __aiter__(self) -> InlineGenerator:
        return self

    def completed(self) -> ObjectRef:
        """Return a reference that is ready at the end; on the caller's thread it runs on to it."""
        ref = InlineRef()

        def deliver(error: BaseException | None) -> None:
            if error is None:
                ref.outcome.set_result(store(None, "nothing"))
            else:
                ref.outcome.set_exception(error)

        if self._ended is not None:
            self._ended.add_done_callback(lambda ended: deliver(ended.exception()))
            return ref
        while True:
            slot = self._work.lane.begin(self._step())
            if (error := slot.exception()) or slot.result() is not None:
                self._slots.append(slot)
            if error or slot.result() is None:
                deliver(error)
                return ref

    def next_ready(self) -> bool:
        """Return whether the next reference is there; on the caller's thread it runs on to it."""
        upcoming = self.upcoming()
        return upcoming.done() and (upcoming.exception() or upcoming.result()) is not None

    def is_finished(self) -> bool:
        """Return whether there is nothing more; on the caller's thread it runs on to find out."""
        return self.upcoming().done() and not self.next_ready()

    def cancel(self) -> None:
        """End it; after the items that are there comes an error that says so."""
        if self._pumping is not None:
            self._pumping.cancel()
        elif not self._over:
            self._over = True
            slot: Future[Any] = Future()
            slot.set_exception(TaskCancelledError(f"{self._work.title} was cancelled"))
            self._slots.append(slot)
