"""Program: ranks report checkpoints, and record the time of each call and the bytes written.

A rank makes the next report when the checkpoint is on the disk, as in a training whose steps take
longer than that.

Arguments: the library, the number of workers, the way, the number of files of each rank, the bytes
of each file, and the number of reports. Ways are "dir" (a staging area), "copy" (a directory of the
rank's own, which is copied) and "cp" (the program of that name instead of `report`). After a plus
sign, a way may have "async", "unsafe" (neither flushed nor with checksums) or "unflushed".
"""

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.launch import launch
from benchmarks.records import record

_BLOCK = os.urandom(1 << 20)


def write(folder: str, rank: int, config: dict[str, Any]) -> None:
    """Write a rank's files."""
    for number in range(config["files"]):
        with open(os.path.join(folder, f"rank-{rank}-{number}"), "wb", buffering=0) as file:
            for start in range(0, config["bytes"], len(_BLOCK)):
                file.write(_BLOCK[: config["bytes"] - start])


def written() -> int:
    """Return the number of bytes that this process has written to disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def save(folder: str, step: int, train: Any, config: dict[str, Any]) -> float:
    """Return the seconds that a report of a directory takes."""
    way = config["way"]
    if "dir" not in way:
        os.sync()  # a copy must not wait for the flush of its source
    importlib.import_module(f"{config['library']}.train.collective").barrier()
    began = time.perf_counter()
    if way[0] == "cp":
        subprocess.run(["cp", "-r", folder, f"{folder}-copy"], check=True)
    else:
        mode = train.CheckpointUploadMode("ASYNC" if "async" in way else "SYNC")
        checkpoint = train.Checkpoint.from_directory(folder)
        train.report({"step": step}, checkpoint, checkpoint_upload_mode=mode)
    return time.perf_counter() - began


@contextlib.contextmanager
def made_by_rank(config: dict[str, Any]) -> Iterator[str]:
    """Yield a directory of the rank's own; delete it afterwards, unless the report does so."""
    path = tempfile.mkdtemp(dir=config["place"])
    yield path
    if "async" not in config["way"]:
        subprocess.run(["rm", "-r", path], check=True)


def is_on_disk(run: str) -> bool:
    """Return whether no checkpoint of a run is provisional."""
    try:
        return not any(b'"boot":' in file.read_bytes() for file in Path(run).glob("*/.dray.json"))
    except FileNotFoundError:  # a checkpoint was just deleted
        return False


def train_function(config: dict[str, Any]) -> None:
    train = importlib.import_module(f"{config['library']}.train")
    rank = train.get_context().get_world_rank()
    for step in range(config["reports"]):
        before = written()
        folder = train.checkpoint_dir() if "dir" in config["way"] else made_by_rank(config)
        with folder as path:
            write(path, rank, config)
            seconds = save(path, step, train, config)
        began = time.perf_counter()
        if "async" in config["way"]:
            train.get_all_reported_checkpoints()
        until_kept = seconds + time.perf_counter() - began
        if config["library"] == "dray":
            run = train.get_context().get_storage().experiment_fs_path
            while not is_on_disk(run):
                time.sleep(0.002)
        record(
            "saved",
            seconds=seconds,
            until_kept=until_kept,
            until_safe=seconds + time.perf_counter() - began,
            times=(written() - before) / (config["files"] * config["bytes"]),
        )


if __name__ == "__main__":
    library, workers, way, *numbers = sys.argv[1:]
    config: dict[str, Any] = {"library": library, "way": way.split("+"), "place": os.getcwd()}
    config |= zip(("files", "bytes", "reports"), map(int, numbers), strict=True)
    kept: dict[str, Any] = {"num_to_keep": 1}
    if not {"unsafe", "unflushed"}.isdisjoint(config["way"]):
        kept |= {"flush": False, "checksums": "unsafe" not in config["way"]}
    launch(library, train_function, int(workers), config=config, checkpoints=kept)
