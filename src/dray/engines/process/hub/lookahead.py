"""Short tasks that are sent ahead to a worker that still runs another one.

If the driver sends a worker its next task only after the last one has ended, that costs two
switches between processes, more than the rest of a short task. So a worker whose tasks are short
gets some more tasks of the same kind. They run one after the other, as if they had been sent one by
one.

None of them may be stuck behind a task that takes long, waits, or holds resources that another
request needs. In these cases they are recalled. The worker's control thread receives the recall at
once, whatever the main thread does, and reports for each task whether it had begun. Tasks that had
not begun return to the front of their queue. Both ends count the dispatches of a worker, so that
they cannot confuse two dispatches.

A task is sent ahead only if it has nothing to return when it is recalled: its arguments are in its
message, it waits for no object, has no devices, and its process runs many calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dray.engines.process.hub.records import SchedulingClass, Task, WorkerProcess
from dray.engines.rpc import wire
from dray.engines.rpc.framing import Message, encode

# Seconds within which a task is a short one.
_SHORT_S = 0.005
# Seconds after which it turns out not to be one, even if it was preempted.
LATE_S = 0.05
# So many are sent ahead at most, and no more than this part of those that wait: others want some.
_MOST = 16
_PART = 8


@dataclass(eq=False)
class Lookahead:
    """Sends tasks ahead, and recalls them.

    Attributes:
        messages_of: Returns what tells a worker of a task.
        tell: Has a worker hear something while it works.
    """

    messages_of: Callable[[Task, WorkerProcess, Message], list[Message]]
    send: Callable[[WorkerProcess, bytes], None]
    tell: Callable[[WorkerProcess, int], None]

    def began(self, task: Task, worker: WorkerProcess, now: float) -> None:
        """Take note that a worker is at a task, as far as is known here."""
        worker.task, worker.since, worker.kind = task, now, task.kind

    def dispatched(self, task: Task, worker: WorkerProcess) -> None:
        """Count a task that is about to be sent to a worker."""
        worker.dispatches += 1
        task.dispatch = worker.dispatches
        task.worker = worker
        task.attempt += 1

    def next(self, done: Task, worker: WorkerProcess, now: float) -> bool:
        """Go on to what was sent ahead, if anything was; a task was done."""
        done.kind.short = now - worker.since < _SHORT_S
        if not worker.ahead:
            return False
        self.began(worker.ahead.popleft(), worker, now)
        return True

    def refill(self, worker: WorkerProcess) -> None:
        """Send more ahead, if the worker's tasks are short and it has few."""
        task, shape, ahead = worker.task, worker.shape, worker.ahead
        if task is None or shape is None or not task.kind.short or len(ahead) > _MOST // 2:
            return
        waiting = shape.waiting
        room = min(_MOST, len(waiting) // _PART) - len(ahead)
        if room <= 0 or worker.client.blocked or not _is_plain(worker, task):
            return
        self.recall_late(shape, worker.since)
        messages: list[Message] = []
        while room > 0 and waiting and waiting.first.kind is task.kind and _is_light(waiting.first):
            after = waiting.popleft()
            if after.over:
                continue
            self.dispatched(after, worker)
            ahead.append(after)
            messages += self.messages_of(after, worker, ("run", None))
            room -= 1
        if messages:
            shape.followed.add(worker)
            self.send(worker, encode(messages))

    def is_ahead(self, task: Task) -> bool:
        """Return whether a task was sent ahead, and the one before it is not known to be done."""
        return task.worker is not None and task.actor is None and task.worker.task is not task

    def recall(self, tasks: Iterable[Task]) -> None:
        """Ask for tasks that were sent ahead; `Tasks.on_recalled` hears what becomes of each."""
        for task in tasks:
            assert task.worker is not None
            self.tell(task.worker, wire.RECALLED | task.dispatch)

    def recall_all(self, worker: WorkerProcess) -> None:
        if worker.shape is not None and worker in worker.shape.followed:
            worker.shape.followed.discard(worker)
            self.recall(worker.ahead)

    def recall_some(self, shape: SchedulingClass) -> None:
        """Recall what was sent ahead to one worker of a class: another one has nothing to do."""
        busiest = max(shape.followed, key=lambda worker: len(worker.ahead), default=None)
        if busiest is not None:
            self.recall_all(busiest)

    def recall_late(self, shape: SchedulingClass, now: float) -> None:
        """Recall what was sent ahead behind tasks that have turned out not to be short."""
        for worker in [other for other in shape.followed if now - other.since > LATE_S]:
            self.recall_all(worker)

    def take_back(self, worker: WorkerProcess, dispatch: int) -> Task | None:
        """Take a task away from a worker that will not run it; return it, unless it is over."""
        task = worker.task
        if task is not None and task.dispatch == dispatch:
            worker.task = worker.ahead.popleft() if worker.ahead else None
        else:
            task = next((task for task in worker.ahead if task.dispatch == dispatch), None)
            if task is None:
                return None
            worker.ahead.remove(task)
        task.worker = None
        task.attempt -= 1
        return task

    def left_behind(self, worker: WorkerProcess) -> list[Task]:
        """Return what a worker that is gone had not begun, in the order in which it was sent."""
        if worker.shape is not None:
            worker.shape.followed.discard(worker)
        tasks = list(worker.ahead)
        worker.ahead.clear()
        for task in tasks:
            task.worker = None
            task.attempt -= 1
        return tasks


def _is_plain(worker: WorkerProcess, task: Task) -> bool:
    """Return whether a worker goes on with other tasks as it was with this one."""
    has_devices = worker.lease is None or worker.lease.devices[0]
    return not has_devices and not task.kind.options["max_calls"]


def _is_light(task: Task) -> bool:
    """Return whether a task takes nothing that would have to be given back if it is recalled."""
    return type(task.payload) is bytes and not task.deps and type(task.returns) is int


def later(delay_s: float, task: Callable[[], None]) -> None:
    """Do something in a while, in a thread of its own; at once, if there is room for none."""
    timer = threading.Timer(delay_s, task)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:
        task()
