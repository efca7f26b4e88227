"""Values of the inline engine, references to them, and the event loops of its async actors."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import uuid
import weakref
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from dray.engines.object_ref import ObjectRef
from dray.engines.rpc import serialization
from dray.engines.rpc.serialization import Packed
from dray.errors import ObjectLostError

T = TypeVar("T")

_known: weakref.WeakValueDictionary[str, Pickled] = weakref.WeakValueDictionary()


def settled(outcome: Any = None, future: Future[Any] | None = None) -> Future[Any]:
    """Return a future that is done, a new one or this: an error is raised where it is asked."""
    future = future or Future()
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return future


class Pickled:
    """Mixed into what a pickled value holds by its id, and finds again in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.key = uuid.uuid4().hex
        _known[self.key] = self

    def __reduce__(self) -> tuple[object, ...]:
        serialization.note_reference(self)
        return (_find, (self.key,))


def _find(key: str) -> Pickled:
    try:
        return _known[key]
    except KeyError:
        raise ObjectLostError(
            f"object {key} is gone: a reference that was pickled by hand does not keep it alive"
        ) from None


class Stored:
    """A value, pickled, and the references and actors in it, which live as long as it does."""

    def __init__(self, packed: Packed) -> None:
        self._payload, self._kept = packed.inline(), packed.refs

    def load(self) -> Any:
        """Return a copy of the value."""
        return serialization.unpack_inline(self._payload)


class InlineRef(Pickled, ObjectRef):
    """A reference; its outcome is there already, unless an async actor still works on it.

    Attributes:
        outcome: Gets the value, or an error.
        maker: The call that makes it, until it is over.
        of_actor: Whether that is a call of an actor.
    """

    maker: Future[Any] | None = None
    of_actor = False

    def __init__(self, outcome: Future[Stored] | None = None) -> None:
        super().__init__()
        self.outcome: Future[Stored] = outcome or Future()

    def binary(self) -> bytes:
        return bytes.fromhex(self.key)

    def cancel(self) -> None:
        if self.maker is not None:
            self.maker.cancel()

    def value(self) -> Any:
        """Wait for the value and return a copy of it, or raise what came instead."""
        error = self.outcome.exception()
        if error is None:
            return self.outcome.result().load()
        twin = copy.copy(error)  # a new one each time, or each would add its lines to one traceback
        twin.__cause__ = error.__cause__
        raise twin

    def future(self) -> Future[Any]:
        copied: Future[Any] = Future()
        copied.set_running_or_notify_cancel()

        def hand_over(_: Future[Stored]) -> None:
            try:
                copied.set_result(self.value())
            except Exception as error:  # noqa: BLE001 (it belongs to who waits)
                copied.set_exception(error.with_traceback(None))

        self.outcome.add_done_callback(hand_over)
        return copied

    def __await__(self) -> Generator[object, None, Any]:
        if not self.outcome.done():
            yield from asyncio.wrap_future(self.future()).__await__()
        return self.value()


def ref_to(value: object, what: str) -> InlineRef:
    """Return a reference to a copy of a value; `what` is its name in messages."""
    return InlineRef(settled(Stored(serialization.pack(value, what))))


class Loop:
    """An event loop on a thread of its own.

    Args:
        on_exit: Called there with the exit of a task that a call has left behind.
    """

    def __init__(self, name: str, on_exit: Callable[[SystemExit], object]) -> None:
        self._on_exit = on_exit
        self._over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.create_task(self._serve())
        while not serving.done():
            try:
                self._loop.run_until_complete(serving)
            except SystemExit as error:
                self._on_exit(error)
        self._loop.close()

    async def _serve(self) -> None:
        """Let calls run until it is over, then end them as `asyncio.run` does."""
        await self._over.wait()
        await asyncio.sleep(0)  # lets calls begin that came at the last moment
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def begin(self, call: Coroutine[object, None, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def stop(self) -> None:
        """End what still runs, soon. May be called from anywhere."""
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._over.set)

    def close(self) -> None:
        """End what still runs."""
        self.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1)  # a call that blocks cannot be ended
