"""The table of the tasks and calls that have not ended: what they wait for, and what they hold.

Invariants:

- `running` has every task and call from `accept` to `close`, waiting or not. Each is closed exactly
  once, and `over` says so. Everything that it holds (its function, arguments, their regions, its
  children's entries) is given back there and nowhere else.
- `close` comes before the results are sealed with an error, because the tasks that depend on them
  end in the same step and must not find this task waiting.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Sequence

from dray.engines.process.hub.generators import Streams
from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.records import Client, Task
from dray.engines.process.hub.timeline import Timeline
from dray.engines.rpc.serialization import SPILLED, STORED, Payload, is_error


class TaskTable:
    """Tasks, and calls of actors, from their submission to their end.

    Args:
        enqueue: Queues a task that waits for no arguments; a call's actor hears of it itself.

    Attributes:
        running: By number; also those that wait.
        children: By the number of who has submitted them.
        cancelling: By the number of a call that is cancelled, who has done so, with the question.
    """

    def __init__(self, hub: Hub, streams: Streams, enqueue: Callable[[Task], None]) -> None:
        self._hub = hub
        self._streams = streams
        self._enqueue = enqueue
        self.running: dict[int, Task] = {}
        self.children: dict[int, dict[int, Task]] = {}
        self.cancelling: dict[int, list[tuple[Client, int]]] = {}
        self.timeline = Timeline(self.running)
        self._makers: dict[int, Task] = {}  # of tasks with several results
        self._ending: deque[tuple[Task, Payload, Sequence[int]]] = deque()
        self._is_ending = False

    def accept(self, task: Task) -> None:
        """Take in a task or an actor's call; count what it has to wait for."""
        hub, store = self._hub, self._hub.store
        hub.own(task.client, task.results)
        if task.returns == "streaming":
            self._streams.begin(task)
        kind = task.kind
        if not kind.tasks:
            store.hold(kind.number)
        kind.tasks += 1
        for number in (*task.deps, *task.nested):
            store.hold(number)
        payload = task.payload
        if type(payload) is tuple:
            hub.arrived(task.client, payload)
            if payload[0] == STORED:
                store.pin(payload[1])
        self.running[task.number] = task
        actor = task.actor
        if actor is not None and actor.most_pending > 0 and task.details is not None:
            actor.count_calls(task.client, 1)
        task.since = time.monotonic()
        if task.parent is not None:
            self.children.setdefault(task.parent, {})[task.number] = task
            parent = self.running.get(task.parent)
            if parent is not None:
                task.depth = parent.depth + (parent.actor is None)  # an actor lends nothing
        for number in task.results[1:]:
            self._makers[number] = task
        for number in task.deps:
            if not store.when_ready(number, functools.partial(self._came, task)):
                task.unready += 1
            elif not task.over and is_error((found := store.find(number)).payload):
                self.end(task, found.payload, found.nested)
                return

    def _came(self, task: Task, number: int) -> None:
        task.unready -= 1
        if task.over:
            return
        found = self._hub.store.find(number)
        if is_error(found.payload):
            self.end(task, found.payload, found.nested)
        elif not task.unready:
            if task.actor is None:
                self._enqueue(task)
            else:
                task.actor.calls.on_call_ready(task)

    def maker_of(self, number: int) -> Task | None:
        """Return the task or call that makes a result, unless it is over."""
        return self.running.get(number) or self._makers.get(number)

    def end(self, task: Task, payload: Payload, nested: Sequence[int] = ()) -> None:
        """End a task or call with an error, and then what depends on it, however long the chain.

        Args:
            nested: The objects that the error refers to.
        """
        for number in nested:
            self._hub.store.hold(number)
        self._ending.append((task, payload, nested))
        if self._is_ending:
            return
        self._is_ending = True
        try:
            while self._ending:
                task, payload, nested = self._ending.popleft()
                self._end_one(task, payload, nested)
                for number in nested:
                    self._hub.store.drop(number)
        finally:
            self._is_ending = False

    def _end_one(self, task: Task, payload: Payload, nested: Sequence[int]) -> None:
        if task.over:
            return
        if task.returns == "streaming":
            self._streams.end_with(task, payload, nested)
        self.close(task)  # first: what depends on it must not find it waiting
        self._hub.fail(task.results, payload, nested)
        if task.actor is not None:
            task.actor.calls.on_call_over(task, payload, nested)

    def close(self, task: Task) -> None:
        """Take a task or call out of the table."""
        if task.over:
            return
        task.over = True
        if task.cancelled:
            self.acknowledge_cancel(task.number)
        store = self._hub.store
        self.running.pop(task.number, None)
        actor = task.actor
        if actor is not None and actor.most_pending > 0 and task.details is not None:
            actor.count_calls(task.client, -1)
        if task.parent is not None:
            siblings = self.children.get(task.parent, {})
            siblings.pop(task.number, None)
            if not siblings:
                self.children.pop(task.parent, None)
        for number in task.results[1:]:
            self._makers.pop(number, None)
        kind = task.kind
        kind.tasks -= 1
        if not kind.tasks:
            store.drop(kind.number)
        for number in (*task.deps, *task.nested):
            store.drop(number)
        payload, task.payload = task.payload, None
        if type(payload) is tuple and payload[0] == STORED:
            store.unpin(payload[1])
        elif type(payload) is tuple and payload[0] == SPILLED:
            store.free_disk(payload)
        if task.returns == "streaming":
            self._streams.end(task)

    def acknowledge_cancel(self, number: int) -> None:
        """Answer who has cancelled a call: it will not begin any more, nor wait for readers."""
        self._streams.hold_up_no_more(number)
        for client, question in self.cancelling.pop(number, ()):
            self._hub.reply(client, question, None)
