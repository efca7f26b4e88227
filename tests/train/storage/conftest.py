"""Servers of storages far away, of which each file of tests has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

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
