"""The object store where there is no room: nothing fails that needs none, and the rest says why."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dray
from dray.errors import ConfigError, ObjectStoreFullError


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    dray.shutdown()
    yield
    dray.shutdown()


@dray.remote
def size(value: np.ndarray) -> int:
    return value.nbytes


def test_without_a_temporary_directory_only_what_goes_to_the_disk_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        dray.init(num_cpus=1, object_store_memory=1e6)
        assert dray.get(size.remote(np.zeros(500_000, np.uint8))) == 500_000
        kept = [dray.put(np.zeros(300_000, np.uint8)) for _ in range(3)]
        with pytest.raises(ObjectStoreFullError, match=r"none.*TMPDIR"):
            dray.put(np.zeros(300_000, np.uint8))
        kept.pop()
        assert dray.get(size.remote(dray.put(np.zeros(300_000, np.uint8)))) == 300_000


def test_more_results_than_there_can_be_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"at most 100,000.*num_returns='streaming'"):
        size.options(num_returns=2**31)
