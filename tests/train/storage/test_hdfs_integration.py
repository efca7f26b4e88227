"""What is HDFS's own of runs there: where it is, its errors, and a name node that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import dray.train
from dray.errors import ConfigError, StorageError
from dray.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from dray.train.storage.filesystem import place_at
from dray.train.storage.place import RemotePath
from dray.train.storage.run_directory import RunDirectory
from tests.support.hdfs_server import NAMENODE, Server, served
from tests.support.remote_runs import fit, report, run_at
from tests.train.storage.conftest import hdfs_only

pytest.importorskip("hdfs_native")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("hdfs://me@host/runs", "names a user, .* set HADOOP_USER_NAME"),
        ("hdfs:///runs", "No fs.defaultFS .* HADOOP_CONF_DIR"),
        ("hdfs://host:8020", "names no bucket or directory: hdfs://host/directory"),
    ],
)
def test_urls_that_name_no_place(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(ConfigError, match=said):
        RunConfig(storage_path=url)


def test_nobody_at_the_address(process_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_STORAGE_RETRY_S", "1")
    config = RunConfig(name="nobody", storage_path="hdfs://127.0.0.1:1/runs")
    said = r"^hdfs://127.0.0.1:1/runs/nobody cannot be .*Connection refused.* check whether the"
    with pytest.raises(StorageError, match=said):
        DataParallelTrainer(print, run_config=config).fit()


def test_a_fork_of_a_process_that_has_looked_at_hdfs_ends(tmp_path: Path) -> None:
    """A client that fsspec frees in a fork would wait for threads that are not there."""
    program = """
import os
from dray.train.storage.filesystem import place_at
place_at("hdfs://127.0.0.1:1/runs", None, "path")
child = os.fork()
if not child:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "7\n"


@hdfs_only
def test_places_by_configuration(hdfs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write by the default file system and a mount table, read by the address."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    there = place_at(f"{hdfs.storage_path}/by-configuration", None, "path")
    for url in ("hdfs:///runs/by-configuration", "viewfs://mounts/far/by-configuration"):
        place = place_at(url, None, "path")
        assert isinstance(place, RemotePath)
        assert str(place) == url
        place.write_bytes(url.encode())
        assert isinstance(there, RemotePath)
        assert there.read_bytes() == url.encode()


@hdfs_only
def test_one_driver_at_a_time(hdfs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_LEASE_S", "8")
    place = run_at(hdfs, "held")
    first = RunDirectory(place)
    first.storage.open()
    try:
        with pytest.raises(StorageError, match=r"another fit\(\) uses the run hdfs://"):
            RunDirectory(place).storage.open()
        with (  # HDFS itself refuses, if both have looked before either has written
            mock.patch.object(RemotePath, "exists", return_value=False),
            pytest.raises(FileExistsError),
        ):
            (place / ".lease-000001").create(b"mine")
        left = {name.removesuffix(".draft") for name in place.names()}  # it is renewed meanwhile
        assert left == {".lease-000001"}
    finally:
        first.storage.close()
    second = RunDirectory(place)
    second.storage.open()
    second.storage.close()


def lose_and_go_on(config: dict[str, Any]) -> int:
    """Report; a worker is killed at the first step, then the name node is."""
    first = 0
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as path:
            first = int(Path(path, "rank-0").read_text().split()[-1]) + 1
    for step in range(first, 4):
        report(step, within=str(Path(config["wish"]).parent))
        dray.train.collective.barrier()
        if step == 0 and dray.train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 1 and dray.train.get_context().get_world_rank() == 0:
            Path(config["wish"]).write_text("now")  # a pipe: somebody reads it
    return first


@hdfs_only
def test_a_worker_and_the_name_node_are_lost(
    process_engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go on after both; say plainly that the name node is gone if it stays away."""
    with served() as hdfs:
        go_on(hdfs, tmp_path / "wish")
        monkeypatch.setenv("DRAY_STORAGE_RETRY_S", "1")
        hdfs.kill(NAMENODE)
        with pytest.raises(StorageError) as gone:
            fit(hdfs, "gone", steps=1)
    assert f"{hdfs.storage_path}/gone" in str(gone.value)
    assert "Connection refused" in str(gone.value)
    assert "\tat" not in str(gone.value)


def go_on(hdfs: Server, wish: Path) -> None:
    os.mkfifo(wish)

    def restart() -> None:
        wish.read_text()
        hdfs.kill(NAMENODE)
        hdfs.start_one(NAMENODE)

    keeper = threading.Thread(target=restart)
    keeper.start()
    result = DataParallelTrainer(
        lose_and_go_on,
        train_loop_config={"wish": str(wish)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="lost",
            storage_path=hdfs.storage_path,
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
    keeper.join()
    assert result.return_value == 1
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [0, 1, 2, 3]
