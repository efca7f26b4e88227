"""Checkpoints that are committed before they are on the disk, and what becomes of them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.errors import StorageError
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)
from dray.train.storage.sealed import seal, unseal
from tests.support.train_runs import fit


def save(step: int, *, copied: bool = False, **options: Any) -> None:
    rank = dray.train.get_context().get_world_rank()
    with dray.train.checkpoint_dir() as path:
        Path(path, f"of-{rank}").write_text(str(step))
        if copied:
            os.link(Path(path, f"of-{rank}"), Path(path, f"again-{rank}"))
        dray.train.report({"step": step}, Checkpoint(path), **options)


def manifests(run: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: unseal(path.read_bytes()) for path in run.glob("*/.dray.json")}


@contextlib.contextmanager
def disk(name: str, answer: Callable[[], object]) -> Iterator[None]:
    """Have flushes of this process, of files of a checkpoint, do something first."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if f"/{name}/of-" in os.readlink(f"/proc/self/fd/{descriptor}"):
            answer()
        real(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.mark.parametrize("mode", [CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC])
def test_report_does_not_wait_for_the_disk(
    process_engine: None, storage: Path, mode: CheckpointUploadMode
) -> None:
    run = storage / "run"

    def train() -> dict[str, Any]:
        save(0)
        save(1)  # waits until the one before is secured
        answers = threading.Event()
        with disk("checkpoint_000002", answers.wait):
            save(2, copied=True, checkpoint_upload_mode=mode)
            listed = dray.train.get_all_reported_checkpoints()  # is committed, with ASYNC too
            assert [each.metrics for each in listed][-1] == {"step": 2}
            found = manifests(run)
            read = Result.from_path(run)
            assert read.checkpoint is not None
            assert Path(read.checkpoint.path, "of-1").read_text() == "2"
            dray.train.collective.barrier()
            answers.set()
        return found

    result = fit(train, storage, checkpoint_config=CheckpointConfig(num_to_keep=1))
    assert result.return_value is not None
    # As long as the newest is provisional, the one before is not deleted.
    assert "checkpoint_000001" in result.return_value
    assert "boot" in result.return_value["checkpoint_000002"]
    ((name, manifest),) = manifests(run).items()
    assert name == "checkpoint_000002"
    assert "boot" not in manifest
    assert manifest["files"].keys() == {"of-0", "of-1", "again-0", "again-1"}
    assert all(checksum for _, checksum in manifest["files"].values())


def test_a_checkpoint_that_a_rank_gives_up_before_it_is_told_of_is_lost_for_all(
    process_engine: None, storage: Path
) -> None:
    def give_up(*_: object) -> None:
        raise TimeoutError("it took too long")

    def train() -> None:
        gives_up = dray.train.get_context().get_world_rank() == 1
        answers = threading.Event()
        with disk("checkpoint_000000", answers.wait):
            save(0)
            if gives_up:
                signal.signal(signal.SIGALRM, give_up)
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(TimeoutError):
                    save(1)  # waits until the one before is secured
            answers.set()
            if not gives_up:
                with pytest.raises(StorageError, match=r"rank 1: TimeoutError: it took too long"):
                    save(1)
        dray.train.report({"step": 2})
        dray.train.collective.barrier()
        save(3)

    fit(train, storage)
    assert sorted(manifests(storage / "run")) == ["checkpoint_000000", "checkpoint_000001"]


def rewrite(path: Path, **changes: Any) -> None:
    manifest = {**unseal((path / ".dray.json").read_bytes()), **changes}
    (path / ".dray.json").write_bytes(seal(json.dumps(manifest, separators=(",", ":")).encode()))


def test_what_another_boot_has_not_secured_counts_if_it_has_checksums(
    process_engine: None, storage: Path
) -> None:
    def train() -> int:
        checkpoint = dray.train.get_checkpoint()
        before = -1 if checkpoint is None else int(Path(checkpoint.path, "of-0").read_text())
        if before < 2:
            for step in range(before + 1, 3):
                save(step)
        return before

    def resumed() -> object:
        return fit(train, storage, workers=1, on_mismatch="ignore").return_value

    assert resumed() == -1
    run = storage / "run"
    newest = sorted(manifests(run))[-1]
    files = manifests(run)[newest]["files"]
    rewrite(
        run / newest,
        boot="another",
        files={name: [size, None] for name, (size, _) in files.items()},
    )
    with pytest.warns(UserWarning, match=f"{newest} is left out: another machine made it"):
        found = Result.from_path(run).best_checkpoints
    assert [metrics["step"] for _, metrics in found] == [0, 1]
    assert resumed() == 1
    rewrite(run / newest, files=files)
    assert resumed() == 2
    assert all("boot" not in manifest for manifest in manifests(run).values())
    rewrite(run / newest, boot="another")
    (run / newest / "of-0").write_text("x")
    found = Result.from_path(run).best_checkpoints
    with pytest.raises(StorageError, match="of-0 has changed since it was committed"):
        assert [Path(checkpoint.path) for checkpoint, _ in found]


def test_a_disk_that_does_not_take_a_checkpoint_fails_the_run(
    process_engine: None, storage: Path
) -> None:
    def refuse() -> None:
        raise OSError(errno.EIO, "Input/output error")

    def train(config: dict[str, bool]) -> None:
        save(0)
        with disk("checkpoint_000001", refuse):
            save(1)
            try:
                save(2)
            except StorageError:
                if not config["goes_on"]:
                    raise
        save(3)

    def run(goes_on: bool) -> list[str]:
        config = RunConfig(name="run", storage_path=storage / str(goes_on))
        alone = ScalingConfig(num_workers=1)
        trainer = DataParallelTrainer(
            train,
            train_loop_config={"goes_on": goes_on},
            scaling_config=alone,
            run_config=config,
        )
        trainer.fit()
        return sorted(manifests(storage / str(goes_on) / "run"))

    with pytest.raises(StorageError, match=r"checkpoint_000001/of-0 cannot be flushed to the disk"):
        run(goes_on=False)
    kept = ["checkpoint_000000", "checkpoint_000002"]  # the report that tells of it is made
    assert sorted(manifests(storage / "False" / "run")) == kept
    assert run(goes_on=True) == [*kept, "checkpoint_000003"]


def test_what_a_killed_rank_has_not_secured_the_driver_does(
    process_engine: None, storage: Path
) -> None:
    def train() -> int:
        checkpoint = dray.train.get_checkpoint()
        if checkpoint is not None:
            return int(Path(checkpoint.path, "of-1").read_text())
        with disk("checkpoint_000001", threading.Event().wait):
            save(0)
            save(1)
            dray.train.collective.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        return -1

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == 1
    assert ["boot" in manifest for manifest in manifests(storage / "run").values()] == [False] * 2
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path, "of-0").read_text() == "1"
