"""The controller: waits on one mailbox, and performs the actions of the state machine.

It runs in one thread, and all events of a run come to it through the mailbox: messages and output
of workers, their starts and ends, granted reservations, alarms, Ctrl-C, the end of the session.
Other threads and signal handlers only put events there. So no state of a run needs a lock, and a
run is a sequence of events, which `events.jsonl` records.

Three tables define the effect of an event. The code between them makes no decision by state:

    message --_takers--> event of the run --state.TABLE--> next state, actions --_actions--> calls
              else ignored           else state.IGNORED, else a bug

    _takers  for each kind of message, the method that takes it, and the states in which it counts.
             A message in another state is too late (`BACKED_OFF` after Ctrl-C) and is dropped; so
             is a message of an actor of an earlier attempt, and an alarm that was taken back.
    TABLE    the moves. `_move` alone changes the state; it records the move before it acts, so that
             the record of a killed driver shows how far it had come.
    _actions one method for each action. It may end in another move (ALL_WORKERS_EXITED, if they
             are gone at once), which comes after the state has changed.

An attempt is one start of the workers. `attempt.py` keeps their reports and their ends. Between two
attempts the reservation stays, unless a node is lost or more nodes are there.

Two operations wait elsewhere. The framework's hooks (`SET_UP`, `TEAR_DOWN`) call workers and wait
for their answers, unless a signal handler interrupts them (`interrupt`). The ranks assemble the
files of a checkpoint; a commit here is a manifest and a rename, for any size.

Invariants on every path:

* No worker and no reservation outlives `run`. `RELEASE` waits for the last worker, which may still
  use its resources, and `_clean_up` kills the remaining workers and waits for their ends.
* `fit()` raises the first cause of a failure; later failures are warnings.
* A report that every rank has made is committed before a failure, a stop or growth ends the
  attempt. Nothing waits for a report that a failed rank has not made.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dray.engines.base import Actor, Died, Engine, Output, Posted, Started
from dray.errors import ConfigError, EngineError, describe
from dray.settings import Settings
from dray.status import TrainingStatus
from dray.train.backend import Backend, BackendConfig
from dray.train.callback import RunContext
from dray.train.config import RunConfig
from dray.train.run import events
from dray.train.run.attempt import Attempt
from dray.train.run.checkpoint_store import CheckpointStore
from dray.train.run.events import Alarm, Due, Signal
from dray.train.run.failure import FailurePolicy, Outcome
from dray.train.run.grace import Grace
from dray.train.run.launch import Launch
from dray.train.run.nodes.admission import Admission
from dray.train.run.nodes.departure import Departure
from dray.train.run.nodes.growth import Growth
from dray.train.run.output.progress import Progress
from dray.train.run.output.rank_logs import Logs
from dray.train.run.report_files import ReportFiles
from dray.train.run.state import ANY, AT_WORK, FINAL, Action, Event, State, advance
from dray.train.run.stop_requests import StopRequests
from dray.train.run.validations import Validations
from dray.train.run.waits import Watch
from dray.train.run.worker_group import Interrupted, RankFailed, WorkerGroup
from dray.train.scaling import ScalingConfig
from dray.train.storage.manifest import Committed
from dray.train.storage.run_directory import RunDirectory
from dray.train.validation import ValidationConfig
from dray.train.worker.train_worker import Job

_SLOW_START_S, _PARTING_S = 10.0, 5.0


@dataclass(eq=False)
class Controller:
    """Takes one run from its start to its end.

    Attributes:
        job: The train function and its arguments; pickled, if workers have processes of their own.
        started: Is called when workers run, and if it takes long until they do.
    """

    engine: Engine
    directory: RunDirectory
    scaling: ScalingConfig
    config: RunConfig
    backend: tuple[Backend, BackendConfig]
    job: bytes | Job
    progress: Progress
    settings: Settings
    mailbox: queue.SimpleQueue[object] = field(default_factory=queue.SimpleQueue)
    validation: ValidationConfig | None = None
    started: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        engine, directory, settings = self.engine, self.directory, self.settings
        scaling, config, progress, mailbox = self.scaling, self.config, self.progress, self.mailbox
        allowed = config.failure_config
        self._policy = FailurePolicy(allowed.max_failures, allowed.max_preemption_failures)
        self._state = State.INITIALIZING
        self._number = directory.next_attempt()
        self._admission = Admission(
            engine, scaling, config, self.backend, progress, mailbox, settings.start_timeout_s
        )
        self._growth = Growth(self._admission)
        validates = self.validation is not None
        self._launch = Launch(engine, directory, scaling, config, *self.backend, validates)
        self._attempt: Attempt | None = None
        self._checkpoint: Committed | None = None
        self._alarm = Alarm(mailbox)  # ends with the state in which it was set
        self._departure = Departure(engine, mailbox, progress, allowed)
        self._grace = Grace.of(settings, self._alarm, progress)
        self._outcome = Outcome(self._policy, progress, directory)
        self._files = ReportFiles(directory)
        self._watch = Watch(settings.wait_warning_s, mailbox, progress, directory)
        self._stops = StopRequests(engine, mailbox, progress)
        self._cause = ""  # of the next change of state, where its event does not say enough
        self._logs = Logs(directory, self._rank_of, progress if engine.shows_output else None)
        self._store = CheckpointStore(directory, config.checkpoint_config, progress, validates)
        self._until_closed = engine.until_closed()
        of_validations = (self._store, self.validation, mailbox, settings.wait_warning_s)
        self._validations = Validations(engine, self._until_closed, *of_validations)

    @property
    def _workers(self) -> Attempt:
        """The attempt; there is one from STARTING on."""
        assert self._attempt is not None
        return self._attempt

    def interrupt(self, cause: str = Event.INTERRUPTED.value) -> None:
        """Ask for a graceful stop, whatever its cause. May be called from a signal handler."""
        self._stops.interrupt(cause)
        if self._attempt is not None:
            self._attempt.group.interrupt()

    def stop(self, reason: str = "") -> None:
        """Have the run end well at the next report of every rank. May be called from any thread."""
        self._stops.stop(reason)

    def status(self) -> TrainingStatus:
        """Return what `dray status` shows. May be called from any thread."""
        attempt = self._attempt if self._state in AT_WORK else None
        return self.progress.training(attempt.told_waits() if attempt else [])

    def run(self) -> Outcome:
        """Run until a final state; never leaves a worker or a reservation behind."""
        self._until_closed.add_done_callback(lambda _: self.mailbox.put(Signal.ENGINE_CLOSED))
        try:
            with self._failing_as_controller():
                self._call_back("before_run")
                self._move(Event.BEGIN)
            while self._state not in FINAL:
                event = self.progress.next_event(self.mailbox, self._files.due)
                with self._failing_as_controller():
                    self._take(event)
            with self._failing_as_controller():
                self._call_back("after_run")
        finally:
            self._clean_up()
        with self._failing_as_controller():
            self._store.secure_rest()
        self._outcome.state, self._outcome.checkpoint = self._state, self._store.newest
        return self._outcome

    @contextlib.contextmanager
    def _failing_as_controller(self) -> Iterator[None]:
        """Take what goes wrong on the driver's own side."""
        try:
            yield
        except Interrupted:
            pass  # the mailbox has it as well
        except RankFailed as error:
            if isinstance(error.error, ConfigError):  # asking again would not help
                self._end_with(error.error)
            else:
                self._fail(error.rank, error.error)
        except Exception as error:  # noqa: BLE001 (any callback may raise anything)
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        """End the run on an error that is not one of its workers'; the first cause stays it."""
        failing = self._state in (State.DRAINING, State.FAILING) and self._workers.failures
        if failing and self._outcome.error is None:
            self._outcome.error = self._workers.error(self._policy.total + 1)
        self._outcome.failed_on_driver(error)
        self._move(Event.CONTROLLER_FAILED)

    def _clean_up(self) -> None:
        """Free everything, on every way out; after a clean end nothing is left to free."""
        self._validations.close()  # asks whether the engine is closed
        self._until_closed.cancel()
        self._alarm.cancel()
        self._departure.end()
        self._files.end()
        self._watch.end()
        if self._attempt is not None and self._attempt.alive:
            self._attempt.kill(self.mailbox.get)
        self._release()
        self._logs.close()

    # Events.

    def _take(self, event: object) -> None:
        actor = getattr(event, "actor", None)
        rank = None if actor is None else self._rank_of(actor)
        if actor is not None and rank is None:  # it is of an earlier attempt
            return
        if self._state in AT_WORK:
            with self._failing_as_controller():
                self._hear(self._files.said_until(event, rank))
        if isinstance(event, Due):
            if not event.counts:  # perhaps since a report has been heard
                return
            event = event.event
        take, states = self._takers[event if isinstance(event, Signal) else type(event)]
        if self._state in states:
            take(self, event)

    def _rank_of(self, actor: Actor) -> int | None:
        return None if self._attempt is None else self._attempt.group.rank_of(actor)

    def _take_interrupt(self, event: events.Interrupt) -> None:
        self._cause = event.cause
        self._move(Event.INTERRUPTED)

    def _take_start(self, event: Started) -> None:
        if self._workers.group.started(event):
            self._move(Event.WORKERS_STARTED)

    def _still_starting(self, _: Signal) -> None:
        self.started()
        self.progress.warn(f"workers {self._workers.group.missing()} have not started yet")

    def _look_at_waits(self, _: Signal) -> None:
        attempt = self._workers
        self._watch.look(attempt.number, attempt.waits(), attempt.where)

    def _hear(self, said: Sequence[tuple[int, object]]) -> None:
        """Take what ranks have said, by messages or in their files."""
        waits = [self._workers.take(rank, message) for rank, message in said]
        if self.progress.heard(said):
            self._grace.renew(self._state, self._workers)
        if said:
            self._settle()
        if any(waits):
            self._watch.begin()

    def _take_return(self, event: events.FunctionReturned) -> None:
        attempt, rank = self._workers, self._workers.group.rank(event.actor)
        if rank == 0:
            self._outcome.returned(event.ended)
        attempt.returned(rank, stopped=event.ended.stopped)
        self._settle()
        if attempt.running:
            self._move(Event.RANK_RETURNED)
        else:
            stopped = self._state is State.RESIZING and attempt.has_stopped
            self._move(Event.STOPPED if stopped else Event.RETURNED)

    def _take_death(self, death: Died) -> None:
        rank = self._workers.group.rank(death.actor)
        self._workers.died(death)
        if not death.expected and self._state is not State.ABORTING:
            if self._state is State.FINISHING:  # its function had returned, nothing is lost
                self.progress.warn(f"rank {rank} failed to shut down cleanly: {death.error}")
            else:
                self._fail(rank, death.error)
        if not self._workers.alive:
            self._all_exited()

    def _all_exited(self) -> None:
        amid = self._state is State.FINISHING and self._validations.under_way
        self._move(Event.EXITED_AMID_VALIDATION if amid else Event.ALL_WORKERS_EXITED)

    def _fail(self, rank: int, error: BaseException) -> None:
        attempt = self._workers
        attempt.failed(rank, error)
        self.directory.record("worker failed", rank=rank, cause=describe(error))
        if self._state is State.CONCLUDING:
            self.progress.warn(f"rank {rank} failed while the run stopped: {describe(error)}")
        under_way = self._state in AT_WORK and attempt.under_way(self._grace.after_failure_s)
        self._move(Event.FAILED_AMID_REPORT if under_way else Event.WORKER_FAILED)
        if self._state is State.DRAINING:
            self._settle()  # reports may be complete without it

    def _settle(self) -> None:
        """Do what became due with a rank's message or its end."""
        attempt = self._workers
        for report, checkpoint in attempt.settle():
            if checkpoint is not None:
                self._policy.progressed()
                self._validations.look()
            if self.config.callbacks:  # else metrics need not be read
                self._call_back("after_report", report.decoded(), checkpoint)
        if self._state is State.RUNNING:
            attempt.check_collectives()  # later, ranks stop one by one, with time to do so
            if self._stops.asked:
                self._stop_early()
            elif attempt.stop_at is not None:
                self._move(Event.MORE_ROOM)
        elif attempt.failures and not attempt.under_way(self._grace.after_failure_s):
            self._move(Event.DRAINED)

    def _leave_nodes(self, _: Signal) -> None:
        for rank, error in self._workers.overdue().items():
            self._fail(rank, error)

    def _finds_room(self, attempt: Attempt) -> bool:
        return self._state is State.RUNNING and self._growth.finds_room(attempt)

    def _stop_early(self, _: Signal | None = None) -> None:
        self._cause = self._stops.cause()
        self._move(Event.STOP_REQUESTED)

    def _grace_over(self, _: Signal) -> None:
        if self._grace.is_over(self._state, self._workers):
            self._move(Event.GRACE_OVER)

    def _call_back(self, hook: str, *args: object) -> None:
        if self.config.callbacks:
            run, size, configs = self.directory, self._admission.size, (self.config, self.scaling)
            context = RunContext(run.name, run.path, self._number, size, self.stop, *configs)
            with self.progress.aside():
                for callback in self.config.callbacks:
                    getattr(callback, hook)(context, *args)

    # Moves and actions.

    def _move(self, event: Event) -> None:
        before, (self._state, actions) = self._state, advance(self._state, event)
        cause, self._cause = self._cause or event.value, ""
        if self._state is not before:
            self._alarm.cancel()
            if self._state not in AT_WORK:
                self._watch.end()
                self._files.end()
            state = self._state
            self.directory.record("state", state=state.value, cause=cause, attempt=self._number)
            self.progress.state(state)
        for action in actions:
            self._actions[action](self)

    def _take_grant(self, event: events.Reserved) -> None:
        if self._admission.granted(event.future):
            self._move(Event.RESERVED)

    def _still_waiting(self, _: Signal) -> None:
        self.started()
        self._outcome.error = self._admission.look()
        if self._outcome.error is not None:
            self._move(Event.START_TIMED_OUT)

    def _start_workers(self) -> None:
        reservation = self._admission.reservation
        assert reservation is not None
        self.directory.storage.recover()
        self._checkpoint = self._store.newest_good(self._number)
        self._validations.begin()
        self.progress.started(self._number, self._admission.size, self._checkpoint)
        self._logs.begin(self._number)
        group = self._launch.start(reservation, self._admission.size, self.mailbox, self.progress)
        of_run = (self.directory, self._store, self._files, self.config.report_barrier)
        of_nodes = (self._finds_room, self._departure.preemptions())
        self._attempt = Attempt(self._number, group, *of_run, *of_nodes)
        self._alarm.set(_SLOW_START_S, Signal.STILL_STARTING)

    def _set_up(self) -> None:
        group = self._workers.group
        self._launch.give_ranks(group, self._number, self._checkpoint)
        self._logs.give_ranks()
        self.directory.record("workers started", attempt=self._number, ranks=group.describe())
        self._launch.set_up(group)
        self.progress.placed(group.describe(), group.collectives)
        self._move(Event.FRAMEWORK_READY)

    def _run_function(self) -> None:
        self._growth.begin()
        self._departure.begin()
        if self._stops.asked:  # before they begin, so that the first report is the last
            self._workers.ask_to_stop()
            self.mailbox.put(Signal.STOP_REQUESTED)
        if self._launch.follows_files:
            self._files.begin(len(self._workers.group))
        self._launch.run(self._workers.group, self.job, self.mailbox)
        self.started()

    def _tear_down(self) -> None:
        if not self._launch.part(self._workers.group, self.progress):  # others may wait in vain
            self._alarm.set(_PARTING_S, Signal.GRACE_EXPIRED)

    def _end_workers(self, end: Callable[[WorkerGroup], None]) -> None:
        if self._attempt is not None:
            end(self._attempt.group)
            if not self._attempt.alive:
                self._all_exited()

    def _decide(self) -> None:
        attempt = self._workers
        failures = attempt.failures.by_cause()
        self._call_back("after_exception", failures)
        amiss = self._store.leave_out_damaged(failures.values())
        wanted = not self._stops.asked
        lost = self._launch.has_lost_node(failures.values())
        again = self._outcome.tries_again(failures, wanted=wanted, free=amiss, lost_node=lost)
        if not again:
            self._outcome.error = attempt.error(self._policy.total)
        amid = self._validations.under_way
        given_up = Event.GAVE_UP_AMID_VALIDATION if amid else Event.GIVE_UP
        self._move(Event.RETRY if again else given_up)

    def _back_off(self) -> None:
        self._number += 1
        if self._until_closed.done():
            self.mailbox.put(Signal.ENGINE_CLOSED)
        if delay := self._policy.back_off_s():
            self.progress.warn(f"restarting in {delay:g} s")
            self._alarm.set(delay, Signal.BACKED_OFF)
        else:
            self.mailbox.put(Signal.BACKED_OFF)

    def _back_to_work(self, _: Signal) -> None:
        anew = self._growth.wanted or self._admission.is_broken or self._workers.loses_nodes
        self._move(Event.NODES_CHANGED if anew else Event.BACKED_OFF)

    def _say_closed(self, _: Signal | None = None) -> None:
        waits = {State.RESTARTING: "waited to restart", State.VALIDATING: "waited for validations"}
        what = waits.get(self._state, "was at work")
        self._end_with(EngineError(f"dray.shutdown() was called while fit() {what}"))

    def _take_validation(self, event: events.OfValidation) -> None:
        self._validations.take(event)
        if self._state in AT_WORK:
            self._settle()  # ranks may wait for it
        elif self._state is State.VALIDATING and not self._validations.under_way:
            self._move(Event.GIVE_UP if self._outcome.error else Event.VALIDATED)

    def _await_validations(self) -> None:
        self._validations.tell_awaited()
        if self._until_closed.done():
            self.mailbox.put(Signal.ENGINE_CLOSED)

    def _release(self) -> None:
        if self._attempt is None or not self._attempt.alive:  # else what they have is theirs
            self._admission.release()

    _actions: ClassVar[dict[Action, Callable[[Controller], None]]] = {
        Action.RESERVE: lambda self: self._admission.ask(self._growth.wanted),
        Action.START_WORKERS: _start_workers,
        Action.SET_UP: _set_up,
        Action.RUN: _run_function,
        Action.WATCH: lambda self: self._watch.begin(),
        Action.TELL_STOP: lambda self: self._stops.tell_stop(),
        Action.TELL_INTERRUPT: lambda self: self._stops.tell_interrupt(),
        Action.ASK_TO_STOP: lambda self: self._workers.ask_to_stop(),
        Action.GIVE_GRACE: lambda self: self._grace.give(self._state, self._workers),
        Action.TEAR_DOWN: _tear_down,
        Action.STOP_WORKERS: lambda self: self._end_workers(WorkerGroup.stop),
        Action.KILL_WORKERS: lambda self: self._end_workers(WorkerGroup.kill),
        Action.DECIDE: _decide,
        Action.SAY_CLOSED: _say_closed,
        Action.BACK_OFF: _back_off,
        Action.RELEASE: _release,
        Action.AWAIT_VALIDATIONS: _await_validations,
    }

    # Methods and states, as described above; `Reserved` may come after a release has given it back.
    # Of a session's end in other states the engine tells by the ends of those who are waited for.
    _takers: ClassVar[dict[type | Signal, tuple[Callable[[Controller, Any], None], Set[State]]]] = {
        Posted: (lambda self, _: None, ANY),  # it has been heard, as all that was said before
        Signal.READ_REPORTS: (lambda self, _: None, ANY),
        Output: (lambda self, event: self._logs.take(event), ANY),
        Started: (_take_start, {State.STARTING}),
        Died: (_take_death, ANY),
        events.FunctionReturned: (_take_return, AT_WORK),
        events.FunctionFailed: (
            lambda self, e: self._fail(self._workers.group.rank(e.actor), e.error),
            ANY,
        ),
        events.Interrupt: (_take_interrupt, ANY),
        Signal.STOP_REQUESTED: (_stop_early, {State.RUNNING}),
        events.Reserved: (_take_grant, {State.SCHEDULING}),
        Signal.STILL_WAITING: (_still_waiting, {State.SCHEDULING}),
        Signal.STILL_STARTING: (_still_starting, {State.STARTING}),
        Signal.BACKED_OFF: (_back_to_work, {State.RESTARTING}),
        Signal.ENGINE_CLOSED: (_say_closed, {State.RESTARTING, State.VALIDATING}),
        events.ValidationEnded: (_take_validation, ANY),
        events.ValidationTimedOut: (_take_validation, ANY),
        Signal.LOOK_AT_VALIDATION: (_take_validation, ANY),
        Signal.RETRY_VALIDATION: (_take_validation, ANY),
        Signal.GRACE_EXPIRED: (_grace_over, AT_WORK - {State.RUNNING} | {State.FINISHING}),
        Signal.NODES_LEAVE: (lambda self, _: self._departure.look(self._workers), {State.RUNNING}),
        Signal.NODES_OVERDUE: (_leave_nodes, {State.RUNNING}),
        Signal.LOOK_AT_WAITS: (_look_at_waits, AT_WORK | {State.FINISHING}),
    }
