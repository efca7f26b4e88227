"""Configs say at construction what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError
from dray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig


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
    with pytest.raises(ConfigError, match="s3:// storage is not supported yet"):
        _ = RunConfig(storage_path="s3://bucket/x").storage


def test_log_level_is_upper_cased() -> None:
    assert LoggingConfig(log_level="warning").log_level == "WARNING"
