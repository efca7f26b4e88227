"""Damage of a run's files: found, told by name, and left out."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.errors import StorageError
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    Result,
)
from tests.support import train_runs
from tests.support.train_runs import report_step, three_steps

fit = functools.partial(train_runs.fit, workers=1)

pytestmark = pytest.mark.usefixtures("process_engine")


@pytest.fixture(autouse=True)
def _talkative(monkeypatch: pytest.MonkeyPatch, process_engine: None) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")


def resumed_from() -> str | None:
    checkpoint = dray.train.get_checkpoint()
    return None if checkpoint is None else Path(checkpoint.path, "weights").read_text()


def change(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def test_metadata_written_later_is_no_damage(storage: Path) -> None:
    keep: dict[str, Any] = {"checkpoint_config": CheckpointConfig(num_to_keep=1)}
    result = fit(
        lambda: [report_step(step, metadata=True) for step in range(2)] and None, storage, **keep
    )
    assert result.checkpoint is not None
    result.checkpoint.update_metadata({"accuracy": 0.9})
    again = fit(resumed_from, storage, **keep)
    assert again.return_value == "weights of step 1"
    assert again.checkpoint is not None
    assert again.checkpoint.get_metadata() == {"step": 1, "accuracy": 0.9}
    manifest = storage / "run" / "checkpoint_000001" / ".dray.json"
    assert "metadata" not in manifest.read_text()


def test_damage_of_the_contents_is_never_handed_out(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = fit(three_steps, storage)
    assert result.checkpoint is not None
    newest = result.checkpoint.path
    assert newest.endswith("checkpoint_000002")
    change(Path(newest, "weights"), b"step 2", b"step 7")
    read = Result.from_path(storage / "run")  # reads no contents
    assert read.checkpoint is not None
    uses: list[Callable[[Checkpoint], object]] = [
        lambda c: c.path,
        lambda c: c.to_directory(),
        lambda c: c.as_directory().__enter__(),
        os.fspath,
    ]
    for use in uses:
        with pytest.raises(
            StorageError, match="checkpoint_000002 is damaged: weights has changed since"
        ):
            use(read.checkpoint)
    with pytest.raises(StorageError, match="is damaged"):
        _ = read.get_best_checkpoint("step", "max").path
    assert Path(read.get_best_checkpoint("step", "min").path).name == "checkpoint_000000"
    assert newest in repr(read.checkpoint)
    # A run that goes on finds it, and does not hand it out, nor count it, nor delete it.
    again = fit(resumed_from, storage, checkpoint_config=CheckpointConfig(num_to_keep=2))
    assert again.return_value == "weights of step 1"
    assert again.checkpoint is not None
    assert Path(again.checkpoint.path).name == "checkpoint_000001"
    assert len(again.best_checkpoints) == 2
    assert "checkpoint_000002 is damaged (weights has changed" in capsys.readouterr().err
    longer = fit(lambda: report_step(9), storage, checkpoint_config=CheckpointConfig(num_to_keep=2))
    assert [Path(c.path).name for c, _ in longer.best_checkpoints] == [
        "checkpoint_000001",
        "checkpoint_000003",
    ]
    assert Path(newest).is_dir()


def test_files_of_another_size_are_found_at_once(storage: Path) -> None:
    fit(three_steps, storage)
    (storage / "run/checkpoint_000002/weights").write_text("weights")
    with pytest.warns(
        UserWarning, match=r"checkpoint_000002 is damaged \(weights has changed since"
    ):
        result = Result.from_path(storage / "run")
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path, "weights").read_text() == "weights of step 1"
    assert result.metrics == {"step": 2}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"report"', b'"repo\x12t"'),
        (b'"report":2', b'"report":0'),
        (b'"metrics"', b'"metrkcs"'),
        (b'"step":2', b'"step":9'),
        (b"weights", b"\xff\xfeights"),
    ],
)
def test_a_damaged_manifest_is_told(
    storage: Path, capsys: pytest.CaptureFixture[str], old: bytes, new: bytes
) -> None:
    fit(three_steps, storage)
    change(storage / "run/checkpoint_000002/.dray.json", old, new)
    said = r"checkpoint_000002/\.dray\.json is damaged .* checkpoint_000002 is left out"
    with pytest.warns(UserWarning, match=said):
        result = Result.from_path(storage / "run")
    assert result.checkpoint is not None
    assert result.checkpoint.path.endswith("checkpoint_000001")
    assert fit(resumed_from, storage).return_value == "weights of step 1"
    assert "checkpoint_000002/.dray.json is damaged" in capsys.readouterr().err


def test_damaged_descriptions_and_metrics_name_their_file(storage: Path) -> None:
    fit(three_steps, storage)
    run, metrics = storage / "run/run.json", storage / "run/metrics/rank-00000.jsonl"
    description = run.read_bytes()
    for old, new in (
        (b'"format"', b'"form\xc1t"'),
        (b'"checkpoint_config"', b'"checkpoint_confhg"'),
        (b'"num_to_keep": null', b'"num_to_keep": 1234'),
    ):
        change(run, old, new)
        with pytest.raises(StorageError, match=f"{run} is damaged .* writes it anew"):
            Result.from_path(storage / "run")
        run.write_bytes(description)
    lines = metrics.read_bytes()
    for old, new in (
        (b'"step":2', b'"step":8'),
        (b'"step":2', b'"step#:2'),
        (b'"report":2', b'"rep\xc3rt":2'),
    ):
        change(metrics, old, new)
        with pytest.warns(UserWarning, match=f"{metrics}: line 3 is damaged"):
            result = Result.from_path(storage / "run")
        assert result.metrics == {"step": 1}
        metrics.write_bytes(lines)
