"""Runs on storages far away, each served on this machine: S3's API, and HDFS."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import dray.train
from dray.errors import StorageError
from dray.train import (
    Checkpoint,
    CheckpointUploadMode,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
)
from dray.train.storage.run_directory import RunDirectory
from tests.support.remote_runs import Server, fit, report, run_at
from tests.support.s3_server import SECRET


def test_a_run_whose_driver_is_killed_goes_on(
    server: Server, tmp_path: Path, core_engine: str, core_variables: dict[str, str]
) -> None:
    """Kill the driver amid a run, read the run meanwhile, and go on with it."""
    run = f"killed-{core_engine}"
    command = [sys.executable, "-m", "tests.support.remote_runs", server.url, run]
    variables = {**os.environ, **core_variables, "TMPDIR": str(tmp_path)}
    place = run_at(server, run)
    driver = subprocess.Popen([*command, "100000"], env=variables, start_new_session=True)
    try:
        seen = -1
        while seen < 2:
            assert driver.poll() is None
            if not (place / "run.json").exists():
                time.sleep(0.1)
            else:
                checkpoint = Result.from_path(place.path, place.filesystem).checkpoint
                seen = -1 if checkpoint is None else int(checkpoint.path[-6:])
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    before = Result.from_path(place.path, place.filesystem)
    assert before.checkpoint is not None
    with before.checkpoint.as_directory() as path:
        kept = int(Path(path, "rank-0").read_text().split()[-1])
    assert kept >= seen
    again = subprocess.run(
        [*command, str(kept + 3)], env=variables, check=True, capture_output=True, text=True
    )
    assert again.stdout.split()[-2:] == [str(kept + 1), str(kept + 2)]
    left = place.sizes()
    assert not [name for name in left if name.startswith((".unfinished", ".replaced"))]
    assert len({name.split("/")[0] for name in left if name.startswith("checkpoint_")}) == 2
    for name in left:
        assert SECRET.encode() not in (place / name).read_bytes(), name


def test_a_run_on_each_engine(server: Server, engine: str) -> None:
    """Fail once, go on from a checkpoint, and read all of it by URL and by path."""
    result = fit(server, engine, steps=4, fails_at=1, max_failures=1)
    place = run_at(server, engine)
    where = place.path
    assert result.return_value == (2, where) == (2, result.path)
    assert result.metrics == {"step": 3}
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [0, 1, 2, 3]
    found = Result.from_path(where, place.filesystem)
    assert found.checkpoint == result.checkpoint
    assert found.metrics_dataframe["step"].to_list() == [0, 1, 2, 3]
    checkpoint = found.checkpoint
    assert checkpoint is not None
    kind = server.storage_path.partition(":")[0]
    assert repr(checkpoint) == f"Checkpoint(filesystem={kind}, path={where}/checkpoint_000003)"
    checkpoint.update_metadata({"good": True})
    again = Checkpoint(str(place / "checkpoint_000003"), server.filesystem())
    assert again.get_metadata() == {"good": True}
    events = RunDirectory(place).events()
    assert [event["state"] for event in events if event["event"] == "state"][-1] == "FINISHED"


def ways() -> list[tuple[str, int]]:
    context = dray.train.get_context()
    storage, rank = context.get_storage(), context.get_world_rank()

    def bring(checkpoint: Checkpoint, name: str) -> Checkpoint:
        return storage.persist_current_checkpoint(checkpoint, name)

    report(1, checkpoint_dir_name="mine")
    report(2, checkpoint_upload_mode=CheckpointUploadMode.SYNC, checkpoint_upload_fn=bring)
    report(3, checkpoint_dir_name="mine")  # in place of the first one
    source = tempfile.mkdtemp()
    Path(source, f"rank-{rank}").write_text("weights of step 4")
    mode = CheckpointUploadMode.ASYNC
    dray.train.report({"step": 4}, Checkpoint(source), checkpoint_upload_mode=mode)
    found = dray.train.get_all_reported_checkpoints()
    current = dray.train.get_checkpoint()
    assert current is not None
    dray.train.report({"step": 5}, current)  # by way of this node
    return [(Path(each.checkpoint.path).name, each.metrics["step"]) for each in found]


def test_ways_of_a_checkpoint_into_a_run(server: Server, process_engine: None) -> None:
    result = DataParallelTrainer(
        ways,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="ways",
            storage_path=run_at(server, "ways").parent.path,
            storage_filesystem=run_at(server, "ways").filesystem,
        ),
    ).fit()
    assert result.return_value == [
        ("checkpoint_000001", 2),
        ("mine", 3),
        ("checkpoint_000002", 4),
    ]
    texts = {}
    for checkpoint, metrics in result.best_checkpoints:
        with checkpoint.as_directory() as path:
            texts[metrics["step"]] = Path(path, "rank-1").read_text()
    assert texts == {step: f"weights of step {min(step, 4)}" for step in (2, 3, 4, 5)}


def test_a_damaged_checkpoint_is_left_out(server: Server, process_engine: None) -> None:
    """Damage the newest one, of the same size: who loads it hears so, and a run goes back."""
    place = run_at(server, "damaged")
    fit(server, "damaged", steps=3)
    (place / "checkpoint_000002" / "large").write_bytes(b"?" * 10)
    checkpoint = Result.from_path(str(place), server.filesystem()).checkpoint
    assert checkpoint is not None
    said = re.escape(
        f"{place}/checkpoint_000002 is damaged: large has changed since it was committed"
    )
    with pytest.raises(StorageError, match=said), checkpoint.as_directory():
        pass
    with pytest.raises(StorageError, match=said):
        checkpoint.to_directory()
    result = fit(server, "damaged", steps=4)
    assert result.return_value[0] == 2
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [0, 1, 2, 3]
    events = RunDirectory(place).events()
    left_out = {"event": "damaged checkpoint", "checkpoint": "checkpoint_000002", "file": "large"}
    assert [event for event in events if left_out.items() <= event.items()]
