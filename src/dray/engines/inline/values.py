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
from typing import Any, Protocol, TypeVar

from dray.engines.rpc import serialization
from dray.engines.runtime import ObjectRef
from dray.errors import DrayError, ObjectLostError

T = TypeVar("T")

_known: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_keeping: ContextVar[list[Any] | None] = ContextVar("dray_inline_keeping", default=None)


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


def _find(key: str) -> Any:
    try:
        return _known[key]
    except KeyError:
        raise ObjectLostError(
            f"object {key} is gone: a reference that was pickled by hand does not keep it"
        ) from None


@dataclass(frozen=True)
class Stored:
    """A value, pickled, and the references and actors in it, which live as long as it does."""

    payload: Any
    kept: list[Any] = field(repr=False)

    def load(self) -> Any:
        """Return a copy of the value."""
        return serialization.unpack_inline(self.payload)


def store(value: Any, what: str) -> Stored:
    """Pickle a value.

    Raises:
        SerializationError: It cannot be pickled.
    """
    kept: list[Any] = []
    token = _keeping.set(kept)
    try:
        return Stored(serialization.pack(value, what).inline(), kept)
    finally:
        _keeping.reset(token)


def nothing() -> None:
    """Do nothing."""


class InlineRef(Pickled, ObjectRef):
    """A reference; its outcome is there already, unless an async actor still works on it."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().bytes
        self.outcome: Future[Stored] = Future()
        self.cancel: Callable[[], object] = nothing
        self.of_actor = False
        self.register(self._id.hex())

    @classmethod
    def of(cls, stored: Stored) -> InlineRef:
        """Return a reference to a value that is there."""
        ref = cls()
        ref.outcome.set_result(stored)
        return ref

    @classmethod
    def failed(cls, error: BaseException) -> InlineRef:
        """Return a reference that raises."""
        ref = cls()
        ref.outcome.set_exception(error)
        return ref

    def binary(self) -> bytes:
        return self._id

    def value(self) -> Any:
        """Wait for the value and return a copy of it, or raise what came instead."""
        error = self.outcome.exception()
        if error is None:
            return self.outcome.result().load()
        raise _again(error)

    def future(self) -> Future[Any]:
        copied: Future[Any] = Future()
        copied.set_running_or_notify_cancel()

        def hand_over(_: Future[Stored]) -> None:
            error = self.outcome.exception()
            if error is not None:
                copied.set_exception(_again(error))
                return
            try:
                copied.set_result(self.outcome.result().load())
            except Exception as trouble:  # noqa: BLE001 (it belongs to who waits)
                copied.set_exception(trouble)

        self.outcome.add_done_callback(hand_over)
        return copied

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.outcome.done():
            yield from asyncio.wrap_future(self.future()).__await__()
        return self.value()


def _again(error: BaseException) -> BaseException:
    """Return a new error each time, or each `get` would add its lines to one traceback."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin


class Lane(Protocol):
    """A runner of calls, as coroutines."""

    waits: bool  # whether coroutines may wait for something

    def begin(self, coroutine: Coroutine[Any, Any, T], /) -> Future[T]:
        """Run a coroutine, or begin to."""

    def close(self) -> None:
        """End what still runs."""


class CallersThread:
    """Runs calls on the thread that makes them, one at a time; a call may make another one."""

    waits = False

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def begin(self, coroutine: Coroutine[Any, Any, T], /) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        try:
            with self._lock:
                coroutine.send(None)
        except StopIteration as end:
            future.set_result(end.value)
        except DrayError as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        return None


class LoopThread:
    """Runs calls in an event loop on a thread of its own."""

    waits = True

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name=name, daemon=True)
        self._thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, T], /) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """End the thread soon; take no lock, so that it may be called from anywhere."""
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
