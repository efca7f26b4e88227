"""Configs say at construction what is wrong with them."""

from __future__ import annotations

import argparse
import types
from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError
from dray.train import (
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    LoggingConfig,
    RunConfig,
    ScalingConfig,
)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (FailureConfig, {"max_failures": -2}, "-1"),
        (FailureConfig, {"max_failures": 1.5}, "max_failures"),
        (CheckpointConfig, {"num_to_keep": 0}, "1 or more"),
        (CheckpointConfig, {"checkpoint_score_order": "up"}, "'max' or 'min'"),
        (LoggingConfig, {"log_level": "LOUD"}, "DEBUG, INFO, WARNING"),
        (RunConfig, {"name": "a/b"}, "the name of one directory"),
        (RunConfig, {"name": ".."}, "the name of one directory"),
        (RunConfig, {"failure_config": {}}, r"dray\.train\.FailureConfig"),
        (RunConfig, {"callbacks": [print]}, r"instances of dray\.train\.UserCallback"),
        (RunConfig, {"worker_runtime_env": {"env": {}}}, "has no env; there are env_vars"),
        (RunConfig, {"worker_runtime_env": {"env_vars": {"A": 1}}}, "strings to strings"),
        (RunConfig, {"worker_runtime_env": [1]}, "must be a dict"),
        (RunConfig, {"storage_path": "s3://bucket/x"}, "s3:// storage is not supported yet"),
        (RunConfig, {"storage_path": 5}, "storage_path must be the path of a directory, not 5"),
    ],
)
def test_other_configs_that_are_refused(kind: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**options)


def test_storage_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert RunConfig(storage_path="./rel/../x").storage == tmp_path / "x"
    assert RunConfig(storage_path=Path("x")).storage == tmp_path / "x"
    assert RunConfig(storage_path="~/x").storage == tmp_path / "home/x"
    assert RunConfig(storage_path="file:///a/b").storage == Path("/a/b")
    assert RunConfig().storage == tmp_path / "home/dray_results"
    moved = RunConfig()
    moved.storage_path = "s3://bucket/x"
    with pytest.raises(ConfigError, match="s3:// storage is not supported yet"):
        _ = moved.storage


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (argparse.Namespace(lr=1), r"must be a dict, not Namespace\(lr=1\); vars\(\.\.\.\) of it"),
        ("lr=1", r"must be a dict, not 'lr=1'; such as \{'lr': 0\.1\}"),
        ([("lr", 1)], "must be a dict"),
    ],
)
def test_configs_of_train_functions_that_are_refused(given: Any, message: str) -> None:
    config = ScalingConfig(num_workers=0)
    with pytest.raises(ConfigError, match=message):
        DataParallelTrainer(print, train_loop_config=given, scaling_config=config)


def test_mappings_are_configs_of_train_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "0")
    for given, seen in ((types.MappingProxyType({"lr": 1}), {"lr": 1}), ({}, {}), (None, {})):
        trainer = DataParallelTrainer(
            lambda config: config,
            train_loop_config=given,
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(storage_path=tmp_path),
        )
        assert trainer.fit().return_value == seen


def test_log_level_is_upper_cased() -> None:
    assert LoggingConfig(log_level="warning").log_level == "WARNING"
