"""`max_pending_calls`: which calls count, until when, and what it costs to count them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.errors import DrayError, NameTakenError, PendingCallsLimitExceeded
from dray.util.state import summarize_objects
from tests.support.gates import Gate

pytestmark = pytest.mark.usefixtures("process_engine")


@dray.remote(max_pending_calls=2, max_restarts=-1)
class Busy:
    def __init__(self, value: Any = None) -> None:
        pass

    def work(self, gate: Gate | None = None, value: Any = None) -> Any:
        if gate is not None:
            gate.pass_through()
        return value

    def fail(self) -> None:
        raise ValueError("failed")

    def die(self) -> None:
        os._exit(1)


@dray.remote
def failed() -> None:
    raise ValueError("an argument")


def _cancelled(busy: Any, gate: Gate) -> None:
    running, waiting = busy.work.remote(gate), busy.work.remote(gate)
    gate.heard()
    dray.cancel(waiting)
    gate.open()
    dray.get(running)
    with pytest.raises(DrayError):
        dray.get(waiting)


def _ends(get: Callable[[Any], Any]) -> Callable[[Any, Gate], None]:
    def end(busy: Any, gate: Gate) -> None:
        with pytest.raises(DrayError):
            dray.get(get(busy))

    return end


@pytest.mark.parametrize(
    "end",
    [
        lambda busy, gate: dray.get(busy.work.remote()),
        _ends(lambda busy: busy.fail.remote()),
        _ends(lambda busy: busy.die.remote()),
        _ends(lambda busy: busy.work.remote(None, failed.remote())),
        _cancelled,
    ],
    ids=["returns", "raises", "dies", "has an argument that failed", "is cancelled"],
)
def test_a_call_counts_until_it_is_over(
    end: Callable[[Any, Gate], None], gate: Gate, second_gate: Gate
) -> None:
    busy = Busy.remote()
    end(busy, gate)
    refs = [busy.work.remote(second_gate, value) for value in range(2)]
    for _ in range(2):  # a call that is refused does not count
        with pytest.raises(PendingCallsLimitExceeded):
            busy.work.remote()
    second_gate.open()
    assert dray.get(refs) == [0, 1]


def test_arguments_of_what_is_refused_take_no_memory(gate: Gate) -> None:
    large = bytes(1 << 20)
    before = summarize_objects()["cluster"]["memory_bytes"]
    busy = Busy.options(name="busy").remote()
    refs = [busy.work.remote(gate) for _ in range(2)]
    gate.heard()
    for _ in range(3):
        with pytest.raises(PendingCallsLimitExceeded):
            busy.work.remote(None, large)
        with pytest.raises(NameTakenError):
            Busy.options(name="busy").remote(large)
        Busy.options(name="busy", get_if_exists=True).remote(large)
    assert summarize_objects()["cluster"]["memory_bytes"] == before
    gate.open()
    dray.get(refs)


def test_many_calls_that_wait_cost_no_more_each(gate: Gate) -> None:
    def cost(most: int) -> float:
        busy = Busy.options(max_pending_calls=most).remote()
        held = busy.work.remote(gate)
        gate.heard()
        begun = time.thread_time()
        refs = [busy.work.remote() for _ in range(8000)]
        spent = time.thread_time() - begun
        dray.kill(busy)
        del refs, held
        return spent

    assert cost(10_000) < 4 * cost(-1)


def test_a_generator_beyond_the_limit_is_an_error_in_a_worker_too(tmp_path: Path) -> None:
    @dray.remote(num_cpus=0, max_pending_calls=1)
    class Streams:
        def work(self, gate: Gate) -> None:
            gate.pass_through()

        def items(self) -> Any:
            yield 1

    @dray.remote(num_cpus=0)
    def reader(streams: Any, gate: Gate) -> str:
        held = streams.work.remote(gate)
        try:
            items = [dray.get(ref) for ref in streams.items.remote()]
        except PendingCallsLimitExceeded as error:
            return str(error)
        return f"no error, and {items}, beside {held}"

    gate = Gate(tmp_path)
    assert "max_pending_calls" in dray.get(reader.remote(Streams.remote(), gate))
    gate.open()
