"""The program that the campaign kills: a training whose steps can all be verified afterwards.

Arguments: the storage path, the number of steps, and the ranks that save: "all" or "first".
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import dray.train
from dray.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

NAME = "run"
_FILES = 5  # files of a rank in a checkpoint
MARK = "DRAY_CAMPAIGN"  # a variable that marks every process of a program


def step_of(state: str, step: int) -> str:
    """Return the state after a step, which depends on all steps before."""
    return hashlib.sha256(f"{state}{step}".encode()).hexdigest()


def expected(steps: int) -> str:
    """Return the state after so many steps."""
    state = ""
    for step in range(steps):
        state = step_of(state, step)
    return state


def write(directory: str, rank: int, state: str, step: int) -> None:
    """Write a rank's files of a step: the state, and larger files whose lines are all the state."""
    Path(directory, f"state-{rank}").write_text(json.dumps({"state": state, "step": step}))
    for number in range(1, _FILES):
        Path(directory, f"large-{rank}-{number}").write_text(f"{state}\n" * 1000 * number)


def broken(directory: Path) -> str:
    """Return the fault in the files of a checkpoint; "" if they are those of one step."""
    files = {f.name: f.read_text() for f in directory.iterdir() if not f.name.startswith(".dray.")}
    if len(files) not in (_FILES, 2 * _FILES):
        return f"{directory} has the files {sorted(files)}"
    saved = json.loads(files["state-0"])
    state = expected(saved["step"] + 1)
    for name, text in files.items():
        whole = f"{state}\n" * 1000 * int(name[-1])
        if text != (json.dumps(saved | {"state": state}) if name.startswith("state") else whole):
            return f"{directory / name} is not of step {saved['step']}"
    return ""


def train(config: dict[str, Any]) -> str:
    """Train; note each start and each report that has returned, in a file of the rank's own.

    The files of every other checkpoint are copied; those of the rest are written in place.
    """
    rank = dray.train.get_context().get_world_rank()
    note = os.open(f"{config['notes']}/{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    state, first = "", 0
    found = dray.train.get_checkpoint()
    if found is not None:
        assert not (wrong := broken(Path(found.path))), wrong
        saved = json.loads(Path(found.path, "state-0").read_text())
        state, first = saved["state"], saved["step"] + 1
    _note(note, start=first, pid=os.getpid(), server=os.getppid())
    for step in range(first, config["steps"]):
        state = step_of(state, step)
        checkpoint = None
        with dray.train.checkpoint_dir() as lent:
            directory = tempfile.mkdtemp(dir=config["scratch"]) if step % 2 else lent
            if rank == 0 or config["who"] == "all":
                write(directory, rank, state, step)
                checkpoint = Checkpoint(directory)
            dray.train.report({"step": step}, checkpoint=checkpoint)
        if checkpoint is not None:
            _note(note, reported=step)
    return state


def _note(file: int, **fields: int) -> None:
    os.write(file, (json.dumps(fields) + "\n").encode())


def fit(storage: Path, steps: int, who: str) -> dray.train.Result:
    """Train with two workers, and restart after any number of failures."""
    for name in ("notes", "scratch"):
        (storage / name).mkdir(parents=True, exist_ok=True)
    trainer = DataParallelTrainer(
        train,
        train_loop_config={
            "steps": steps,
            "who": who,
            "notes": str(storage / "notes"),
            "scratch": str(storage / "scratch"),
        },
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name=NAME,
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=dray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    return trainer.fit()


if __name__ == "__main__":
    result = fit(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    metrics = result.metrics or {}
    print(json.dumps({"state": result.return_value, "step": metrics["step"]}), flush=True)
