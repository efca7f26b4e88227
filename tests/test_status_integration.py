"""`dray status` tells, from another process, what a program runs and what waits for what."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

import dray
from dray.engines.process import beacon
from dray.engines.runtime_env import RuntimeEnv
from dray.session import current_engine
from dray.util.placement_group import placement_group, remove_placement_group
from tests.gates import Gate, until

pytestmark = pytest.mark.usefixtures("process_engine")


def status(*options: str) -> str:
    command = [sys.executable, "-m", "dray.cli", "status", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def this_program() -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(status("--json"))
    return next(program for program in found if program["pid"] == os.getpid())


@dray.remote
def hold(gate: Gate) -> int:
    gate.pass_through()
    return 1


@dray.remote
def hold_nothing() -> int:
    return 1


@dray.remote
class Named:
    def pid(self) -> int:
        return os.getpid()


def test_it_shows_what_runs_and_what_waits_and_why(gate: Gate) -> None:
    actor = Named.options(name="somebody", num_cpus=1).remote()
    pid = dray.get(actor.pid.remote())
    running = hold.options(num_cpus=5).remote(gate)
    gate.heard()
    waiting = [hold.options(num_cpus=4).remote(gate) for _ in range(3)]
    found = this_program()
    shown = status()
    gate.open()
    assert dray.get([running]) == [1]
    for ref in waiting:
        dray.cancel(ref, force=True)
    assert found["nodes"][0]["Available"]["CPU"] == 2
    assert [(a["name"], a["pid"], a["state"]) for a in found["actors"]] == [
        ("somebody", pid, "alive")
    ]
    assert [(t["name"], t["state"]) for t in found["tasks"]] == [
        ("task hold", "running"),
        *[("task hold", "waiting")] * 3,
    ]
    assert found["waiting"][0]["requests"] == 3
    assert found["waiting"][0]["why"] == {"CPU": "4 asked, 2 free in all"}
    assert "actor Named 'somebody': alive" in shown
    assert "3 waiting for resources" in shown
    assert "CPU: 4 asked, 2 free in all" in shown


def test_it_shows_objects_and_groups() -> None:
    ref = dray.put(bytes(1 << 20))
    group = placement_group([{"CPU": 1}], name="mine")
    group.wait()
    found = this_program()
    assert found["objects"]["memory_bytes"] >= 1 << 20
    assert [g["name"] for g in found["groups"] if g["state"] == "CREATED"] == ["mine"]
    remove_placement_group(group)
    del ref
    until(lambda: this_program()["objects"]["memory_bytes"] == 0)


def test_without_programs_it_says_so() -> None:
    dray.shutdown()
    assert [p for p in json.loads(status("--json")) if p["pid"] == os.getpid()] == []
    shown = status()
    assert f"pid {os.getpid()}," not in shown
    others = shown.startswith("Program pid ")  # of this user, and beside these tests
    nothing = "No program of yours uses tasks or actors of dray on this machine now.\n"
    assert others or shown == nothing


def test_a_program_that_is_stuck_is_shown_and_holds_nobody_up() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", "import dray; dray.get(dray.put(1)); print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert program.stdout is not None
    program.stdout.readline()
    os.kill(program.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        (found,) = [p for p in json.loads(status("--json")) if p["pid"] == program.pid]
        assert found["note"] == "it does not answer"
        assert time.monotonic() - began < 10
    finally:
        program.kill()
        program.communicate()


def test_a_name_that_somebody_has_taken_keeps_nobody_from_starting() -> None:
    """Every local user can take names, and containers that share a network have equal pids."""
    dray.shutdown()
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(f"\0dray-{os.getuid()}-{os.getpid()}")
        taken.listen()
        assert dray.get(hold_nothing.remote()) == 1
        assert this_program()["workers"] >= 1


def test_those_who_do_not_answer_cost_their_time_once() -> None:
    names = [f"\0dray-{os.getuid()}-{2**22 + number}-0" for number in range(3)]
    with contextlib.ExitStack() as stack:
        for name in names:
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.bind(name)
            silent.listen()
        began = time.monotonic()
        found = beacon.sessions()
        assert time.monotonic() - began < 3 * 2
    assert [entry["note"] for entry in found if entry["pid"] == os.getpid()][-3:] == [
        "it does not answer"
    ] * 3


def test_other_parts_of_a_program_are_shown_without_tasks() -> None:
    dray.shutdown()
    engine = current_engine()
    end = engine.show("trainings", lambda: {"run": "mine"})
    engine.prepare((), RuntimeEnv())
    assert this_program() == {
        "engine": "process",
        "trainings": [{"run": "mine"}],
        "pid": os.getpid(),
    }
    end()
    end()
    assert this_program()["trainings"] == []
    end = engine.show("broken", lambda: 1 / 0)
    assert "ZeroDivisionError" in this_program()["note"]
    end()
