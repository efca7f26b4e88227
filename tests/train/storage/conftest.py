"""Storages far away: servers, of which each file of tests has its own, and one in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.train.storage.filesystem import place_at
from dray.train.storage.place import RemotePath
from tests.support import hdfs_server, s3_server
from tests.support.remote_runs import Server

WHY_NOT = hdfs_server.why_not()
HDFS = [pytest.mark.hdfs, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


def hdfs_only(test: Callable[..., object]) -> Any:
    """Mark a test that needs an HDFS."""
    for mark in HDFS:
        test = mark(test)
    return test


@pytest.fixture(scope="session")
def s3() -> Iterator[s3_server.Server]:
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with s3_server.served() as server:
        yield server


@pytest.fixture(scope="session")
def hdfs() -> Iterator[hdfs_server.Server]:
    with hdfs_server.served() as server:
        yield server


@pytest.fixture(scope="session", params=["s3", pytest.param("hdfs", marks=HDFS)])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of them in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def run() -> Iterator[RemotePath]:
    """A run's place in memory."""
    memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem
    place = place_at("memory://tests/run", None, "path")
    assert isinstance(place, RemotePath)
    yield place
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """The files of an old and of a new checkpoint."""
    for text in ("old", "new"):
        (tmp_path / text / "sub").mkdir(parents=True)
        for name in ("model", "sub/more"):
            (tmp_path / text / name).write_text(text)
    return [tmp_path / "old", tmp_path / "new"]
