"""Trainings on storages far away, for tests and for the programs that they kill."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol

import dray.train
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)
from dray.train.collective import barrier
from dray.train.storage.filesystem import place_at
from dray.train.storage.place import RemotePath
from tests.support import s3_server
from tests.support.hdfs_server import Hdfs


class Server(Protocol):
    """What keeps runs."""

    url: str
    storage_path: str

    def filesystem(self) -> Any: ...


def reached(url: str) -> Server:
    """Return a server that runs already."""
    return Hdfs(url) if url.startswith("hdfs") else s3_server.Server(url)


def run_at(server: Server, name: str) -> RemotePath:
    """Return the place of a run."""
    place = place_at(f"{server.storage_path}/{name}", server.filesystem(), "path")
    assert isinstance(place, RemotePath)
    return place


def report(step: int, size: int = 10, within: str | None = None, **options: Any) -> None:
    rank = dray.train.get_context().get_world_rank()
    with tempfile.TemporaryDirectory(dir=within) as directory:
        Path(directory, f"rank-{rank}").write_text(f"weights of step {step}")
        Path(directory, "large").write_bytes(bytes([step]) * size)
        dray.train.report({"step": step}, Checkpoint(directory), **options)


def steps(config: dict[str, Any]) -> tuple[int, str]:
    first = 0
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as path:
            first = int(Path(path, "rank-0").read_text().split()[-1]) + 1
            assert Path(path, "large").read_bytes()[:1] == bytes([first - 1])
    for step in range(first, config["steps"]):
        report(step, config.get("size", 10), config.get("within"))
        if step == config.get("fails_at"):
            barrier()  # who is stopped amid a report leaves its directory
            raise RuntimeError("as asked")
    return first, dray.train.get_context().get_storage().experiment_fs_path


def fit(server: Server, name: str, *, keep: int | None = None, **config: Any) -> Result:
    return DataParallelTrainer(
        steps,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name=name,
            storage_path=server.storage_path,
            storage_filesystem=server.filesystem(),
            checkpoint_config=CheckpointConfig(num_to_keep=keep),
            failure_config=FailureConfig(max_failures=config.get("max_failures", 0)),
        ),
    ).fit()


if __name__ == "__main__":
    _, url, name, count = sys.argv
    here = tempfile.gettempdir()  # what a killed worker leaves is the test's, on every engine
    result = fit(reached(url), name, steps=int(count), keep=2, within=here)
    print(result.return_value[0], result.metrics and result.metrics["step"])
