"""Paths of runs and checkpoints, as users write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dray.errors import ConfigError, StorageError
from dray.train import Checkpoint, RunConfig


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("file:///a/b%20c", "/a/b c"),
        ("FILE://localhost/a", "/a"),
        ("file:/a", "/a"),
        ("/a:/b", "/a:/b"),
        ("./file:runs", os.path.abspath("file:runs")),
        ("~root/x", os.path.expanduser("~root/x")),
    ],
)
def test_paths_are_understood(given: str, meant: str) -> None:
    assert RunConfig(storage_path=given).storage == Path(meant)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("NoSuch://bucket/x", "fsspec knows no nosuch://"),
        ("file://elsewhere/x", "names the host 'elsewhere'"),
        ("file://", "is for this machine"),
        ("file:runs", "leave out 'file:' if you mean 'runs', or write './file:runs'"),
        ("~nosuchuser/x", "no home directory of ~nosuchuser"),
        ("a\0b", "must be the path of a directory"),
    ],
)
def test_paths_that_would_mean_something_else_are_refused(given: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        RunConfig(storage_path=given)
    with pytest.raises(ConfigError, match=why):
        Checkpoint(given)


def test_a_relative_path_where_the_working_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(
        StorageError, match="'runs' is relative to a working directory that is gone"
    ):
        RunConfig(storage_path="runs")
