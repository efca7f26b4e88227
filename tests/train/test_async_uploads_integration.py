"""Checkpoints that are put in place beside the train function: CheckpointUploadMode.ASYNC."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
import warnings
from pathlib import Path
from unittest import mock

import pytest

import dray.train
from dray.errors import ConfigError, StorageError
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    FailureConfig,
)
from tests.support.train_runs import fit, rank

ASYNC = CheckpointUploadMode.ASYNC


def saved(text: object) -> Checkpoint:
    """A directory of this rank's own, with a file."""
    run = dray.train.get_context().get_storage().experiment_fs_path
    path = tempfile.mkdtemp(prefix="local-", dir=os.path.dirname(run))
    Path(path, f"of-{rank()}").write_text(str(text))
    return Checkpoint(path)


def contents(checkpoint: Checkpoint | None) -> dict[str, str]:
    assert checkpoint is not None
    files = sorted(Path(checkpoint.path).glob("of-*"))
    return {file.name: file.read_text() for file in files}


def test_report_returns_before_its_files_are_in_place(engine: str, storage: Path) -> None:
    def train() -> list[bool]:
        goes_on = threading.Event()
        local = saved("first")

        def bring(checkpoint: Checkpoint, name: str) -> Checkpoint:
            goes_on.wait()
            target = folder.build_checkpoint_path_from_name(name)
            shutil.copytree(checkpoint.path, target, dirs_exist_ok=True)
            return Checkpoint(target)

        folder = dray.train.get_context().get_storage()
        dray.train.report(
            {"step": 0}, local, checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=bring
        )
        dray.train.report({"step": 1})
        before = os.path.exists(local.path)
        goes_on.set()
        dray.train.get_all_reported_checkpoints()  # waits for the commit
        return [before]

    workers = 1 if engine == "inline" else 2
    result = fit(train, storage, workers)
    assert result.return_value == [True]
    assert result.metrics == {"step": 1}
    assert contents(result.checkpoint) == {f"of-{each}": "first" for each in range(workers)}


def test_uploads_are_committed_in_order_and_their_sources_deleted(
    process_engine: None, storage: Path
) -> None:
    def train() -> list[str]:
        locals_ = []
        for step in range(5):
            checkpoint = saved(step)
            locals_.append(checkpoint.path)
            dray.train.report({"step": step}, checkpoint, checkpoint_upload_mode=ASYNC)
        last = saved("kept")
        dray.train.report(
            {"step": 5},
            last,
            checkpoint_upload_mode=ASYNC,
            delete_local_checkpoint_after_upload=False,
        )
        listed = dray.train.get_all_reported_checkpoints()
        assert [each.metrics for each in listed] == [{"step": step} for step in (4, 5)]
        newest = dray.train.get_checkpoint()
        assert newest is not None
        assert Path(newest.path, f"of-{rank()}").read_text() == "kept"
        return [*locals_, last.path]

    result = fit(train, storage, checkpoint_config=CheckpointConfig(num_to_keep=2))
    assert result.return_value is not None
    *others, last = result.return_value
    assert [path for path in others if os.path.exists(path)] == []
    assert os.listdir(last) == ["of-0"]
    shutil.rmtree(last)
    assert contents(result.checkpoint) == {"of-0": "kept", "of-1": "kept"}


def test_a_directory_that_all_ranks_report_is_deleted_once(
    process_engine: None, storage: Path
) -> None:
    def train() -> None:
        for step in range(5):
            shared = storage / f"shared-{step}"
            shared.mkdir(parents=True, exist_ok=True)
            for file in range(100):
                (shared / f"of-{rank()}-{file}").write_text(str(step))
            dray.train.collective.barrier()
            dray.train.report({"step": step}, Checkpoint(shared), checkpoint_upload_mode=ASYNC)

    result = fit(train, storage, workers=3)
    assert not list(storage.glob("shared-*"))
    assert len(contents(result.checkpoint)) == 300


def test_of_a_linked_directory_the_link_is_deleted(process_engine: None, storage: Path) -> None:
    def train() -> None:
        checkpoint, link = saved("there"), storage / "latest"
        link.symlink_to(checkpoint.path)
        dray.train.report({}, Checkpoint(link), checkpoint_upload_mode=ASYNC)

    result = fit(train, storage, workers=1)
    assert contents(result.checkpoint) == {"of-0": "there"}
    assert not (storage / "latest").is_symlink()
    assert len(list(storage.glob("local-*/of-0"))) == 1


def test_a_directory_that_cannot_be_deleted_costs_no_checkpoint(
    process_engine: None, storage: Path
) -> None:
    def train() -> list[str]:
        refused = mock.patch("os.rmdir", side_effect=PermissionError("not yours"))
        with refused, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            dray.train.report({}, saved("there"), delete_local_checkpoint_after_upload=True)
        return [str(each.message) for each in told]

    result = fit(train, storage, workers=1)
    assert contents(result.checkpoint) == {"of-0": "there"}
    (told,) = result.return_value
    assert re.search(r"the checkpoint is kept, and .*/local-.* could not be deleted", told)


def test_an_upload_that_fails_ends_the_run_with_its_cause(
    process_engine: None, storage: Path
) -> None:
    def train() -> None:
        checkpoint = saved("soon gone")
        if rank() == 0:
            dray.train.report({}, checkpoint, checkpoint_upload_mode=ASYNC)
            shutil.rmtree(checkpoint.path)
            dray.train.collective.barrier()
        else:
            dray.train.collective.barrier()
            dray.train.report({}, checkpoint, checkpoint_upload_mode=ASYNC)

    said = r"report 0 has no checkpoint: .*local-.* is not there; .* ends with its `with` block"
    with pytest.raises(StorageError, match=said):
        fit(train, storage)
    assert list((storage / "run").glob("checkpoint_*")) == []


def test_a_rank_that_fails_finishes_the_uploads_that_all_have_reported(
    process_engine: None, storage: Path
) -> None:
    def train() -> dict[str, str]:
        newest = dray.train.get_checkpoint()
        if newest is not None:
            return contents(newest)
        dray.train.report({}, saved("kept"), checkpoint_upload_mode=ASYNC)
        dray.train.collective.barrier()
        raise RuntimeError("right after")

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == {"of-0": "kept", "of-1": "kept"}


def test_a_rank_that_is_killed_leaves_no_half_of_an_upload(
    process_engine: None, storage: Path
) -> None:
    def train() -> int:
        newest = dray.train.get_checkpoint()
        if newest is not None:
            assert contents(newest) == {"of-0": "x" * 100_000, "of-1": "x" * 100_000}
        first = not (storage / "killed").exists()
        dray.train.collective.barrier()  # both have looked
        if first:
            (storage / "killed").touch()
            dray.train.report({}, saved("x" * 100_000), checkpoint_upload_mode=ASYNC)
            os.kill(os.getpid(), signal.SIGKILL)
        return 1

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == 1
    assert list((storage / "run").glob(".staging*/*")) == []


@pytest.mark.parametrize("barrier", [False, True])
def test_one_rank_alone_uploads(process_engine: None, storage: Path, barrier: bool) -> None:
    def train() -> None:
        for step in range(3):
            checkpoint = saved(step) if rank() == 0 else None
            dray.train.report({"step": step}, checkpoint, checkpoint_upload_mode=ASYNC)

    result = fit(train, storage, report_barrier=barrier)
    assert contents(result.checkpoint) == {"of-0": "2"}
    assert len(result.best_checkpoints) == 3


def test_what_is_brought_elsewhere_is_refused(process_engine: None, storage: Path) -> None:
    def train() -> None:
        folder = dray.train.get_context().get_storage()

        def bring(checkpoint: Checkpoint, name: str) -> Checkpoint:
            target = folder.build_checkpoint_path_from_name("another")
            shutil.copytree(checkpoint.path, target)
            return Checkpoint(target)

        dray.train.report({}, saved(0), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=bring)

    with pytest.raises(ConfigError, match="is called another, but the report says checkpoint_0"):
        fit(train, storage, workers=1)
