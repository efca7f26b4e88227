"""Directories for checkpoints: `checkpoint_dir()`, whose files are moved into the run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import dray.train
from dray.errors import NotInTrainingError, StorageError
from dray.train import (
    Checkpoint,
    CheckpointUploadMode,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
)
from tests.support.train_runs import fit, rank


def write(path: str, *names: str) -> dict[str, int]:
    """Write files; return which they are to the file system."""
    for name in names:
        Path(path, name).parent.mkdir(exist_ok=True)
        Path(path, name).write_text(f"{name} of rank {rank()}")
    return {name: os.stat(os.path.join(path, name)).st_ino for name in names}


def inodes(checkpoint: Checkpoint) -> dict[str, int]:
    top = Path(checkpoint.path)
    files = [file for file in top.rglob("*") if file.is_file() and file.name != ".dray.json"]
    return {str(file.relative_to(top)): file.stat().st_ino for file in files}


def hidden(storage: Path) -> list[str]:
    return [name for name in os.listdir(storage / "run") if name.startswith((".staging", ".del"))]


def test_its_files_are_moved_into_the_run(engine: str, storage: Path) -> None:
    def train() -> list[dict[str, int]]:
        with dray.train.checkpoint_dir() as path:
            own = write(path, f"of-{rank()}", "below/shared")
            dray.train.report({"step": 0}, Checkpoint.from_directory(path))
            assert not os.path.exists(path)
        made = [own]
        for step in (1, 2, 3):  # rank 0 alone; from the second time on it has it ready
            mode = CheckpointUploadMode.ASYNC if step == 3 else CheckpointUploadMode.SYNC
            if rank() == 0:
                with dray.train.checkpoint_dir() as path:
                    made.append(write(path, "model", f"below/it-{step}"))
                dray.train.report({"step": step}, Checkpoint(path), checkpoint_upload_mode=mode)
            else:
                dray.train.report({"step": step})
        return made

    workers = 1 if engine == "inline" else 2
    result = fit(train, storage, workers)
    kept = [inodes(checkpoint) for checkpoint, _ in result.best_checkpoints]
    assert kept[1:] == result.return_value[1:]
    assert kept[0].items() >= result.return_value[0].items()
    assert kept[0].keys() == {"below/shared", *(f"of-{each}" for each in range(workers))}
    first = Path(result.best_checkpoints[0][0].path)
    assert (first / "below/shared").read_text() == "below/shared of rank 0"
    assert first.stat().st_mode & 0o777 == (storage / "run").stat().st_mode & 0o777
    assert not hidden(storage)


def test_what_is_not_reported_is_deleted(process_engine: None, storage: Path) -> None:
    def train() -> None:
        with pytest.raises(KeyError), dray.train.checkpoint_dir() as failed:
            raise KeyError
        assert not os.path.exists(failed)
        with dray.train.checkpoint_dir() as left:
            write(left, "model")
        assert os.path.exists(left)
        with dray.train.checkpoint_dir() as outer, dray.train.checkpoint_dir() as inner:
            assert not os.path.exists(left)
            assert len({outer, inner}) == 2
            write(inner, "model")
        with pytest.raises(TypeError):
            dray.train.report({"a": 1}, Checkpoint(inner), no_such_argument=1)  # type: ignore[call-arg]
        dray.train.report({}, Checkpoint(inner))
        with pytest.raises(StorageError, match="is not there"):
            dray.train.report({}, Checkpoint(inner))

    result = fit(train, storage, workers=1)
    assert result.checkpoint is not None
    assert inodes(result.checkpoint).keys() == {"model"}
    assert not hidden(storage)
    with pytest.raises(NotInTrainingError):
        dray.train.checkpoint_dir()


@pytest.mark.parametrize("far", [False, True])
def test_what_a_killed_rank_leaves_is_cleared_away(
    process_engine: None, storage: Path, far: bool
) -> None:
    """Also in the temporary directory, where checkpoints wait for their upload."""
    made = storage.parent / "made"

    def train() -> list[str]:
        with dray.train.checkpoint_dir() as path:
            if dray.train.get_checkpoint() is not None:
                return [each for each in made.read_text().split() if os.path.exists(each)]
            write(path, "model")
            dray.train.report({"step": 0}, Checkpoint(path))
        with dray.train.checkpoint_dir() as path:
            write(path, "model")
            with open(made, "a", encoding="utf-8") as file:
                file.write(f"{path}\n")
            if rank() == 1:
                dray.train.report({"step": 1}, Checkpoint(path))
            os.kill(os.getpid(), signal.SIGKILL)
        return []

    files = {}
    if far:
        dirfs = pytest.importorskip("fsspec.implementations.dirfs")
        local = pytest.importorskip("fsspec.implementations.local")
        files["storage_filesystem"] = dirfs.DirFileSystem("/", local.LocalFileSystem())
    result = fit(train, storage, failure_config=FailureConfig(max_failures=1), **files)
    assert made.read_text()
    assert result.return_value == []
    assert [metrics for _, metrics in result.best_checkpoints] == [{"step": 0}]
    assert not hidden(storage)


def test_files_that_are_also_elsewhere_stay_there(process_engine: None, storage: Path) -> None:
    outside = storage.parent / "outside"
    outside.mkdir()
    (outside / "data").write_text("data")

    def train() -> None:
        with dray.train.checkpoint_dir() as path:
            write(path, "model")
            os.link(outside / "data", os.path.join(path, "hard"))
            os.symlink(outside, os.path.join(path, "soft"))
            dray.train.report({}, Checkpoint(path))
        (outside / "data").write_text("changed")

    result = fit(train, storage, workers=1)
    assert result.checkpoint is not None
    top = Path(result.checkpoint.path)
    assert inodes(result.checkpoint).keys() == {"model", "hard", "soft/data"}
    assert (top / "hard").read_text() == (top / "soft" / "data").read_text() == "data"
    assert not (top / "soft").is_symlink()
    assert not hidden(storage)


@pytest.mark.usefixtures("_quiet")
def test_on_a_storage_far_away_they_are_uploaded_and_deleted(tmp_path: Path) -> None:
    def train() -> list[str]:
        paths = []
        for mode in (CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC):
            with dray.train.checkpoint_dir() as path:
                write(path, "model", "below/it")
            dray.train.report({}, Checkpoint(path), checkpoint_upload_mode=mode)
            paths.append(path)
        return paths

    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path="memory://dirs"),
    ).fit()
    assert len(result.best_checkpoints) == 2
    for number, (checkpoint, _) in enumerate(result.best_checkpoints):
        copy = checkpoint.to_directory(tmp_path / str(number))
        assert Path(copy, "below/it").read_text() == "below/it of rank 0"
    assert not any(map(os.path.exists, result.return_value))
