"""`dray status` tells, from another process, what programs run and what waits for what."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.engines import status_socket
from dray.engines.runtime_env import RuntimeEnv
from dray.session import current_engine
from dray.status import (
    ActorStatus,
    NodeStatus,
    ProgramStatus,
    TaskStatus,
    TrainingStatus,
    WaitingStatus,
    read,
    text,
)
from dray.util.placement_group import placement_group, remove_placement_group
from tests.support.gates import Gate, until
from tests.support.programs import environment


def status(*options: str, encoding: str = "utf-8") -> str:
    command = [sys.executable, "-m", "dray", "status", *options]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    return subprocess.run(
        command, env=environment, capture_output=True, encoding=encoding, check=True
    ).stdout


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


@pytest.mark.usefixtures("process_engine")
def test_it_shows_what_runs_and_what_waits_and_why(gate: Gate) -> None:
    actor = Named.options(name="somebody", num_cpus=1).remote()
    pid = dray.get(actor.pid.remote())
    name = "\xe9\udcff\n\x1b[31m"
    running = hold.options(num_cpus=5, name=name).remote(gate)
    gate.heard()
    waiting = [hold.options(num_cpus=4).remote(gate) for _ in range(120)]
    found = this_program()
    shown = status(encoding="ascii")
    gate.open()
    assert dray.get([running]) == [1]
    for ref in waiting:
        dray.cancel(ref, force=True)
    assert found["nodes"][0]["available"]["CPU"] == 2
    assert [(a["name"], a["pid"], a["state"]) for a in found["actors"]] == [
        ("somebody", pid, "alive")
    ]
    assert [(t["name"], t["state"]) for t in found["tasks"]] == [
        (name, "running"),
        *[("hold", "waiting")] * 99,
    ]
    assert found["task_count"] == 121
    assert found["waiting"][0]["requests"] == 120
    assert found["waiting"][0]["why"] == {"CPU": "4 asked, 2 free in all"}
    assert "actor Named 'somebody': alive" in shown
    assert r"  \xe9\udcff\n\x1b[31m: running, pid " in shown
    assert "... and 21 more tasks" in shown
    assert "120 waiting for resources" in shown
    assert "CPU: 4 asked, 2 free in all" in shown


@pytest.mark.usefixtures("process_engine")
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


@pytest.mark.usefixtures("process_engine")
def test_without_programs_it_says_so() -> None:
    dray.shutdown()
    assert [p for p in json.loads(status("--json")) if p["pid"] == os.getpid()] == []
    shown = status()
    assert f"pid {os.getpid()}," not in shown
    others = shown.startswith("Program pid ")  # of this user, and beside these tests
    nothing = "No program of yours uses dray on this machine now.\n"
    assert others or shown == nothing


@pytest.mark.usefixtures("process_engine")
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


ENDS = """
import dray, threading, time
from dray.session import current_engine

dray.get(dray.put(1))
engine, asked = current_engine(), threading.Event()

def answer_as_it_ends():
    asked.set()
    while not engine.closed:
        time.sleep(0.001)
    with engine._lock:
        return {}

engine.show("late", answer_as_it_ends)
print(flush=True)
asked.wait()
"""


@pytest.mark.usefixtures("process_engine")
def test_a_program_that_is_asked_as_it_ends_ends_without_a_word() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        assert [p for p in json.loads(status("--json")) if p["pid"] == program.pid] == []
        assert program.communicate()[1] == ""
    assert program.returncode == 0


def test_a_name_that_somebody_has_taken_keeps_nobody_from_starting() -> None:
    """Every local user can take names, and containers that share a network have equal pids."""
    dray.shutdown()
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(f"\0dray-{os.getuid()}-{os.getpid()}")
        taken.listen()
        assert dray.get(hold_nothing.remote()) == 1
        assert this_program()["workers"] >= 1


def test_a_name_of_somebody_else_that_is_no_text_hides_nobody() -> None:
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(b"\0dray\n \n\xff\n")
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
        found = status_socket.sessions()
        assert time.monotonic() - began < 3 * 2
    assert [entry["note"] for entry in found if entry["pid"] == os.getpid()][-3:] == [
        "it does not answer"
    ] * 3


def test_other_parts_of_a_program_are_shown_without_tasks() -> None:
    dray.shutdown()
    engine = current_engine()
    end = engine.show("trainings", lambda: {"name": "mine"})
    engine.prepare((), RuntimeEnv())
    assert [training["name"] for training in this_program()["trainings"]] == ["mine"]
    end()
    end()
    assert this_program()["trainings"] == []
    end = engine.show("broken", lambda: 1 / 0)
    assert "ZeroDivisionError" in this_program()["note"]
    end()


TRAINS = """
import dray.train, threading
from dray.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def train(config):
    context = dray.train.get_context()
    dray.train.report({"step": 1, "loss": 0.5, "odd": float("nan")})
    if context.get_world_rank() == 1 and config["holds"]:
        open(config["gate"]).close()
    dray.train.collective.barrier()

def fit(name, holds):
    DataParallelTrainer(
        train,
        train_loop_config={"gate": GATE, "holds": holds},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.1}),
        run_config=RunConfig(name=name, storage_path=STORAGE),
    ).fit()

threads = [threading.Thread(target=fit, args=[name, True]) for name in ("first", "second")]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
def test_it_shows_trainings_of_a_program_that_only_calls_fit(
    engine_name: str, tmp_path: Path, variables: dict[str, str]
) -> None:
    os.mkfifo(tmp_path / "gate")
    script = tmp_path / "script.py"
    constants = f"GATE, STORAGE = {str(tmp_path / 'gate')!r}, {str(tmp_path)!r}\n"
    script.write_text(constants + TRAINS)
    program = subprocess.Popen(
        [sys.executable, str(script)],
        env={**environment(tmp_path, DRAY_PROGRESS="0"), **variables},
    )

    def trainings() -> list[dict[str, Any]]:
        found = [p for p in json.loads(status("--json")) if p["pid"] == program.pid]
        return [training for p in found for training in p["trainings"]]

    def all_wait() -> bool:
        assert program.poll() is None
        return len([t for t in trainings() if t["waits"] and t["report"] == 0]) == 2

    try:
        until(all_wait)
        first, second = sorted(trainings(), key=lambda training: str(training["name"]))
        shown = status()
        if engine_name == "ray":
            found = [json.loads(status("--json", "--address", variables["RAY_ADDRESS"]))]
            on_cluster = status("--address", variables["RAY_ADDRESS"])
            assert [len(p["trainings"]) for p in found[0] if p["pid"] == program.pid] == [2]
            assert "training first: RUNNING" in on_cluster
            assert "actor " in on_cluster
        with open(tmp_path / "gate", "w"):  # both have come
            assert program.wait(100) == 0
    finally:
        program.kill()
        program.wait()
    assert (first["name"], first["state"], first["attempt"]) == ("first", "RUNNING", 0)
    assert [worker["rank"] for worker in first["workers"]] == [0, 1]
    pids = {worker["pid"] for training in (first, second) for worker in training["workers"]}
    assert len(pids) == 4
    assert {**first["metrics"], "odd": ""} == {"step": 1, "loss": 0.5, "odd": ""}
    assert first["since_report_s"] >= 0
    assert first["waits"][0].startswith("rank 1, which has not come to barrier() for ")
    assert f"Program pid {program.pid}, {engine_name} engine" in shown
    assert "training second: RUNNING" in shown
    assert f"rank 0, pid {first['workers'][0]['pid']}" in shown
    assert "step=1 loss=0.5" in shown
    assert "waiting for rank 1, which has not come to barrier()" in shown


@pytest.mark.parametrize("engine_name", ["ray"], indirect=True)
def test_the_text_of_a_cluster_without_a_dashboard_knows_its_actors(
    variables: dict[str, str],
) -> None:
    actor = Named.options(name="somebody", num_cpus=0).remote()
    pid = dray.get(actor.pid.remote())
    all_of_it = int(dray.cluster_resources()["CPU"])
    first, late = (placement_group([{"CPU": 1}] * all_of_it, name=n) for n in ("", "late"))
    try:
        shown = status("--address", variables["RAY_ADDRESS"])
    finally:
        remove_placement_group(first)
        remove_placement_group(late)
    assert "placement group late waiting for resources" in shown
    assert re.search(rf"actor \S*Named 'somebody': alive, pid {pid}\n", shown)
    assert "Ray's dashboard, which knows of tasks, does not answer" in shown
    assert shown.count("  node ") >= 3


def test_every_shape_of_status_has_a_text_and_comes_back_from_json() -> None:
    kinds = (ActorStatus, TaskStatus, WaitingStatus, TrainingStatus, NodeStatus)
    names = ("actors", "tasks", "waiting", "trainings", "nodes")
    lists: dict[str, Any] = {name: [kind()] for name, kind in zip(names, kinds, strict=True)}
    empty = ProgramStatus(**lists)
    assert text([empty, ProgramStatus()]).startswith("Program")
    data = json.loads(json.dumps(asdict(empty)))
    assert read(ProgramStatus, {**data, "of a later version": 1}) == empty
    assert read(ProgramStatus, {"pid": 3, "note": "silent"}) == ProgramStatus(pid=3, note="silent")
