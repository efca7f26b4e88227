"""The execution of a task or a method on the inline engine."""

from __future__ import annotations

import asyncio
import bdb
import contextlib
import inspect
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, wait
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dray.engines.inline.values import InlineRef, Loop, Pickled, Stored, ref_to, settled
from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.engines.result_lists import DynamicObjectRefGenerator, split
from dray.engines.rpc import actor_host, wire
from dray.engines.rpc.serialization import pack, pack_arguments
from dray.engines.runtime import Args, ExecutionContext, Function, Kwargs, ReturnCount, Returned
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import DrayError, TaskCancelledError, TaskError, WorkerDiedError, raised_in_task

T = TypeVar("T")

Gate = contextlib.AbstractAsyncContextManager[object]  # limits calls in an event loop
Results = list[Stored | BaseException]  # an error is that of all results that follow


class _Stopped(Exception):
    """Stands for a StopIteration, which no coroutine can raise."""

    def __init__(self, stop: StopIteration) -> None:
        self.stop = stop


class Host:
    """The host of calls: this process for a task; an actor is another one.

    Attributes:
        gone: Error of every later call; None while calls can go on.
        loop: Event loop in which they run; if there is none, on the thread that makes them.
    """

    def __init__(self) -> None:
        self.gone: DrayError | None = None
        self.loop: Loop | None = None
        self._lock = threading.RLock()

    def begin(self, call: Coroutine[object, None, T]) -> Future[T]:
        """Run a call, or begin to; on threads they run one at a time, and one may make another."""
        loop = self.loop
        if loop is not None:
            return loop.begin(call)
        try:
            with self._lock:
                call.send(None)
        except StopIteration as end:
            return settled(end.value)
        raise RuntimeError("a call that has no thread of its own waited for something")

    def renew(self, loop: Loop | None = None) -> None:
        """End what still runs in a loop, and run further calls in this one, or in none."""
        old, self.loop, self._lock = self.loop, loop, threading.RLock()
        if old is not None:
            old.close()

    def leave(self, error: SystemExit) -> DrayError:
        """Take the exit of a call; return that call's error."""
        return WorkerDiedError(actor_host.exit_status(error))

    def call_over(self) -> None:
        """Take note that a call has ended otherwise."""


@dataclass(kw_only=True)
class Work:
    """A task, or a call of an actor.

    Attributes:
        find: Returns the function to call; raises if the actor is gone.
        here: Execution context it can ask for.
        num_returns: Number of references that it returns, "streaming" or "dynamic".
        retries: Number of retries left if it raises; -1 is without limit.
        retry_on: Exceptions that make it run again: all, none, or these types.
        gate: Limit of concurrent calls in an event loop.
        begun: Whether the function was called.
    """

    title: str
    find: Callable[[], Function]
    host: Host
    here: ExecutionContext
    num_returns: ReturnCount = 1
    retries: int = 0
    retry_on: bool | tuple[type[BaseException], ...] = False
    runtime_env: RuntimeEnv = field(default_factory=RuntimeEnv)
    gate: Gate = field(default_factory=contextlib.nullcontext)
    begun: bool = False

    @property
    def count(self) -> int:
        """The number of references that it returns, if it is no stream."""
        return self.num_returns if isinstance(self.num_returns, int) else 1

    @property
    def of_actor(self) -> bool:
        return type(self.host) is not Host

    def error_of(self, done: Future[T]) -> BaseException | None:
        """Return what its end has brought in place of a value."""
        if done.cancelled():
            return self.host.gone or self.cancelled()
        return done.exception()

    def cancelled(self) -> DrayError:
        """Return the error of its cancelling; once it has begun, it has raised that itself."""
        error = TaskCancelledError(f"{self.title} was cancelled")
        return self._failure(error) if self.begun else error

    def call(self, args: Args, kwargs: Kwargs) -> Any:
        function = self.find()
        self.begun = True
        try:
            return function(*args, **kwargs)
        except StopIteration as error:
            raise _Stopped(error) from error

    async def carry_out(
        self,
        part: Callable[[Args, Kwargs], Awaitable[None]],
        arguments: Callable[[], Stored | None],
    ) -> DrayError | None:
        """Do a part of it, again if it may; return the error that is its end.

        Args:
            part: Called with the arguments.
            arguments: Returns them; None is none.
        """
        with self._within():
            while True:
                try:
                    args, kwargs = await self._resolve(arguments())
                except DrayError as error:
                    return error.with_traceback(None)  # which would keep the actor
                try:
                    await part(args, kwargs)
                    self.host.call_over()
                    return None
                except bdb.BdbQuit:  # `q` in the debugger ends the program
                    raise
                except SystemExit as error:
                    death = self.host.leave(error)
                    if not self.retries or self.host.loop is not None or self.host.gone:
                        return death
                except Exception as error:  # noqa: BLE001 (it belongs to who gets)
                    self.host.call_over()
                    raised = error.stop if isinstance(error, _Stopped) else error
                    again = self.retry_on
                    if isinstance(again, tuple):
                        again = isinstance(raised, again)
                    if not (self.retries and again):
                        return self._failure(raised)
                self.retries -= 1

    def _failure(self, error: Exception) -> DrayError:
        """Return what `get` raises for what the user's code raised, which stays its cause."""
        part = actor_host.users_part(error)
        text = "".join(traceback.format_exception(type(error), error, part or error.__traceback__))
        if part is not None:
            error.__traceback__ = part
        where = f"{self.title} (pid {os.getpid()}, node {self.here.node_id})"
        failure = raised_in_task(error, where, text)
        failure.__cause__ = error  # with its traceback, so that a debugger can look into its frames
        return failure

    async def _resolve(self, arguments: Stored | None) -> tuple[Args, Kwargs]:
        """Return a copy of the arguments, if there are any, with values in place of references.

        Raises:
            DrayError: One is an error, or the actor is gone by then.
        """
        args, kwargs = ((), {}) if arguments is None else arguments.load()

        async def value(argument: object) -> object:
            if not isinstance(argument, InlineRef):
                return argument
            return argument.value() if self.host.loop is None else await argument

        args = tuple([await value(argument) for argument in args])
        kwargs = {name: await value(argument) for name, argument in kwargs.items()}
        if self.host.gone is not None:
            raise self.host.gone
        return args, kwargs

    @contextlib.contextmanager
    def _within(self) -> Iterator[None]:
        """Let code know where it runs; put what a runtime environment asks for around it."""
        token = current.set(self)
        variables = self.runtime_env.expanded(os.environ)
        directory = self.runtime_env.local_directory("inline")
        # Calls in an event loop take turns, and a process has only one environment.
        asks = self.host.loop is None and (variables or directory is not None)
        try:
            with in_environment(variables, directory) if asks else contextlib.nullcontext():
                yield
        finally:
            current.reset(token)


# The call that the calling code runs in; None in the driver.
current: ContextVar[Work | None] = ContextVar("dray_inline", default=None)


@contextlib.contextmanager
def in_environment(variables: Mapping[str, str | None], directory: str | None) -> Iterator[None]:
    """Put this process into an environment and a directory, and back again."""
    environment, here, path = dict(os.environ), wire.working_directory(), list(sys.path)
    actor_host.set_variables(variables)
    if directory is not None:
        os.chdir(directory)
    sys.path[:0] = wire.import_path(directory, variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        if here:
            os.chdir(here)
        sys.path[:] = path


def submit(work: Work, args: Args, kwargs: Kwargs) -> Returned:
    """Run a task or a call, or begin to; return its references.

    Raises:
        SerializationError: An argument cannot be pickled.
    """
    arguments = Stored(pack_arguments(args, kwargs, work.title))
    if work.num_returns == "streaming":
        return InlineGenerator(work, arguments)
    refs = begin(work, perform(work, arguments), work.count)
    return (refs[0] if len(refs) == 1 else refs) if refs else None


def begin(work: Work, call: Coroutine[object, None, Results], count: int = 1) -> list[InlineRef]:
    """Run a call, or begin to; return references to its results."""
    refs = [InlineRef() for _ in range(count)]

    def deliver(done: Future[Results]) -> None:
        error = work.error_of(done)
        results = done.result() if error is None else [error]
        for index, ref in enumerate(refs):
            settled(results[min(index, len(results) - 1)], ref.outcome)
            ref.maker = None  # or it would keep the actor, through the call

    done = work.host.begin(call)
    for ref in refs:
        ref.maker, ref.of_actor = done, work.of_actor
    done.add_done_callback(deliver)
    return refs


async def perform(work: Work, arguments: Stored) -> Results:
    """Run a task or a call to its end; what it raised follows its results."""
    results: Results = []
    items: list[ObjectRef] | None = None  # what was yielded, if the number of results is open

    async def call(args: Args, kwargs: Kwargs) -> None:
        nonlocal items
        results.clear()
        items = None
        async with work.gate:
            value = work.call(args, kwargs)
            awaited = inspect.isawaitable(value) and not isinstance(value, ObjectRef)
            if awaited and work.host.loop is not None:
                value = await value
            if work.num_returns == "dynamic":
                yielded, items = iter(value), []
                for item in yielded:
                    items.append(ref_to(item, f"what {work.title} yielded"))
                value = DynamicObjectRefGenerator(items)
            for part in split(value, work.count, work.title):
                results.append(Stored(pack(part, f"what {work.title} returned")))

    error = await work.carry_out(call, lambda: arguments)
    if error is None:
        return results
    if items is not None and isinstance(error, TaskError):
        refs = DynamicObjectRefGenerator([*items, InlineRef(settled(error))])
        return [Stored(pack(refs, f"what {work.title} returned"))]
    return [*results, error] if isinstance(error, TaskError) else [error]  # or it died


_END = object()  # in place of an item: there are no more


async def _next_of(items: Any) -> Any:
    return await anext(items, _END) if inspect.isasyncgen(items) else next(items, _END)


class InlineGenerator(Pickled, ObjectRefGenerator):
    """The items of a generator, which goes on when the next one is asked for."""

    def __init__(self, work: Work, arguments: Stored) -> None:
        super().__init__()
        self._work = work
        self._arguments = arguments
        self._iterator: Any = None
        self._made = 0
        self._items: deque[InlineRef] = deque()  # that nobody has read yet
        self._over = False  # whether there will be no more
        self._error: BaseException | None = None  # the last item, if it is one
        self._turn = asyncio.Lock()
        self._asked: Future[None] = settled()  # the latest step
        self.of_actor = work.of_actor

    def _end(self, error: BaseException | None = None) -> None:
        self._over, self._error = True, error
        self._iterator = None  # or it would keep the actor
        if error is not None:
            self._items.append(InlineRef(settled(error)))

    async def _step(self) -> None:
        """Make the next item, or come to the end."""

        def arguments() -> Stored | None:
            return self._arguments if self._iterator is None else None

        async with self._turn, self._work.gate:
            if not self._over:
                error = await self._work.carry_out(self._advance, arguments)
                if error is not None and not self._over:
                    self._end(error)

    async def _advance(self, args: Args, kwargs: Kwargs) -> None:
        items, self._iterator = self._iterator, None  # it may raise, and is to begin anew then
        if items is None:
            items = self._work.call(args, kwargs)
            items = items if inspect.isasyncgen(items) else iter(items)
            for _ in range(self._made):  # before it was tried again
                await _next_of(items)
        item = await _next_of(items)
        if item is _END:
            self._end()
        elif not self._over:  # else it was cancelled meanwhile
            self._items.append(ref_to(item, f"what {self._work.title} yielded"))
            self._made += 1
            self._iterator = items

    async def _finish(self) -> Results:
        """Go on to the end; return its error, or nothing."""
        while not self._over:
            await self._step()
        return [self._error or Stored(pack(None, "nothing"))]

    def upcoming(self) -> Future[None]:
        """Return what is done when the next reference or the end is there; may run on to it."""
        if self._items or self._over:
            return settled()
        if self._asked.done():
            self._asked = self._work.host.begin(self._step())
        return self._asked

    def _take(self, end: type[Exception]) -> InlineRef:
        """Return the next reference, which is there; raise at the end."""
        if not self._items and not self._over:  # the step was cancelled
            self._end(self._work.error_of(self._asked))
        if not self._items:
            raise end
        return self._items.popleft()

    def __next__(self) -> ObjectRef:
        wait([self.upcoming()])
        return self._take(StopIteration)

    async def __anext__(self) -> ObjectRef:
        upcoming = self.upcoming()
        if not upcoming.done():
            await asyncio.wait([asyncio.wrap_future(upcoming)])
        return self._take(StopAsyncIteration)

    def completed(self) -> ObjectRef:
        """Return a reference that is ready at the end; on the caller's thread it runs on to it."""
        return begin(self._work, self._finish())[0]

    def next_ready(self) -> bool:
        """Return whether the next reference is there; on the caller's thread it runs on to it."""
        return self.upcoming().done() and bool(self._items or not self._over)

    def is_finished(self) -> bool:
        """Return whether there is nothing more; on the caller's thread it runs on to find out."""
        return self.upcoming().done() and self._over and not self._items

    def cancel(self) -> None:
        """End it; after the items that are there comes an error that says so."""
        if not self._over:
            self._asked.cancel()
            self._end(self._work.cancelled())
