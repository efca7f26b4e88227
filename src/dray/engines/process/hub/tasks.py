"""Tasks in the hub: from the call over the queue of their class to a worker, and results back.

    submitted -> waits for arguments -> in the queue of its class -> on a worker -> over
                                              ^------- runs again -------|

Tasks that request the same resources, runtime environment and place belong to one scheduling class
(`SchedulingClass`), and any of them can take another's place. So there is at most one request in
the ledger for each class (`asked`), not one for each task. The grant goes to the first task of the
queue, with an idle worker or a new one. A worker that has finished a task takes the next task of
its queue with the resources that it has (`left`). So between two tasks of one kind there is one
message each way, or less if they are short (`lookahead.py`), and no call of the ledger. The worker
gives up its resources only when the queue is empty or another request needs them, so no class
starves another.

A task that waits for others' work lends its CPUs (`release_cpus`). When the work is done it gets
them back at once (`reacquire_cpus`), even if too many are then in use for a while. So a task that
waits for its own children can never keep them from running. Children go before tasks of less depth:
if further parents began first, each would keep a process that waits.

Invariants:

- A result is sealed once; the first one counts. A worker's answer is accepted only while the task
  is on that worker (`task.worker is worker`): a task that was lost and runs again is on another.
- A task runs again when its worker dies or it raises an error that may be retried, as often as
  `retries` says, but never after it was cancelled. A generator that has yielded runs again only
  after a death.
- If a cancelled task returns all the same, its result counts; that of an actor's call does not.
- Calls of actors are in the same table (`task_table.py`) for arguments, results, cancelling and
  ends. `actors.py` decides when each of them runs; it is told as the `CallListener` of the actor's
  record.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence

from dray.engines.process.hub.functions import FunctionTable
from dray.engines.process.hub.generators import Streams
from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.lookahead import LATE_S, Lookahead, later
from dray.engines.process.hub.records import (
    Client,
    Grant,
    SchedulingClass,
    Task,
    WorkerProcess,
)
from dray.engines.process.hub.task_table import TaskTable
from dray.engines.process.hub.worker_pool import Pool
from dray.engines.rpc.framing import Message, encode
from dray.engines.rpc.serialization import Payload, Result, failed, in_place_of, is_error
from dray.engines.runtime import NOT_BY_FORCE, ReturnCount
from dray.engines.thread_limits import threads_for
from dray.errors import (
    ConfigError,
    EngineError,
    GroupRemovedError,
    TaskCancelledError,
    WorkerDiedError,
)
from dray.scheduling.ledger import Held, Ledger
from dray.scheduling.requests import Node, Reservation

# Returns what limits a process to devices of a node, beside the variables that its user sets.
Variables = Callable[
    [Mapping[str, tuple[str, ...]], Node, Mapping[str, str]], dict[str, str | None]
]


class Tasks:
    """Runs tasks on workers.

    Args:
        tell_cancelled: Has a worker hear, while it works, what is cancelled.
    """

    def __init__(
        self,
        hub: Hub,
        streams: Streams,
        ledger: Ledger,
        pool: Pool,
        send: Callable[[WorkerProcess, bytes], None],
        stop: Callable[[WorkerProcess], None],
        tell_cancelled: Callable[[WorkerProcess, int], None],
        variables: Variables,
    ) -> None:
        self._variables = variables
        self.hub = hub
        self.ledger = ledger
        self.pool = pool
        self.send = send
        self.stop = stop
        self._tell_cancelled = tell_cancelled
        self._ahead = Lookahead(self.messages_of, send, tell_cancelled)
        self.kinds = FunctionTable(hub, ledger, self._forget_function)
        self.table = TaskTable(hub, streams, self.enqueue)

    # From the call to the queue.

    def on_submit(
        self,
        client: Client,
        key: bytes,
        number: int,
        numbers: Sequence[int],
        payload: Payload,
        deps: Sequence[int],
        nested: Sequence[int],
        returns: ReturnCount,
        parent: int | None,
    ) -> None:
        kind = self.kinds.all[key]
        task = Task(number, kind, numbers, payload, deps, nested, returns, client, parent)
        task.retries = kind.options["max_retries"]
        self.table.accept(task)
        if not task.unready and not task.over:
            self.enqueue(task)

    def enqueue(self, task: Task) -> None:
        """Put a task into the queue of its shape, unless its group was removed."""
        shape = task.kind.shape
        if shape.removed:
            self.table.end(task, group_removed(task, shape.removed))
            return
        if shape.infeasible is not None:
            self.table.end(task, failed(shape.infeasible))
            return
        shape.waiting.append(task)
        if not shape.asked:
            self.pump(shape)

    def pump(self, shape: SchedulingClass) -> None:
        """Take up resources that were set aside, or ask for some, if the queue needs them."""
        if shape.asked or not (shape.waiting or shape.followed):
            return
        while shape.aside:
            held = shape.aside.pop()
            if held.take_up():
                self._granted(shape, held)
                return
        shape.asked = shape.ledger.reserve_checked(shape.demand)
        self.hub.when_granted(shape.asked, functools.partial(self._granted, shape))

    def _granted(self, shape: SchedulingClass, held: Reservation) -> None:
        assert isinstance(held, Held)
        shape.asked = None
        shape.waiting.skip_over(self.table.running)
        if not shape.waiting:
            self._ahead.recall_some(shape)
            held.release()
            return
        if self._begin(shape, held):
            self.pump(shape)

    def _withdraw(self, shape: SchedulingClass) -> None:
        """Take back what was asked for, unless a task needs it: it would hold up others."""
        shape.waiting.skip_over(self.table.running)
        needed = shape.waiting or shape.followed
        if shape.asked is not None and not needed and shape.asked.cancel():
            shape.asked = None

    def _begin(self, shape: SchedulingClass, held: Held) -> bool:
        """Run the first of a queue on a worker; return whether to ask for the next."""
        task = shape.waiting.popleft()
        counted = task.kind.key if self._most_calls(task) else None
        try:
            worker = self.pool.take(held.nodes[0], shape.runtime_env, counted=counted)
        except Exception as error:  # noqa: BLE001 (whatever it is, the task must not hang)
            held.release()
            if counted is None and self._has_workers(shape):
                shape.waiting.appendleft(task)  # the first that is done takes it
                return False
            why = f"{task.title} has no worker process: {error}"
            self.table.end(task, failed(EngineError(why)))
            return True
        worker.lease, worker.shape = held, shape
        worker.client.blocked = 0
        worker.client.turn += 1
        self._run(task, worker)
        return True

    def _has_workers(self, shape: SchedulingClass) -> bool:
        """Return whether workers are at work on a queue, and wait for nothing of it."""
        return any(
            worker.shape is shape and worker.task is not None and not worker.client.blocked
            for worker in self.pool.all.values()
        )

    def _most_calls(self, task: Task) -> int:
        """Return after how many calls the task's process is replaced; 0 is never."""
        most: int = task.kind.options["max_calls"]
        return most

    def _run(self, task: Task, worker: WorkerProcess) -> None:
        self._ahead.began(task, worker, time.monotonic())
        self._ahead.dispatched(task, worker)
        self.dispatch(task, worker, ("run", self.grant(worker.lease, task.kind.shape)))

    def grant(self, lease: Held | None, shape: SchedulingClass) -> Grant | None:
        """Return the ids of a worker's accelerators, and their variables; None for none.

        Variables that a runtime environment sets itself stay as they are.
        """
        if lease is None or not lease.devices[0]:
            return None
        own = dict(shape.runtime_env[0])
        return lease.devices[0], self._variables(lease.devices[0], lease.nodes[0], own)

    def dispatch(self, task: Task, worker: WorkerProcess, head: Message) -> None:
        self.send(worker, encode(self.messages_of(task, worker, head)))

    def messages_of(self, task: Task, worker: WorkerProcess, head: Message) -> list[Message]:
        """Return what tells a worker of a task or call."""
        hub, kind, client = self.hub, task.kind, worker.client
        messages: list[Message] = []
        if worker.forgotten:
            messages.append(("forget", worker.forgotten))
            worker.forgotten = []
        if kind.key not in worker.known and head[0] != "call":
            worker.known.add(kind.key)
            shape = kind.shape
            info = {
                "name": kind.name,
                "resources": dict(shape.resources),
                "group": shape.group,
                "captures": shape.capture,
                "runtime_env": kind.options["runtime_env"].as_dict(),
                "retry_exceptions": kind.options.get("retry_exceptions", False),
                "threads": threads_for(shape.resources),
                "most_unread": kind.options.get("most_unread", 0),
            }
            messages.append(("kind", kind.key, kind.what, kind.blob, info))
        payload = task.payload
        if type(payload) is tuple:
            hub.pin_for(client, payload)
        deps = [hub.pin_for(client, hub.store.find(number).payload) for number in task.deps]
        messages.append((*head, task.number, kind.key, payload, deps, task.returns, task.details))
        return messages

    def _forget_function(self, key: bytes) -> None:
        """Have workers forget a function, when they are sent something next."""
        for worker in self.pool.all.values():
            if key in worker.known:
                worker.known.discard(key)
                worker.forgotten.append(key)
                if worker.task is None:
                    worker.calls.pop(key, None)  # or it would rest for nobody

    # From the worker to the results.

    def on_done(self, client: Client, number: int, values: Sequence[Result]) -> None:
        task = self.table.running.get(number)
        worker = client.worker
        if task is not None and task.worker is worker:
            if task.cancelled and task.actor is not None:
                self.table.end(task, self.cancelled(task))
                for payload, _ in values:
                    self.hub.free_room(client, payload)
            else:
                for result, (payload, nested) in zip(task.results, values, strict=True):
                    self.hub.store.seal(result, self.hub.arrived(client, payload), nested)
                self.table.close(task)
        self.left(number, worker)

    def on_raised(
        self,
        client: Client,
        number: int,
        payload: Payload,
        nested: Sequence[int],
        retriable: bool,
        values: Sequence[Result],
    ) -> None:
        task = self.table.running.get(number)
        worker = client.worker
        if task is not None and task.worker is worker:
            if task.cancelled:
                self.table.end(task, self.cancelled(task, payload))
            elif retriable and task.retries:
                task.retries -= 1
                self._again(task)
            else:
                for result, (value, inner) in zip(task.results, values, strict=False):
                    self.hub.store.seal(result, self.hub.arrived(client, value), inner)
                self.table.end(task, payload, nested)
        for value, _ in values:
            self.hub.free_room(client, value)  # unless it has become a result
        self.left(number, worker)

    def _again(self, task: Task) -> None:
        task.worker = None
        if task.actor is None:
            self.enqueue(task)
        else:
            task.actor.running.pop(task.number, None)
            task.actor.waiting.appendleft(task)

    def left(self, number: int, worker: WorkerProcess | None) -> None:
        """A worker is done with a task; it gets the next one, or rests."""
        if worker is None:
            return
        if worker.actor is not None:
            worker.actor.calls.on_call_left(number, worker)
            return
        shape, done = worker.shape, worker.task
        worker.task = None
        if shape is None or done is None or worker.doomed:
            return
        now = time.monotonic()
        if self._ahead.next(done, worker, now):
            if shape.ledger.contended(shape.demand):
                self._ahead.recall_all(worker)
            else:
                self._ahead.refill(worker)
            return
        shape.followed.discard(worker)
        self._ahead.recall_late(shape, now)
        key, most = done.kind.key, self._most_calls(done)
        if most:
            calls = worker.calls.pop(key, 0) + 1
            if key in self.kinds.all:  # else nobody can call it any more
                worker.calls[key] = calls
            if calls >= most:
                self.retire(worker)  # the resources are free when the process is gone
                return
        shape.waiting.skip_over(self.table.running)
        if shape.waiting and not worker.client.blocked:
            first = shape.waiting.first
            fits = not self._most_calls(first) or done.kind is first.kind
            if fits and not shape.ledger.contended(shape.demand):
                self._run(shape.waiting.popleft(), worker)
                self._ahead.refill(worker)
                return
        self.rest(worker)
        self.pump(shape)

    def on_recalled(self, client: Client, dispatch: int, given_back: bool) -> None:
        worker = client.worker
        if worker is None:
            return
        shape, task = worker.shape, worker.task
        if shape is None:
            return
        if given_back:
            self._put_back(self._ahead.take_back(worker, dispatch), shape)
            if worker.task is None and not worker.doomed:  # that was all that it had
                self.rest(worker)
        elif task is not None and task.dispatch == dispatch and task.cancelled:
            self._end_running(task, worker)
        self.pump(shape)

    def _put_back(self, task: Task | None, shape: SchedulingClass) -> None:
        """Put a task that was sent ahead, and has not begun, to the front of its queue."""
        if task is not None and task.cancelled:
            self.table.end(task, self.cancelled(task))
        elif task is not None:
            shape.waiting.appendleft(task)

    def rest(self, worker: WorkerProcess) -> None:
        """Take a worker's resources back, and keep it for later."""
        lease, shape, worker.lease, worker.shape = worker.lease, worker.shape, None, None
        surplus = self.pool.give_back(worker)
        if surplus is not None:
            self.retire(surplus)
        if lease is None:
            return
        if shape is None or shape.demand.strategy == "SPREAD" or not lease.set_aside():
            lease.release()  # to be spread, the next one goes to another node
        else:
            shape.aside.append(lease)

    def retire(self, worker: WorkerProcess) -> None:
        """Ask a worker to end."""
        self.send(worker, encode(("stop",)))

    # Waiting.

    def release_cpus(self, worker: WorkerProcess) -> None:
        """Let others use the CPUs of a worker that waits."""
        self._ahead.recall_all(worker)
        if worker.lease is not None:
            worker.lease.release_cpus()
        if worker.shape is not None:
            self.pump(worker.shape)  # the queue may have counted on this one

    def reacquire_cpus(self, worker: WorkerProcess) -> None:
        """Have a worker's CPUs counted again: it has what it waited for."""
        if worker.lease is not None:
            worker.lease.reacquire_cpus()

    # Ends.

    def on_worker_gone(self, worker: WorkerProcess, error: EngineError) -> None:
        """A worker's process has ended, or was not started; what it ran runs again, or fails."""
        task, worker.task = worker.task, None
        lease, worker.lease = worker.lease, None
        shape = worker.shape
        if lease is not None:
            lease.release()
        if task is not None and not task.over:
            if task.cancelled:
                self.table.end(task, self.cancelled(task))
            elif not isinstance(error, WorkerDiedError):
                why = EngineError(f"{task.title} has no worker process: {error}")
                self.table.end(task, failed(why))
            elif task.retries:
                task.retries -= 1
                self._again(task)
            else:
                self.table.end(task, failed(self._died(task, worker, error)))
        if shape is not None:
            for waiting in reversed(self._ahead.left_behind(worker)):
                self._put_back(waiting, shape)
            self.pump(shape)

    def _died(self, task: Task, worker: WorkerProcess, error: WorkerDiedError) -> WorkerDiedError:
        tries = "; set max_retries to have it run again"
        if task.attempt > 1:
            tries = f" in attempt {task.attempt}, the last that max_retries allows"
        return type(error)(
            error.exitcode,
            out_of_memory=error.out_of_memory,
            details=f"{task.title} (pid {worker.pid}, node {worker.node.node_id}) did not finish: "
            f"{error}{tries}",
        )

    def cancelled(self, task: Task, raised: Payload = b"") -> Payload:
        """Return the error of a task or call that was cancelled, in place of what it has raised."""
        error = TaskCancelledError(f"{task.title} was cancelled")
        return in_place_of(raised, error) if is_error(raised) else failed(error)

    def on_cancel(
        self, client: Client, question: int, number: int, force: bool, recursive: bool
    ) -> None:
        task = self.table.maker_of(number)
        if task is None:
            self.hub.reply(client, question, None)
            return
        if task.actor is not None and force:
            self.hub.refuse(client, question, ConfigError(NOT_BY_FORCE))
            return
        if task.actor is not None and not task.cancelled:
            self.table.cancelling[task.number] = []
        self.cancel(task, force, recursive)
        if task.number in self.table.cancelling:
            # A call that waits in its worker must not begin after this is answered.
            self.table.cancelling[task.number].append((client, question))
        else:
            self.hub.reply(client, question, None)

    def on_cancel_acknowledged(self, client: Client, number: int) -> None:
        self.table.acknowledge_cancel(number)

    def cancel(self, task: Task, force: bool, recursive: bool) -> None:
        """Cancel a task, and what it has submitted."""
        if recursive:
            for child in list(self.table.children.get(task.number, {}).values()):
                self.cancel(child, force and child.actor is None, True)
        if task.over or (task.cancelled and not force):
            return
        task.cancelled, task.forced = True, force
        if task.worker is None:
            self.table.end(task, self.cancelled(task))
            self._withdraw(task.kind.shape)
        elif self._ahead.is_ahead(task):
            self._ahead.recall([task])
        else:
            self._end_running(task, task.worker)

    def _end_running(self, task: Task, worker: WorkerProcess) -> None:
        if task.actor is not None or not task.forced:
            self._tell_cancelled(worker, task.number)
        elif not worker.ahead:
            self._stop_if_at(task, worker)
        else:  # what follows might begin before the process has ended
            self._ahead.recall_all(worker)
            lock = self.hub.lock
            later(LATE_S, lambda: lock.later(lambda: self._stop_if_at(task, worker)))

    def _stop_if_at(self, task: Task, worker: WorkerProcess) -> None:
        if worker.task is task:
            worker.doomed = True
            self.stop(worker)


def group_removed(task: Task, group: str) -> Payload:
    """Return the error of a task whose placement group, of that title, was removed."""
    return failed(GroupRemovedError(f"{task.title} ended with its {group}, which was removed"))
