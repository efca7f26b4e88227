"""Values of the inline engine, references to them, and the threads that calls run on."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import uuid
import weakref
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dray.engines.object_ref import ObjectRef
from dray.engines.rpc import serialization
from dray.engines.rpc.serialization import Payload
from dray.errors import DrayError, ObjectLostError

T = TypeVar("T")

_known: weakref.WeakValueDictionary[str, Pickled] = weakref.WeakValueDictionary()
_keeping: ContextVar[list[Pickled] | None] = ContextVar("dray_inline_keeping", default=None)


def settled(value: Any = None, error: BaseException | None = None) -> Future[Any]:
    """Return a future that is done."""
    future: Future[Any] = Future()
    settle(future, value, error)
    return future


def settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    """Set a future to a value or, if there is one, an error."""
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


class Pickled:
    """Mixed into what a pickled value holds by its id, and finds again in this process."""

    key: str

    def register(self, key: str) -> None:
        """Make it known under an id."""
        self.key = key
        _known[key] = self

    def __reduce__(self) -> tuple[object, ...]:
        kept = _keeping.get()
        if kept is not None:
            kept.append(self)
        return (_find, (self.key,))


def _find(key: str) -> Pickled:
    try:
        return _known[key]
    except KeyError:
        raise ObjectLostError(
            f"object {key} is gone: a reference that was pickled by hand does not keep it"
        ) from None


@dataclass(frozen=True)
class Stored:
    """A value, pickled, and the references and actors in it, which live as long as it does."""

    payload: Payload
    kept: list[Pickled] = field(repr=False)

    def load(self) -> Any:
        """Return a copy of the value."""
        return serialization.unpack_inline(self.payload)


def store(value: object, what: str) -> Stored:
    """Pickle a value.

    Raises:
        SerializationError: It cannot be pickled.
    """
    kept: list[Pickled] = []
    token = _keeping.set(kept)
    try:
        return Stored(serialization.pack(value, what).inline(), kept)
    finally:
        _keeping.reset(token)


def nothing() -> None:
    """Do nothing."""


class InlineRef(Pickled, ObjectRef):
    """A reference; its outcome is there already, unless an async actor still works on it."""

    def __init__(self, outcome: Future[Stored] | None = None) -> None:
        self._id = uuid.uuid4().bytes
        self.outcome: Future[Stored] = outcome or Future()
        self.cancel: Callable[[], object] = nothing
        self.of_actor = False
        self.register(self._id.hex())

    def binary(self) -> bytes:
        return self._id

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


class Executor:
    """Runs calls on the thread that makes them, one at a time; a call may make another one."""

    waits = False  # whether calls may wait for each other

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def begin(self, call: Coroutine[object, None, T]) -> Future[T]:
        """Run a call, or begin to."""
        try:
            with self._lock:
                call.send(None)
        except StopIteration as end:
            return settled(end.value)
        except DrayError as error:
            return settled(error=error)
        raise RuntimeError("a call without a thread of its own has waited for something")

    def stop(self) -> None:
        """End what still runs, soon. May be called from anywhere."""

    def close(self) -> None:
        """End what still runs."""


class LoopExecutor(Executor):
    """Runs calls in an event loop on a thread of its own."""

    waits = True

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name=name, daemon=True)
        self._thread.start()

    def begin(self, call: Coroutine[object, None, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._loop.stop)

    def close(self) -> None:
        self.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1)  # a call that blocks cannot be ended


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0))  # lets calls begin that came at the last moment
    while tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
