"""The run directory: a checkpoint exists whole or not at all, whenever a kill comes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray.errors import ConfigError, StorageError
from dray.train import Checkpoint, Result
from dray.train.run_directory import Committed, RunDirectory, list_files, read_lines, stage


class Killed(BaseException):
    """Stands for a kill -9 at one system call."""


def commit(directory: RunDirectory, report: int, name: str, text: str) -> None:
    source = directory.path.parent / "source"
    source.mkdir(exist_ok=True)
    (source / "model").write_text(text)
    staging = directory.staging(report)
    staging.mkdir()
    files = stage(str(source), staging, list_files(str(source)))
    directory.commit(staging, Committed(directory.path / name, report, 1, files, {}, report))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, 12), same_name=st.booleans())
def test_a_kill_leaves_the_old_or_the_new_whole(
    tmp_path_factory: pytest.TempPathFactory, at: int, same_name: bool
) -> None:
    """Dies before the n-th change of the file system; what is left is recovered from."""
    directory = RunDirectory(tmp_path_factory.mktemp("kill") / "run")
    directory.open()
    commit(directory, 0, "first", "old")
    left = at

    def step(real):  # type: ignore[no-untyped-def]
        def wrapped(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return real(*args, **kwargs)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in ("mkdir", "rename", "unlink", "rmdir", "fsync"):
            patch.setattr(os, name, step(getattr(os, name)))
        finished = True
        try:
            commit(directory, 1, "first" if same_name else "second", "new")
        except Killed:
            finished = False
    directory.close()
    again = RunDirectory(directory.path)
    again.open()
    found = again.checkpoints()
    assert all(c.damage() is None for c in found)
    texts = [(c.path / "model").read_text() for c in found]
    if same_name:
        assert texts in (["old"], ["new"])
        assert not finished or texts == ["new"]
    else:
        assert texts in (["old"], ["old", "new"])
        assert not finished or texts == ["old", "new"]
    assert not [n for n in os.listdir(again.path) if n.startswith((".staging", ".replaced"))]
    again.close()


def test_what_has_no_manifest_does_not_exist(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.open()
    (directory.path / "checkpoint_000007").mkdir()
    assert directory.checkpoints() == []
    assert directory.next_checkpoint_name() == "checkpoint_000008"
    directory.close()


@pytest.mark.parametrize("damage", ["change", "truncate", "delete"])
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.open()
    commit(directory, 0, "c", "weights")
    model = directory.path / "c" / "model"
    {
        "change": lambda: model.write_text("wEights"),
        "truncate": lambda: model.write_text("weigh"),
        "delete": model.unlink,
    }[damage]()
    assert directory.checkpoints()[0].damage() == "model"
    directory.close()


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a":1}\n{"a":2}\n{"a"')
    assert list(read_lines(path)) == [{"a": 1}, {"a": 2}]


def test_from_path_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"has no run\.json"):
        Result.from_path(tmp_path)


def test_urls_of_runs_and_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=rf"^{tmp_path} is not a run's directory"):
        Result.from_path(tmp_path.as_uri())
    assert Checkpoint(tmp_path.as_uri()) == Checkpoint(tmp_path)
    for refused in (Result.from_path, Checkpoint, Checkpoint.from_directory):
        with pytest.raises(ConfigError, match="path='s3://b/x': s3:// storage is not supported"):
            refused("s3://b/x")


def test_checkpoint_directories(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    checkpoint = Checkpoint.from_directory(tmp_path / "a")
    assert checkpoint == Checkpoint(str(tmp_path / "a"))
    assert len({checkpoint, Checkpoint(tmp_path / "a")}) == 1
    assert os.fspath(checkpoint) == checkpoint.path
    copy = checkpoint.to_directory(tmp_path / "b")
    assert Path(copy, "x").read_text() == "1"
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1})
    checkpoint.update_metadata({"b": 2})
    assert checkpoint.get_metadata() == {"a": 1, "b": 2}
    assert json.loads((tmp_path / "a" / ".metadata.json").read_text()) == {"a": 1, "b": 2}
    with pytest.raises(StorageError, match="is a file, not a directory"):
        Checkpoint(tmp_path / "a" / "x").to_directory()
    with pytest.raises(StorageError, match="is not there"), Checkpoint("/nowhere").as_directory():
        pass
