"""Random programs of tasks and actors, compared with a model that runs them one step at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dray
from dray.errors import ActorDiedError, DrayError, TaskCancelledError
from tests.support.gates import PATIENCE_S, Gate, count_up, until

pytestmark = pytest.mark.usefixtures("process_engine")

ACTORS = 2
# What a step does: give a value away, compute, fail, die once, wait for tasks of its own, and
# have an actor add to its sum or fail after it has.
KINDS = ("put", "task", "fail", "die", "nested", "call", "call fail")


@dataclass(frozen=True)
class Step:
    """One submission; `needs` are earlier steps, counted from the end of what there is."""

    kind: str
    needs: tuple[int, ...]
    actor: int


@dataclass(frozen=True)
class Program:
    """Steps, and what is cancelled or killed when all are submitted. Step 0 is held by a gate."""

    steps: tuple[Step, ...]
    cancelled: frozenset[int] = frozenset()
    killed: frozenset[int] = frozenset()


@dataclass
class Outcome:
    """What the model says of a step: its value, or the errors of which it must raise one."""

    value: int | None = None
    errors: set[str] = field(default_factory=set)
    held: bool = False  # whether it cannot end before the gate opens
    needs: tuple[int, ...] = ()


steps = st.builds(
    Step,
    kind=st.sampled_from(KINDS),
    needs=st.lists(st.integers(0, 6), max_size=3).map(tuple),
    actor=st.integers(0, ACTORS - 1),
)
many_steps = st.lists(steps, min_size=1, max_size=14).map(tuple)
# Not both: what the one sets free would race with the other.
programs = st.one_of(
    st.builds(Program, many_steps, cancelled=st.frozensets(st.integers(1, 14), max_size=3)),
    st.builds(Program, many_steps, killed=st.frozensets(st.integers(0, ACTORS - 1), max_size=1)),
)


def model(program: Program) -> list[Outcome]:
    """Run a program one step at a time."""
    outcomes = [Outcome(value=1, held=True)]
    held_actors: set[int] = set()
    for number, step in enumerate(program.steps, 1):
        needs = tuple(dict.fromkeys(number - 1 - need % number for need in step.needs))
        if any(outcomes[need].held for need in needs):  # else it may end early or late
            needs = tuple(need for need in needs if not outcomes[need].errors)
        if step.kind == "put":
            needs = ()
        held = any(outcomes[need].held for need in needs)
        if step.kind.startswith("call"):
            held = held or step.actor in held_actors
            if held:
                held_actors.add(step.actor)
        errors = set().union(*(outcomes[need].errors for need in needs))
        outcomes.append(Outcome(errors=errors, held=held, needs=needs))
        if step.kind.endswith("fail") and not errors:
            outcomes[-1].errors = {f"boom {number}"}
    _finish(program, outcomes)
    return outcomes


def _finish(program: Program, outcomes: list[Outcome]) -> None:
    """Say what all steps give in the end, when some of those that are held never run."""
    sums = [0] * ACTORS
    for number, step in enumerate(program.steps, 1):
        outcome = outcomes[number]
        calls = step.kind.startswith("call")
        outcome.errors = set().union(*(outcomes[need].errors for need in outcome.needs))
        if outcome.held and number in program.cancelled:
            outcome.errors.add("cancelled")
        if outcome.held and calls and step.actor in program.killed:
            outcome.errors.add("actor")
        if outcome.errors:
            continue
        value = number + sum(outcomes[need].value or 0 for need in outcome.needs)
        if calls:
            value = sums[step.actor] = sums[step.actor] + value
        if step.kind.endswith("fail"):
            outcome.errors = {f"boom {number}"}
        else:
            outcome.value = value


@dray.remote
def root(gate: Gate) -> int:
    gate.wait()
    return 1


@dray.remote
def work(kind: str, number: int, directory: Path, *values: int) -> int:
    if kind == "fail":
        raise ValueError(f"boom {number}.")
    if kind == "die" and count_up(directory / str(number)) == 1:
        os._exit(1)
    return number + sum(values)


@dray.remote
def nested(number: int, directory: Path, refs: Sequence[dray.ObjectRef]) -> int:
    (directory / f"begun {number}").touch()
    children = [work.remote("task", 0, directory, ref) for ref in refs]
    return number + sum(dray.get(children))


@dray.remote
class Adder:
    def __init__(self) -> None:
        self.sum = 0

    def add(self, fails: bool, number: int, *values: int) -> int:
        self.sum += number + sum(values)
        if fails:
            raise ValueError(f"boom {number}.")
        return self.sum


def execute(program: Program, outcomes: list[Outcome], directory: Path) -> list[Any]:
    """Run a program with dray; return the references."""
    gate = Gate(directory)
    actors = [Adder.remote() for _ in range(ACTORS)]
    refs: list[Any] = [root.options(num_cpus=0).remote(gate)]
    for number, step in enumerate(program.steps, 1):
        needs = [refs[need] for need in outcomes[number].needs]
        if step.kind == "put":
            refs.append(dray.put(number))
        elif step.kind == "nested":
            refs.append(nested.remote(number, directory, needs))
        elif step.kind.startswith("call"):
            add = actors[step.actor].add
            refs.append(add.remote(step.kind == "call fail", number, *needs))
        else:
            refs.append(work.remote(step.kind, number, directory, *needs))
    free = [ref for ref, outcome in zip(refs, outcomes, strict=True) if not outcome.held]
    dray.wait(free, num_returns=max(1, len(free)), timeout=PATIENCE_S)
    cancelled = [n for n in program.cancelled if n < len(refs) and outcomes[n].held]
    for number in cancelled:  # an interrupt within an import may be lost, as Python has it
        if program.steps[number - 1].kind == "nested":
            until((directory / f"begun {number}").exists)
    for number in sorted(cancelled, reverse=True):  # the other way one would set the next free
        dray.cancel(refs[number])
    for number in cancelled:
        with pytest.raises(DrayError) as caught:  # without waiting for the gate
            dray.get(refs[number], timeout=PATIENCE_S)
        assert explained(caught.value, outcomes[number].errors)
    for number in program.killed:
        dray.kill(actors[number])
    gate.open()  # and not closed before all have passed, also those who come late
    ready, rest = dray.wait(refs, num_returns=len(refs), timeout=PATIENCE_S)
    gate.close()
    assert (ready, rest) == (refs, [])
    return refs


def explained(error: Exception, errors: set[str]) -> bool:
    """Return whether an error is one of those that the model allows."""
    return (
        ("cancelled" in errors and isinstance(error, TaskCancelledError))
        or ("actor" in errors and isinstance(error, ActorDiedError))
        or (isinstance(error, ValueError) and any(f"{e}." in str(error) for e in errors))
    )


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=programs)
def test_a_program_gives_what_the_model_says(program: Program) -> None:
    outcomes = model(program)
    with tempfile.TemporaryDirectory() as directory:
        refs = execute(program, outcomes, Path(directory))
        for number, (ref, outcome) in enumerate(zip(refs, outcomes, strict=True)):
            try:
                value = dray.get(ref, timeout=PATIENCE_S)
            except Exception as error:
                if not explained(error, outcome.errors):
                    raise AssertionError(
                        f"step {number}: {error!r} instead of {outcome}"
                    ) from error
            else:
                assert not outcome.errors, f"step {number}: {value} instead of {outcome}"
                assert value == outcome.value, f"step {number}"
