"""Streams in the hub: the items of generator tasks, in order, for the processes that read them.

A stream begins with its task, has the task's number, and lives as long as a reference to it. It
holds the items that its only reader has not passed. While there is another reference (in another
process, an argument or a value that contains the generator), the stream holds all items from there
on. So a reader may start late, several may read, and a reader that runs again reads again. An error
is the last item, and is raised when that is read. If the task runs again, it yields all items anew,
and the stream drops those that it has or has had.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.records import Client, Task
from dray.engines.rpc.serialization import Payload, is_error

# A number that no object has: who gets it is told that it is gone.
_GONE = 0
# Added to a task's number, it is that of its error as an item; no process gives such numbers.
_ERROR = 1 << 80


class _Stream:
    """The items of one generator task.

    Attributes:
        task: The task that yields them; None when there will be no more.
        items: The numbers of the items that it holds.
        passed: Number of items before these.
        read: Number of items asked for; infinite if the task waits for no reader any more.
        sought: Callbacks for an item with an index, or for the end.
        paced: Callbacks for a number of items read.
    """

    def __init__(self, task: Task) -> None:
        self.task: Task | None = task
        self.items: deque[int] = deque()
        self.passed = 0
        self.read: float = 0
        self.sought: list[tuple[int, Callable[[], None]]] = []
        self.paced: list[tuple[int, Callable[[], None]]] = []

    @property
    def count(self) -> int:
        return self.passed + len(self.items)

    def has(self, index: int) -> bool:
        """Return whether there is an item with this index, or none will come."""
        return self.task is None or index < self.count

    def read_to(self, count: float) -> None:
        """Let the task go on as far as it may once so many items are read."""
        self.read = max(self.read, count)
        _call_due(self.paced, lambda wanted: wanted <= self.read)


class Streams:
    """All streams of a session."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._streams: dict[int, _Stream] = {}

    def begin(self, task: Task) -> None:
        """Make the stream of a task that was just accepted."""
        stream = self._streams[task.number] = _Stream(task)

        def unused() -> None:
            self._streams.pop(task.number, None)
            for number in stream.items:
                self._hub.store.drop(number)
            stream.read_to(math.inf)  # nobody will read: nothing to wait for

        self._hub.store.when_unused(task.number, unused)

    def on_item(
        self,
        client: Client,
        task_number: int,
        index: int,
        number: int,
        payload: Payload,
        nested: Sequence[int],
    ) -> None:
        self._hub.store.add(number)
        self._hub.store.seal(number, self._hub.arrived(client, payload), nested)
        stream = self._streams.get(task_number)
        if stream is None or stream.task is None or index != stream.count:
            self._hub.store.drop(number)  # nobody wants it, or it was there before a retry
            return
        stream.items.append(number)
        _call_due(stream.sought, stream.has)

    def take(self, client: Client, number: int, index: int) -> int | None:
        """Give a process an item that is there; return its number, or None at the end."""
        stream = self._streams.get(number)
        if stream is None or index >= stream.count:
            return None
        if index < stream.passed:
            return _GONE  # another thread has read on with the same generator
        item = stream.items[index - stream.passed]
        self._hub.give(client, item)
        stream.read_to(index + 1)
        return item

    def on_passed(self, client: Client, number: int, index: int) -> None:
        stream = self._streams.get(number)
        if stream is None or not self._hub.is_only_holder(client, number):
            return
        while stream.items and stream.passed < index:
            stream.passed += 1
            self._hub.store.drop(stream.items.popleft())

    def exists(self, number: int) -> bool:
        return number in self._streams

    def is_read(self, number: int, count: int) -> bool:
        """Return whether so many items have been read, or nobody will read."""
        stream = self._streams.get(number)
        return stream is None or stream.read >= count

    def when_read(self, number: int, count: int, callback: Callable[[], None]) -> None:
        """Call back when so many items of a stream have been read."""
        self._streams[number].paced.append((count, callback))

    def hold_up_no_more(self, number: int) -> None:
        """Let a task go on without its readers: it knows that it is to end."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.read_to(math.inf)

    def has_item(self, number: int, index: int) -> bool:
        stream = self._streams.get(number)
        return stream is None or stream.has(index)

    def when_item(self, number: int, index: int, callback: Callable[[], None]) -> None:
        """Call back when a stream has that item, or has ended."""
        self._streams[number].sought.append((index, callback))

    def forget_item(self, number: int, callback: Callable[[], None]) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            stream.sought = [entry for entry in stream.sought if entry[1] is not callback]

    def end_with(self, task: Task, payload: Payload, nested: Sequence[int]) -> None:
        """Give a stream the error of its task as its last item."""
        stream = self._streams.get(task.number)
        if stream is None or stream.task is None or not is_error(payload):
            return
        number = _ERROR + task.number
        self._hub.store.add(number)
        self._hub.store.seal(number, payload, nested)
        stream.items.append(number)

    def end(self, task: Task) -> None:
        """Let nobody wait any more: nothing more will come."""
        stream = self._streams.get(task.number)
        if stream is not None:
            stream.task = None
            _call_due(stream.sought, stream.has)
            stream.read_to(math.inf)


def _call_due(entries: list[tuple[int, Callable[[], None]]], is_due: Callable[[int], bool]) -> None:
    """Take out the entries whose number is due, and call back."""
    due = [callback for number, callback in entries if is_due(number)]
    entries[:] = [entry for entry in entries if not is_due(entry[0])]
    for callback in due:
        callback()
