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

# Nothing of a program may live longer than this after its driver.
_ORPHAN_S = 1.5
_PATIENCE_S = 240.0
_STEPS = 300

Verdict = tuple[dict[str, object], list[str]]


class Program:
    """A training in a process of its own, and all that it starts."""

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
        """Return every process that has this program's mark."""
        return [process for process in psutil.process_iter() if self._marked(process)]

    def _marked(self, process: psutil.Process) -> bool:
        try:
            gone = process.status() == psutil.STATUS_ZOMBIE
            return not gone and process.environ().get(trained.MARK) == self.mark
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def newest_start(self, rank: int) -> dict[str, int] | None:
        """Return what a rank has noted at its newest start."""
        starts = [note for note in notes(self.storage, rank) if "start" in note]
        return starts[-1] if starts else None

    def end(self) -> None:
        """End whatever is left of it."""
        for process in self.living():
            process.kill()
        self.process.wait()

    def said(self) -> str:
        """Return the end of its output."""
        return self.output.read_text(errors="replace")[-600:]


def notes(storage: Path, rank: int) -> list[dict[str, int]]:
    """Return what a rank has noted; a line that a kill has cut off is left out."""
    path = storage / "notes" / str(rank)
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def lost_steps(storage: Path) -> Iterator[str]:
    """Yield each start that went back behind a report that had returned."""
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
    """Yield each checkpoint of a run that is handed out and is not whole."""
    with contextlib.suppress(NoRunError):  # killed before it began
        for checkpoint, _ in Result.from_path(storage / trained.NAME).best_checkpoints:
            if wrong := trained.broken(Path(checkpoint.path)):
                yield wrong


def _finish(program: Program) -> Iterator[str]:
    """Wait for a program's end; yield what is wrong with it."""
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
    """Kill `each` times in each of as many programs as that takes."""
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
    """Kill a rank, or its server, at a random moment after its start; return whether it lived."""
    rank = chance.randrange(2)
    seen = program.newest_start(rank)
    deadline = time.monotonic() + _PATIENCE_S
    while (now := program.newest_start(rank)) is None or now == seen:
        if program.process.poll() is not None or time.monotonic() > deadline:
            return 0
        time.sleep(0.002)
        if seen is not None and chance.random() < 0.01:
            break  # the same start once more: the moment is what matters
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
    """Kill the driver at random; the next one goes on, and nothing of the first is left."""
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
