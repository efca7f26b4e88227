"""A test that kills drivers at random moments of commits on S3 or HDFS, and checks the run.

After every kill the next driver must find only complete checkpoints. The newest one must be the
last whose commit had returned, or the one whose commit was interrupted. Nothing else may be in the
run.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import hdfs_native
import s3fs

from dray.train.storage.copies import Care
from dray.train.storage.manifest import Committed
from dray.train.storage.place import RemotePath
from dray.train.storage.remote.downloads import fetch
from dray.train.storage.run_directory import RunDirectory
from tests.support import hdfs_server, s3_server
from tests.support.remote_runs import Server, run_at

assert hdfs_native, s3fs  # imported once, for all drivers

SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "s3": s3_server.served,
    "hdfs": hdfs_server.served,
}

FILES = {"model": 300_000, "optimizer/0": 20_000, "optimizer/1": 0}
KEPT = 3


def main() -> int:
    """Return 1 if a kill has left a run in another state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float, default=1.0, help="seconds of a driver's life")
    parser.add_argument("--on", choices=["s3", "hdfs"], default="s3")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    acknowledged = -1
    with SERVERS[options.on]() as server:
        for number in range(options.kills):
            acknowledged = kill_one(server, acknowledged, chance.uniform(0.0, options.within))
            if in_a_fork(functools.partial(look, server, acknowledged)):
                print(f"kill {number} (seed {options.seed}): see above", file=sys.stderr)
                return 1
            if number % 20 == 19:
                print(f"{number + 1} kills, {acknowledged + 1} checkpoints", flush=True)
    return 0


def kill_one(server: Server, done: int, after_s: float) -> int:
    """Start a driver that commits checkpoints; kill it; return the last one that it has printed."""
    reading, writing = os.pipe()
    driver = os.fork()
    if not driver:
        code = 1
        try:
            commit_all(server, done + 1, writing)
            code = 0
        except BaseException:  # noqa: BLE001 (it must not go on as its parent)
            traceback.print_exc()
        os._exit(code)
    os.close(writing)
    with open(reading, encoding="ascii") as lines:
        lines.readline()  # the driver has opened the run
        time.sleep(after_s)
        os.kill(driver, signal.SIGKILL)
        _, status = os.waitpid(driver, 0)
        said = lines.read().split()
    if os.WIFEXITED(status):
        raise AssertionError("the driver ended by itself")
    return int(said[-1]) if said else done


def commit_all(server: Server, first: int, writing: int) -> None:
    """Commit checkpoints without end; every third one replaces the checkpoint `best`."""
    directory = opened(server)
    os.write(writing, b"\n")
    with tempfile.TemporaryDirectory() as source:
        for report in range(first, sys.maxsize):
            for name, size in FILES.items():
                file = Path(source, name)
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(f"{report}".encode() * (size // 4))
            called = "best" if report % 3 == 2 else None
            staging = directory.begin_staging(report, called)
            files = directory.storage.stage(source, staging, list(FILES), Care())
            where = directory.destination(report, called)
            directory.commit(staging, Committed(where, report, 1, files, {}, report))
            os.write(writing, f"{report}\n".encode())
            for old in directory.checkpoints()[:-KEPT]:
                directory.storage.discard(old.path)


def opened(server: Server) -> RunDirectory:
    """Open the run like a driver."""
    directory = RunDirectory(run_at(server, "killed"))
    directory.storage.open()
    return directory


def look(server: Server, acknowledged: int) -> None:
    """Check the run after a kill.

    Raises:
        AssertionError: The run is not in a state that a kill may leave.
    """
    directory = opened(server)
    warned: list[str] = []
    directory.warn = warned.append
    found = directory.sound_checkpoints()
    assert not warned, warned
    newest = max((each.report for each in found), default=-1)
    assert newest in (acknowledged, acknowledged + 1), (newest, acknowledged)
    for each in found:
        assert isinstance(each.path, RemotePath)
        with tempfile.TemporaryDirectory() as target:
            fetch(each.path, Path(target))  # verifies the checksums
            text = Path(target, "model").read_bytes()
            assert text.startswith(f"{each.report}".encode()), each
    assert isinstance(directory.path, RemotePath)
    names = {name for name in directory.path.names() if not name.startswith(".lease")}
    assert names <= {each.path.name for each in found} | {"events"}, names
    directory.storage.close()


def in_a_fork(check: Callable[[], None]) -> int:
    """Return the exit code of a check that runs in a process of its own."""
    child = os.fork()
    if not child:
        code = 1
        try:
            check()
            code = 0
        except BaseException:  # noqa: BLE001 (it must not go on as its parent)
            traceback.print_exc()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
