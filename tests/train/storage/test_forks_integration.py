"""A run that a process holds which forks, as the inline engine's does for loaders of data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dray.errors import StorageError
from dray.train.storage.run_directory import RunDirectory


def opened(path: Path) -> RunDirectory:
    directory = RunDirectory(path)
    directory.storage.open()
    return directory


@contextlib.contextmanager
def forked(does: Callable[[], object]) -> Iterator[None]:
    """Have a fork do something, and live as long as this lasts."""
    done, ends = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends[1])
        does()
        os.write(done[1], b".")
        os.read(ends[0], 1)
        os._exit(0)
    os.read(done[0], 1)
    try:
        yield
    finally:
        for pipe in (*done, *ends):
            os.close(pipe)
        os.waitpid(child, 0)


def test_a_run_is_free_though_a_fork_of_its_driver_lives_on(tmp_path: Path) -> None:
    first = opened(tmp_path / "run")
    with forked(lambda: None):
        first.storage.close()
        opened(tmp_path / "run").storage.close()


def test_a_fork_that_ends_does_not_let_the_run_go(tmp_path: Path) -> None:
    first = opened(tmp_path / "run")
    with forked(first.storage.close), pytest.raises(StorageError, match="another fit"):
        opened(tmp_path / "run")
    first.storage.close()
