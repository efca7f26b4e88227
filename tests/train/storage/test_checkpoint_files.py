"""Files of checkpoints: copied, moved, flushed and compared."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.errors import StorageError
from dray.train.storage.checkpoint_files import list_files, stage
from dray.train.storage.checksums import fingerprint, matches
from dray.train.storage.copies import Care, copy_file
from dray.train.storage.manifest import Committed, read_manifest, write_manifest


def contents(top: Path) -> dict[str, bytes]:
    return {name: (top / name).read_bytes() for name in list_files(str(top))}


@pytest.fixture(params=["same", "other"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on the file system of `tmp_path`, and on another one."""
    if request.param == "same":
        yield tmp_path / "source"
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no other file system")
    path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def test_copies_are_whole_and_the_originals_stay(source: Path, tmp_path: Path) -> None:
    (source / "below" / "it").mkdir(parents=True)
    (source / "below" / "nothing").mkdir()
    (source / "empty").touch()
    (source / "below" / "small").write_bytes(b"x")
    (source / "below" / "it" / "large").write_bytes(os.urandom((3 << 20) + 17))
    with (source / "sparse").open("wb") as file:
        for at in (5 << 20, 40 << 20):
            file.seek(at)
            file.write(b"weights")
        file.truncate(64 << 20)
    (source / "closed").write_bytes(b"read only")
    (source / "closed").chmod(0o400)
    (source / "system").symlink_to("/proc/version")  # says that its size is 0
    before = contents(source)
    for care in (Care(), Care(flush=False, checksums=False)):
        target = tmp_path / str(care.flush)
        found = stage(str(source), target, list_files(str(source)), care)
        assert contents(source) == contents(target) == before
        assert (target / "below" / "nothing").is_dir()
        for name, (size, checksum) in found.items():
            assert size == len(before[name])
            assert matches(target / name, (size, checksum))
            assert (checksum is not None) == care.checksums
        assert (target / "closed").stat().st_mode & 0o777 == 0o400
        assert (target / "sparse").stat().st_blocks * 512 < 4 << 20
        (source / "below" / "small").write_bytes(b"y")  # what is written later reaches no copy
        assert (target / "below" / "small").read_bytes() == b"x"
        (source / "below" / "small").write_bytes(b"x")


def test_a_copy_gives_nobody_more_than_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"weights")
    while_copied: list[int] = []

    def seen(descriptor: int, mode: int) -> None:
        while_copied.append(os.fstat(descriptor).st_mode & 0o7777)
        os.chmod(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", seen)
    for mode, copied in ((0o6755, 0o755), (0o640, 0o640)):
        source.chmod(mode)
        copy_file(source, target, Care())
        assert target.stat().st_mode & 0o7777 == copied
        target.unlink()
    assert while_copied == [0o600, 0o600]


def test_files_are_moved_unless_they_are_also_elsewhere(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    outside = tmp_path / "outside"
    (source / "below").mkdir(parents=True)
    outside.mkdir()
    (outside / "data").write_text("the user's")
    (source / "model").write_text("weights")
    (source / "below" / "part").write_text("more")
    (source / "alias").symlink_to("below")
    (source / "linked").symlink_to(outside)
    os.link(outside / "data", source / "hard")
    before = contents(source)
    inode = (source / "model").stat().st_ino
    found = stage(str(source), target, list_files(str(source)), move=True)
    assert contents(target) == before
    assert all(matches(target / name, known) for name, known in found.items())
    assert (target / "model").stat().st_ino == inode
    assert not (source / "model").exists()
    for name in ("hard", "linked/data"):
        (outside / "data").write_text("changed")
        assert (target / name).read_text() == "the user's"


def test_all_is_on_the_disk_before_the_manifest_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    real: Callable[[int], None] = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "source" / "below").mkdir(parents=True)
    for name in ("a", "below/b"):
        (tmp_path / "source" / name).write_text("weights")
    names = list_files(str(tmp_path / "source"))
    for move in (False, True):
        flushed.clear()
        target = tmp_path / f"target-{move}"
        files = stage(str(tmp_path / "source"), target, names, move=move)
        write_manifest(target, Committed(target, 0, 1, files, {}))
        expected = {target.name + below for below in ("", "/a", "/below", "/below/b")}
        assert set(flushed[:4]) == expected
        assert flushed[4] == f"{target.name}/.dray.draft"
    flushed.clear()
    stage(str(tmp_path / "target-True"), tmp_path / "off", names, Care(flush=False))
    assert not flushed


@settings(max_examples=150)
@given(data=st.data())
def test_every_flip_and_every_cut_is_found(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.getbasetemp() / "flipped"
    if not top.exists():
        top.mkdir()
        for name, size in (("a", 1), ("b", 1000), ("c", 70_000)):
            (top / name).write_bytes(os.urandom(size))
        files = {name: fingerprint(top / name) for name in ("a", "b", "c")}
        write_manifest(top, Committed(top, 0, 1, files, {0: {"metrics": {"loss": 0.5}}}))
    committed = read_manifest(top)
    assert committed is not None
    name = data.draw(st.sampled_from(("a", "b", "c", ".dray.json")))
    whole = (top / name).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(0, 255))  # 0 is a cut
    damaged = whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :] if flip else whole[:at]
    (top / name).write_bytes(damaged)
    try:
        if name == ".dray.json":
            with pytest.raises(StorageError, match="is damaged"):
                read_manifest(top)
        else:
            assert committed.first_damaged_file() == name
    finally:
        (top / name).write_bytes(whole)
