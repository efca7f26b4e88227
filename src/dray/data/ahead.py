"""Reading ahead: a thread that makes the next items while the program uses the current one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Channel(Generic[T]):
    """A queue of limited size between two threads; either side may close it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None

    def wait_for_room(self) -> bool:
        """Wait for room; return False if the other side has closed the queue."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._size or self._closed)
            return not self._closed

    def put(self, item: T) -> None:
        """Add an item; there must be room for it."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def close(self, error: BaseException | None = None) -> None:
        """Accept no more items; after the remaining items, the reading thread gets the error."""
        with self._changed:
            self._closed, self._error = True, error
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._closed)
                if not self._items:
                    break
                item = self._items.popleft()
                self._changed.notify_all()
            yield item
        if self._error is not None:
            raise self._error


def read_ahead(items: Iterable[T], number: int, waited: Callable[[float], object]) -> Iterator[T]:
    """Yield items; a thread makes `number` of them ahead, or this thread if `number` is 0.

    Args:
        waited: Called with the seconds that this thread waited for each item.
    """
    if number < 1:
        yield from _timed(items, waited)
        return
    channel: _Channel[T] = _Channel(number)
    thread = threading.Thread(target=_fill, args=(channel, items), name="dray-data", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started: this one makes them
        yield from _timed(items, waited)
        return
    try:
        yield from _timed(channel, waited)
    finally:
        channel.close()
        thread.join()


def _fill(channel: _Channel[T], items: Iterable[T]) -> None:
    try:
        made = iter(items)
        while channel.wait_for_room():  # before making an item, to hold no more in memory
            channel.put(next(made))
    except StopIteration:
        channel.close()
    except BaseException as error:  # noqa: BLE001 (the reading thread raises it)
        channel.close(error)


def _timed(items: Iterable[T], waited: Callable[[float], object]) -> Iterator[T]:
    left = iter(items)
    while True:
        begun = time.perf_counter()
        try:
            item = next(left)
        except StopIteration:
            return
        finally:
            waited(time.perf_counter() - begun)
        yield item
