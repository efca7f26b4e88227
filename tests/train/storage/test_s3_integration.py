"""What is S3's own of runs there, and memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dray.errors import ConfigError, ControllerError, StorageError, TrainingFailedError
from dray.train import Checkpoint, DataParallelTrainer, Result, RunConfig
from dray.train.storage.checkpoint_files import list_files
from tests.support.remote_runs import fit, report
from tests.support.s3_server import BUCKET, SECRET, Server


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
    with pytest.raises(ControllerError, match="rank-1 is missing or differs"):
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
        r"\([0-9]+ attempts? in [0-9.]+ s\); check whether the endpoint", str(gone.value)
    )
    assert SECRET not in str(gone.value)
    with pytest.raises(StorageError, match="make the bucket, or give another storage_path"):
        DataParallelTrainer(
            print,
            run_config=RunConfig(storage_path="s3://nosuch/x", storage_filesystem=s3.filesystem()),
        ).fit()


def test_what_workers_do_not_see_is_refused(process_engine: None) -> None:
    config = RunConfig(name="unseen", storage_path="memory://unseen")
    with pytest.raises(
        ConfigError, match="does not see the files that the driver has written to memory://"
    ):
        DataParallelTrainer(print, run_config=config).fit()


def test_names_of_objects_that_are_no_files(s3: Server, tmp_path: Path) -> None:
    """Folders made by hand are passed over, and nothing is written beside the copy."""
    filesystem = s3.filesystem()
    for name in ("", "sub/", "made/", "made/more", "model"):
        filesystem.pipe_file(f"{BUCKET}/byhand/{name}", b"x" * len(name))
    checkpoint = Checkpoint(f"{BUCKET}/byhand", filesystem)
    assert list_files(checkpoint.to_directory(tmp_path / "copy")) == ["made/more", "model"]
    for name in ("../../outside", f"{tmp_path}/outside", "./model"):
        filesystem.pipe_file(f"{BUCKET}/strange/{name}", b"a stranger's")
        strange = Checkpoint(f"{BUCKET}/strange", filesystem)
        with pytest.raises(
            StorageError, match=re.escape(f"an object {name!r}, whose name cannot be")
        ):
            strange.to_directory(tmp_path / "in" / "strange")
        with (
            pytest.raises(StorageError, match=r"cannot be th(at|e name) of a file"),
            strange.as_directory(),
        ):
            pass
        filesystem.rm_file(f"{BUCKET}/strange/{name}")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
