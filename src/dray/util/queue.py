"""A queue that tasks and actors share: first in, first out, as `queue.Queue` is for threads."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import secrets
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dray import session
from dray.checks import is_whole, plain
from dray.compat.attributes import attach_getattr
from dray.core.actor import ActorHandle, exit_actor
from dray.core.objects import get, kill, wait
from dray.core.remote import remote
from dray.errors import ActorDiedError, ArgumentTypeError, ConfigError, DrayError, EngineError

__all__ = ["Empty", "Full", "Queue"]

attach_getattr(__name__)


class Empty(queue.Empty):
    """There is nothing in the queue, and nothing came in time.

    Example:
        >>> from dray.util.queue import Empty, Queue
        >>> queue = Queue()
        >>> try:
        ...     queue.get_nowait()
        ... except Empty:
        ...     print("nothing there")
        nothing there
        >>> queue.shutdown()
    """


class Full(queue.Full):
    """There is no room in the queue, and none came in time.

    Example:
        >>> from dray.util.queue import Full, Queue
        >>> queue = Queue(maxsize=1)
        >>> queue.put("an item")
        >>> try:
        ...     queue.put_nowait("one more")
        ... except Full:
        ...     print("no room")
        no room
        >>> queue.shutdown()
    """


class Queue:
    """A queue in an actor; it may be handed to any number of tasks and actors.

    Args:
        maxsize: Largest number of items; 0 is without limit.
        actor_options: Options of the actor, such as `{"num_cpus": 1}`.

    Example:
        >>> from dray.util.queue import Queue
        >>> queue = Queue(maxsize=10)
        >>> queue.put("an item")
        >>> queue.get()
        'an item'
        >>> queue.shutdown()
    """

    def __init__(self, maxsize: int = 0, actor_options: Mapping[str, object] | None = None) -> None:
        self.maxsize = maxsize
        kind = remote(_QueueActor)
        self._actor: ActorHandle | None = kind.options(**(actor_options or {})).remote(maxsize)
        self._reached = False

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_reached": False}

    @property
    def actor(self) -> ActorHandle:
        """The actor.

        Raises:
            ActorDiedError: The queue was shut down.
        """
        if self._actor is None:
            raise ActorDiedError(None, details="the queue was shut down; make a new one")
        return self._actor

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """Return how many items there are."""
        count: int = get(self.actor.qsize.remote())
        return count

    def qsize(self) -> int:
        """Return how many items there are."""
        return self.size()

    def empty(self) -> bool:
        """Return whether there are no items."""
        return self.size() == 0

    def full(self) -> bool:
        """Return whether there is no room for another item."""
        return 0 < self.maxsize <= self.size()

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Add an item.

        Args:
            item: The item; of a reference, its value.
            block: Whether to wait for room.
            timeout: Seconds to wait; None is without limit.

        Raises:
            Full: There is no room, and none came in time.
        """
        with self._withdrawn_if_interrupted() as ticket:
            self._reach()
            call = self.actor.offer.remote(item, _patience(block, timeout), ticket)
            if not get(call):
                raise Full

    async def put_async(
        self, item: object, block: bool = True, timeout: float | None = None
    ) -> None:
        """Add an item, for async code. Otherwise like `put`."""
        with self._withdrawn_if_interrupted() as ticket:
            await self._reach_async()
            call = self.actor.offer.remote(item, _patience(block, timeout), ticket)
            if not await call:
                raise Full

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item out.

        Args:
            block: Whether to wait for one.
            timeout: Seconds to wait; None is without limit.

        Raises:
            Empty: There is none, and none came in time.
        """
        with self._withdrawn_if_interrupted() as ticket:
            self._reach()
            call = self.actor.take.remote(_patience(block, timeout), ticket)
            return _item(get(call))

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item out, for async code. Otherwise like `get`."""
        with self._withdrawn_if_interrupted() as ticket:
            await self._reach_async()
            call = self.actor.take.remote(_patience(block, timeout), ticket)
            return _item(await call)

    def put_nowait(self, item: object) -> None:
        """Add an item, or raise `Full` at once."""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """Take the oldest item out, or raise `Empty` at once."""
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[object]) -> None:
        """Add all items, or raise `Full` and add none."""
        if not isinstance(items, Iterable):
            raise ArgumentTypeError(f"put_nowait_batch() takes items, not {items!r}")
        batch = list(items)
        _check_room(get(self.actor.offer_batch.remote(batch)), len(batch), self.maxsize)

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take that many items out, or raise `Empty` and take none."""
        num_items = plain(num_items)
        if not is_whole(num_items):
            raise ArgumentTypeError(f"num_items must be a whole number, not {num_items!r}")
        if num_items < 0:
            raise ConfigError(f"num_items must be 0 or more, not {num_items}")
        return _enough(get(self.actor.take_batch.remote(num_items)), num_items)

    def shutdown(self, force: bool = False, grace_period_s: int = 5) -> None:
        """End the actor, and with it the queue; a second call does nothing.

        Args:
            force: Whether to kill it at once, so that calls that wait fail.
            grace_period_s: Seconds to answer earlier calls before it is killed.
        """
        actor, self._actor = self._actor, None
        if actor is None or not session.is_initialized():
            return
        with contextlib.suppress(EngineError):  # it may be of a session before this one
            if not force:
                wait([actor.end.remote()], timeout=grace_period_s)
            kill(actor)

    def _reach(self) -> None:
        """Wait for a first answer: before it, Ray may begin a call after its withdrawal."""
        if not self._reached:
            self.size()
            self._reached = True

    async def _reach_async(self) -> None:
        if not self._reached:
            await self.actor.qsize.remote()
            self._reached = True

    @contextlib.contextmanager
    def _withdrawn_if_interrupted(self) -> Iterator[bytes]:
        """Withdraw a call whose caller stops waiting: it would take an item that nobody gets.

        The actor does it, not a cancellation: Ray may lose that of an actor's call.
        """
        ticket, actor = secrets.token_bytes(8), self.actor
        try:
            yield ticket
        except (DrayError, Empty, Full):
            raise  # the call has ended
        except BaseException:
            actor.withdraw.remote(ticket)
            raise


class _QueueActor:
    """The actor, with the methods that Ray's has, which programs call as `queue.actor.put.remote`.

    Those that a `Queue` calls return what happened: exceptions would come back as task errors.
    """

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self.queue: asyncio.Queue[object] = asyncio.Queue(maxsize)
        self.waiting: dict[object, asyncio.Future[Any]] = {}
        self.withdrawn: set[bytes] = set()

    async def qsize(self) -> int:
        return self.queue.qsize()

    async def empty(self) -> bool:
        return self.queue.empty()

    async def full(self) -> bool:
        return self.queue.full()

    async def put(self, item: object, timeout: float | None = None) -> None:
        if not await self.offer(item, timeout):
            raise Full

    async def get(self, timeout: float | None = None) -> object:
        return _item(await self.take(timeout))

    async def put_nowait(self, item: object) -> None:
        await self.put(item, 0)

    async def get_nowait(self) -> object:
        return await self.get(0)

    async def put_nowait_batch(self, items: Sequence[object]) -> None:
        _check_room(await self.offer_batch(items), len(items), self.maxsize)

    async def get_nowait_batch(self, num_items: int) -> list[object]:
        return _enough(await self.take_batch(num_items), num_items)

    async def offer(
        self, item: object, patience_s: float | None, ticket: bytes | None = None
    ) -> bool:
        if ticket in self.withdrawn:
            return False
        try:
            if patience_s == 0 or not self.queue.full():
                self.queue.put_nowait(item)
            else:
                await self.until_withdrawn(self.queue.put(item), patience_s, ticket)
        except (asyncio.QueueFull, asyncio.TimeoutError):
            return False
        return True

    async def take(
        self, patience_s: float | None, ticket: bytes | None = None
    ) -> tuple[object, ...]:
        if ticket in self.withdrawn:
            return ()
        try:
            if patience_s == 0 or not self.queue.empty():
                return (self.queue.get_nowait(),)
            return (await self.until_withdrawn(self.queue.get(), patience_s, ticket),)
        except (asyncio.QueueEmpty, asyncio.TimeoutError):
            return ()

    async def until_withdrawn(
        self, operation: Coroutine[Any, Any, Any], patience_s: float | None, ticket: bytes | None
    ) -> Any:
        key = ticket or object()
        waiting = self.waiting[key] = asyncio.ensure_future(operation)
        try:
            await asyncio.wait([waiting], timeout=patience_s)
            if waiting.cancelled() or not waiting.done():
                raise asyncio.TimeoutError
            return waiting.result()
        finally:
            waiting.cancel()
            del self.waiting[key]

    async def withdraw(self, ticket: bytes) -> None:
        if ticket in self.waiting:
            self.waiting[ticket].cancel()
        else:  # on Ray it may come before the call
            self.withdrawn.add(ticket)

    async def offer_batch(self, items: Sequence[object]) -> bool:
        if 0 < self.maxsize < self.queue.qsize() + len(items):
            return False
        for item in items:
            self.queue.put_nowait(item)
        return True

    async def take_batch(self, count: int) -> list[object] | None:
        if self.queue.qsize() < count:
            return None
        return [self.queue.get_nowait() for _ in range(count)]

    async def end(self) -> None:
        exit_actor()


def _check_room(was_there: bool, count: int, maxsize: int) -> None:
    if not was_there:
        raise Full(f"there is no room for {count} more items; {maxsize} are allowed")


def _enough(items: list[object] | None, count: int) -> list[object]:
    if items is None:
        raise Empty(f"there are fewer than {count} items")
    return items


def _patience(block: bool, timeout: float | None) -> float | None:
    if not block:
        return 0
    if timeout is not None and timeout < 0:
        raise ConfigError(f"timeout must be 0 or more seconds, not {timeout!r}")
    return timeout


def _item(found: tuple[object, ...]) -> object:
    if not found:
        raise Empty
    return found[0]
