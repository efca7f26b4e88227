"""Kills workers and drivers at random moments of commits, then damages what they have committed.

After every kill there is the old state or the new one: each checkpoint that a restart or `Result`
hands out is whole, and none is lost whose report has returned. Then single bytes are flipped and
files cut, one at a time: each is found before it is loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import dray.train
from dray.errors import StorageError
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)

_FILES = 5
_WORKERS = 2
# A variable by which what this program has started is known.
_MARK = "DRAY_COMMIT_KILLS"


def write(folder: str, rank: int, step: int) -> None:
    """Write a rank's files of a step, of which every line is the step."""
    for number in range(_FILES):
        path = Path(folder, f"rank-{rank}-{number}")
        path.write_text(f"{step}\n" * 4000 * (number + 1))


def step_of(checkpoint: Checkpoint) -> int:
    """Return the step whose files a checkpoint has; AssertionError if they are not of one."""
    files = [file for file in Path(checkpoint.path).iterdir() if not file.name.startswith(".dray.")]
    assert len(files) in (_FILES, _FILES * _WORKERS), files
    texts = {file.name: file.read_text() for file in files}
    step = int(texts["rank-0-0"].splitlines()[0])
    for name, text in texts.items():
        assert text == f"{step}\n" * 4000 * (int(name[-1]) + 1), f"{name} is not of step {step}"
    return step


def train(config: dict[str, str]) -> None:
    """Commit checkpoints until a file says stop: moved, copied, of all ranks and of one."""
    place, rank = Path(config["place"]), dray.train.get_context().get_world_rank()
    checkpoint, returned = dray.train.get_checkpoint(), place / "returned"
    step = 0 if checkpoint is None else step_of(checkpoint)
    assert not returned.exists() or step >= int(returned.read_text())
    (place / f"pid-{rank}").write_text(str(os.getpid()))
    while dray.train.collective.broadcast_from_rank_zero(not (place / "stop").exists()):
        step += 1
        own = place / f"own-{rank}"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        with dray.train.checkpoint_dir() as lent:
            folder = str(own) if step % 2 else lent
            brings = rank == 0 or step % 4 < 2
            write(folder, rank, step)
            dray.train.report({"step": step}, Checkpoint(folder) if brings else None)
        if rank == 0:
            (place / "draft").write_text(str(step))
            (place / "draft").replace(returned)


def drive(place: Path) -> None:
    """Run the training, again and again after failures."""
    DataParallelTrainer(
        train,
        train_loop_config={"place": str(place)},
        scaling_config=ScalingConfig(num_workers=_WORKERS),
        run_config=RunConfig(
            name="run",
            storage_path=place,
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=-1),
        ),
    ).fit()


def start(place: Path) -> subprocess.Popen[bytes]:
    """Start a driver."""
    command = [sys.executable, __file__, "--drive", str(place)]
    variables = {**os.environ, "DRAY_PROGRESS": "0", _MARK: str(place)}
    return subprocess.Popen(command, env=variables)


def end(pid: int, place: Path) -> None:
    """Kill a process, if it is still one of these."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if f"{_MARK}={place}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
            os.kill(pid, signal.SIGKILL)


def kill(place: Path, kills: int, dice: random.Random) -> None:
    """Kill so many workers and drivers, and look at what is left each time a driver is gone."""
    driver = start(place)
    for number in range(kills):
        pids = await_workers(place, driver)
        time.sleep(dice.uniform(0, 0.15))
        victim = dice.choice([driver.pid, *pids, *pids])
        end(victim, place)
        if victim == driver.pid:
            driver.wait()
            look(place)
            driver = start(place)
        if (number + 1) % 20 == 0:
            print(f"{number + 1} kills, {(place / 'returned').read_text()} steps", flush=True)
    await_workers(place, driver)
    (place / "stop").touch()
    assert driver.wait() == 0
    look(place)
    left = [name for name in os.listdir(place / "run") if name.startswith((".st", ".de", ".re"))]
    assert not left, left


def await_workers(place: Path, driver: subprocess.Popen[bytes]) -> list[int]:
    """Return the workers of an attempt, once all of it train; those of the last one are gone."""
    files = [place / f"pid-{rank}" for rank in range(_WORKERS)]
    while not all(file.exists() and file.read_text() for file in files):
        assert driver.poll() is None, "the driver has ended"
        time.sleep(0.005)
    pids = [int(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return pids


def look(place: Path) -> None:
    """Check that all checkpoints are whole, and none is lost that a report has returned."""
    found = [step_of(checkpoint) for checkpoint, _ in newest(place)]
    returned = place / "returned"
    if returned.exists():
        assert max(found) >= int(returned.read_text()), (found, returned.read_text())


def newest(place: Path) -> list[tuple[Checkpoint, dict[str, object]]]:
    """Return what a run's directory hands out."""
    return Result.from_path(place / "run").best_checkpoints


def damage(place: Path, times: int, dice: random.Random) -> None:
    """Flip a byte, or cut a file, of the newest checkpoint; put it back."""
    warnings.simplefilter("ignore")
    path = Path(newest(place)[-1][0].path)
    files = list(path.iterdir())
    for _ in range(times):
        file = dice.choice(files)
        whole = file.read_bytes()
        at = dice.randrange(len(whole))
        flipped = bytes([whole[at] ^ dice.randrange(1, 256)])
        cut = dice.random() < 0.3
        file.write_bytes(whole[:at] + (b"" if cut else flipped + whole[at + 1 :]))
        handed = [checkpoint for checkpoint, _ in newest(place)]
        with contextlib.suppress(StorageError):
            assert path not in [Path(each.path) for each in handed], f"{file}, byte {at}"
        file.write_bytes(whole)
    look(place)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive is not None:
        drive(options.drive)
        return
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="dray-kills-") as folder:
        kill(Path(folder), options.kills, dice)
        print(f"{options.kills} kills: every checkpoint was whole, and none was lost")
        damage(Path(folder), options.flips, dice)
        print(f"{options.flips} flips and cuts: each was found")


if __name__ == "__main__":
    main()
