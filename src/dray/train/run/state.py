"""The controller's states, and the moves between them for each event, as one table.

This file does no I/O and knows no clock, no thread and no engine. `advance` is the only way from
one state to another, and a move that is not in the table is an error. `make diagrams` draws the
diagram in docs/design.md from the table.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class State(str, Enum):
    """The state of a run."""

    INITIALIZING = "INITIALIZING"
    SCHEDULING = "SCHEDULING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    CONCLUDING = "CONCLUDING"
    STOPPING = "STOPPING"
    FAILING = "FAILING"
    RESIZING = "RESIZING"
    RESTARTING = "RESTARTING"
    FINISHING = "FINISHING"
    ABORTING = "ABORTING"
    VALIDATING = "VALIDATING"
    FINISHED = "FINISHED"
    ERRORED = "ERRORED"
    ABORTED = "ABORTED"


class Event(str, Enum):
    """An event that moves a run from state to state."""

    BEGIN = "fit() called"
    RESERVED = "resources reserved"
    WORKERS_STARTED = "all workers have started"
    FRAMEWORK_READY = "framework ready"
    RANK_RETURNED = "train function ended on a rank"
    RETURNED = "train function ended on every rank"
    MORE_ROOM = "room for more workers"
    STOPPED = "train function stopped on every rank"
    WORKER_FAILED = "a worker failed"
    FAILED_AMID_REPORT = "a worker failed, reports may still be made"
    DRAINED = "no report is under way any more"
    ALL_WORKERS_EXITED = "all workers gone"
    EXITED_AMID_VALIDATION = "all workers gone, validations left"
    RETRY = "all workers gone, failures left"
    GIVE_UP = "all workers gone, no failures left"
    GAVE_UP_AMID_VALIDATION = "all workers gone, no failures left, but validations"
    VALIDATED = "no validation left"
    BACKED_OFF = "back-off over"
    NODES_CHANGED = "back-off over, a node lost or room for more workers"
    START_TIMED_OUT = "waited too long"
    STOP_REQUESTED = "a callback asked to stop"
    INTERRUPTED = "Ctrl-C"
    GRACE_OVER = "grace over"
    CONTROLLER_FAILED = "controller failed"


class Action(str, Enum):
    """An action of the controller that follows from an event."""

    RESERVE = "reserve resources"
    START_WORKERS = "start workers"
    SET_UP = "give out ranks, set up the framework"
    RUN = "run the train function"
    WATCH = "watch who is waited for"
    TEAR_DOWN = "take the framework down"
    TELL_STOP = "say why the run stops"
    TELL_INTERRUPT = "say how to stop at once"
    ASK_TO_STOP = "ask workers to stop at their next report"
    GIVE_GRACE = "wait for reports, not for long"
    STOP_WORKERS = "stop workers cleanly"
    KILL_WORKERS = "kill workers"
    DECIDE = "restart, or give up"
    SAY_CLOSED = "fail, as the session has ended"
    BACK_OFF = "wait before the restart"
    RELEASE = "release resources"
    AWAIT_VALIDATIONS = "wait for validations"


class Step(NamedTuple):
    """A move: the next state, and what to do on the way."""

    state: State
    actions: tuple[Action, ...] = ()


ANY = frozenset(State)
FINAL = frozenset({State.FINISHED, State.ERRORED, State.ABORTED})

# States in which ranks are at work: their messages count, and nobody waits for their end.
AT_WORK = frozenset(
    {State.RUNNING, State.DRAINING, State.CONCLUDING, State.RESIZING, State.STOPPING}
)

_KILL = (Action.KILL_WORKERS,)
_SHUT_DOWN = (Action.TEAR_DOWN, Action.WATCH, Action.STOP_WORKERS)
_AWAIT_VALIDATIONS = (Action.RELEASE, Action.AWAIT_VALIDATIONS)

TABLE: dict[tuple[State, Event], Step] = {
    (State.INITIALIZING, Event.BEGIN): Step(State.SCHEDULING, (Action.RESERVE,)),
    (State.SCHEDULING, Event.RESERVED): Step(State.STARTING, (Action.START_WORKERS,)),
    (State.SCHEDULING, Event.INTERRUPTED): Step(State.ABORTED, (Action.RELEASE,)),
    (State.SCHEDULING, Event.START_TIMED_OUT): Step(State.ERRORED, (Action.RELEASE,)),
    (State.STARTING, Event.WORKERS_STARTED): Step(State.STARTING, (Action.SET_UP,)),
    (State.STARTING, Event.FRAMEWORK_READY): Step(State.RUNNING, (Action.RUN,)),
    (State.STARTING, Event.WORKER_FAILED): Step(State.FAILING, _KILL),
    (State.STARTING, Event.INTERRUPTED): Step(State.ABORTING, _KILL),
    (State.RUNNING, Event.RANK_RETURNED): Step(State.RUNNING, (Action.WATCH,)),
    (State.RUNNING, Event.RETURNED): Step(State.FINISHING, _SHUT_DOWN),
    (State.RUNNING, Event.WORKER_FAILED): Step(State.FAILING, _KILL),
    (State.RUNNING, Event.FAILED_AMID_REPORT): Step(State.DRAINING, (Action.GIVE_GRACE,)),
    (State.RUNNING, Event.STOP_REQUESTED): Step(
        State.CONCLUDING, (Action.TELL_STOP, Action.ASK_TO_STOP)
    ),
    (State.RUNNING, Event.MORE_ROOM): Step(State.RESIZING, (Action.GIVE_GRACE,)),
    (State.RUNNING, Event.INTERRUPTED): Step(
        State.STOPPING, (Action.TELL_INTERRUPT, Action.ASK_TO_STOP, Action.GIVE_GRACE)
    ),
    (State.DRAINING, Event.FAILED_AMID_REPORT): Step(State.DRAINING),
    (State.DRAINING, Event.WORKER_FAILED): Step(State.FAILING, _KILL),
    (State.DRAINING, Event.DRAINED): Step(State.FAILING, _KILL),
    (State.DRAINING, Event.GRACE_OVER): Step(State.FAILING, _KILL),
    (State.DRAINING, Event.RETURNED): Step(State.FAILING, _KILL),
    (State.DRAINING, Event.INTERRUPTED): Step(State.ABORTING, _KILL),
    # The others may wait for the rank in a collective that it will not come to.
    (State.CONCLUDING, Event.RANK_RETURNED): Step(State.CONCLUDING, (Action.GIVE_GRACE,)),
    (State.CONCLUDING, Event.RETURNED): Step(State.FINISHING, _SHUT_DOWN),
    (State.CONCLUDING, Event.WORKER_FAILED): Step(State.FINISHING, _KILL),
    (State.CONCLUDING, Event.FAILED_AMID_REPORT): Step(State.CONCLUDING, (Action.GIVE_GRACE,)),
    (State.CONCLUDING, Event.DRAINED): Step(State.FINISHING, _KILL),
    (State.CONCLUDING, Event.GRACE_OVER): Step(State.FINISHING, _KILL),
    (State.CONCLUDING, Event.INTERRUPTED): Step(
        State.STOPPING, (Action.TELL_INTERRUPT, Action.GIVE_GRACE)
    ),
    (State.STOPPING, Event.RANK_RETURNED): Step(State.STOPPING, (Action.GIVE_GRACE,)),
    (State.STOPPING, Event.RETURNED): Step(State.ABORTING, (Action.STOP_WORKERS,)),
    (State.STOPPING, Event.WORKER_FAILED): Step(State.ABORTING, _KILL),
    (State.STOPPING, Event.FAILED_AMID_REPORT): Step(State.STOPPING, (Action.GIVE_GRACE,)),
    (State.STOPPING, Event.DRAINED): Step(State.ABORTING, _KILL),
    (State.STOPPING, Event.GRACE_OVER): Step(State.ABORTING, _KILL),
    (State.STOPPING, Event.INTERRUPTED): Step(State.ABORTING, _KILL),
    (State.FAILING, Event.ALL_WORKERS_EXITED): Step(State.FAILING, (Action.DECIDE,)),
    (State.FAILING, Event.RETRY): Step(State.RESTARTING, (Action.BACK_OFF,)),
    (State.FAILING, Event.GIVE_UP): Step(State.ERRORED, (Action.RELEASE,)),
    (State.FAILING, Event.GAVE_UP_AMID_VALIDATION): Step(State.VALIDATING, _AWAIT_VALIDATIONS),
    (State.FAILING, Event.INTERRUPTED): Step(State.ABORTING),
    (State.RESIZING, Event.RANK_RETURNED): Step(State.RESIZING, (Action.GIVE_GRACE,)),
    (State.RESIZING, Event.STOPPED): Step(State.RESIZING, (Action.STOP_WORKERS,)),
    (State.RESIZING, Event.RETURNED): Step(State.FINISHING, _SHUT_DOWN),
    (State.RESIZING, Event.WORKER_FAILED): Step(State.RESIZING, _KILL),
    (State.RESIZING, Event.FAILED_AMID_REPORT): Step(State.RESIZING, (Action.GIVE_GRACE,)),
    (State.RESIZING, Event.DRAINED): Step(State.RESIZING, _KILL),
    (State.RESIZING, Event.GRACE_OVER): Step(State.RESIZING, _KILL),
    (State.RESIZING, Event.INTERRUPTED): Step(State.ABORTING, _KILL),
    (State.RESTARTING, Event.BACKED_OFF): Step(State.STARTING, (Action.START_WORKERS,)),
    (State.RESTARTING, Event.NODES_CHANGED): Step(
        State.SCHEDULING, (Action.RELEASE, Action.RESERVE)
    ),
    (State.RESTARTING, Event.INTERRUPTED): Step(State.ABORTED, (Action.RELEASE,)),
    (State.FINISHING, Event.ALL_WORKERS_EXITED): Step(State.FINISHED, (Action.RELEASE,)),
    (State.FINISHING, Event.EXITED_AMID_VALIDATION): Step(State.VALIDATING, _AWAIT_VALIDATIONS),
    (State.FINISHING, Event.INTERRUPTED): Step(State.FINISHING, _KILL),
    (State.FINISHING, Event.GRACE_OVER): Step(State.FINISHING, _KILL),
    (State.ABORTING, Event.ALL_WORKERS_EXITED): Step(State.ABORTED, (Action.RELEASE,)),
    (State.VALIDATING, Event.VALIDATED): Step(State.FINISHED),
    (State.VALIDATING, Event.GIVE_UP): Step(State.ERRORED),
    (State.VALIDATING, Event.INTERRUPTED): Step(State.ABORTED),
    **{
        (state, Event.ALL_WORKERS_EXITED): Step(state, (Action.SAY_CLOSED,))
        for state in (State.STARTING, *AT_WORK)
    },
    (State.RESIZING, Event.ALL_WORKERS_EXITED): Step(State.RESTARTING, (Action.BACK_OFF,)),
    **{
        (state, Event.CONTROLLER_FAILED): Step(State.ERRORED, (Action.KILL_WORKERS, Action.RELEASE))
        for state in ANY - FINAL
    },
}

# Workers are ending or have ended, and mostly the run with them.
_ENDING = FINAL | {State.FAILING, State.ABORTING, State.FINISHING, State.VALIDATING}

# Events that come too late, or too early, to change anything.
IGNORED: dict[Event, frozenset[State]] = {
    Event.WORKER_FAILED: _ENDING,
    Event.FAILED_AMID_REPORT: _ENDING,
    Event.RANK_RETURNED: ANY - AT_WORK | {State.DRAINING},
    Event.RETURNED: ANY - AT_WORK,
    Event.ALL_WORKERS_EXITED: FINAL | {State.SCHEDULING, State.RESTARTING, State.VALIDATING},
    Event.INTERRUPTED: frozenset({State.ABORTING, *FINAL}),
    Event.CONTROLLER_FAILED: FINAL,
}


def advance(state: State, event: Event) -> Step:
    """Return the move that an event makes from a state.

    Raises:
        ValueError: The table has no such move: a bug in the controller.
    """
    step = TABLE.get((state, event))
    if step is not None:
        return step
    if state in IGNORED.get(event, ()):
        return Step(state)
    raise ValueError(f"a run in state {state.name} cannot take event {event.name}")
