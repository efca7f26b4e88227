"""The controller's state machine, by its table alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.train.run.state import FINAL, TABLE, Action, Event, State, advance


def reachable(start: State) -> set[State]:
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        for (source, _), step in TABLE.items():
            if source is state and step.state not in seen:
                seen.add(step.state)
                todo.append(step.state)
    return seen


def test_every_state_is_reachable_and_can_end() -> None:
    assert reachable(State.INITIALIZING) == set(State)
    for state in set(State) - FINAL:
        assert reachable(state) & FINAL


def test_final_states_are_final() -> None:
    assert not [key for key in TABLE if key[0] in FINAL]


def test_every_state_survives_ctrl_c_and_a_broken_controller() -> None:
    for state in set(State) - FINAL - {State.INITIALIZING}:
        advance(state, Event.INTERRUPTED)
        assert advance(state, Event.CONTROLLER_FAILED).state is State.ERRORED


@given(st.lists(st.sampled_from(Event), max_size=60))
def test_resources_and_workers_never_leak(events: list[Event]) -> None:
    """On any legal path, what a final state leaves behind is nothing."""
    state, reserved, workers = State.INITIALIZING, False, False
    for event in events:
        if (state, event) not in TABLE:
            continue
        state, actions = advance(state, event)
        for action in actions:
            if action is Action.RESERVE:
                assert not reserved
                reserved = True
            elif action is Action.START_WORKERS:
                assert reserved
                assert not workers
                workers = True
            elif action is Action.RELEASE:
                reserved = False
        if event in (Event.ALL_WORKERS_EXITED, Event.RETRY, Event.GIVE_UP, Event.CONTROLLER_FAILED):
            workers = False
        if state in FINAL:
            assert not reserved
            assert not workers


def test_an_illegal_move_is_an_error() -> None:
    with pytest.raises(ValueError, match="state FINISHED cannot take event BEGIN"):
        advance(State.FINISHED, Event.BEGIN)
