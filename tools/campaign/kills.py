"""Kills of ranks, fork servers and drivers at random moments of a training."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from dray.errors import NoRunError
from dray.train import Result
from tools.campaign import trained

# No process of a program may live longer than this after its driver.
_ORPHAN_S = 1.5
_PATIENCE_S = 240.0
_STEPS = 300

Verdict = tuple[dict[str, object], list[str]]


class Program:
    """A training in a process of its own, with all processes that it starts."""

    def __init__(self, storage: Path, steps: int, who: str) -> None:
        self.mark = os.urandom(8).hex()
        self.storage = storage
        self.output = storage / "output"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).parent / "trained.py"),
                    storage,
                    str(steps),
                    who,
                ],
                env={**os.environ, trained.MARK: self.mark, "DRAY_PROGRESS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def living(self) -> list[psutil.Process]:
        """Return all processes that have this program's mark."""
        return [process for process in psutil.process_iter() if self._marked(process)]

    def _marked(self, process: psutil.Process) -> bool:
        try:
            gone = process.status() == psutil.STATUS_ZOMBIE
            return not gone and process.environ().get(trained.MARK) == self.mark
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def newest_start(self, rank: int) -> dict[str, int] | None:
        """Return the notes of a rank since its newest start."""
        starts = [note for note in notes(self.storage, rank) if "start" in note]
        return starts[-1] if starts else None

    def end(self) -> None:
        """End the processes that are left."""
        for process in self.living():
            process.kill()
        self.process.wait()

    def said(self) -> str:
        """Return the end of the program's output."""
        return self.output.read_text(errors="replace")[-600:]


def notes(storage: Path, rank: int) -> list[dict[str, int]]:
    """Return the notes of a rank, without a line that a kill has cut off."""
    path = storage / "notes" / str(rank)
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def lost_steps(storage: Path) -> Iterator[str]:
    """Yield each start that resumed before a report that had returned."""
    for rank in (0, 1):
        durable = -1
        for note in notes(storage, rank):
            if "reported" in note:
                durable = max(durable, note["reported"])
            elif note["start"] <= durable:
                yield (
                    f"{storage}: rank {rank} started at step {note['start']}, after its report of "
                    f"step {durable} had returned"
                )


def broken_checkpoints(storage: Path) -> Iterator[str]:
    """Yield each checkpoint that a run offers although it is not complete."""
    with contextlib.suppress(NoRunError):  # killed before the run began
        for checkpoint, _ in Result.from_path(storage / trained.NAME).best_checkpoints:
            if wrong := trained.broken(Path(checkpoint.path)):
                yield wrong


def _finish(program: Program) -> Iterator[str]:
    """Wait for a program's end; yield its faults."""
    try:
        status = program.process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        program.end()
        yield f"{program.storage}: hung: {program.said()}"
        return
    if status:
        yield f"{program.storage}: ended with status {status}: {program.said()}"
        return
    told = json.loads(program.output.read_text().splitlines()[-1])
    if told != {"state": trained.expected(_STEPS), "step": _STEPS - 1}:
        yield f"{program.storage}: a wrong end: {told}"
    yield from lost_steps(program.storage)
    yield from broken_checkpoints(program.storage)
    yield from _orphans(program)
    for name in os.listdir(program.storage / trained.NAME):
        if name.startswith((".staging", ".deleted", ".replaced")):
            yield f"{program.storage}: left behind: {name}"


def _orphans(program: Program) -> Iterator[str]:
    deadline = time.monotonic() + _ORPHAN_S
    while (left := program.living()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        yield f"{program.storage}: left behind: {process}"
        process.kill()


def _campaign(seed: int, count: int, each: int, victims: str) -> Verdict:
    """Make so many kills, `each` of them in one program."""
    chance = random.Random(seed)
    faults: list[str] = []
    killed = programs = 0
    with tempfile.TemporaryDirectory(prefix="campaign-") as place:
        while killed < count:
            programs += 1
            storage = Path(place, str(programs))
            storage.mkdir()
            who = chance.choice(["all", "first"])
            program = Program(storage, _STEPS, who)
            for _ in range(min(each, count - killed)):
                killed += _kill_one(program, chance, victims)
            faults += _finish(program)
    return {"kills": killed, "programs": programs}, faults


def _kill_one(program: Program, chance: random.Random, victims: str) -> int:
    """Kill a rank or its fork server at a random moment; return whether it was still alive."""
    rank = chance.randrange(2)
    seen = program.newest_start(rank)
    deadline = time.monotonic() + _PATIENCE_S
    while (now := program.newest_start(rank)) is None or now == seen:
        if program.process.poll() is not None or time.monotonic() > deadline:
            return 0
        time.sleep(0.002)
        if seen is not None and chance.random() < 0.01:
            break  # kill the same start again, at another moment
    time.sleep(chance.random() * 0.1)
    pid = now["server" if victims == "servers" else "pid"] if now else 0
    if not pid or pid == program.process.pid:
        return 0
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def of_ranks(seed: int, scale: float) -> Verdict:
    """Kill ranks at random, ten in a program."""
    return _campaign(seed, round(200 * scale), 10, "ranks")


def of_fork_servers(seed: int, scale: float) -> Verdict:
    """Kill the fork server at random, three times in a program."""
    return _campaign(seed, round(30 * scale), 3, "servers")


def of_drivers(seed: int, scale: float) -> Verdict:
    """Kill the driver at random; the next one must resume, and no process of the first be left."""
    chance = random.Random(seed)
    faults: list[str] = []
    killed = 0
    with tempfile.TemporaryDirectory(prefix="campaign-") as place:
        while killed < round(30 * scale):
            storage = Path(place, str(killed))
            storage.mkdir()
            who = chance.choice(["all", "first"])
            for _ in range(3):
                program = Program(storage, _STEPS, who)
                killed += _kill_driver(program, chance)
                faults += [*_orphans(program), *broken_checkpoints(storage)]
            faults += _finish(Program(storage, _STEPS, who))
    return {"kills": killed}, faults


def _kill_driver(program: Program, chance: random.Random) -> int:
    seen = program.newest_start(0)
    deadline = time.monotonic() + _PATIENCE_S
    while program.newest_start(0) == seen and program.process.poll() is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.002)
    time.sleep(chance.random() * 0.2)
    lived = program.process.poll() is None
    program.process.kill()
    program.process.wait()
    return int(lived)
