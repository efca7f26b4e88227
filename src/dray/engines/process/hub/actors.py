"""Actors in the hub: their creation, the order of their calls, their restarts, and their end."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence

from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.records import (
    ActorRecord,
    CallDetails,
    CallListener,
    Client,
    FoundActor,
    Task,
    WorkerProcess,
)
from dray.engines.process.hub.tasks import Tasks
from dray.engines.rpc.framing import Message, encode
from dray.engines.rpc.serialization import Payload, failed, unmade
from dray.engines.runtime import GROUP_REMOVED, ReturnCount, actor_name_taken
from dray.errors import (
    ActorDiedError,
    ActorUnavailableError,
    ConfigError,
    EngineError,
    PendingCallsLimitExceeded,
    WorkerDiedError,
)
from dray.scheduling.ledger import Held
from dray.scheduling.requests import Reservation

# So many calls are sent ahead at most. One is sent at once if its actor has few, or runs several at
# a time; the others go in pieces, since each piece costs a system call here and there.
_AHEAD = 1000
_ASYNC_AHEAD = 2000
_FEW = 16
_PIECE = 32


class Actors(CallListener):
    """All actors of a session."""

    def __init__(self, hub: Hub, tasks: Tasks, namespace: str) -> None:
        self._namespace = namespace
        self._hub = hub
        self._tasks = tasks
        self.all: dict[int, ActorRecord] = {}
        self.names: dict[tuple[str, str], int] = {}

    # Making.

    def on_create(
        self,
        client: Client,
        question: int,
        key: bytes,
        number: int,
        payload: Payload,
        deps: Sequence[int],
        nested: Sequence[int],
    ) -> None:
        kind = self._tasks.kinds.all[key]
        options = kind.options
        refusal = ConfigError(GROUP_REMOVED) if kind.shape.removed else kind.shape.infeasible
        if refusal is not None:
            self._hub.free_room(client, payload)
            self._hub.refuse(client, question, refusal)
            return
        namespace = options["namespace"] or self._namespace
        name = options["name"]
        if name is not None and (namespace, name) in self.names:
            self._hub.free_room(client, payload)
            self._answer_taken(client, question, (namespace, name), options["get_if_exists"])
            return
        task = Task(number, kind, (), payload, deps, nested, 0, client, None)
        actor = ActorRecord(number, task, self, restarts=options["max_restarts"])
        actor.name, actor.namespace = name, namespace
        actor.most_pending = options["max_pending_calls"]
        actor.in_order = options["in_order"]
        actor.most_ahead = max(
            _AHEAD,
            2 * options["max_concurrency"],
            _ASYNC_AHEAD if options["is_async"] else 0,
        )
        task.actor = actor
        self.all[number] = actor
        if name is not None:
            self.names[namespace, name] = number
        self._hub.store.add(number)
        client.holds.add(number)
        if options["detached"]:
            actor.detached = True
            self._hub.store.hold(number)
        self._hub.store.when_unused(
            number, lambda: self._hub.lock.todo.append(lambda: self._on_unused(actor))
        )
        self._tasks.table.accept(task)
        if not task.unready and not task.over:
            self._place_once(actor)
        self._hub.lock.todo.append(lambda: self._tell_made(client, question, actor))

    def _tell_made(self, client: Client, question: int, actor: ActorRecord) -> None:
        """Answer who makes an actor: with an error, if it could have started and did not."""
        if actor.unstarted is not None:
            self._hub.refuse(client, question, actor.unstarted)
        else:
            self._hub.reply(client, question, None)

    def _answer_taken(
        self, client: Client, question: int, name: tuple[str, str], get_if_exists: bool
    ) -> None:
        if get_if_exists:
            self.on_named(client, question, name[1], name[0])
            return
        self._hub.refuse(client, question, actor_name_taken(name[1]))

    def place(self, actor: ActorRecord) -> None:
        shape = actor.creation.kind.shape
        if shape.infeasible is not None:
            error = actor.died(
                None, f"actor {actor.title} has no node any more: {shape.infeasible}"
            )
            self._mark_dead(actor, failed(error))
            return
        actor.asked = shape.ledger.reserve_checked(shape.demand)
        self._hub.when_granted(actor.asked, functools.partial(self._granted, actor))

    def _granted(self, actor: ActorRecord, held: Reservation) -> None:
        if actor.state == "dead":
            held.release()
            return
        assert isinstance(held, Held)
        actor.held = held
        self._start(actor)

    def _start(self, actor: ActorRecord) -> None:
        assert actor.held is not None
        actor.state = "restarting" if actor.times_restarted else "starting"
        task = actor.creation
        shape = task.kind.shape
        fresh = bool(actor.held.devices[0])
        try:
            worker = self._tasks.pool.take(actor.held.nodes[0], shape.runtime_env, fresh=fresh)
        except Exception as error:  # noqa: BLE001 (whatever it is, callers must not hang)
            why = f"actor {actor.title} has no worker process: {error}"
            actor.unstarted = ActorDiedError(None, details=why)
            self._mark_dead(actor, failed(actor.unstarted))
            return
        worker.actor, actor.worker, task.worker = actor, worker, worker
        options = task.kind.options
        details = (
            actor.name,
            bool(actor.times_restarted),
            options["max_concurrency"],
            dict(options["concurrency_groups"]),
            options["is_async"],
            dict(options["methods"]),
            self._tasks.grant(actor.held, shape),
        )
        self._tasks.dispatch(task, worker, ("make", details))

    def on_made(self, client: Client, number: int) -> None:
        actor = self.all.get(number)
        if actor is None or actor.worker is not client.worker:
            return
        actor.state = "alive"
        if not actor.restarts:
            self._tasks.table.close(actor.creation)  # its arguments are not needed again
        self._pump(actor)
        if actor.ending:
            self._end_if_idle(actor)

    def on_unmade(
        self, client: Client, number: int, payload: Payload, nested: Sequence[int]
    ) -> None:
        actor = self.all.get(number)
        if actor is not None:
            actor.restarts = 0
            self._mark_dead(actor, unmade(payload, actor.actor_id), nested)
            if client.worker is not None:
                self._tasks.retire(client.worker)

    # Calling.

    def on_call(
        self,
        client: Client,
        actor_number: int,
        details: CallDetails,
        number: int,
        numbers: Sequence[int],
        payload: Payload,
        deps: Sequence[int],
        nested: Sequence[int],
        returns: ReturnCount,
        parent: int | None,
    ) -> Payload | None:
        actor = self.all.get(actor_number)
        if actor is None:
            self._hub.free_room(client, payload)
            self._hub.own(client, numbers)
            error = ActorDiedError(
                None,
                details="the actor is gone: it has ended, or the last handle that keeps it alive "
                "was dropped. Handles of get_actor(), get_if_exists=True and current_actor do not "
                'keep it alive: keep the first one, or make the actor with lifetime="detached"',
                actor_id=f"{actor_number:032x}",
            )
            self._hub.fail(numbers, failed(error))
            return None
        task = Task(
            number, actor.creation.kind, numbers, payload, deps, nested, returns, client, parent
        )
        task.actor, task.details = actor, details
        options = actor.creation.kind.options
        task.retries = options["max_task_retries"] if details[3] is None else details[3]
        if 0 < actor.most_pending <= actor.pending.get(client, 0):
            return self._too_many(client, task, payload, actor.most_pending)
        self._tasks.table.accept(task)
        if actor.death is not None:
            self._tasks.table.end(task, *actor.death)
        elif task.over:
            pass
        elif task.unready or actor.line_of(task) in actor.held_up:
            actor.held_up.setdefault(actor.line_of(task), deque()).append(task)
        else:
            actor.waiting.append(task)
            self._pump(actor)
        return None

    def _too_many(self, client: Client, task: Task, payload: Payload, most: int) -> Payload:
        error = failed(
            PendingCallsLimitExceeded(
                f"{task.title} was not called: this process has {most} waiting calls already, as "
                "many as the actor's max_pending_calls allows; wait for some of them first"
            )
        )
        if task.returns == "streaming":  # which tells of it who reads it
            self._tasks.table.accept(task)
            self._tasks.table.end(task, error)
            return error
        self._hub.free_room(client, payload)
        self._hub.own(client, task.results)
        self._hub.fail(task.results, error)
        return error

    def _pump(self, actor: ActorRecord) -> None:
        """Send calls that can run."""
        worker = actor.worker
        if actor.state != "alive" or worker is None:
            if actor.state == "waiting" and not actor.creation.unready and actor.held is None:
                self._place_once(actor)
            return
        most, running, waiting = actor.most_ahead, actor.running, actor.waiting
        ahead, piece = len(running), _PIECE if actor.in_order else 1
        if ahead >= _FEW and (len(waiting) < piece or ahead + piece > most):
            return
        messages: list[Message] = []
        while waiting and len(running) < most:
            task = waiting.popleft()
            if task.over:
                continue
            task.worker = worker
            task.attempt += 1
            running[task.number] = task
            messages += self._tasks.messages_of(task, worker, ("call",))
        if messages:
            self._tasks.send(worker, encode(messages))

    def _place_once(self, actor: ActorRecord) -> None:
        if actor.creation.attempt == 0:
            actor.creation.attempt = 1
            self.place(actor)

    def on_call_ready(self, task: Task) -> None:
        if task.actor is not None:
            self._let_on(task.actor, task)
            self._pump(task.actor)

    def _let_on(self, actor: ActorRecord, task: Task) -> None:
        """Move on those calls of a call's line that need not wait for an argument, in order."""
        line = actor.line_of(task)
        calls = actor.held_up.get(line)
        if calls is None:
            return
        while calls and (calls[0].over or not calls[0].unready):
            call = calls.popleft()
            if not call.over:
                actor.waiting.append(call)
        if not calls:
            del actor.held_up[line]

    def on_call_left(self, number: int, worker: WorkerProcess) -> None:
        actor = worker.actor
        if actor is None:
            return
        actor.running.pop(number, None)
        if actor.waiting:
            self._pump(actor)
        elif actor.ending:
            self._end_if_idle(actor)

    def on_call_over(self, task: Task, payload: Payload, nested: Sequence[int]) -> None:
        actor = task.actor
        if actor is None:
            return
        if task is actor.creation and actor.state != "dead":
            # An argument has failed.
            self._mark_dead(actor, unmade(payload, actor.actor_id), nested)
        elif task in actor.waiting:
            actor.waiting.remove(task)
        elif actor.line_of(task) in actor.held_up:
            self._let_on(actor, task)
            self._pump(actor)
        if actor.ending:
            self._end_if_idle(actor)

    # Ending.

    def _on_unused(self, actor: ActorRecord) -> None:
        """The last handle is gone: the calls made so far end, then the actor does."""
        if actor.state == "dead":
            self.all.pop(actor.number, None)
            return
        actor.ending = True
        self._end_if_idle(actor)

    def _end_if_idle(self, actor: ActorRecord) -> None:
        if actor.waiting or actor.held_up or actor.running or actor.state == "dead":
            return
        if actor.state in ("starting", "restarting"):
            return  # `on_made` comes, and then this again
        error = actor.died(0, f"actor {actor.title} has ended: no process had a handle of it")
        worker = actor.worker
        self._mark_dead(actor, failed(error))
        if worker is not None:
            self._tasks.retire(worker)

    def on_exiting(self, client: Client, number: int) -> None:
        actor = self.all.get(number)
        if actor is not None and not actor.exiting:
            actor.exiting = True
            if client.worker is not None:  # which may not notice, if the call was in a thread
                self._tasks.retire(client.worker)

    def on_kill(self, client: Client, question: int, number: int, no_restart: bool) -> None:
        actor = self.all.get(number)
        if actor is not None and actor.state != "dead":
            self.kill(actor, no_restart)
        self._hub.reply(client, question, None)

    def kill(
        self, actor: ActorRecord, no_restart: bool, why: str = "was ended by dray.kill()"
    ) -> None:
        worker = actor.worker
        if worker is None and actor.restarts and not no_restart:
            actor.restarts -= actor.restarts > 0  # of a process that there is not yet
            return
        if no_restart or worker is None or not actor.restarts:
            actor.killed = True
            error = actor.died(None, f"actor {actor.title} {why}; make a new one")
            self._mark_dead(actor, failed(error))
        if worker is not None:
            self._tasks.stop(worker)

    def _mark_dead(self, actor: ActorRecord, payload: Payload, nested: Sequence[int] = ()) -> None:
        """Take an actor out of service: its calls fail, its name and resources are free."""
        actor.state, actor.death = "dead", (payload, nested)
        self._hub.store.seal(actor.number, b"", nested)  # a handle may still ask for the error
        if actor.asked is not None:
            actor.asked.cancel()
        if actor.name is not None and self.names.get((actor.namespace, actor.name)) == actor.number:
            del self.names[actor.namespace, actor.name]
        calls = [*actor.running.values(), *actor.calls_unsent()]
        actor.running.clear()
        actor.waiting.clear()
        actor.held_up.clear()
        for task in calls:
            self._tasks.table.end(task, payload, nested)
        self._tasks.table.close(actor.creation)
        worker, actor.worker = actor.worker, None
        held, actor.held = actor.held, None
        if held is not None:
            if worker is None or worker.gone:
                held.release()
            else:
                worker.lease = held  # free when the process is gone
        if actor.detached:
            actor.detached = False
            self._hub.store.drop(actor.number)
        if not self._hub.store.exists(actor.number):
            self.all.pop(actor.number, None)

    def on_worker_gone(self, worker: WorkerProcess, error: EngineError) -> None:
        """An actor's process has ended, or was not started."""
        actor, lease = worker.actor, worker.lease
        worker.lease = None
        if lease is not None:
            lease.release()
        if actor is None or actor.worker is not worker:
            return
        actor.worker = None
        if not isinstance(error, WorkerDiedError):
            why = EngineError(f"actor {actor.title} has no worker process: {error}")
            self._mark_dead(actor, failed(why))
            return
        expected = actor.exiting or actor.killed
        if expected or not actor.restarts:
            self._mark_dead(actor, failed(self._death(actor, worker, error)))
            return
        if actor.restarts > 0:
            actor.restarts -= 1
        self._make_again(actor, worker, error)

    def _make_again(
        self, actor: ActorRecord, worker: WorkerProcess, error: WorkerDiedError
    ) -> None:
        actor.times_restarted += 1
        actor.state = "restarting"  # first: an actor without handles ends with its last call
        running, actor.running = list(actor.running.values()), {}
        again = [task for task in running if task.retries and not task.cancelled]
        for task in again:
            task.retries -= 1
            task.worker = None
        actor.waiting.extendleft(reversed(again))
        for task in running:
            if task.worker is not None:
                self._tasks.table.end(task, self._lost(task, actor, error))
        if actor.ending and not (actor.waiting or actor.held_up):
            self._mark_dead(actor, failed(self._death(actor, worker, error)))
        elif actor.held is not None and actor.held.broken:
            actor.held.release()
            actor.held = None
            actor.state = "waiting"
            self.place(actor)
        else:
            self._start(actor)

    def _lost(self, task: Task, actor: ActorRecord, error: WorkerDiedError) -> Payload:
        if task.cancelled:
            return self._tasks.cancelled(task)
        why = (
            f"{task.title} did not finish: {error}; the actor is being restarted, but the call "
            "is not repeated, because max_task_retries is 0"
        )
        return failed(ActorUnavailableError(error.exitcode, details=why, actor_id=actor.actor_id))

    def _death(
        self, actor: ActorRecord, worker: WorkerProcess, error: WorkerDiedError
    ) -> ActorDiedError:
        if actor.exiting:
            why = f"actor {actor.title} ended itself with exit_actor() or sys.exit(0)"
            return actor.died(0, why)
        most = actor.creation.kind.options["max_restarts"]
        again = "set max_restarts to have it restarted"
        if most > 0:
            again = f"max_restarts={most} allows no further restart"
        return actor.died(
            error.exitcode,
            f"actor {actor.title} (pid {worker.pid}, node {worker.node.node_id}) is gone: "
            f"{error}; {again}",
            out_of_memory=error.out_of_memory,
        )

    # Finding.

    def on_named(self, client: Client, question: int, name: str, namespace: str | None) -> None:
        number = self.names.get((namespace or self._namespace, name))
        found: FoundActor | None = None
        if number is not None:
            options = self.all[number].creation.kind.options
            found = number, options["class_name"], dict(options["methods"])
        self._hub.reply(client, question, found)
