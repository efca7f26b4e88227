"""The controller: waits on one mailbox, and performs what the state machine says.

Everything that happens to a run comes through the mailbox as an event: messages and output of
workers, their ends, answers to calls, granted reservations, the end of a back-off, Ctrl-C. Moves
between states are made in `_move` alone, by the table in `state.py`. What the workers of one start
have said, and who of them has ended how, is in `attempt.py`.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

from dray.engines.base import Died, Engine, Output, Posted, Started
from dray.errors import ConfigError, EngineError, describe
from dray.settings import Settings
from dray.status import TrainingStatus
from dray.train.backend import Backend, BackendConfig
from dray.train.callback import RunContext
from dray.train.config import RunConfig
from dray.train.run import events
from dray.train.run.admission import Admission
from dray.train.run.alarm import Alarm, Due
from dray.train.run.attempt import Attempt
from dray.train.run.checkpoint_store import Commits
from dray.train.run.failure import FailurePolicy, is_death
from dray.train.run.grace import Grace
from dray.train.run.journal import Journal
from dray.train.run.launch import Launch
from dray.train.run.progress import Progress
from dray.train.run.rank_logs import Logs
from dray.train.run.state import AT_WORK, FINAL, Action, Event, State, advance
from dray.train.run.verdict import Verdict
from dray.train.run.watch import Watch
from dray.train.run.worker_group import Interrupted, RankFailed, WorkerGroup, WorkerState
from dray.train.scaling import ScalingConfig
from dray.train.storage.manifest import Committed
from dray.train.storage.metrics_codec import decode
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker import run_messages
from dray.train.worker.train_worker import Ended, Job

_PARTING_S = 5.0
_SLOW_START_S = 10.0
# How often the books are read that another thread is writing.
_LOOKS = 10


class Controller:
    """Takes one run from its start to its end.

    Args:
        engine: Where its workers run.
        directory: Where it is kept.
        scaling: How many workers it has, with what.
        config: How it behaves.
        backend: The framework and its config.
        job: The train function and its arguments; pickled, if workers have processes of their own.
        progress: Tells the user.
        settings: How long it waits for what.
        mailbox: Holds what happens to it.
    """

    def __init__(
        self,
        engine: Engine,
        directory: RunDirectory,
        scaling: ScalingConfig,
        config: RunConfig,
        backend: tuple[Backend, BackendConfig],
        job: bytes | Job,
        progress: Progress,
        settings: Settings,
        mailbox: queue.SimpleQueue[Any] | None = None,
    ) -> None:
        self.mailbox: queue.SimpleQueue[Any] = mailbox or queue.SimpleQueue()
        self._engine = engine
        self._directory = directory
        self._scaling = scaling
        self._config = config
        self._job = job
        self._progress = progress
        failures = config.failure_config
        self._policy = FailurePolicy(failures.max_failures, failures.max_preemption_failures)
        self._state = State.INITIALIZING
        self._number = directory.next_attempt()
        self._admission = Admission(
            engine, scaling, config, backend, progress, self.mailbox, settings.start_timeout_s
        )
        self._launch = Launch(engine, directory, scaling, config, backend)
        self._attempt: Attempt | None = None
        self._checkpoint: Committed | None = None
        self._alarm = Alarm(self.mailbox)  # ends with the state in which it was set
        self._grace = Grace(self._alarm, progress, settings)
        self._journal = Journal(directory, progress)
        self._verdict = Verdict(self._policy, progress, self._journal)
        self._watch = Watch(settings.wait_warning_s, self.mailbox, progress, self._journal)
        self._stop_reason: str | None = None
        self._cause = ""  # of the next change of state, where its event does not say enough
        self._logs = Logs(directory, progress if engine.shows_output else None)
        self._commits = Commits(directory, config.checkpoint_config, progress)
        self._until_closed = engine.until_closed()

    @property
    def _context(self) -> RunContext:
        return RunContext(
            self._directory.name,
            self._directory.path,
            self._number,
            self._admission.size,
            self.stop,
        )

    def interrupt(self, cause: str = Event.INTERRUPTED.value) -> None:
        """Ask for a graceful stop. May be called from a signal handler.

        Args:
            cause: What the user did.
        """
        self.mailbox.put(events.Interrupt(cause))
        if self._attempt is not None:
            self._attempt.group.interrupt()

    def stop(self, reason: str = "") -> None:
        """Have the run end well at the next report of every rank. May be called from any thread."""
        self._stop_reason = reason
        self.mailbox.put(events.StopRequest())

    def status(self) -> TrainingStatus:
        """Return what `dray status` shows. May be called from any thread."""
        attempt, now = self._attempt, time.monotonic()
        for _ in range(_LOOKS):
            try:
                waits = [] if attempt is None or self._state not in AT_WORK else attempt.waits()
            except (RuntimeError, LookupError, ValueError):  # the run's own thread has just written
                continue
            return self._progress.training([wait.short(now) for wait in waits])
        return self._progress.training([])

    def run(self) -> events.Outcome:
        """Run until a final state; never leaves a worker or a reservation behind."""
        self._until_closed.add_done_callback(lambda _: self.mailbox.put(events.EngineClosed()))
        try:
            with self._failing_as_controller():
                self._call_back("before_run", self._context)
                self._move(Event.BEGIN)
            while self._state not in FINAL:
                event = self.mailbox.get()
                with self._failing_as_controller():
                    self._take(event)
            with self._failing_as_controller():
                self._call_back("after_run", self._context)
        finally:
            self._clean_up()
        return events.Outcome(self._state, self._verdict.return_value, self._verdict.error)

    @contextlib.contextmanager
    def _failing_as_controller(self) -> Any:
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
        failing = self._state in (State.DRAINING, State.FAILING)
        self._verdict.failed_on_driver(error, self._attempt if failing else None)
        self._move(Event.CONTROLLER_FAILED)

    def _clean_up(self) -> None:
        """Free everything, on every way out; after a clean end nothing is left to free."""
        self._until_closed.cancel()
        self._alarm.cancel()
        self._watch.end()
        attempt = self._attempt
        if attempt is not None and attempt.alive:
            attempt.group.kill()
            while attempt.alive:  # every worker's end is told, and a killed one's comes at once
                event = self.mailbox.get()
                if isinstance(event, Died):
                    attempt.died(event)
        self._release()
        self._logs.close()

    # Events.

    def _take(self, event: Any) -> None:
        if isinstance(event, Due):
            if not event.counts:
                return
            event = event.event
        actor = getattr(event, "actor", None)
        if actor is None or self._rank_of(actor) is not None:  # else it is of an earlier attempt
            self._takers[type(event)](self, event)

    def _rank_of(self, actor: Any) -> int | None:
        return None if self._attempt is None else self._attempt.group.rank_of(actor)

    def _take_interrupt(self, event: events.Interrupt) -> None:
        self._cause = event.cause
        self._move(Event.INTERRUPTED)

    def _take_output(self, event: Output) -> None:
        self._logs.take(functools.partial(self._rank_of, event.actor), event)

    def _take_start(self, event: Started) -> None:
        assert self._attempt is not None
        if self._attempt.group.started(event):
            self._move(Event.PLACED)

    def _still_starting(self, _: events.StillStarting) -> None:
        assert self._attempt is not None
        self._progress.warn(f"workers {self._attempt.group.missing()} have not started yet")

    def _look_at_waits(self, _: events.LookAtWaits) -> None:
        assert self._attempt is not None
        self._watch.look(self._attempt)

    def _take_message(self, event: Posted) -> None:
        attempt, message, rank = self._attempt, event.message, self._rank_of(event.actor)
        if self._state not in AT_WORK:
            return
        assert attempt is not None
        assert rank is not None
        if isinstance(message, run_messages.Reported):
            if rank == 0:
                self._progress.reported(message.report, decode(message.metrics))
            self._grace.renew(self._state, attempt)
        waits = attempt.take(rank, message)
        self._settle()
        if waits:
            self._watch.begin()

    def _take_end(self, event: events.FunctionEnded) -> None:
        assert self._attempt is not None
        worker, future = event.worker, event.future
        error = future.exception()
        if is_death(error):
            return  # `Died` says whether the death was ours
        if error is not None:
            self._fail(worker.rank, error)
            return
        if self._state not in AT_WORK:
            return
        ended: Ended = future.result()
        if worker.rank == 0:
            self._verdict.returned(ended)
        self._attempt.returned(worker.rank, stopped=ended.stopped)
        self._settle()
        if self._state in AT_WORK and not self._attempt.running:
            self._move(Event.RETURNED)
        elif self._state in (State.STOPPING, State.CONCLUDING):
            # The others may wait for this rank in a collective that it will not come to.
            self._give_grace()
        elif self._state is State.RUNNING:
            self._watch.begin()

    def _take_death(self, death: Died) -> None:
        rank = self._rank_of(death.actor)
        assert self._attempt is not None
        assert rank is not None
        self._attempt.died(death)
        if not death.expected and self._state is not State.ABORTING:
            if self._state is State.FINISHING:  # its function had returned, nothing is lost
                self._progress.warn(f"rank {rank} failed to shut down cleanly: {death.error}")
            else:
                self._fail(rank, death.error)
        if not self._attempt.alive:
            self._group_down()

    def _fail(self, rank: int, error: BaseException) -> None:
        assert self._attempt is not None
        self._attempt.failed(rank, error)
        self._journal.record("worker failed", rank=rank, cause=describe(error))
        if self._state is State.CONCLUDING:
            self._progress.warn(f"rank {rank} failed while the run stopped: {describe(error)}")
        under_way = self._state in AT_WORK and self._attempt.under_way(self._grace.after_failure_s)
        self._move(Event.FAILED_AMID_REPORT if under_way else Event.WORKER_FAILED)

    def _settle(self) -> None:
        """Do what became due with a rank's message or its end."""
        attempt = self._attempt
        assert attempt is not None
        for metrics, checkpoint in attempt.settle():
            if checkpoint is not None:
                self._policy.progressed()
            self._call_back("after_report", self._context, metrics, checkpoint)
        if self._state is State.RUNNING:
            attempt.check_collectives()  # later, ranks stop one by one, with time to do so
            if self._stop_reason is not None:
                self._stop_early()
        elif (
            self._state in AT_WORK
            and attempt.failures
            and not attempt.under_way(self._grace.after_failure_s)
        ):
            self._move(Event.DRAINED)

    def _stop_early(self, _: events.StopRequest | None = None) -> None:
        if self._state is State.RUNNING:
            why = f": {self._stop_reason}" if self._stop_reason else ""
            self._cause = f"{Event.STOP_ASKED.value}{why}"
            self._progress.warn(f"stopping at the next report of every rank, as {self._cause}")
        self._move(Event.STOP_ASKED)

    def _grace_over(self, _: events.StopGraceExpired) -> None:
        assert self._attempt is not None
        if self._grace.is_over(self._state, self._attempt):
            self._move(Event.GRACE_OVER)

    def _group_down(self) -> None:
        if self._state is State.FAILING:
            self._decide()
        elif self._state is State.STARTING or self._state in AT_WORK:
            self._end_with(EngineError("dray.shutdown() was called while fit() was at work"))
        else:
            self._move(Event.GROUP_DOWN)

    def _decide(self) -> None:
        """Restart the workers, or end the run."""
        attempt = self._attempt
        assert attempt is not None
        failures = attempt.failures.by_cause()
        self._call_back("after_exception", self._context, failures)
        again = self._verdict.tries_again(attempt, failures, wanted=self._stop_reason is None)
        self._move(Event.RETRY if again else Event.GIVE_UP)

    def _call_back(self, hook: str, *args: Any) -> None:
        if self._config.callbacks:
            with self._progress.aside():
                for callback in self._config.callbacks:
                    getattr(callback, hook)(*args)

    # Moves and actions.

    def _move(self, event: Event) -> None:
        before, (self._state, actions) = self._state, advance(self._state, event)
        cause, self._cause = self._cause or event.value, ""
        if self._state is not before:
            self._alarm.cancel()
            if self._state not in AT_WORK:
                self._watch.end()
            self._journal.record(
                "state", state=self._state.value, cause=cause, attempt=self._number
            )
            self._progress.state(self._state)
        if self._state is State.STOPPING and before is not State.STOPPING:
            self._progress.warn(
                "stopping at the next report of every rank; press Ctrl-C again to stop at once"
            )
        for action in actions:
            self._actions[action](self)

    def _reserve(self) -> None:
        self._admission.ask()

    def _take_grant(self, event: events.Reserved) -> None:
        # Else the release has taken it back.
        if self._state is State.SCHEDULING and self._admission.granted(event.future):
            self._move(Event.RESERVED)

    def _still_waiting(self, _: events.StillWaiting) -> None:
        self._verdict.error = self._admission.look()
        if self._verdict.error is not None:
            self._move(Event.WAITED)

    def _start_workers(self) -> None:
        reservation = self._admission.reservation
        assert reservation is not None
        self._directory.recover()
        self._checkpoint = self._commits.newest_good()
        size = self._admission.size
        self._progress.started(self._number, size, self._checkpoint)
        self._logs.begin(self._number, size if self._engine.distributed else 0)
        group = self._launch.start(reservation, size, self.mailbox, self._progress)
        self._attempt = Attempt(
            self._number,
            group,
            self._directory,
            self._commits,
            barrier=self._config.report_barrier,
        )
        self._alarm.set(_SLOW_START_S, events.StillStarting())

    def _set_up(self) -> None:
        assert self._attempt is not None
        group = self._attempt.group
        self._launch.give_ranks(group, self._number, self._checkpoint)
        self._logs.give_ranks()
        self._journal.record("workers started", attempt=self._number, ranks=group.describe())
        self._launch.set_up(group)
        self._progress.placed(group.describe(), group.collectives)
        self._move(Event.STARTED)

    def _run_function(self) -> None:
        assert self._attempt is not None
        group = self._attempt.group
        for worker, future in zip(group.workers, group.run(self._job), strict=True):
            future.add_done_callback(functools.partial(self._function_ended, worker))
        if self._stop_reason is not None:
            self.mailbox.put(events.StopRequest())

    def _function_ended(self, worker: WorkerState, future: Future[Ended]) -> None:
        self.mailbox.put(events.FunctionEnded(worker, future))

    def _ask_to_stop(self) -> None:
        assert self._attempt is not None
        self._attempt.ask_to_stop()

    def _give_grace(self) -> None:
        assert self._attempt is not None
        self._grace.give(self._state, self._attempt)

    def _take_down(self) -> None:
        assert self._attempt is not None
        if not self._launch.part(self._attempt.group, self._progress):  # others may wait in vain
            self._alarm.set(_PARTING_S, events.StopGraceExpired())

    def _end_workers(self, end: Callable[[WorkerGroup], None]) -> None:
        if self._attempt is not None:
            end(self._attempt.group)
            if not self._attempt.alive:
                self._group_down()

    def _back_off(self) -> None:
        self._number += 1
        if self._until_closed.done():
            self.mailbox.put(events.EngineClosed())
        delay = self._policy.back_off_s()
        if not delay:
            self.mailbox.put(events.BackedOff())
            return
        self._progress.warn(f"restarting in {delay:g} s")
        self._alarm.set(delay, events.BackedOff())

    def _back_to_work(self, _: events.BackedOff) -> None:
        if self._state is State.RESTARTING:  # else the user has ended the run meanwhile
            reservation = self._admission.reservation
            broken = reservation is not None and reservation.broken
            self._move(Event.NODE_LOST if broken else Event.BACKED_OFF)

    def _take_close(self, _: events.EngineClosed) -> None:
        if self._state is State.RESTARTING:  # else somebody is waited for, of whom the engine tells
            self._end_with(EngineError("dray.shutdown() was called while fit() waited to restart"))

    def _release(self) -> None:
        if self._attempt is None or not self._attempt.alive:  # else what they have is theirs
            self._admission.release()

    _actions: ClassVar[dict[Action, Callable[[Controller], None]]] = {
        Action.RESERVE: _reserve,
        Action.START_WORKERS: _start_workers,
        Action.SET_UP: _set_up,
        Action.RUN: _run_function,
        Action.TAKE_DOWN: _take_down,
        Action.ASK_TO_STOP: _ask_to_stop,
        Action.GIVE_GRACE: _give_grace,
        Action.STOP_WORKERS: lambda self: self._end_workers(WorkerGroup.stop),
        Action.KILL_WORKERS: lambda self: self._end_workers(WorkerGroup.kill),
        Action.BACK_OFF: _back_off,
        Action.RELEASE: _release,
    }

    _takers: ClassVar[dict[type, Callable[[Controller, Any], None]]] = {
        Posted: _take_message,
        Output: _take_output,
        Started: _take_start,
        Died: _take_death,
        events.FunctionEnded: _take_end,
        events.Interrupt: _take_interrupt,
        events.StopRequest: _stop_early,
        events.Reserved: _take_grant,
        events.StillWaiting: _still_waiting,
        events.StillStarting: _still_starting,
        events.BackedOff: _back_to_work,
        events.EngineClosed: _take_close,
        events.StopGraceExpired: _grace_over,
        events.LookAtWaits: _look_at_waits,
    }
