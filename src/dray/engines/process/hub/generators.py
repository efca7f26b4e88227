"""Streams in the hub: the items of generator tasks, for those who ask for the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.records import Client, Task
from dray.engines.process.hub.tasks import Tasks
from dray.engines.rpc.serialization import is_error


class _Stream:
    """The items of one generator task.

    Attributes:
        items: The numbers of the items so far; the stream holds each until it is gone itself.
        ended: Whether there will be no more.
        read: How many items somebody has asked for.
        sought: What to call when there is an item with an index, or none will come.
        paced: What to call when so many items have been read.
    """

    def __init__(self) -> None:
        self.items: list[int] = []
        self.ended = False
        self.read = 0
        self.sought: list[tuple[int, Callable[[], None]]] = []
        self.paced: list[tuple[int, Callable[[], None]]] = []


class Streams:
    """All streams of a session; a stream has the number of its task."""

    def __init__(self, hub: Hub, tasks: Tasks) -> None:
        self._hub = hub
        self._tasks = tasks
        self._streams: dict[int, _Stream] = {}
        tasks.begin_stream = self._begin
        tasks.end_stream_with = self._end_with
        tasks.on_stream_over = self._over
        hub.has_item = self._has_item
        hub.when_item = self._when_item
        hub.forget_item = self._forget_item
        hub.serve(self)

    def _begin(self, task: Task) -> None:
        """Make the stream of a task that was just accepted."""
        stream = self._streams[task.number] = _Stream()

        def unused() -> None:
            self._streams.pop(task.number, None)
            for number in stream.items:
                self._hub.store.drop(number)
            _call_all(stream.paced)  # nobody will read: nothing to wait for

        self._hub.store.find(task.number).on_unused = unused

    def on_item(
        self, client: Client, task_number: int, index: int, number: int, payload: Any, nested: Any
    ) -> None:
        """A generator has yielded."""
        task = self._tasks.running.get(task_number)
        self._hub.store.add(number)
        self._hub.store.seal(number, self._hub.arrived(client, payload), nested)
        stream = self._streams.get(task_number)
        if task is None or stream is None or index != len(stream.items):
            self._hub.store.drop(number)  # nobody wants it, or it was there before a retry
            return
        if task.items is not None:
            task.items.append(number)
        stream.items.append(number)
        self._tell(stream)

    def on_next(self, client: Client, question: int, number: int, index: int) -> None:
        """A process wants the item with this index."""
        if self._has_item(number, index):
            self._give(client, question, number, index)
            return

        def came() -> None:
            if end():
                self._give(client, question, number, index)

        def give_up() -> None:
            self._forget_item(number, came)
            self._hub.reply(client, question, None)

        end = self._hub.ask_until(client, question, give_up)
        self._when_item(number, index, came)

    def _give(self, client: Client, question: int, number: int, index: int) -> None:
        stream = self._streams.get(number)
        if stream is None or index >= len(stream.items):
            self._hub.reply(client, question, None)
            return
        stream.read = max(stream.read, index + 1)
        self._hub.give(client, stream.items[index])
        self._hub.reply(client, question, stream.items[index])
        ready = [callback for count, callback in stream.paced if count <= stream.read]
        stream.paced = [entry for entry in stream.paced if entry[0] > stream.read]
        for callback in ready:
            callback()

    def on_pace(self, client: Client, question: int, number: int, count: int) -> None:
        """A generator goes on when so many of its items have been read."""
        stream = self._streams.get(number)
        if stream is None or stream.read >= count:
            self._hub.reply(client, question, None)
            return

        def answer() -> None:
            self._hub.reply(client, question, None)

        def go_on() -> None:
            if end():
                answer()

        end = self._hub.ask_until(client, question, answer)
        stream.paced.append((count, go_on))

    def _has_item(self, number: int, index: int) -> bool:
        stream = self._streams.get(number)
        return stream is None or stream.ended or index < len(stream.items)

    def _when_item(self, number: int, index: int, callback: Callable[[], None]) -> None:
        self._streams[number].sought.append((index, callback))

    def _forget_item(self, number: int, callback: Callable[[], None]) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            stream.sought = [entry for entry in stream.sought if entry[1] is not callback]

    def _tell(self, stream: _Stream) -> None:
        count = len(stream.items)
        ready = [callback for index, callback in stream.sought if stream.ended or index < count]
        stream.sought = [e for e in stream.sought if not (stream.ended or e[0] < count)]
        for callback in ready:
            callback()

    def _end_with(self, task: Task, payload: Any) -> None:
        """The task failed: the error is the last item, and raises when it is got."""
        stream = self._streams.get(task.number)
        if stream is None or stream.ended or not is_error(payload):
            return
        number = -task.number  # no process gives such numbers
        self._hub.store.add(number)
        self._hub.store.seal(number, payload)
        stream.items.append(number)

    def _over(self, task: Task) -> None:
        stream = self._streams.get(task.number)
        if stream is not None:
            stream.ended = True
            self._tell(stream)
            _call_all(stream.paced)


def _call_all(entries: list[tuple[int, Callable[[], None]]]) -> None:
    todo = entries[:]
    entries.clear()
    for _, callback in todo:
        callback()
