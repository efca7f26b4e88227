"""The controller: waits on one mailbox, and performs what the state machine says.

Everything that happens to a run comes through the mailbox as an event: messages and output of
workers, their ends, answers to calls, granted reservations, the end of a back-off, Ctrl-C. Moves
between states are made in `_move` alone, by the table in `state.py`.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

from dray.engines.contract import Actor, Died, Engine, Output, Posted, Reservation, Started
from dray.errors import (
    ConfigError,
    EngineError,
    RemoteTraceback,
    SerializationError,
)
from dray.train import messages
from dray.train.admission import Admission
from dray.train.backend import Backend, BackendConfig
from dray.train.callback import RunContext
from dray.train.checkpoint import Checkpoint
from dray.train.commits import Commits
from dray.train.config import RunConfig
from dray.train.events import (
    BackedOff,
    FunctionEnded,
    GraceOver,
    Interrupt,
    Outcome,
    Reserved,
    StillStarting,
    StillWaiting,
)
from dray.train.failure import FailureLog, FailurePolicy, describe, to_driver_error, to_error
from dray.train.logs import Logs
from dray.train.metrics import decode
from dray.train.progress import Progress
from dray.train.reports import CollectiveBook, Entry, ReportBook
from dray.train.run_directory import Committed, RunDirectory
from dray.train.scaling import ScalingConfig
from dray.train.seats import family_at
from dray.train.state import FINAL, Action, Event, State, advance
from dray.train.worker import Ended, Job
from dray.train.worker_group import Interrupted, RankFailed, Worker, WorkerGroup

_STOP_GRACE_S = 5.0
_SLOW_START_S = 10.0


class Controller:
    """Takes one run from its start to its end."""

    def __init__(
        self,
        engine: Engine,
        directory: RunDirectory,
        scaling: ScalingConfig,
        config: RunConfig,
        backend: tuple[Backend, BackendConfig],
        job: bytes | Job,
        progress: Progress,
        start_timeout_s: float,
    ) -> None:
        self.mailbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._engine = engine
        self._directory = directory
        self._scaling = scaling
        self._config = config
        self._backend, self._backend_config = backend
        self._job = job
        self._progress = progress
        self._policy = FailurePolicy(config.failure_config.max_failures)
        self._state = State.INITIALIZING
        self._attempt = directory.next_attempt()
        self._admission = Admission(
            engine, scaling, config, backend, progress, self.mailbox, start_timeout_s
        )
        self._group: WorkerGroup | None = None
        self._alive: set[Actor] = set()
        self._timer: threading.Timer | None = None
        self._failures = FailureLog()
        self._error: BaseException | None = None
        self._return_value: Any = None
        self._logs = Logs(directory, progress if engine.shows_output else None)
        self._commits = Commits(directory, config.checkpoint_config, progress)
        self._checkpoint: Committed | None = None
        self._new_attempt()

    def _new_attempt(self) -> None:
        world_size = self._world_size
        self._book = ReportBook(world_size)
        self._newest_report = -1
        self._running = set(range(world_size))
        self._collectives = CollectiveBook(world_size)
        self._failures = FailureLog()

    @property
    def _world_size(self) -> int:
        return self._admission.size

    @property
    def _context(self) -> RunContext:
        return RunContext(
            self._directory.name, self._directory.path, self._attempt, self._world_size
        )

    def interrupt(self) -> None:
        """Asks for a graceful stop. May be called from a signal handler."""
        self.mailbox.put(Interrupt())
        if self._group is not None:
            self._group.interrupt()

    def run(self) -> Outcome:
        """Runs until a final state; never leaves a worker or a reservation behind."""
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
        return Outcome(self._state, self._return_value, self._error)

    @contextlib.contextmanager
    def _failing_as_controller(self) -> Any:
        """Takes what goes wrong on the driver's own side."""
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
        """Ends the run on an error that is not one of its workers'."""
        self._error = to_driver_error(error)
        if self._state not in FINAL:
            self._move(Event.CONTROLLER_FAILED)

    def _clean_up(self) -> None:
        """Frees everything, on every way out; in good order nothing is left to free."""
        if self._timer is not None:
            self._timer.cancel()
        if self._group is not None and self._alive:
            self._group.kill()
            while self._alive:  # every worker's end is told, and a killed one's comes at once
                event = self.mailbox.get()
                if isinstance(event, Died):
                    self._alive.discard(event.actor)
        self._release()
        self._logs.close()

    # Events.

    def _take(self, event: Any) -> None:
        if isinstance(event, Posted):
            rank = self._rank_of(event.actor)
            if rank is not None and self._state in (State.RUNNING, State.STOPPING):
                self._take_message(rank, event.message)
        elif isinstance(event, Output):
            if self._rank_of(event.actor) is not None:
                self._logs.take(functools.partial(self._rank_of, event.actor), event)
        elif isinstance(event, Started):
            self._take_start(event)
        elif isinstance(event, FunctionEnded):
            if self._rank_of(event.worker.actor) is not None:
                self._take_end(event.worker, event.future)
        elif isinstance(event, Died):
            rank = self._rank_of(event.actor)
            if rank is not None:
                self._take_death(rank, event)
        elif isinstance(event, Reserved):
            if self._state is State.SCHEDULING:
                self._take_grant(event.future)
        elif isinstance(event, StillWaiting):
            if self._state is State.SCHEDULING:
                self._still_waiting()
        elif isinstance(event, StillStarting):
            if self._state is State.STARTING and self._group is not None:
                self._progress.warn(f"workers {self._group.missing()} have not started yet")
        elif isinstance(event, BackedOff):
            if self._state is State.RESTARTING:
                reservation = self._admission.reservation
                broken = reservation is not None and reservation.broken
                self._move(Event.NODE_LOST if broken else Event.BACKED_OFF)
        elif isinstance(event, GraceOver):
            if self._state in (State.STOPPING, State.FINISHING):
                self._move(Event.INTERRUPTED)
        elif isinstance(event, Interrupt):
            self._move(Event.INTERRUPTED)

    def _rank_of(self, actor: Any) -> int | None:
        return None if self._group is None else self._group.rank_of(actor)

    def _take_message(self, rank: int, message: Any) -> None:
        if isinstance(message, messages.Reported):
            self._book.reported(rank, message)
            self._newest_report = max(self._newest_report, message.report)
            if rank == 0:
                self._progress.reported(message.report, decode(message.metrics))
        elif isinstance(message, messages.Staged):
            self._book.staged(rank, message)
        elif isinstance(message, messages.Joined):
            self._join(rank, message)
        self._settle()

    def _take_end(self, worker: Worker, future: Future[Ended]) -> None:
        error = future.exception()
        if _is_death(error):
            return  # `Died` says whether the death was ours
        if error is not None:
            self._fail(worker.rank, error)
            return
        if self._state not in (State.RUNNING, State.STOPPING):
            return
        if worker.rank == 0:
            self._take_return_value(future.result())
        self._running.discard(worker.rank)
        self._book.ended(worker.rank)
        self._settle()
        if not self._running:
            self._move(Event.RETURNED)
        elif self._state is State.STOPPING:
            # The others may wait for this rank in a collective that it will not come to.
            self._after(_STOP_GRACE_S, GraceOver())

    def _take_return_value(self, ended: Ended) -> None:
        try:
            self._return_value = ended.returned()
        except SerializationError as error:  # the training is done all the same
            self._return_value = None
            self._directory.record("return value lost", cause=str(error))
            self._progress.warn(f"{str(error).rstrip('.')}; Result.return_value is None")

    def _take_death(self, rank: int, death: Died) -> None:
        self._alive.discard(death.actor)
        if not death.expected and self._state is not State.ABORTING:
            if self._state is State.FINISHING:  # its function had returned, nothing is lost
                self._progress.warn(f"rank {rank} did not end in good order: {death.error}")
            else:
                self._fail(rank, death.error)
        if not self._alive:
            self._group_down()

    def _fail(self, rank: int, error: BaseException) -> None:
        self._failures.add(rank, error)
        self._directory.record("worker failed", rank=rank, cause=describe(error))
        if self._state in (State.STARTING, State.RUNNING, State.STOPPING):
            self._move(Event.WORKER_FAILED)

    def _group_down(self) -> None:
        if self._state is not State.FAILING:
            if self._state in (State.FINISHING, State.ABORTING):
                self._move(Event.GROUP_DOWN)
            elif self._state in (State.STARTING, State.RUNNING, State.STOPPING):
                self._end_with(EngineError("dray.shutdown() was called while fit() was at work"))
            return
        failures = self._failures.by_cause()
        self._call_back("after_exception", self._context, failures)
        rank, cause = next(iter(failures.items()))
        if self._policy.failed():
            self._progress.warn(
                f"rank {rank} failed ({describe(cause)}); restarting "
                f"(failure {self._policy.failures}, {self._limit()})"
            )
            self._move(Event.RETRY)
        else:
            log = self._directory.log_path(self._attempt, rank)
            self._error = to_error(
                failures,
                log if log.exists() else None,
                self._directory.path,
                self._policy.failures,
                sorted(self._running),
                sorted(set(range(self._world_size)) - self._running),
            )
            if not isinstance(cause.__cause__, RemoteTraceback):  # else the message holds it
                self._error.__cause__ = cause
            self._move(Event.GIVE_UP)

    def _limit(self) -> str:
        limit = self._policy.max_failures
        return "no limit" if limit < 0 else f"{limit} allowed"

    # Moves and actions.

    def _move(self, event: Event) -> None:
        before, (self._state, actions) = self._state, advance(self._state, event)
        if self._state is not before:
            self._directory.record(
                "state", state=self._state.value, cause=event.value, attempt=self._attempt
            )
            self._progress.state(self._state)
        if event is Event.INTERRUPTED and self._state is State.STOPPING and before is State.RUNNING:
            self._progress.warn(
                "stopping at the next report of every rank; press Ctrl-C again to stop at once"
            )
        for action in actions:
            self._actions[action](self)

    def _reserve(self) -> None:
        self._admission.ask()
        self._look_later()

    def _look_later(self) -> None:
        if self._admission.waits:
            self._after(self._admission.next_look_s, StillWaiting())

    def _take_grant(self, future: Future[Reservation]) -> None:
        if self._admission.granted(future):
            self._move(Event.RESERVED)
        else:
            self._look_later()

    def _still_waiting(self) -> None:
        self._error = self._admission.look()
        if self._error is not None:
            self._move(Event.WAITED)
        else:
            self._look_later()

    def _start_workers(self) -> None:
        reservation = self._admission.reservation
        assert reservation is not None
        self._directory.recover()
        self._checkpoint = self._commits.newest_good()
        self._new_attempt()
        self._progress.started(self._attempt, self._world_size, self._checkpoint)
        self._logs.begin(self._attempt, self._world_size if self._engine.distributed else 0)
        self._group = WorkerGroup.start(
            self._engine,
            reservation,
            self._world_size,
            mailbox=self.mailbox,
            runtime_env=self._config.runtime_env,
            modules=self._backend_config.modules,
            warn=self._progress.warn,
        )
        self._alive = {worker.actor for worker in self._group.workers}
        self._after(_SLOW_START_S, StillStarting())

    def _take_start(self, event: Started) -> None:
        if self._group is None or self._rank_of(event.actor) is None:
            return
        if self._group.started(event) and self._state is State.STARTING:
            self._move(Event.PLACED)

    def _set_up(self) -> None:
        assert self._group is not None
        checkpoint = self._checkpoint
        run = messages.RunInfo(
            path=str(self._directory.path),
            token=None if self._config.shared_storage else self._directory.token(),
            attempt=self._attempt,
            first_report=checkpoint.report + 1 if checkpoint else 0,
            checkpoint=str(checkpoint.path) if checkpoint else None,
        )
        nodes = {node.node_id: node for node in self._engine.nodes()}
        self._group.take_seats(nodes, lambda worker: self._assignment(worker, run))
        self._logs.give_ranks()
        self._directory.record(
            "workers started", attempt=self._attempt, ranks=self._group.describe()
        )
        self._with_group(self._backend.on_start)
        self._with_group(self._backend.on_training_start)
        self._move(Event.STARTED)

    def _assignment(self, worker: Worker, run: messages.RunInfo) -> messages.Assignment:
        position = worker.position
        assert position is not None
        family = family_at(position.place)
        own_variables = {*self._engine.env_vars, *self._config.runtime_env.env_vars}
        return messages.Assignment(
            rank=position.rank,
            world_size=self._world_size,
            local_rank=position.local_rank,
            local_world_size=position.local_world_size,
            node_rank=position.node_rank,
            address=worker.address,
            run=run,
            family=None if family is None else family.name,
            devices={name: tuple(ids) for name, ids in worker.devices.items()},
            node_devices=position.node_devices,
            shares_devices=self._backend.share_cuda_visible_devices
            and not (family is not None and own_variables.intersection(family.variables)),
            cpus=(self._scaling.resources_per_worker or {}).get("CPU"),
            pinned=self._scaling.pin_workers,
        )

    def _with_group(self, hook: Callable[[WorkerGroup, BackendConfig], None]) -> None:
        assert self._group is not None
        hook(self._group, self._backend_config)

    def _run_function(self) -> None:
        assert self._group is not None
        for worker, future in zip(self._group.workers, self._group.run(self._job), strict=True):
            future.add_done_callback(functools.partial(self._function_ended, worker))

    def _function_ended(self, worker: Worker, future: Future[Ended]) -> None:
        self.mailbox.put(FunctionEnded(worker, future))

    def _ask_to_stop(self) -> None:
        assert self._group is not None
        self._group.tell(messages.StopAsked(self._newest_report + 1))

    def _take_down(self) -> None:
        """Has the framework part; all functions have returned, so a failure here undoes nothing."""
        try:
            self._with_group(self._backend.on_shutdown)
        except Interrupted:
            pass  # the mailbox has it as well
        except RankFailed as error:
            self._parted_badly(f"rank {error.rank}", error.error)
        except Exception as error:  # noqa: BLE001 (a hook may raise anything)
            self._parted_badly("the framework", error)

    def _parted_badly(self, who: str, error: BaseException) -> None:
        if not _is_death(error):
            self._progress.warn(f"{who} did not part in good order: {describe(error)}")
        self._after(_STOP_GRACE_S, GraceOver())  # others may wait in vain for the one that failed

    def _stop_workers(self) -> None:
        if self._group is not None:
            self._group.stop()
            if not self._alive:
                self._group_down()

    def _kill_workers(self) -> None:
        if self._group is not None:
            self._group.kill()
            if not self._alive:
                self._group_down()

    def _back_off(self) -> None:
        self._attempt += 1
        delay = self._policy.back_off_s()
        if not delay:
            self.mailbox.put(BackedOff())
            return
        self._progress.warn(f"restarting in {delay:g} s")
        self._after(delay, BackedOff())

    def _after(self, delay_s: float, event: Any) -> None:
        """Puts an event into the mailbox later; at most one is on its way."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(delay_s, self.mailbox.put, [event])
        self._timer.daemon = True
        self._timer.start()

    def _release(self) -> None:
        if not self._alive:  # else when they have ended: what they compute on is theirs until then
            self._admission.release()

    _actions: ClassVar[dict[Action, Callable[[Controller], None]]] = {
        Action.RESERVE: _reserve,
        Action.START_WORKERS: _start_workers,
        Action.SET_UP: _set_up,
        Action.RUN: _run_function,
        Action.ASK_TO_STOP: _ask_to_stop,
        Action.TAKE_DOWN: _take_down,
        Action.STOP_WORKERS: _stop_workers,
        Action.KILL_WORKERS: _kill_workers,
        Action.BACK_OFF: _back_off,
        Action.RELEASE: _release,
    }

    # Reports, checkpoints and collectives.

    def _settle(self) -> None:
        """Does what became due with a rank's message or its end."""
        assert self._group is not None
        for entry in self._book.to_stage():
            staging = self._directory.staging(entry.report)
            staging.mkdir()
            for rank, files in entry.shares.items():
                self._group.tell(messages.Share(entry.report, str(staging), files), [rank])
        for entry in self._book.complete():
            checkpoint = self._commit(entry) if entry.files else None
            metrics = [decode(entry.metrics[rank]) for rank in sorted(entry.metrics)]
            self._call_back("after_report", self._context, metrics, checkpoint)
        if self._state is State.RUNNING:  # else ranks stop one by one, with time to do so
            self._collectives.check(self._running)

    def _commit(self, entry: Entry) -> Checkpoint:
        assert self._group is not None
        path = self._commits.commit(entry, self._world_size)
        self._group.tell(messages.CommitDone(entry.report, str(path)))
        return Checkpoint(path)

    def _join(self, rank: int, message: messages.Joined) -> None:
        assert self._group is not None
        data = self._collectives.joined(rank, message)
        if data is not None:
            self._group.tell(messages.Gathered(message.sequence, data))

    def _call_back(self, hook: str, *args: Any) -> None:
        for callback in self._config.callbacks:
            getattr(callback, hook)(*args)


def _is_death(error: BaseException | None) -> bool:
    """Returns whether a call failed because its worker has ended, of which `Died` tells too."""
    return isinstance(error, EngineError) and not isinstance(error.__cause__, RemoteTraceback)
