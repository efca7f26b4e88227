"""Runs on `memory://`: what a kill of the driver leaves, leases, and growing files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import dray.train
from dray.errors import ConfigError, StorageError
from dray.train import Checkpoint
from dray.train.storage.copies import Care
from dray.train.storage.filesystem import place_at
from dray.train.storage.manifest import Committed, Validation
from dray.train.storage.metrics_codec import encode
from dray.train.storage.place import RemotePath
from dray.train.storage.remote import lease
from dray.train.storage.remote.downloads import fetch
from dray.train.storage.run_directory import RunDirectory
from tests.support.limits import room_in_files
from tests.support.train_runs import fit

memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem

# What changes anything in a file system.
CHANGES = ("pipe_file", "put_file", "cp_file", "rm_file", "rm")


class Killed(BaseException):
    """The driver ends here."""


def killed_at(count: int) -> Any:
    """Die before so many-th change from now on, and let nothing be done after it."""
    left = itertools.count(count, -1)

    def counted(change: Any) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            if next(left) <= 0:
                raise Killed
            return change(self, *args, **options)

        return call

    return mock.patch.multiple(memory, **{name: counted(getattr(memory, name)) for name in CHANGES})


def commit(
    directory: RunDirectory,
    report: int,
    name: str | None,
    source: Path,
    amid: Sequence[Callable[[RunDirectory], object]] = (),
) -> None:
    """Commit a checkpoint, of which more happens after its upload."""
    staging = directory.begin_staging(report, name)
    files = directory.storage.stage(str(source), staging, ["model", "sub/more"], Care())
    for happens in amid:
        happens(directory)
    where = directory.destination(report, name)
    directory.commit(staging, Committed(where, report, 1, files, {}, report))


def opened(run: RemotePath) -> RunDirectory:
    directory = RunDirectory(run)
    directory.storage.open()
    return directory


def die(directory: RunDirectory) -> None:
    """Have a driver end without a word, and long ago."""
    storage: Any = directory.storage
    lease, storage._lease = storage._lease, None
    lease._ended.set()
    lease._thread.join()
    lease._run.filesystem.pipe_file(
        f"{lease._run.path}/.lease-{lease.number:06d}", lease._text(0.0)
    )
    directory.storage.close()


@pytest.mark.parametrize("same_name", [False, True])
@pytest.mark.parametrize("more_known_of_the_old", [False, True])
def test_a_kill_leaves_the_old_or_the_new_whole(
    run: RemotePath,
    sources: list[Path],
    tmp_path: Path,
    same_name: bool,
    more_known_of_the_old: bool,
) -> None:
    """Die before each change of the storage in turn; what is left is recovered from."""
    finished, at = False, 0
    while not finished:
        memory.store.clear()
        directory = opened(run)
        commit(directory, 0, "first", sources[0])
        (old,) = directory.checkpoints()
        validated = dataclasses.replace(
            old, validation=Validation("VALIDATED", {}, encode({"x": 1}))
        )
        amid = [lambda of: of.describe_again(validated)] if more_known_of_the_old else []  # noqa: B023
        try:
            with killed_at(at):
                commit(directory, 1, "first" if same_name else "second", sources[1], amid)
            finished = True
        except Killed:
            pass
        die(directory)
        again = opened(run)
        texts = []
        for found in again.sound_checkpoints():
            target = tmp_path / f"{at}-{found.report}"
            target.mkdir()
            assert isinstance(found.path, RemotePath)
            fetch(found.path, target)
            texts.append((target / "model").read_text())
            assert (target / "sub" / "more").read_text() == texts[-1]
        if same_name:
            assert texts == ["new"] if finished else texts in (["old"], ["new"])
        else:
            assert texts == ["old", "new"] if finished else texts in (["old"], ["old", "new"])
        kept = {name.split("/")[0] for name in run.sizes()}
        assert kept - {"events", ".lease-000002"} <= {"first", "second"}
        again.storage.close()
        at += 1
    assert at > 5


def test_one_driver_at_a_time(
    run: RemotePath, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_RENEWALS", 40)  # each 0.1 s
    monkeypatch.setenv("DRAY_LEASE_S", "4")
    first = opened(run)
    with pytest.raises(StorageError, match=r"another fit\(\) uses the run .* process \d+ on "):
        RunDirectory(run).storage.open()
    commit(first, 0, None, sources[0])
    # A driver elsewhere takes it over; this one hears so before it commits anything more.
    held = {"token": "x", "who": "process 1 on mars", "until": time.time() + 0.3}
    (run / ".lease-000002").write_bytes(json.dumps(held).encode())
    storage: Any = first.storage
    storage._lease._thread.join(10)
    with pytest.raises(StorageError, match="process 1 on mars has taken it over"):
        commit(first, 1, None, sources[1])
    first.storage.close()
    # That one may be dead, which is waited for and told, and then lets the run go.
    said: list[str] = []

    def let_go(text: str, *args: object) -> None:
        said.append(text % args)
        (run / ".lease-000002").write_bytes(json.dumps({**held, "until": 0.0}).encode())

    monkeypatch.setattr(lease, "_logger", mock.Mock(warning=let_go))
    held["until"] = time.time() + 60
    (run / ".lease-000002").write_bytes(json.dumps(held).encode())
    second = opened(run)
    (told,) = said
    assert re.search("tests/run belongs to process 1 on mars: .* at most (59|60) s", told)
    assert [each.report for each in second.checkpoints()] == [0]
    assert storage.token() == second.storage.token() != "x"
    commit(second, 1, None, sources[1])
    second.storage.close()
    third = opened(run)  # at once, as the second has let it go
    third.storage.close()


def test_a_driver_that_has_lost_the_run_deletes_nothing_of_the_next_one(
    run: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_LEASE_S", "0.4")
    first = opened(run)
    first.begin_staging(0, "best")
    held = {"token": "x", "who": "process 1 on mars", "until": time.time() + 60}
    (run / ".lease-000002").write_bytes(json.dumps(held).encode())
    storage: Any = first.storage
    storage._lease._thread.join(10)
    for name in (".unfinished-best", "best/model", ".unfinished-other", "other/model"):
        (run / name).write_bytes(b"of the other driver")
    there = run.sizes()
    with pytest.raises(StorageError, match="process 1 on mars has taken it over"):
        first.storage.abandon_staging(0)
    with pytest.raises(StorageError, match="process 1 on mars has taken it over"):
        first.storage.recover()
    assert run.sizes() == there
    first.storage.close()


def test_two_drivers_that_come_at_once_where_the_storage_cannot_refuse(
    run: RemotePath, sources: list[Path]
) -> None:
    put = memory.pipe_file

    def overwrite(self: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            raise NotImplementedError
        put(self, path, value)

    with mock.patch.object(memory, "pipe_file", overwrite):
        first = opened(run)
        # Another one has seen no lease either, and writes its own over this one.
        lease = {"token": "x", "who": "process 1 on mars", "until": time.time() + 60}
        (run / ".lease-000001").write_bytes(json.dumps(lease).encode())
        with pytest.raises(StorageError, match="process 1 on mars has taken it over"):
            commit(first, 0, None, sources[0])
        first.storage.close()
        assert json.loads((run / ".lease-000001").read_bytes()) == lease
        assert run.names() == [".lease-000001"]


def test_an_old_checkpoint_is_deleted_while_the_next_one_of_its_name_is_uploaded(
    run: RemotePath, sources: list[Path]
) -> None:
    directory = opened(run)
    commit(directory, 0, "best", sources[0])
    (old,) = directory.checkpoints()
    commit(directory, 1, "best", sources[1], [lambda of: of.storage.discard(old.path)])
    (new,) = directory.sound_checkpoints()
    assert new.report == 1
    commit(directory, 2, "best", sources[0], [lambda of: of.storage.discard(new.path)])
    staging = directory.begin_staging(3, "best")
    directory.storage.discard(staging)
    directory.storage.abandon_staging(3)
    assert not directory.sound_checkpoints()
    directory.storage.close()
    assert {name.split("/")[0] for name in run.sizes()} == {".lease-000001"}


def test_a_checkpoint_that_was_put_back_can_be_deleted(
    run: RemotePath, sources: list[Path]
) -> None:
    directory = opened(run)
    commit(directory, 0, "best", sources[0])
    directory.begin_staging(1, "best")  # and a rank dies
    directory.storage.recover()
    (old,) = directory.sound_checkpoints()
    directory.storage.discard(old.path)
    assert not directory.sound_checkpoints()
    directory.storage.close()
    assert {name.split("/")[0] for name in run.sizes()} == {".lease-000001"}


def test_what_others_write_deletes_nothing_but_a_checkpoint(
    run: RemotePath, sources: list[Path]
) -> None:
    directory = opened(run)
    commit(directory, 0, "best", sources[0])
    directory.metrics(0, 0).append({"report": 0})
    directory.storage.close()
    beside = run.parent / "other" / "model"
    for place in (beside, run / ".unfinished-gone", run / "gone" / "model"):
        place.write_bytes(b"")
    planted = [".unfinished-", ".unfinished-..", ".unfinished-metrics", ".unfinished-.lease-000002"]
    aside = [".replaced-/.dray.json", ".replaced-../.dray.json", ".replaced-logs/.dray.json"]
    for name in (*planted, *aside):
        (run / name).write_bytes(b"")
    there = run.sizes()
    again = RunDirectory(run)
    warned: list[str] = []
    again.warn = warned.append
    again.storage.open()
    again.storage.close()
    assert beside.exists()
    gone = there.keys() - run.sizes().keys()
    assert gone == {".lease-000001", ".unfinished-gone", "gone/model"}
    assert len(warned) == len(planted) + len(aside)
    assert "no checkpoint can have the name 'metrics', so dray did not make it" in str(warned)


def test_who_looks_for_checkpoints_does_not_ask_for_those_that_were_deleted(
    run: RemotePath, sources: list[Path]
) -> None:
    directory = opened(run)
    for report in range(4):
        commit(directory, report, None, sources[0])
        if report:
            directory.storage.discard(directory.checkpoints()[0].path)
    read = mock.Mock(wraps=run.filesystem.cat_file)
    with mock.patch.object(run.filesystem, "cat_file", read):
        assert [each.report for each in directory.checkpoints()] == [3]
    assert read.call_count == 1
    commit(directory, 4, None, sources[0])
    assert [each.path.name for each in directory.checkpoints()][-1] == "checkpoint_000004"
    directory.storage.close()


def test_growing_files(run: RemotePath) -> None:
    writer, reader = RunDirectory(run), RunDirectory(run)
    for attempt in range(2):
        lines = writer.metrics(0, attempt)
        for report in range(3000):
            lines.append({"report": report, "metrics": {"loss": 0.5, "text": "x" * 60}})
            if report % 1000 == 999:
                writer.storage.flush()
        lines.close()
        writer.storage.flush()
    assert [r["report"] for r in reader.reports(0, lambda _: True)] == [*range(3000)] * 2
    assert len((run / "metrics").names()) == 4
    writer.storage.close()
    part = run / "metrics" / min((run / "metrics").names())
    text = part.read_bytes()
    part.write_bytes(text[:50] + b"?" + text[51:])
    warned: list[str] = []
    reader.warn = warned.append
    assert len([*reader.reports(0, lambda _: True)]) == 5999
    assert warned == [f"{part}: line 1 is damaged or cut short, and left out"]


def test_deleted_logs_take_no_metrics_with_them(run: RemotePath) -> None:
    """The next start writes over nothing of the one whose logs are gone."""
    steps = itertools.count()

    def train() -> None:
        dray.train.report({"step": next(steps)})

    for step in range(3):
        result = fit(train, "memory://tests", workers=0, on_mismatch="ignore")
        assert result.metrics == {"step": step}
        (run / "logs").delete(recursive=True)
    told = RunDirectory(run).reports(0, lambda record: True)
    assert [record["metrics"] for record in told] == [{"step": step} for step in range(3)]


def test_damage_is_found_in_a_download(
    run: RemotePath, sources: list[Path], tmp_path: Path
) -> None:
    directory = opened(run)
    commit(directory, 0, None, sources[0])
    (found,) = directory.checkpoints()
    assert isinstance(found.path, RemotePath)
    (found.path / "model").write_bytes(b"OLD")
    with pytest.raises(
        StorageError, match="checkpoint_000000 is damaged: model has changed since it was"
    ):
        fetch(found.path, tmp_path / "a")
    (found.path / "model").write_bytes(b"o")
    assert directory.first_damaged_file(found) == "model"
    directory.storage.close()


def test_a_download_without_room_for_its_last_bytes_fails(run: RemotePath) -> None:
    (run / "model/weights").write_bytes(b"x" * 100_000)
    with room_in_files(65_536), pytest.raises(StorageError, match="weights cannot be written"):
        Checkpoint("memory://tests/run/model").to_directory()


def test_a_download_that_the_system_has_thinned_out_is_made_anew(
    run: RemotePath, sources: list[Path]
) -> None:
    directory = opened(run)
    commit(directory, 0, None, sources[0])
    checkpoint = Checkpoint("memory://tests/run/checkpoint_000000")
    with checkpoint.as_directory() as path:
        os.remove(f"{path}/sub/more")  # as systemd-tmpfiles does with what nobody reads
    with checkpoint.as_directory() as path:
        assert Path(path, "sub/more").read_text() == "old"
        at = os.stat(path).st_ino
    with checkpoint.as_directory() as path:
        assert os.stat(path).st_ino == at
    directory.storage.close()


def test_models_of_checkpoints_far_away(run: RemotePath) -> None:
    torch = pytest.importorskip("torch")
    from dray.train.torch import TorchCheckpoint

    model = torch.nn.Linear(2, 1)
    here = TorchCheckpoint.from_model(model)
    run.filesystem.put(here.path, f"{run.path}/model", recursive=True)
    shutil.rmtree(here.path)
    far = TorchCheckpoint("memory://tests/run/model")
    assert torch.equal(far.get_model().weight, model.weight)
    with pytest.raises(ConfigError, match=r"read it with `with checkpoint\.as_directory\(\)"):
        os.fspath(far)
    copy = Path(far.to_directory())
    assert [path.name for path in copy.iterdir()] == ["model.pt"]
    shutil.rmtree(copy)
    with pytest.raises(StorageError, match="nothing is not there, or has no files"):
        Checkpoint("memory://tests/run/nothing").to_directory()


def _pyarrows(top: Path) -> object:
    arrow = pytest.importorskip("pyarrow.fs")
    return arrow.SubTreeFileSystem(str(top), arrow.LocalFileSystem())


def _fsspecs(top: Path) -> object:
    dirfs = pytest.importorskip("fsspec.implementations.dirfs")
    local = pytest.importorskip("fsspec.implementations.local")
    return dirfs.DirFileSystem(path=str(top), fs=local.LocalFileSystem())


def _fsspecs_by_pyarrow(top: Path) -> object:
    arrow = pytest.importorskip("pyarrow.fs")
    return arrow.PyFileSystem(arrow.FSSpecHandler(_fsspecs(top)))


@pytest.mark.parametrize("kind", [_pyarrows, _fsspecs, _fsspecs_by_pyarrow])
def test_a_file_system_with_folders(
    sources: list[Path], tmp_path: Path, kind: Callable[[Path], object]
) -> None:
    (tmp_path / "top").mkdir()
    far = kind(tmp_path / "top")
    place = place_at("runs/run", far, "path")
    assert isinstance(place, RemotePath)
    for report in range(2):
        directory = opened(place)
        commit(directory, report, None, sources[report])
        directory.storage.discard(directory.checkpoints()[0].path) if report else None
        commit(directory, 2 + report, "latest", sources[report])
        directory.storage.close()
    found = RunDirectory(place).sound_checkpoints()
    assert [each.path.name for each in found] == ["checkpoint_000001", "latest"]
    for each in found:
        copy = Path(Checkpoint(f"runs/run/{each.path.name}", far).to_directory())
        assert (copy / "sub/more").read_text() == "new"
        shutil.rmtree(copy)


def test_what_is_not_there_need_not_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow's HDFS says of it what it says of other failures."""
    (tmp_path / "top").mkdir()
    place = place_at("runs/run", _pyarrows(tmp_path / "top"), "path")
    assert isinstance(place, RemotePath)
    monkeypatch.setenv("DRAY_STORAGE_RETRY_S", "0")
    failed = mock.Mock(side_effect=OSError(5, "HDFS delete failed"))
    with mock.patch.multiple(type(place.filesystem), rm_file=failed, rm=failed):
        place.delete()
        place.delete(recursive=True)
        place.write_bytes(b"here")
        with pytest.raises(StorageError, match=r"cannot be deleted: OSError.* HDFS delete failed"):
            place.delete()
