"""What a disk does to a run: torn lines, damage, no room, and directories that are gone."""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import functools
import json
import os
import resource
import shutil
import signal
import stat
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.errors import MissingDependencyError, StorageError
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    TrainingFailedError,
    UserCallback,
    WorkerGroupError,
)
from dray.train.worker.storage_context import StorageContext
from tests.support import train_runs
from tests.support.gates import until
from tests.support.train_runs import report_step, three_steps

fit = functools.partial(train_runs.fit, workers=1)

pytestmark = pytest.mark.usefixtures("process_engine")


@pytest.fixture(autouse=True)
def _talkative(monkeypatch: pytest.MonkeyPatch, process_engine: None) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")


def report_from(source: Path) -> None:
    """Report a checkpoint from where a worker may be killed, and leave nothing in /tmp then."""
    source.mkdir()
    (source / "weights").write_text("weights")
    dray.train.report({}, checkpoint=Checkpoint(source))


def test_a_file_system_may_lack_locks_permissions_and_flushes_of_directories(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lustre without `flock`, Windows' disks in WSL, and shared folders of VirtualBox."""

    def refusing(number: int) -> Any:
        def refuse(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        return refuse

    def lack(setattr: Any) -> None:
        flush, refuse = os.fsync, refusing(errno.EINVAL)
        setattr(fcntl, "flock", refusing(errno.ENOSYS))
        setattr(os, "fchmod", refusing(errno.EPERM))
        setattr(
            os, "fsync", lambda fd: (refuse if stat.S_ISDIR(os.fstat(fd).st_mode) else flush)(fd)
        )

    def train() -> None:
        lack(builtins.setattr)
        report_from(storage / "made")

    lack(monkeypatch.setattr)
    with pytest.warns(UserWarning, match="has no locks .Function not implemented.: nothing keeps"):
        found = fit(train, storage).checkpoint
    assert found is not None
    assert (Path(found.path) / "weights").read_text() == "weights"


# Lines cut short.


def test_a_line_torn_by_a_kill_is_told_and_nothing_else_is_lost(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        dray.train.report({"step": 0})
        if dray.train.get_checkpoint() is None:
            report_step(1)
            # What a kill within the write leaves: half a line.
            with open(storage / "run/metrics/rank-00000.jsonl", "a") as file:
                file.write('{"report":2,"attempt":0,"ti')
            os.kill(os.getpid(), signal.SIGKILL)
        dray.train.report({"step": 3})

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.metrics == {"step": 3}
    said = "rank-00000.jsonl: line 3 is damaged or cut short, and left out"
    assert capsys.readouterr().err.count(said) == 1
    with pytest.warns(UserWarning, match=said):
        again = Result.from_path(storage / "run")
    assert again.metrics == {"step": 3}


def test_the_error_of_the_run_is_not_hidden_by_its_directory(storage: Path) -> None:
    def train() -> None:
        dray.train.report({"a": 1})
        shutil.rmtree(storage / "run" / "metrics")
        (storage / "run" / "metrics").write_text("a file where a directory was")
        raise RuntimeError("device-side assert triggered")

    with pytest.raises(WorkerGroupError, match="device-side assert") as caught:
        fit(train, storage)
    assert isinstance(caught.value, RuntimeError)


# No room.


def test_a_report_that_finds_no_room_raises_and_leaves_no_half_line(storage: Path) -> None:
    def train() -> Any:
        path = storage / "run/metrics/rank-00000.jsonl"
        dray.train.report({"step": 0})
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, limits[1]))
        try:
            dray.train.report({"step": 1})
        except StorageError as error:
            said = error
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        dray.train.report({"step": 2})
        return said.errno, str(said)

    result = fit(train, storage)
    assert result.return_value[0] == errno.EFBIG
    assert f"{storage}/run/metrics/rank-00000.jsonl cannot be written" in result.return_value[1]
    lines = (storage / "run/metrics/rank-00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["metrics"]["step"] for line in lines] == [0, 2]
    assert [json.loads(line)["report"] for line in lines] == [0, 2]


def test_a_report_without_room_ends_the_run_with_the_path(storage: Path) -> None:
    def train() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
        dray.train.report({"step": 1})

    with pytest.raises(TrainingFailedError, match=r"rank-00000\.jsonl cannot be written") as caught:
        fit(train, storage)
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == errno.EFBIG


def test_events_and_logs_without_room_end_no_run(
    storage: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Any, *how: Any, real: Any = os.open, **more: Any) -> Any:
        is_full = str(path).endswith(("rank-00000.log", "events.jsonl"))
        return real("/dev/full" if is_full else path, *how, **more)

    def train() -> str:
        print("some words", flush=True)
        print("and more", flush=True)
        return "a week's work"

    monkeypatch.setattr(os, "open", full)
    result = fit(train, storage)
    assert result.return_value == "a week's work"
    said = capsys.readouterr()
    assert said.err.count("events.jsonl cannot be written") == 1
    assert said.err.count("rank-00000.log cannot be written") == 1
    assert "some words" in said.out


def test_a_manifest_without_room_ends_the_run_and_leaves_no_staging(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullDisk(UserCallback):
        def before_run(self, run_context: Any) -> None:
            monkeypatch.setattr(os, "fsync", full)

    def train() -> None:
        report_from(storage.parent / "source")

    with pytest.raises(TrainingFailedError, match=r"cannot be committed.*make room") as caught:
        fit(train, storage, callbacks=[FullDisk()])
    assert isinstance(caught.value, StorageError)
    assert caught.value.errno == errno.ENOSPC
    assert not [n for n in os.listdir(storage / "run") if n.startswith((".staging", "checkpoint"))]


def test_a_checkpoint_without_room_may_be_skipped(storage: Path) -> None:
    """Who catches the error goes on, and so do the ranks that waited for the same checkpoint."""

    def train() -> list[str]:
        rank = dray.train.get_context().get_world_rank()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        said = []
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, f"weights-{rank}").write_bytes(b"x" * 100_000)
            for step in range(3):
                if rank == 0 and step == 1:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
                try:
                    dray.train.report({"step": step}, checkpoint=Checkpoint(directory))
                except StorageError as error:
                    said.append(f"step {step}: {error}")
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        if rank == 1:
            assert "report 1 has no checkpoint: rank 0: " in said[0]
        return said

    result = fit(train, storage, workers=2)
    (said,) = result.return_value
    assert said.startswith("step 1: ")
    assert "weights-0 cannot be copied into" in said
    assert [metrics for _, metrics in result.best_checkpoints] == [{"step": 0}, {"step": 2}]
    assert not [n for n in os.listdir(storage / "run") if n.startswith((".staging", ".deleted"))]


def test_staging_goes_when_a_rank_fails_within_it(storage: Path) -> None:
    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        source = storage.parent / f"source-{rank}"
        source.mkdir()
        (source / f"part-{rank}").write_text("weights")
        if rank == 1:  # when rank 0 has said which files it has
            until((storage / "run/metrics/rank-00000.jsonl").read_bytes)
            shutil.rmtree(storage.parent / "source-0")
            (storage.parent / "source-0").mkdir()
        dray.train.report({}, checkpoint=Checkpoint(source))

    with pytest.raises(TrainingFailedError, match="cannot be copied into") as caught:
        fit(train, storage, workers=2)
    assert isinstance(caught.value, StorageError)
    assert not [n for n in os.listdir(storage / "run") if n.startswith(".staging")]


# What is not there.


def test_a_finished_training_keeps_its_value_when_its_directory_is_gone(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> str:
        dray.train.report({"a": 1})
        shutil.rmtree(storage)
        return "a week's work"

    result = fit(train, storage)
    assert (result.return_value, result.metrics, result.checkpoint) == ("a week's work", None, None)
    assert f"the run directory {storage}/run cannot be" in capsys.readouterr().err


def test_a_checkpoint_for_a_directory_that_is_gone_ends_the_run(storage: Path) -> None:
    def train() -> None:
        shutil.rmtree(storage)
        report_from(storage.parent / "source")

    with pytest.raises(TrainingFailedError, match=str(storage)) as caught:
        fit(train, storage)
    assert isinstance(caught.value, StorageError)


def test_where_no_run_can_be_is_said_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    for storage, name in (
        (tmp_path / "link", "run"),
        (tmp_path / "link", None),
        (tmp_path / "link" / "below", None),
        (tmp_path / "file", "run"),
        (tmp_path / "file" / "below", None),
        (tmp_path, "x" * 300),
        (tmp_path, "file"),
        (Path("/proc"), "run"),
    ):
        trainer = DataParallelTrainer(
            lambda: None, run_config=RunConfig(name=name, storage_path=storage)
        )
        with pytest.raises(StorageError, match=f"{storage}/.* cannot be written") as caught:
            trainer.fit()
        said = "it is a file, or a broken symbolic link" in str(caught.value)
        assert said == ("link" in storage.parts or name == "file")


# Scores.


def test_a_score_that_is_missing_is_told_and_ends_no_training(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [1.0, None, "high", float("nan"), 10**400, 0.5]

    def train() -> None:
        for value in values:
            with tempfile.TemporaryDirectory() as directory:
                metrics = {"x": 1} if value is None else {"score": value}
                dray.train.report(metrics, checkpoint=Checkpoint(directory))

    config = CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="score")
    result = fit(train, storage, checkpoint_config=config)
    assert [metrics.get("score") for _, metrics in result.best_checkpoints] == [0.5, 1.0, 10**400]
    said = capsys.readouterr().err
    assert "checkpoint_000001 was reported without a number called 'score'" in said
    assert "its metrics: x" in said
    assert all(f"checkpoint_00000{n} was reported without" in said for n in (2, 3))


def test_pandas_is_asked_for_in_words_that_work(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fit(lambda: dray.train.report({"a": 1}), storage)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install pandas$"):
        _ = result.metrics_dataframe


def test_a_checkpoint_that_the_user_has_deleted_is_not_deleted_again(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        report_step(0)
        report_step(1)
        shutil.rmtree(storage / "run/checkpoint_000000")
        report_step(2)
        report_step(3)

    result = fit(train, storage, checkpoint_config=CheckpointConfig(num_to_keep=2))
    assert result.checkpoint is not None
    assert "cannot be deleted" not in capsys.readouterr().err


def test_checkpoints_that_somebody_has_deleted_are_missed(
    storage: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def function() -> None:
        assert dray.train.get_checkpoint() is None
        report_step(0)

    checkpoint = fit(function, storage).checkpoint
    assert checkpoint is not None
    shutil.rmtree(checkpoint.path)
    assert "none is left" not in capfd.readouterr().err
    fit(function, storage)
    told = capfd.readouterr().err
    assert "the run had checkpoints (checkpoint_000000 was its first), but none is left" in told
    assert "it starts from the beginning" in told


def test_a_run_that_cannot_begin_gives_the_terminal_back(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (storage / "run/run.json").mkdir(parents=True)
    master, terminal = os.openpty()
    with open(terminal, "w") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        with pytest.raises(StorageError, match=r"run\.json cannot be written"):
            fit(three_steps, storage)
    shown = ""
    with open(master, "rb", buffering=0) as reader, contextlib.suppress(OSError):  # EIO: the end
        while chunk := reader.read(1 << 16):
            shown += chunk.decode()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor, away and back
    assert "dray-status" not in {thread.name for thread in threading.enumerate()}


def test_what_cannot_be_copied_into_the_run_is_told_once(storage: Path) -> None:
    context = StorageContext(storage, "run")
    with pytest.raises(StorageError, match=r"^the checkpoint .* is not there") as told:
        context.persist_current_checkpoint(Checkpoint(storage / "gone"), "mine")
    assert str(told.value).count("gone") == 1
