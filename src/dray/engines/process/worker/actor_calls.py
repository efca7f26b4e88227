"""The calls of an actor in its worker: one after another, in threads, or in an event loop."""

from __future__ import annotations

import contextvars
import inspect
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from dray.engines.object_ref import ObjectRef
from dray.engines.process.worker.results import Results, is_too_far, read_before_next
from dray.engines.process.worker.runtime import running
from dray.engines.rpc.actor_host import (
    ExitForkedChildren,
    exit_status,
    is_intended,
    made,
    method_of,
)
from dray.engines.rpc.framing import Message
from dray.engines.rpc.serialization import Retried
from dray.engines.runtime import Args, Kwargs, no_concurrency_group

if TYPE_CHECKING:
    import asyncio

    from dray.engines.process.hub.records import MakeDetails

_DEFAULT = ""
_INTERRUPTED = 128 + signal.SIGINT  # what shells say of it


class ActorCalls:
    """Runs the calls of one actor.

    Args:
        results: Loads arguments, and sends results and errors.
        leave: Ends the process, with a status.
        details: Name, whether it is made again, concurrency, groups, whether it is async, the
            options of each method, and its accelerators.
    """

    def __init__(
        self,
        results: Results,
        leave: Callable[[int], None],
        kind: type,
        around: Mapping[str, Any],
        details: MakeDetails,
    ) -> None:
        _, _, concurrency, groups, is_async, *_ = details
        self._results = results
        self._leave = leave
        self._kind = kind
        self._around = around
        self._actor: Any = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._running_calls: set[int] = set()
        self._exiting = False
        self._cancelled = results.runtime.cancelled
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._loops: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Semaphore]] = {}
        self._plain_streams: ThreadPoolExecutor | None = None
        self._sizes = sizes = {_DEFAULT: concurrency, **groups}
        if is_async:
            self._start_loops(sizes)
        elif groups or concurrency > 1:
            self._pools = {
                name: ThreadPoolExecutor(size, f"dray-{name or 'calls'}")
                for name, size in sizes.items()
            }

    @property
    def has_threads(self) -> bool:
        """True if calls run elsewhere than on the main thread."""
        return bool(self._loops or self._pools)

    def _start_loops(self, sizes: Mapping[str, int]) -> None:
        """Start a loop for each group, so that what blocks one holds up no other."""
        import asyncio  # slow to import, and only actors with async methods need it

        self._plain_streams = ThreadPoolExecutor(sum(sizes.values()), "dray-generator")
        for name, size in sizes.items():
            loop = asyncio.new_event_loop()
            self._loops[name] = loop, asyncio.Semaphore(size)
            threading.Thread(
                target=self._run_loop, args=(loop,), name="dray-async", daemon=True
            ).start()

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio  # it is there

        asyncio.set_event_loop(loop)
        while True:  # until the process ends, which others may use to come to their end
            try:
                loop.run_forever()
            except SystemExit as error:  # of a task that a method has left
                self._exit(error)
            except KeyboardInterrupt:
                sys.excepthook(*sys.exc_info())
                self._leave(_INTERRUPTED)

    def make(self, args: Args, kwargs: Kwargs) -> None:
        if not self._loops:
            with ExitForkedChildren():
                self._actor = self._kind(*args, **kwargs)
            return

        async def make() -> SystemExit | None:
            running.set(self._around)
            try:
                with ExitForkedChildren():
                    self._actor = await made(self._kind, args, kwargs)
            except SystemExit as error:  # raised, it would end the loop
                return error
            return None

        import asyncio  # it is there

        loop, _ = self._loops[_DEFAULT]
        exited = asyncio.run_coroutine_threadsafe(make(), loop).result()
        if exited is not None:
            raise exited

    def end(self) -> None:
        """Let the actor know that it ends well, by `__ray_shutdown__` and as its object goes."""
        actor, self._actor = self._actor, None
        shut_down = getattr(type(actor), "__ray_shutdown__", None)
        if shut_down is not None:
            try:
                shut_down(actor)
            except Exception:  # noqa: BLE001 (nobody waits for it)
                sys.excepthook(*sys.exc_info())

    def take(self, message: Message) -> bool:
        """Take a call that does not run on the main thread; return False for one that does."""
        _, _, asked, *_ = message[6]
        group = asked or _DEFAULT
        if group not in self._sizes:
            self._refuse(message, group)
            return True
        if self._loops:
            loop, semaphore = self._loops[group]
            loop.call_soon_threadsafe(self._begin_coroutine, message, semaphore)
            return True
        if self._pools:
            self._pools[group].submit(self.run, message)
            return True
        return False

    def _refuse(self, message: Message, group: str) -> None:
        _, number, _, payload, deps, _, details = message
        _, name, _, _, retried, _ = details
        error = no_concurrency_group("the actor", group, self._sizes.keys() - {_DEFAULT})
        self._results.runtime.return_unread([payload, *deps])
        self._ended(number, name, retried, error)

    def run(self, message: Message) -> None:
        _, number, _, payload, deps, returns, details = message
        method, name, _, _, retried, most_unread = details
        results = self._results
        if number in self._cancelled:
            self._tell_cancelled(message)
            return
        here = {"task_id": number, "task_name": name, "function": method}
        running.set({**self._around, **here, "began": time.time()})
        unread = [payload, *deps]
        try:
            if not self._begins(number):
                return
            args, kwargs = results.arguments(unread)
            with ExitForkedChildren():
                value = method_of(self._actor, method)(*args, **kwargs)
                del args, kwargs
                if returns == "streaming":
                    stream = _PlainStream(results, message, iter(value))
                    while not stream.send_ahead():
                        results.keep_pace(number, stream.sent - 1, most_unread)
                    value = ()
                values = results.pack_results(value, returns, name, number)
        except BaseException as error:  # noqa: BLE001 (all of it belongs to the caller)
            self._ended(number, name, retried, error)
        else:
            results.tell_results(number, values)
        finally:
            if unread:
                results.runtime.return_unread(unread)
            self._left(number)

    def _begins(self, number: int) -> bool:
        """Begin a call; return False if the actor ends with those that have begun before."""
        self._running_calls.add(number)  # first: `exit` looks for it
        return not self._exiting

    def _left(self, number: int) -> None:
        self._running_calls.discard(number)
        if self._exiting and not self._running_calls:
            self._leave(0)

    def exit(self) -> None:
        """End the process on purpose, as soon as the calls that have begun are over."""
        self._results.runtime.say("exiting", self._around["actor"])
        self._exiting = True
        if not self._running_calls:
            self._leave(0)

    def _ended(
        self, number: int, name: str, retried: Retried | bytes, error: BaseException
    ) -> None:
        """Tell of a call that has raised; the actor may end with it."""
        results = self._results
        if isinstance(error, SystemExit):
            self._exit(error)
            return
        where = f"method {name} of actor {self._around['name']}"
        results.tell_error(number, error, where, retried)

    def _exit(self, error: SystemExit) -> None:
        """End the process as an exception says."""
        if not is_intended(error):
            self._leave(exit_status(error))
        elif not self._exiting:
            self._results.runtime.say("exiting", self._around["actor"])
            self._leave(0)

    # In the event loop.

    def _begin_coroutine(self, message: Message, semaphore: asyncio.Semaphore) -> None:
        import asyncio  # it is there

        number = message[1]
        if number in self._cancelled:  # that was heard first, on a socket of its own
            self._tell_cancelled(message)
            return
        task = asyncio.get_running_loop().create_task(self._run_coroutine(message, semaphore))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._end_coroutine(message, task))
        if number in self._cancelled:  # while it was not to be found there
            task.cancel()

    def _end_coroutine(self, message: Message, task: asyncio.Task[None]) -> None:
        if self._tasks.get(message[1]) is task:  # else it is tried again already
            del self._tasks[message[1]]
        if task.cancelled():  # before its first step: else it tells of its end itself
            self._tell_cancelled(message)

    def _tell_cancelled(self, message: Message) -> None:
        _, number, _, payload, deps, *_ = message
        self._results.runtime.return_unread([payload, *deps])
        self._say_cancelled(number)

    def _say_cancelled(self, number: int) -> None:
        self._cancelled.discard(number)
        self._results.runtime.say("raised", number, b"", (), False, ())

    async def _run_coroutine(self, message: Message, semaphore: asyncio.Semaphore) -> None:
        import asyncio  # it is there

        _, number, _, payload, deps, returns, details = message
        method, name, _, _, retried, most_unread = details
        results = self._results
        unread = [payload, *deps]
        try:
            async with semaphore:
                if not self._begins(number):
                    return
                here = {"task_id": number, "task_name": name, "function": method}
                running.set({**self._around, **here, "began": time.time()})
                with ExitForkedChildren():
                    args, kwargs = results.arguments(unread)
                    value = method_of(self._actor, method)(*args, **kwargs)
                    if inspect.isawaitable(value) and not isinstance(value, ObjectRef):
                        value = await value
                    if inspect.isasyncgen(value):
                        index = 0
                        async for item in value:
                            results.send_item(number, index, item, name)
                            if is_too_far(index, most_unread):
                                await self._keep_pace(number, index, most_unread)
                            index += 1
                        value = ()
                    elif returns == "streaming":
                        await self._send_plain(_PlainStream(results, message, iter(value)))
                        value = ()
                    if number in self._cancelled:  # whatever it has made of that
                        raise asyncio.CancelledError
                    values = results.pack_results(value, returns, name, number)
        except BaseException as error:  # noqa: BLE001 (all of it belongs to the caller)
            if unread and number in self._cancelled:  # it has not begun
                self._say_cancelled(number)
            else:
                self._ended(number, name, retried, error)
        else:
            results.tell_results(number, values)
        finally:
            if unread:
                results.runtime.return_unread(unread)
            self._left(number)

    async def _keep_pace(self, number: int, index: int, most_unread: int) -> None:
        """Wait as `Results.keep_pace` does, and hold up no thread."""
        import asyncio  # it is there

        ask, read = self._results.runtime.promise, read_before_next(index, most_unread)
        await asyncio.wrap_future(ask(lambda answer: answer, "pace", number, read))

    async def _send_plain(self, stream: _PlainStream) -> None:
        """Send the items of a stream from threads, one after the other: it may block them."""
        import asyncio  # it is there

        number, context = stream.number, contextvars.copy_context()
        starts = asyncio.get_running_loop().run_in_executor
        while not stream.over:
            sending = starts(self._plain_streams, context.run, stream.send)
            while not sending.done():
                try:
                    await asyncio.wait([sending])
                except asyncio.CancelledError:  # it stops at its next item
                    self._cancelled.add(number)
            if stream.error is not None:
                try:
                    raise stream.error
                finally:
                    stream.error = None  # which holds this frame
            if not stream.over:
                try:
                    await self._keep_pace(number, stream.sent - 1, stream.most_unread)
                except asyncio.CancelledError:  # its generator is closed where it has run
                    self._cancelled.add(number)

    def cancel(self, number: int) -> None:
        self._cancelled.add(number)
        task = self._tasks.get(number)
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)


class _PlainStream:
    """The items of an actor's generator without `async`."""

    def __init__(self, results: Results, message: Message, items: Iterator[Any]) -> None:
        _, self.number, *_, details = message
        _, self._name, *_, self.most_unread = details
        self._results = results
        self._items = items
        self.sent = 0
        self.over = False
        self.error: BaseException | None = None

    def send(self) -> None:
        """Do what `send_ahead` does, in a thread beside the loop."""
        try:
            with ExitForkedChildren():
                self.over = self.send_ahead()
        except BaseException as error:  # noqa: BLE001 (raised where the call is waited for)
            self.over, self.error = True, error

    def send_ahead(self) -> bool:
        """Send items until they are too far ahead of their reader; return whether they are over."""
        results, cancelled = self._results, self._results.runtime.cancelled
        while self.number not in cancelled:
            try:
                item = next(self._items)
            except StopIteration:
                return True
            results.send_item(self.number, self.sent, item, self._name)
            self.sent += 1
            if is_too_far(self.sent - 1, self.most_unread):
                return False
        if inspect.isgenerator(self._items):
            self._items.close()
        return True
