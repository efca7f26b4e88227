"""Reports and checkpoints, which every engine must keep alike: run once on each."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

import dray.train
from dray.errors import ConfigError
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    FailureConfig,
    Result,
)
from tests.support.train_runs import fit, save

pytestmark = pytest.mark.usefixtures("engine")


def test_metrics_come_back_as_they_were(storage: Path) -> None:
    def train() -> None:
        dray.train.report(
            {
                "nan": math.nan,
                "inf": -math.inf,
                "none": None,
                "text": "naïve ☃",
                "np": np.float32(0.1),
                "np_nan": np.float64("nan"),
                "int": np.int64(7),
                "bool": np.bool_(True),
                "nested": {"a": {"b": 1.5}, 3: [1, (2, math.inf)]},
                "big": 2**70,
            }
        )

    for result in (fit(train, storage), Result.from_path(storage / "run")):
        metrics = result.metrics
        assert metrics is not None
        assert math.isnan(metrics.pop("nan"))
        assert math.isnan(metrics["np_nan"])
        assert type(metrics.pop("np_nan")) is np.float64
        assert type(metrics["np"]) is np.float32
        assert type(metrics["int"]) is np.int64
        assert type(metrics["bool"]) is np.bool_
        assert metrics == {
            "inf": -math.inf,
            "none": None,
            "text": "naïve ☃",
            "np": np.float32(0.1),
            "int": 7,
            "bool": True,
            "nested": {"a": {"b": 1.5}, 3: [1, (2, math.inf)]},
            "big": 2**70,
        }


def test_every_report_is_kept_without_a_checkpoint(storage: Path) -> None:
    def train() -> None:
        for step in range(50):
            dray.train.report({"step": step, "loss": {"train": 1 / (step + 1)}})

    result = fit(train, storage)
    assert result.metrics == {"step": 49, "loss": {"train": 0.02}}
    assert result.checkpoint is None
    frame = result.metrics_dataframe
    assert list(frame["step"]) == list(range(50))
    assert list(frame.columns) == ["step", "loss/train"]


def test_ranks_need_not_report_equally_often(storage: Path) -> None:
    def train() -> None:
        for step in range(3 if dray.train.get_context().get_world_rank() == 0 else 1):
            dray.train.report({"step": step})

    assert fit(train, storage).metrics == {"step": 2}


def test_checkpoint_holds_the_files_of_all_ranks(storage: Path, engine: str) -> None:
    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        with tempfile.TemporaryDirectory() as directory:
            os.mkdir(os.path.join(directory, "sub"))
            Path(directory, "sub", f"rank-{rank}").write_text(str(rank))
            checkpoint = save(directory, shared=f"from rank {rank}")
            dray.train.report({"rank": rank}, checkpoint=checkpoint)
            assert os.path.exists(os.path.join(directory, "shared"))  # the directory stays ours

    result = fit(train, storage)
    assert result.checkpoint is not None
    assert result.checkpoint.path == str(storage / "run" / "checkpoint_000000")
    with result.checkpoint.as_directory() as path:
        ranks = ["rank-0"] if engine == "inline" else ["rank-0", "rank-1"]
        assert sorted(os.listdir(os.path.join(path, "sub"))) == ranks
        assert Path(path, "shared").read_text() == "from rank 0"
    assert result.best_checkpoints == [(result.checkpoint, {"rank": 0})]


def test_one_rank_may_bring_the_checkpoint(storage: Path) -> None:
    def train() -> None:
        if dray.train.get_context().get_world_rank() == 0:
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({"x": 1}, checkpoint=save(directory, model="weights"))
        else:
            dray.train.report({"x": 2})

    result = fit(train, storage)
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path, "model").read_text() == "weights"


def test_only_rank_zero_reports_a_checkpoint_at_all(storage: Path) -> None:
    """A rank that never reports is not waited for once its function has ended."""

    def train() -> None:
        if dray.train.get_context().get_world_rank() == 0:
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({"x": 1}, checkpoint=save(directory, model="weights"))

    assert fit(train, storage).checkpoint is not None


def test_get_checkpoint_follows_the_reports(storage: Path) -> None:
    def train() -> list[str | None]:
        seen: list[str | None] = []
        for _ in range(2):
            known = dray.train.get_checkpoint()
            seen.append(os.path.basename(known.path) if known else None)
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({}, checkpoint=save(directory, a="a"))
        known = dray.train.get_checkpoint()
        return [*seen, os.path.basename(known.path) if known else None]

    expected = [None, "checkpoint_000000", "checkpoint_000001"]
    assert fit(train, storage).return_value == expected


def test_checkpoint_can_be_named(storage: Path) -> None:
    def train() -> None:
        with tempfile.TemporaryDirectory() as directory:
            dray.train.report({}, checkpoint=save(directory, a="a"), checkpoint_dir_name="epoch=1")

    result = fit(train, storage)
    assert result.checkpoint == Checkpoint(storage / "run" / "epoch=1")


def test_checkpoint_names_that_are_the_runs_own(storage: Path) -> None:
    names = ["metrics", "logs", "run.json", "events.jsonl", ".lock", ".best"]

    def train() -> list[str]:
        messages = []
        with tempfile.TemporaryDirectory() as directory:
            for name in names:
                try:
                    dray.train.report({}, save(directory, a="a"), checkpoint_dir_name=name)
                except ConfigError as error:
                    messages.append(str(error))
        return messages

    result = fit(train, storage)
    assert [re.findall(r"must be another name than '(.+?)'", m) for m in result.return_value] == [
        [name] for name in names
    ]
    assert (result.metrics, result.checkpoint) == ({}, None)  # they count, without one
    assert set(os.listdir(result.path)) >= {"metrics", "logs", "run.json", "events.jsonl"}


def test_best_checkpoints_are_kept_and_ranked(storage: Path) -> None:
    def train() -> None:
        for step, accuracy in enumerate([0.5, 0.9, 0.7, 0.1]):
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report(
                    {"step": step, "val": {"acc": accuracy}}, checkpoint=save(directory, a="a")
                )

    result = fit(
        train,
        storage,
        checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="val/acc"),
    )
    names = [os.path.basename(checkpoint.path) for checkpoint, _ in result.best_checkpoints]
    # The newest, and the best two.
    assert names == ["checkpoint_000003", "checkpoint_000002", "checkpoint_000001"]
    assert result.get_best_checkpoint("val/acc", "max").path.endswith("checkpoint_000001")
    assert result.get_best_checkpoint("step", "max").path.endswith("checkpoint_000003")
    with pytest.raises(ValueError, match="there are step, val"):
        result.get_best_checkpoint("nope", "max")
    again = Result.from_path(storage / "run")
    assert again.best_checkpoints == result.best_checkpoints


def test_retry_goes_on_from_the_newest_checkpoint(storage: Path) -> None:
    def train() -> int:
        checkpoint = dray.train.get_checkpoint()
        start = int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0
        for step in range(start, 4):
            dray.train.collective.barrier()  # a killed rank would leave its temporary directory
            if step == 2 and start == 0:
                raise RuntimeError("flaky")
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({"step": step}, checkpoint=save(directory, step=str(step)))
        return start

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == 2
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3]
    lines = (storage / "run/events.jsonl").read_text().splitlines()
    states = [event["state"] for event in map(json.loads, lines) if "state" in event]
    assert states == [
        "SCHEDULING",
        "STARTING",
        "RUNNING",
        "FAILING",
        "RESTARTING",
        "STARTING",
        "RUNNING",
        "FINISHING",
        "FINISHED",
    ]


def test_history_leaves_out_what_a_restart_went_back_over(storage: Path) -> None:
    def train() -> None:
        first = dray.train.get_checkpoint() is None
        if first:
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({"step": 0, "first": True}, checkpoint=save(directory, a="a"))
        dray.train.collective.barrier()  # a killed rank would leave its temporary directory
        for step in (1, 2, 3):
            dray.train.report({"step": step, "first": first})
            if first and step == 2:
                raise RuntimeError("flaky")

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    frame = result.metrics_dataframe
    assert list(frame["step"]) == [0, 1, 2, 3]
    assert list(frame["first"]) == [True, False, False, False]


def test_a_name_used_before_goes_on(storage: Path) -> None:
    def train() -> str | None:
        checkpoint = dray.train.get_checkpoint()
        with tempfile.TemporaryDirectory() as directory:
            dray.train.report({}, checkpoint=save(directory, a="a"))
        return os.path.basename(checkpoint.path) if checkpoint else None

    assert fit(train, storage).return_value is None
    assert fit(train, storage).return_value == "checkpoint_000000"
    assert fit(train, storage, name="other").return_value is None


def test_a_damaged_checkpoint_is_passed_over(
    storage: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> str | None:
        checkpoint = dray.train.get_checkpoint()
        for _ in range(2):
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({}, checkpoint=save(directory, model="weights"))
        return os.path.basename(checkpoint.path) if checkpoint else None

    fit(train, storage)
    (storage / "run/checkpoint_000001/model").write_text("wEights")
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    assert fit(train, storage).return_value == "checkpoint_000000"
    assert (
        "checkpoint_000001 is damaged (model has changed since it was committed)"
        in capfd.readouterr().err
    )
