"""Commits under kills and power cuts, in any order: what is handed out is whole, and new enough.

A power cut is modelled as POSIX allows it: of each directory, every entry is as it was when the
directory was last flushed, or as it is now; of each file, the contents are those of its last flush,
those of now, or none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dray import host
from dray.train.config import CheckpointConfig
from dray.train.run.checkpoint_store import CheckpointStore
from dray.train.run.output.progress import Progress
from dray.train.run.output.screens import Screen
from dray.train.run.report_tracker import PendingReport
from dray.train.storage.checkpoint_files import list_files, secure, stage
from dray.train.storage.manifest import Committed
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker.run_messages import Reported, Secured

Choose = Callable[[list[Any]], Any]


class Killed(BaseException):
    """Stands for a kill -9 at one system call."""


class Disk:
    """What is on the disk below a directory, as opposed to what the system shows.

    Attributes:
        left: Number of changes until everything is killed; None is never.
    """

    def __init__(self, top: Path) -> None:
        self.top = top
        self.left: int | None = None
        self._flushed: dict[int, bytes | dict[str, int]] = {}  # by inode
        self._held: dict[int, int] = {}  # inode -> descriptor, so that none is used again
        self._lock = threading.Lock()

    def flush(self, descriptor: int) -> None:
        """Do what fsync does."""
        inode = os.fstat(descriptor).st_ino
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        with self._lock:
            self._flushed[inode] = _contents(path)
            if inode not in self._held:
                self._held[inode] = os.dup(descriptor)

    def close(self) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()
        self._flushed.clear()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Know of every flush; kill whoever makes a change when that is due."""

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def change(*args: Any, **kwargs: Any) -> Any:
                if self.left is not None:
                    if self.left == 0:
                        raise Killed
                    self.left -= 1
                return real(*args, **kwargs)

            return change

        with pytest.MonkeyPatch.context() as patch:
            for name in ("mkdir", "rename", "replace", "unlink", "rmdir"):
                patch.setattr(os, name, counted(getattr(os, name)))
            patch.setattr(os, "fsync", counted(self.flush))
            yield

    def cut(self, choose: Choose) -> None:
        """Have of everything what survives a power cut."""
        here = {path.stat().st_ino: path for path in (self.top, *self.top.rglob("*"))}
        tree = self._survivor(self.top.stat().st_ino, here, choose)
        self.close()
        for path in self.top.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert isinstance(tree, dict)
        _write(self.top, tree)
        for path in (self.top, *self.top.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            self.flush(descriptor)
            os.close(descriptor)

    def _survivor(self, inode: int, here: dict[int, Path], choose: Choose) -> Any:
        """Return what survives of a file or directory: its bytes, or name -> the same of each."""
        versions = [self._flushed[inode]] if inode in self._flushed else []
        if inode in here:
            versions.append(_contents(here[inode]))
        if isinstance(versions[-1], bytes):
            return choose([*versions, *([] if inode in self._flushed else [b""])])
        flushed, now = versions[0] if inode in self._flushed else {}, versions[-1]
        assert isinstance(flushed, dict)
        assert isinstance(now, dict)
        tree = {}
        for name in sorted({*flushed, *now}):
            entry = flushed.get(name)
            if inode in here and entry != now.get(name):
                entry = choose([entry, now.get(name)])
            if entry is not None and (entry in here or entry in self._flushed):
                tree[name] = self._survivor(entry, here, choose)
        return tree


def _contents(path: Path) -> bytes | dict[str, int]:
    if path.is_dir():
        return {entry.name: entry.stat().st_ino for entry in path.iterdir()}
    return path.read_bytes()


def _write(top: Path, tree: dict[str, Any]) -> None:
    for name, below in tree.items():
        if isinstance(below, dict):
            (top / name).mkdir()
            _write(top / name, below)
        else:
            (top / name).write_bytes(below)


class Run:
    """A run that commits, is killed, and loses its power."""

    def __init__(self, path: Path, config: CheckpointConfig) -> None:
        self.path, self.config = path, config
        path.mkdir()
        self.disk = Disk(path)
        self.report = 0
        self.returned = self.safe = -1  # newest reports that are committed, and secured
        self.staged: dict[int, tuple[Path, dict[str, Any]]] = {}
        self.restart()

    def restart(self) -> None:
        self.directory = RunDirectory(self.path)
        self.directory.warn = lambda text: None
        self.directory.storage.open()
        progress = Progress("run", self.path, Screen())
        self.store = CheckpointStore(self.directory, self.config, progress)
        self.staged.clear()

    def text(self, report: int) -> str:
        return f"weights of report {report}" * 3

    def commit(self, name: str | None, moved: bool) -> None:
        """Do what two ranks and the driver do at a report; the ranks secure it later."""
        report, self.report = self.report, self.report + 1
        care = self.directory.care(flush=True, checksums=True)
        source = self.path / f".staging-rank-{report}" if moved else self.path.parent / "source"
        (source / "below").mkdir(parents=True, exist_ok=True)
        for file in ("model", "below/part"):
            (source / file).write_text(self.text(report))
        told = Reported(report, {"metrics": {}}, directory=name)
        entry = PendingReport(report, 0.0, {0: told}, {0: ()})
        staging = Path(str(self.store.staging(entry)))
        files = stage(str(source), staging, list_files(str(source)), care, move=moved)
        entry.staged, entry.to_secure = files, {0, 1} if care.is_due(files) else set()
        committed = self.store.commit(entry, 2)
        self.returned = report
        if committed.is_provisional:
            assert isinstance(committed.path, Path)
            self.staged[report] = committed.path, files
        else:
            self.safe = report
        self.store.delete_surplus()

    def secure(self, report: int) -> None:
        """Do what the ranks do beside the training, and the driver when they have."""
        path, files = self.staged.pop(report)
        care = self.directory.care(flush=True, checksums=True)
        halves = {name: files[name] for name in sorted(files)[:1]}, files
        for rank in range(2):
            self.store.secured(rank, Secured(report, secure(path, halves[rank], care)))
        self.safe = max(self.safe, report)

    def look(self, at_least: int) -> None:
        """Check what a restart resumes from, and what others are handed out."""
        for each in self.directory.checkpoints():
            assert each.report < self.report
            if each.first_damaged_file() is None:
                self.check(each)
        newest = self.store.newest_good(attempt=1)
        if newest is not None:
            self.check(newest)
        assert (-1 if newest is None else newest.report) >= at_least
        self.returned = self.safe = -1 if newest is None else newest.report

    def check(self, committed: Committed) -> None:
        assert isinstance(committed.path, Path)
        for file in ("model", "below/part"):
            assert (committed.path / file).read_text() == self.text(committed.report)


steps = st.tuples(
    st.sampled_from(["commit", "commit", "secure", "secure", "kill", "power cut"]),
    st.sampled_from([None, None, "best"]),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 25)),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(st.lists(steps, min_size=1, max_size=8), st.sampled_from([None, 1, 2]), st.data())
def test_kills_and_power_cuts_leave_what_was_promised(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[str, str | None, bool, int | None]],
    keep: int | None,
    data: st.DataObject,
) -> None:
    def choose(options: list[Any]) -> Any:
        return data.draw(st.sampled_from(options))

    boots = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "boot_id", lambda: f"boot {boots}")
        run = Run(tmp_path_factory.mktemp("cut") / "run", CheckpointConfig(num_to_keep=keep))
        for what, name, moved, at in [*drawn, ("power cut", None, False, None)]:
            killed = what in ("kill", "power cut")
            try:
                with run.disk.watched():
                    run.disk.left = None if killed else at
                    if what == "commit":
                        run.commit(name, moved)
                    elif what == "secure" and run.staged:
                        run.secure(choose(sorted(run.staged)))
            except Killed:
                killed = True
                what = choose(["kill", "power cut"])
            if killed:
                event(what)
                run.disk.left = None
                run.directory.storage.close()
                if what == "power cut":
                    run.disk.cut(choose)
                    boots += 1
                expected = run.returned if what == "kill" else run.safe
                with run.disk.watched():
                    run.restart()
                    run.look(expected)
    run.disk.close()


def test_a_restart_keeps_what_it_resumes_from_when_the_power_is_cut_next(tmp_path: Path) -> None:
    """The driver was killed before it had flushed the name of the manifest that it wrote anew."""
    outcomes = set()
    for left in range(20):  # each change within the securing of the checkpoint
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host, "boot_id", lambda: "boot 0")
            run = Run(tmp_path / f"run-{left}", CheckpointConfig())
            with run.disk.watched():
                run.commit(None, moved=False)
                run.disk.left = left
                with contextlib.suppress(Killed):
                    run.secure(0)
                outcomes.add(run.disk.left)
                run.disk.left = None
                run.directory.storage.close()
                run.restart()
                run.look(0)
            run.directory.storage.close()
            run.disk.cut(lambda options: options[0])  # what was flushed, and nothing since
            patch.setattr(host, "boot_id", lambda: "boot 1")
            with run.disk.watched():
                run.restart()
                run.look(0)
            run.directory.storage.close()
            run.disk.close()
    assert len(outcomes) > 1  # some were killed, some were not
