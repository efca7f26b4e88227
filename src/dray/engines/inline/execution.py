"""The execution of a task or a method on the inline engine."""

from __future__ import annotations

import asyncio
import bdb
import contextlib
import inspect
import os
import sys
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dray.engines.inline.values import (
    Executor,
    InlineRef,
    Pickled,
    Stored,
    nothing,
    settle,
    settled,
    store,
)
from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.engines.result_lists import DynamicObjectRefGenerator, split
from dray.engines.rpc import actor_host, wire
from dray.engines.runtime import Args, ExecutionContext, Function, Returned
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import DrayError, TaskCancelledError, WorkerDiedError, raised_in_task

T = TypeVar("T")

Gate = contextlib.AbstractAsyncContextManager[object]  # limits calls in an event loop


class Host:
    """The host of calls: this process for a task; an actor is another one.

    Attributes:
        executor: Thread on which they run.
        gone: Error of every later call; None while calls can go on.
    """

    def __init__(self) -> None:
        self.executor = Executor()
        self.gone: DrayError | None = None

    def leave(self, error: SystemExit) -> DrayError:
        """Take the exit of a call; return that call's error."""
        return WorkerDiedError(actor_host.exit_status(error))


# The execution context of the calling code, and its host; None in the driver.
current: ContextVar[tuple[ExecutionContext, Host] | None] = ContextVar("dray_inline", default=None)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task, or a call of an actor.

    Attributes:
        title: Its name in messages.
        find: Returns the function to call; raises if the actor is gone.
        host: Host in which it runs.
        here: Execution context it can ask for.
        num_returns: Number of references that it returns, "streaming" or "dynamic".
        retries: Number of retries if it raises; -1 is without limit.
        retry_on: Exceptions that make it run again: all, none, or these types.
        runtime_env: Runtime environment of its process.
        gate: Limit of concurrent calls in an event loop.
    """

    title: str
    find: Callable[[], Function]
    host: Host
    here: ExecutionContext
    num_returns: int | str = 1
    retries: int = 0
    retry_on: bool | tuple[type[BaseException], ...] = False
    runtime_env: RuntimeEnv = field(default_factory=RuntimeEnv)
    gate: Gate = field(default_factory=contextlib.nullcontext)

    @property
    def count(self) -> int:
        """The number of references that it returns, if it is no stream."""
        return self.num_returns if isinstance(self.num_returns, int) else 1

    def fails(self, error: Exception, left: int) -> bool:
        """Return whether an exception is its end, with so many retries left."""
        retry_on = self.retry_on
        again = retry_on if isinstance(retry_on, bool) else isinstance(error, retry_on)
        return not (left and again)

    def error_of(self, done: Future[T]) -> BaseException | None:
        """Return what its end has brought in place of a value."""
        if done.cancelled():
            return self.host.gone or TaskCancelledError(f"{self.title} was cancelled")
        error = done.exception()
        if isinstance(error, DrayError):
            error.__traceback__ = None  # leads through dray only, and would keep the actor
        return error

    def failure(self, error: Exception) -> DrayError:
        """Return what `get` raises for what the user's code raised, which stays its cause."""
        part = actor_host.users_part(error)
        text = "".join(traceback.format_exception(type(error), error, part or error.__traceback__))
        if part is not None:
            error.__traceback__ = part
        where = f"{self.title} (pid {os.getpid()}, node {self.here.node_id})"
        failure = raised_in_task(error, where, text)
        failure.__cause__ = error  # with its traceback, so that a debugger can look into its frames
        return failure

    async def resolve(self, arguments: Stored | None) -> tuple[list[object], dict[str, object]]:
        """Return a copy of the arguments, if there are any, with values in place of references.

        Raises:
            DrayError: One is an error, or the actor is gone by then.
        """
        args, kwargs = ([], {}) if arguments is None else arguments.load()

        async def value(argument: object) -> object:
            if not isinstance(argument, InlineRef):
                return argument
            return await argument if self.host.executor.waits else argument.value()

        args = [await value(argument) for argument in args]
        kwargs = {name: await value(argument) for name, argument in kwargs.items()}
        if self.host.gone is not None:
            raise self.host.gone
        return args, kwargs

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Let code know where it runs; put what a runtime environment asks for around it."""
        token = current.set((self.here, self.host))
        variables = self.runtime_env.expanded(os.environ)
        directory = self.runtime_env.local_directory("inline")
        # Calls in an event loop take turns, and a process has only one environment.
        asks = not self.host.executor.waits and (variables or directory is not None)
        try:
            with in_environment(variables, directory) if asks else contextlib.nullcontext():
                yield
        finally:
            current.reset(token)


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


def submit(work: Work, args: Args, kwargs: Mapping[str, object]) -> Returned:
    """Run a task or a call, or begin to; return its references.

    Raises:
        SerializationError: An argument cannot be pickled.
    """
    arguments = store((args, dict(kwargs)), f"an argument of {work.title}")
    if work.num_returns == "streaming":
        return InlineGenerator(work, arguments)
    refs = [InlineRef() for _ in range(work.count)]

    def deliver(done: Future[list[Stored | DrayError]]) -> None:
        error = work.error_of(done)
        results = done.result() if error is None else [error]
        for index, ref in enumerate(refs):
            result = results[min(index, len(results) - 1)]  # an error is that of all that follow
            if isinstance(result, Stored):
                ref.outcome.set_result(result)
            else:
                ref.outcome.set_exception(result)
            ref.cancel = nothing  # or it would keep the actor, through the call

    done = work.host.executor.begin(_perform(work, arguments))
    for ref in refs:
        ref.of_actor = type(work.host) is not Host
        ref.cancel = done.cancel
    done.add_done_callback(deliver)
    if work.num_returns == 0:
        return None
    return refs[0] if len(refs) == 1 else refs


def run(work: Work, arguments: Stored) -> BaseException | None:
    """Run a call to its end; return what it raised."""
    done = work.host.executor.begin(_perform(work, arguments))
    wait([done])
    return work.error_of(done)


async def _perform(work: Work, arguments: Stored) -> list[Stored | DrayError]:
    """Run a task or a call to its end, again if it may; what it raised follows its results."""
    host, left = work.host, work.retries
    with work.within():
        while True:
            args, kwargs = await work.resolve(arguments)
            results: list[Stored | DrayError] = []
            try:
                async with work.gate:
                    value = work.find()(*args, **kwargs)
                    awaited = inspect.isawaitable(value) and not isinstance(value, ObjectRef)
                    if host.executor.waits and awaited:
                        value = await value
                if work.num_returns == "dynamic":
                    items = [store(item, f"what {work.title} yielded") for item in value]
                    value = DynamicObjectRefGenerator([InlineRef(settled(i)) for i in items])
                for part in split(value, work.count, work.title):
                    results.append(store(part, f"what {work.title} returned"))
                return results
            except bdb.BdbQuit:  # `q` in the debugger ends the program
                raise
            except SystemExit as error:
                death = host.leave(error)
                if not left or host.executor.waits or host.gone:
                    raise death from None
            except Exception as error:  # noqa: BLE001 (it belongs to who gets)
                if work.fails(error, left):
                    if results:
                        return [*results, work.failure(error)]
                    raise work.failure(error)  # noqa: B904 (its cause is set)
            left -= 1


_END = object()  # in place of an item: there are no more


class InlineGenerator(Pickled, ObjectRefGenerator):
    """The items of a generator, which goes on when the next one is asked for."""

    def __init__(self, work: Work, arguments: Stored) -> None:
        self._work = work
        self._arguments = arguments
        self._iterator: Any = None
        self._made = 0
        self._left = work.retries
        self._items: deque[Future[Stored]] = deque()  # that nobody has read yet
        self._over = False  # whether there will be no more
        self._turn = asyncio.Lock()
        self._asked: Future[None] = settled()  # the latest step
        self.of_actor = type(work.host) is not Host
        self.register(uuid.uuid4().hex)

    def _end(self, error: BaseException | None = None) -> None:
        self._over = True
        self._iterator = None  # or it would keep the actor
        if error is not None:
            self._items.append(settled(error=error))

    async def _step(self) -> None:
        """Make the next item, or come to the end."""
        work = self._work
        async with self._turn, work.gate:
            if not self._over:
                with work.within():
                    await self._advance(work)

    async def _advance(self, work: Work) -> None:
        while not await self._advances(work):
            pass

    async def _advances(self, work: Work) -> bool:
        """Make the next item, or come to the end; return whether that is not to be tried again."""
        try:
            args, kwargs = await work.resolve(self._arguments if self._iterator is None else None)
        except DrayError as error:
            self._end(error)
            return True
        try:
            if self._iterator is None:
                self._iterator = work.find()(*args, **kwargs)
                for _ in range(self._made):  # before it was tried again
                    await self._item()
            item = await self._item()
            self._made += 1
            if item is _END:
                self._end()
            elif not self._over:  # else it was cancelled meanwhile
                self._items.append(settled(store(item, f"what {work.title} yielded")))
        except bdb.BdbQuit:
            self._end()
            raise
        except SystemExit as error:
            self._end(work.host.leave(error))
        except Exception as error:  # noqa: BLE001 (it belongs to who gets)
            if not work.fails(error, self._left):
                self._left -= 1
                self._iterator = None
                return False
            self._end(work.failure(error))
        return True

    async def _item(self) -> Any:
        items = self._iterator
        return await anext(items, _END) if inspect.isasyncgen(items) else next(items, _END)

    async def _finish(self) -> Stored:
        """Go on to the end.

        Raises:
            DrayError: That was an error.
        """
        while not self._over:
            await self._step()
        error = self._items[-1].exception() if self._items else None
        if error is not None:
            raise error
        return store(None, "nothing")

    def upcoming(self) -> Future[None]:
        """Return what is done when the next reference or the end is there; may run on to it."""
        if self._items or self._over:
            return settled()
        if self._asked.done():
            self._asked = self._work.host.executor.begin(self._step())
        return self._asked

    def _take(self) -> InlineRef | None:
        """Return the next reference, which is there; None at the end."""
        if not self._items and not self._over:  # the step was cancelled
            self._end(self._work.error_of(self._asked))
        return InlineRef(self._items.popleft()) if self._items else None

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

        def deliver(done: Future[Stored]) -> None:
            error = self._work.error_of(done)
            settle(ref.outcome, None if error else done.result(), error)

        self._work.host.executor.begin(self._finish()).add_done_callback(deliver)
        return ref

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
            self._end(TaskCancelledError(f"{self._work.title} was cancelled"))
