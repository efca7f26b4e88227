"""Flipped bytes and cut files of a finished run: reads must be correct, or report the damage."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import io
import math
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dray.train
from dray.errors import DrayError
from dray.train import Checkpoint, DataParallelTrainer, Result, RunConfig

Verdict = tuple[dict[str, object], list[str]]

_STEPS = 4
_HANG_S = 120.0


def _train() -> None:
    for step in range(_STEPS):
        dray.train.report({"step": step, "loss": 0.25 / (step + 1), "norm": math.inf})
        with tempfile.TemporaryDirectory() as directory:
            for name in ("model", "optimizer"):
                Path(directory, name).write_text(f"{name} of step {step}, " * 20)
            dray.train.report({"step": step, "saved": True}, checkpoint=Checkpoint(directory))


def _look() -> tuple[str, dict[str, str]] | None:
    checkpoint = dray.train.get_checkpoint()
    return None if checkpoint is None else _contents(checkpoint)


def _kept(read: Callable[[], Result], number: int) -> tuple[str, dict[str, str]]:
    """Return the contents of the checkpoint that is the n-th best."""
    return _contents(read().best_checkpoints[number][0])


def _contents(checkpoint: Checkpoint) -> tuple[str, dict[str, str]]:
    files = sorted(Path(checkpoint.path).iterdir())
    return Path(checkpoint.path).name, {
        f.name: f.read_text(errors="replace") for f in files if not f.name.startswith(".")
    }


def _fit(storage: Path, function: Callable[[], Any]) -> Result:
    return DataParallelTrainer(
        function, run_config=RunConfig(name="run", storage_path=storage)
    ).fit()


def _reads(storage: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield all functions that read a run, by name; the function that resumes it comes last."""

    def read() -> Result:
        return Result.from_path(storage / "run")

    yield "metrics", lambda: read().metrics
    yield "reports", lambda: read().metrics_dataframe.to_json()
    yield "newest", lambda: (found := read().checkpoint) and _contents(found)
    yield "kept", lambda: [metrics for _, metrics in read().best_checkpoints]
    for number in range(_STEPS):
        yield f"kept {number}", partial(_kept, read, number)
    yield "resume", lambda: _fit(storage, _look).return_value


def _told(read: Callable[[], object]) -> tuple[object, str]:
    """Return the result of a read, and the warnings and dray's error, if any."""
    said = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        stack.enter_context(contextlib.redirect_stderr(said))
        stack.enter_context(contextlib.redirect_stdout(said))
        try:
            value = read()
        except DrayError as error:
            value = None
            said.write(f"\n{type(error).__name__}: {error}")
        except IndexError:  # fewer are kept, and a warning says so
            value = None
    return value, "\n".join([said.getvalue(), *(str(each.message) for each in caught)])


def of_bytes(seed: int, scale: float) -> Verdict:
    """Flip a byte of a random file of a run, or cut a file of a checkpoint, and read the run."""
    chance = random.Random(seed)
    count = max(1, round(400 * scale))
    figures: collections.Counter[str] = collections.Counter()
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        storage, gold = Path(place), Path(place, "gold")
        with contextlib.redirect_stdout(io.StringIO()):
            _fit(storage, _train)
        shutil.copytree(storage / "run", gold)
        expected = {name: _told(read)[0] for name, read in _reads(storage)}
        files = sorted(p.relative_to(gold) for p in gold.rglob("*") if p.stat().st_size)
        files = [name for name in files if (gold / name).is_file()]
        for _ in range(count):
            shutil.rmtree(storage / "run")
            shutil.copytree(gold, storage / "run")
            name = chance.choice(files)
            where = _flip(storage / "run" / name, chance)
            figures[_kind(name)] += 1
            faults += _judge(storage, expected, name, where, figures)
    return {"flips": count, **figures}, faults


def _flip(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    if path.parent.name.startswith("checkpoint_") and chance.random() < 0.3:
        path.write_bytes(data[:at])
        return f"cut at byte {at}"
    before = data[at]
    data[at] ^= chance.randrange(1, 256)
    path.write_bytes(data)
    return f"byte {at} from {before:#04x} to {data[at]:#04x}"


def _kind(name: Path) -> str:
    return name.name if name.parent == Path() else name.parent.name.partition("_")[0]


def _judge(
    storage: Path,
    expected: dict[str, object],
    name: Path,
    where: str,
    figures: collections.Counter[str],
) -> Iterator[str]:
    """Yield the faults in reads of a run in which a byte of one file was flipped."""
    told = False
    for read_name, read in _reads(storage):
        faulthandler.dump_traceback_later(_HANG_S, exit=True, file=sys.__stderr__ or 2)
        try:
            value, said = _told(read)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is a fault)
            yield f"{name}, {where}: {read_name} raised {type(error).__name__}: {error}"
            continue
        finally:
            faulthandler.cancel_dump_traceback_later()
        named = os.path.basename(name) in said
        told |= named
        if value != expected[read_name] and not named:
            yield f"{name}, {where}: {read_name} gave {value!r}, and said only {said[-200:]!r}"
    figures["told of" if told else "without effect"] += 1
