"""Runs on object stores: S3's API, served on this machine, and memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dray.train
from dray.errors import ConfigError, ControllerError, StorageError, TrainingFailedError
from dray.train import (
    Checkpoint,
    CheckpointUploadMode,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
)
from dray.train.storage.filesystem import place_at
from dray.train.storage.run_directory import RunDirectory
from tests.support.s3_runs import fit, report
from tests.support.s3_server import BUCKET, SECRET, Server, served

pytest.importorskip("moto")
pytest.importorskip("s3fs")


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    with served() as server:
        yield server


def names(s3: Server, name: str) -> list[str]:
    filesystem = s3.filesystem()
    filesystem.invalidate_cache()
    start = len(f"{BUCKET}/prefix/{name}/")
    return sorted(path[start:] for path in filesystem.find(f"{BUCKET}/prefix/{name}"))


def test_a_run_whose_driver_is_killed_goes_on(
    s3: Server, tmp_path: Path, core_engine: str, core_variables: dict[str, str]
) -> None:
    """Kill the driver amid a run, read the run meanwhile, and go on with it."""
    port, run = s3.url.rpartition(":")[2], f"killed-{core_engine}"
    command = [sys.executable, "-m", "tests.support.s3_runs", port, run]
    variables = {**os.environ, **core_variables, "TMPDIR": str(tmp_path)}
    place, url = s3.filesystem(), f"s3://{BUCKET}/prefix/{run}"
    driver = subprocess.Popen([*command, "100000"], env=variables, start_new_session=True)
    try:
        seen = -1
        while seen < 2:
            assert driver.poll() is None
            if "run.json" not in names(s3, run):
                time.sleep(0.1)
            else:
                checkpoint = Result.from_path(url, place).checkpoint
                seen = -1 if checkpoint is None else int(checkpoint.path[-6:])
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    before = Result.from_path(url, place)
    assert before.checkpoint is not None
    with before.checkpoint.as_directory() as path:
        kept = int(Path(path, "rank-0").read_text().split()[-1])
    assert kept >= seen
    again = subprocess.run(
        [*command, str(kept + 3)], env=variables, check=True, capture_output=True, text=True
    )
    assert again.stdout.split()[-2:] == [str(kept + 1), str(kept + 2)]
    left = names(s3, run)
    assert not [name for name in left if name.startswith((".unfinished", ".replaced"))]
    assert len({name.split("/")[0] for name in left if name.startswith("checkpoint_")}) == 2
    for name in left:
        content = place.cat_file(f"{BUCKET}/prefix/{run}/{name}")
        assert SECRET.encode() not in content, name


def test_a_run_on_each_engine(s3: Server, engine: str) -> None:
    """Fail once, go on from a checkpoint, and read all of it by URL and by path."""
    result = fit(s3, engine, steps=4, fails_at=1, max_failures=1)
    where = f"{BUCKET}/prefix/{engine}"
    assert result.return_value == (2, where) == (2, result.path)
    assert result.metrics == {"step": 3}
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [0, 1, 2, 3]
    found = Result.from_path(where, s3.filesystem())
    assert found.checkpoint == result.checkpoint
    assert found.metrics_dataframe["step"].to_list() == [0, 1, 2, 3]
    checkpoint = found.checkpoint
    assert checkpoint is not None
    assert repr(checkpoint) == f"Checkpoint(filesystem=s3, path={where}/checkpoint_000003)"
    checkpoint.update_metadata({"good": True})
    assert Checkpoint(f"s3://{checkpoint.path}", s3.filesystem()).get_metadata() == {"good": True}
    events = RunDirectory(place_at(where, s3.filesystem(), "path")).events()
    assert [event["state"] for event in events if event["event"] == "state"][-1] == "FINISHED"


def test_a_url_may_name_the_server(
    s3: Server, process_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    options = f"scheme=http&endpoint_override={s3.url.removeprefix('http://')}&region=eu-west-1"
    config = RunConfig(name="by-url", storage_path=f"s3://{BUCKET}/prefix?{options}")
    result = DataParallelTrainer(lambda: report(1), run_config=config).fit()
    assert result.path == f"{BUCKET}/prefix/by-url"
    assert Result.from_path(f"s3://{result.path}?{options}").checkpoint == result.checkpoint


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


def test_ways_of_a_checkpoint_into_a_run(s3: Server, process_engine: None) -> None:
    result = DataParallelTrainer(
        ways,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="ways",
            storage_path=f"{BUCKET}/prefix",
            storage_filesystem=s3.filesystem(),
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


def newest(s3: Server, name: str) -> list[tuple[Checkpoint, dict[str, object]]]:
    return Result.from_path(f"s3://{BUCKET}/prefix/{name}", s3.filesystem()).best_checkpoints


def test_faults_of_the_storage(
    s3: Server,
    process_engine: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Train while it is slow and throttles, while what is uploaded is lost, and none is answered.

    Give up then.
    """
    with s3.failing(every=3, slow_s=0.02):
        fit(s3, "faults", steps=3, size=17 << 20)  # in parts
    monkeypatch.setenv("DRAY_STORAGE_RETRY_S", "2")
    s3.loses("large")  # of a part that is said to be there
    with pytest.raises(TrainingFailedError) as lost:
        fit(s3, "faults", steps=4, size=17 << 20, within=str(tmp_path))
    assert re.search("checkpoint_000003/large cannot be written.* part", str(lost.value))
    s3.loses("rank-1")  # of a whole file
    with pytest.raises(ControllerError, match="rank-1 is not there as it was uploaded"):
        fit(s3, "faults", steps=4, within=str(tmp_path))
    assert [metrics["step"] for _, metrics in newest(s3, "faults")] == [0, 1, 2]
    caplog.clear()
    monkeypatch.delenv("DRAY_STORAGE_RETRY_S")
    with s3.failing(gone_s=5):
        result = fit(s3, "faults", steps=5)
    assert result.return_value[0] == 3
    assert result.metrics == {"step": 4}
    assert any("; trying for 60 s" in said for said in caplog.messages)
    monkeypatch.setenv("DRAY_STORAGE_RETRY_S", "1")
    with s3.failing(gone_s=100), pytest.raises(StorageError) as gone:
        fit(s3, "faults", steps=6)
    assert f"s3://{BUCKET}/prefix/faults" in str(gone.value)
    assert re.search(
        r"\([0-9]+ attempts? in [0-9.]+ s\); look whether the endpoint", str(gone.value)
    )
    assert SECRET not in str(gone.value)
    with pytest.raises(StorageError, match="make the bucket, or give another storage_path"):
        DataParallelTrainer(
            print,
            run_config=RunConfig(storage_path="s3://nosuch/x", storage_filesystem=s3.filesystem()),
        ).fit()


def test_a_damaged_checkpoint_is_left_out(s3: Server, process_engine: None) -> None:
    """Damage the newest one, of the same size: who loads it hears so, and a run goes back."""
    url = f"s3://{BUCKET}/prefix/damaged"
    fit(s3, "damaged", steps=3)
    s3.filesystem().pipe_file(f"{url}/checkpoint_000002/large", b"?" * 10)
    checkpoint = Result.from_path(url, s3.filesystem()).checkpoint
    assert checkpoint is not None
    said = re.escape(f"{url}/checkpoint_000002 is damaged: large is not as it was committed")
    with pytest.raises(StorageError, match=said), checkpoint.as_directory():
        pass
    with pytest.raises(StorageError, match=said):
        checkpoint.to_directory()
    result = fit(s3, "damaged", steps=4)
    assert result.return_value[0] == 2
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [0, 1, 2, 3]
    events = RunDirectory(place_at(url, s3.filesystem(), "path")).events()
    left_out = {"event": "damaged checkpoint", "checkpoint": "checkpoint_000002", "file": "large"}
    assert [event for event in events if left_out.items() <= event.items()]


def test_what_workers_do_not_see_is_refused(process_engine: None) -> None:
    config = RunConfig(name="unseen", storage_path="memory://unseen")
    with pytest.raises(ConfigError, match="does not see what the driver has written to memory://"):
        DataParallelTrainer(print, run_config=config).fit()
