"""The run directory: a checkpoint exists whole or not at all, whenever a kill comes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray.errors import ConfigError, StorageError
from dray.train import Checkpoint, Result
from dray.train.storage.checkpoint_files import list_files, stage
from dray.train.storage.checksums import fingerprint
from dray.train.storage.manifest import Committed
from dray.train.storage.names import check_checkpoint_name
from dray.train.storage.place import Place
from dray.train.storage.run_directory import RunDirectory
from dray.train.storage.sealed import seal

HIDDEN = (".staging", ".replaced", ".deleted")


class Killed(BaseException):
    """Stands for a kill -9 at one system call."""


@contextlib.contextmanager
def killed_at(change: int) -> Iterator[None]:
    """Die before the n-th change of the file system, from 0."""
    left = change

    def step(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return real(*args, **kwargs)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in ("mkdir", "rename", "unlink", "rmdir", "fsync"):
            patch.setattr(os, name, step(getattr(os, name)))
        yield


def here(place: Place) -> Path:
    assert isinstance(place, Path)
    return place


def commit(directory: RunDirectory, report: int, name: str, text: str) -> None:
    source = here(directory.path).parent / "source"
    source.mkdir(exist_ok=True)
    (source / "model").write_text(text)
    staging = here(directory.storage.staging(report))
    staging.mkdir()
    files = stage(str(source), staging, list_files(str(source)))
    directory.commit(staging, Committed(here(directory.path) / name, report, 1, files, {}, report))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(steps=st.lists(st.tuples(st.sampled_from("cdrD"), st.integers(0, 3), st.integers(0, 14))))
def test_whatever_is_done_and_killed_what_was_committed_stays(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """Commit, delete, restart and damage in any order, killed before any change of the disk."""
    path = tmp_path_factory.mktemp("model") / "run"
    durable: dict[str, str] = {}
    for number, (what, slot, at) in enumerate(steps):
        name, text = f"checkpoint_{slot:06d}", f"weights {number}"
        directory = RunDirectory(path)
        directory.warn = lambda text: None
        directory.storage.open()
        before = durable.get(name)
        allowed = {before}
        known = {c.path.name: c for c in directory.checkpoints()}
        try:
            with killed_at(at):
                if what == "c":
                    allowed = {before, text}
                    commit(directory, number, name, text)
                    allowed = {text}
                elif what == "d" and name in known:
                    allowed = {before, None}
                    directory.storage.discard(known[name].path)
                    allowed = {None}
                elif what == "r":
                    directory.storage.recover()
        except Killed:
            pass
        if what == "D" and name in known:
            (path / name / "model").write_text("x" * len(before or ""))
            assert known[name].first_damaged_file() == "model"
            allowed = {None}
            directory.storage.discard(known[name].path)
        directory.storage.close()
        again = RunDirectory(path)
        again.warn = lambda text: None
        again.storage.open()
        found = {
            c.path.name: (here(c.path) / "model").read_text() for c in again.sound_checkpoints()
        }
        assert all(c.first_damaged_file() is None for c in again.checkpoints())
        assert found.pop(name, None) in allowed
        assert found == {n: t for n, t in durable.items() if n != name}
        durable = {c.path.name: (here(c.path) / "model").read_text() for c in again.checkpoints()}
        assert not [n for n in os.listdir(path) if n.startswith(HIDDEN)]
        assert all((path / n / ".dray.json").exists() for n in os.listdir(path) if n[:4] == "chec")
        again.storage.close()


def test_what_has_no_manifest_does_not_exist(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.storage.open()
    (here(directory.path) / "checkpoint_000007").mkdir()
    with pytest.warns(UserWarning, match=r"checkpoint_000007 has no manifest .* nor deletes it"):
        assert directory.checkpoints() == []
    assert directory.next_checkpoint_name() == "checkpoint_000008"
    directory.storage.close()


@pytest.mark.parametrize("damage", ["change", "truncate", "delete"])
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.storage.open()
    commit(directory, 0, "c", "weights")
    model = here(directory.path) / "c" / "model"
    damages: dict[str, Callable[[], object]] = {
        "change": lambda: model.write_text("wEights"),
        "truncate": lambda: model.write_text("weigh"),
        "delete": model.unlink,
    }
    damages[damage]()
    assert directory.checkpoints()[0].first_damaged_file() == "model"
    directory.storage.close()


MANIFEST = {
    "format": 1,
    "report": 1,
    "world_size": 1,
    "time": 1.0,
    "files": {},
    "ranks": {"0": {"metrics": {"a": 1}}},
}
DEEP = "[" * 900 + "]" * 900
CRAFTED_METRICS = (
    '{"metrics":[1]}',
    '{"metrics":{"a":1000},"types":{"/a":"int8"}}',
    '{"metrics":{"a":1000},"types":{"/a":"S"}}',
    '{"metrics":{"a":1000},"types":{"/a":"f8,(9"}}',
    '{"metrics":{"a":1000},"types":{"/a":[]}}',
    '{"metrics":{"a":' + DEEP + '},"types":{"/x":"tuple"}}',
)
CRAFTED_FILES = (r'{"\ud800":[1,""]}', r'{"a\u0000b":[1,""]}', '{"/a":[1,""]}', '{"a/../b":[1,""]}')


def test_what_nobody_has_written_so_is_left_out(tmp_path: Path) -> None:
    """Crafted by hand, with checksums that fit."""
    directory = RunDirectory(tmp_path)
    warned: list[str] = []
    directory.warn = warned.append
    directory.storage.open()
    directory.write_run({"checkpoint_config": {}})
    commit(directory, 0, "checkpoint_000000", "weights")
    plain = json.dumps(MANIFEST)
    texts = [
        plain.replace('"report": 1', '"report": 1e999'),
        plain.replace('"world_size": 1', '"world_size": 1000000000000'),
        *(plain.replace(': {"metrics": {"a": 1}}', f": {metrics}") for metrics in CRAFTED_METRICS),
        *(plain.replace('"files": {}', f'"files": {files}') for files in CRAFTED_FILES),
    ]
    paths = [tmp_path / f"checkpoint_{at:06d}" / ".dray.json" for at in range(1, len(texts) + 3)]
    for path in paths:
        path.parent.mkdir()
    for path, text in zip(paths[:-2], texts, strict=True):
        assert text != plain
        path.write_bytes(seal(text.encode()))
    os.mkfifo(paths[-2])
    paths[-1].symlink_to("/dev/zero")
    assert [each.report for each in directory.sound_checkpoints()] == [0]
    assert all(f"{path.parent.name} is left out" in str(warned) for path in paths)
    paths[0].write_bytes(seal(plain.replace("{}", r'{"\u001b[2J": [1, ""]}').encode()))
    assert [each.report for each in directory.sound_checkpoints()] == [0]
    assert r"is damaged (\x1b[2J has changed since it was committed)" in warned[-1]
    lines = tmp_path / "metrics" / "rank-00000.jsonl"
    for metrics in CRAFTED_METRICS:
        with lines.open("ab") as file:
            file.write(seal(b'{"report":1,' + metrics[1:].encode()) + b"\n")
    for path in paths:
        shutil.rmtree(path.parent)
    with pytest.warns(UserWarning, match=rf"{len(CRAFTED_METRICS)} lines \(1, 2, .* damaged"):
        result = Result.from_path(tmp_path)
    assert (result.metrics, len(result.best_checkpoints)) == (None, 1)
    for pipe in (lines, tmp_path / "run.json"):
        pipe.unlink()
        os.mkfifo(pipe)
    reads: list[Callable[[], object]] = [
        directory.read_run,
        lambda: directory.last_report(0, lambda record: True),
    ]
    for read in reads:
        with pytest.raises(StorageError, match=r"cannot be read: .* It is no file"):
            read()
    os.mkfifo(tmp_path / ".run.json.draft")
    with pytest.raises(StorageError, match=r"run\.json cannot be written"):
        directory.write_run({})
    directory.storage.close()


def test_from_path_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"has no run\.json"):
        Result.from_path(tmp_path)


def test_urls_of_runs_and_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=rf"^{tmp_path} is not a run's directory"):
        Result.from_path(tmp_path.as_uri())
    assert Checkpoint(tmp_path.as_uri()) == Checkpoint(tmp_path)
    for refused in (Result.from_path, Checkpoint, Checkpoint.from_directory):
        with pytest.raises(ConfigError, match="path='nosuch://b/x': fsspec knows no nosuch://"):
            refused("nosuch://b/x")
        with pytest.raises(
            ConfigError, match=r"path='s3://b/x\?\.\.\.' has credentials"
        ) as refusal:
            refused("s3://id:secret@b/x?key=secret")
        assert "secret" not in str(refusal.value)
    with pytest.raises(ConfigError, match="has credentials or options"):
        Checkpoint("s3://b/x?region=eu-west-1&access_key=mine")


def test_checkpoint_directories(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    checkpoint = Checkpoint.from_directory(tmp_path / "a")
    assert checkpoint == Checkpoint(str(tmp_path / "a"))
    assert len({checkpoint, Checkpoint(tmp_path / "a")}) == 1
    assert os.fspath(checkpoint) == checkpoint.path
    copy = checkpoint.to_directory(tmp_path / "b")
    assert Path(copy, "x").read_text() == "1"
    (tmp_path / "a").chmod(0o777)
    (tmp_path / "a" / "x").chmod(0o4755)
    (tmp_path / "a" / "empty").mkdir(mode=0o700)
    private = Path(checkpoint.to_directory())
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (private, *private.iterdir())}
    assert modes == {private.name: 0o700, "x": 0o755, "empty": 0o700}
    shutil.rmtree(private)
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1})
    checkpoint.update_metadata({"b": 2})
    assert checkpoint.get_metadata() == {"a": 1, "b": 2}
    assert json.loads((tmp_path / "a" / ".metadata.json").read_text()) == {"a": 1, "b": 2}
    with pytest.raises(StorageError, match="is a file, not a directory"):
        Checkpoint(tmp_path / "a" / "x").to_directory()
    with pytest.raises(StorageError, match="is not there"), Checkpoint("/nowhere").as_directory():
        pass


def test_ranks_set_metadata_of_one_directory_at_once(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(tmp_path)
    with ThreadPoolExecutor(4) as ranks:
        list(ranks.map(lambda _: checkpoint.set_metadata({"epoch": 9}), range(200)))
    assert checkpoint.get_metadata() == {"epoch": 9}
    assert os.listdir(tmp_path) == [".metadata.json"]


def test_what_a_kill_left_half_deleted_is_swept(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.storage.open()
    commit(directory, 0, "checkpoint_000000", "old")
    (committed,) = directory.checkpoints()
    with pytest.raises(Killed), killed_at(2):  # after the new name, within the files
        directory.storage.discard(committed.path)
    assert [n for n in os.listdir(here(directory.path)) if n.startswith(".deleted-")]
    assert directory.checkpoints() == []
    directory.storage.recover()
    assert not [n for n in os.listdir(here(directory.path)) if n.startswith(HIDDEN)]
    directory.storage.close()


def test_a_directory_that_another_user_has_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to("own")
    own = RunDirectory(tmp_path / "link")
    own.storage.open()
    own.storage.close()
    planted = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(planted, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(planted)
    for path in (planted, tmp_path / "link"):
        with pytest.raises(StorageError, match=f"{planted} belongs to another user .* may create"):
            RunDirectory(path).storage.open()
    assert list(planted.iterdir()) == []
    shutil.rmtree(planted)


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.warn = lambda text: None
    directory.storage.open()
    directory.begin_logs(0)
    commit(directory, 0, "c", "weights")
    (committed,) = directory.checkpoints()
    precious = tmp_path / "precious"
    precious.write_text("the user's")
    writes: dict[str, Callable[[], object]] = {
        "metrics/rank-00000.jsonl": lambda: directory.metrics(0, 0),
        ".run.json.draft": lambda: directory.write_run({}),
        "logs/attempt-000/rank-00000.log": lambda: directory.log(0, 0),
        "c/.dray.draft": lambda: directory.describe_again(committed),
        ".lock": RunDirectory(tmp_path / "run").storage.open,
    }
    for name, write in writes.items():
        (tmp_path / "run" / name).unlink(missing_ok=True)
        (tmp_path / "run" / name).symlink_to(precious)
        with pytest.raises(OSError, match="symbolic link"):
            write()
    directory.storage.close()
    assert precious.read_text() == "the user's"


def test_what_cannot_be_copied_is_named(tmp_path: Path) -> None:
    def refusal(make: Callable[[Path], object]) -> str:
        source = Path(tempfile.mkdtemp(dir=tmp_path))
        (source / "sub").mkdir()
        make(source / "sub" / "odd")
        with pytest.raises(StorageError) as caught:
            list_files(str(source))
        return str(caught.value).replace(str(source), "")

    assert "sub/odd is a named pipe, which cannot be copied" in refusal(os.mkfifo)
    assert "sub/odd is a broken symbolic link" in refusal(lambda p: p.symlink_to("nowhere"))
    assert "sub/odd is a device" in refusal(lambda p: p.symlink_to("/dev/null"))
    assert "sub/odd is a link to a directory that contains it" in refusal(
        lambda p: p.symlink_to(p.parent)
    )
    assert "sub/odd is a socket" in refusal(lambda p: os.mknod(p, stat.S_IFSOCK))


def test_a_checkpoint_never_takes_the_place_of_a_file(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.storage.open()
    (here(directory.path) / "notes").write_text("mine")
    with pytest.raises(StorageError, match=r"run/notes cannot be committed: .* Not a directory"):
        commit(directory, 0, "notes", "weights")
    directory.storage.recover()
    assert (here(directory.path) / "notes").read_text() == "mine"
    with pytest.raises(ConfigError, match="at most 200 bytes"):
        check_checkpoint_name("x" * 201)
    directory.storage.close()


def test_links_and_holes_are_kept_as_what_they_mean(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "file").write_text("weights")
    (source / "soft").symlink_to("file")
    os.link(source / "file", source / "hard")
    (source / "again").symlink_to("sub")
    with (source / "sub" / "sparse").open("wb") as file:
        file.write(b"x")
        file.truncate(64 << 20)
    target = tmp_path / "staged"
    names = list_files(str(source))
    assert names == ["again/sparse", "file", "hard", "soft", "sub/sparse"]
    found = stage(str(source), target, names)
    assert all(fingerprint(target / name) == known for name, known in found.items())
    assert (target / "soft").read_text() == (target / "hard").read_text() == "weights"
    assert (target / "sub" / "sparse").stat().st_blocks * 512 < 4 << 20


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_directory_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(StorageError, match="Permission denied"):
        list_files(str(tmp_path))


def test_copies_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    checkpoint = Checkpoint(tmp_path / "a")
    with pytest.raises(ConfigError, match="s3:// is not on this machine"):
        checkpoint.to_directory("s3://bucket/x")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"a cannot be copied to .*file/below"):
        checkpoint.to_directory(tmp_path / "file" / "below")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(StorageError, match="a cannot be copied to a temporary directory"):
        checkpoint.to_directory()


def test_metadata_that_json_cannot_say_or_that_is_damaged(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="cannot be stored as JSON"):
        checkpoint.set_metadata({"a": object()})
    (tmp_path / ".metadata.json").write_bytes(b'{"a\xff')
    with pytest.raises(StorageError, match=r"metadata\.json is damaged .* writes it anew"):
        checkpoint.get_metadata()
    with pytest.raises(StorageError, match="is not there"):
        Checkpoint(tmp_path / "no").set_metadata({})


def test_a_storage_error_crosses_processes_whole() -> None:
    error = StorageError.of(
        OSError(errno.ENOSPC, "No space left on device"), "/x cannot be written"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (again.errno, str(again)) == (errno.ENOSPC, str(error))
    assert "make room" in str(error)


def test_the_last_report_of_many_is_read_alone(tmp_path: Path) -> None:
    """Whatever is damaged before it; if it is damaged itself, all are read."""
    directory = RunDirectory(tmp_path)
    told: list[str] = []
    directory.warn = told.append
    directory.storage.open()
    lines = directory.metrics(0, 0)
    for number in range(60_000):
        lines.append({"report": number, "metrics": {"padding": "x" * 40}})
    lines.close()
    directory.storage.close()
    path = tmp_path / "metrics/rank-00000.jsonl"
    text = bytearray(path.read_bytes())
    text[10] ^= 1
    path.write_bytes(text)

    def last() -> object:
        found = directory.last_report(0, lambda record: "report" in record)
        return found and found["report"]

    assert last() == 59_999
    assert told == []
    path.write_bytes(text[:-9])
    assert last() == 59_998
    assert [line.partition("jsonl: ")[2] for line in told] == [
        "2 lines (1, 60000) are damaged or cut short, and left out"
    ]


def test_a_lock_that_cannot_be_read_is_no_other_machines(tmp_path: Path) -> None:
    storage = RunDirectory(tmp_path).storage
    assert storage.token() is None
    (tmp_path / ".lock").mkdir()
    with pytest.raises(StorageError, match=r"\.lock cannot be read"):
        storage.token()
