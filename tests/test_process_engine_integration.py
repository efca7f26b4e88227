"""What only the process engine can break: its fork server, its memory, its machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import dray.train
from dray.errors import WorkerDiedError
from dray.train import FailureConfig
from tests.programs import survivors
from tests.test_errors_integration import fit

pytestmark = pytest.mark.usefixtures("process_engine")


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group with 300 MiB, which kills what needs more; needs root."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"dray-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(300 << 20))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no control group can be made here: not root, or /sys/fs/cgroup is read-only")


def test_out_of_memory_killer_is_named(storage: Path, small_memory: Path) -> None:
    def train() -> None:
        if dray.train.get_context().get_world_rank() == 1:
            (small_memory / "cgroup.procs").write_text(str(os.getpid()))
            hoard = []
            while True:
                hoard.append(b"x" * (16 << 20))
        dray.train.collective.barrier()

    with pytest.raises(WorkerDiedError, match="the kernel's out-of-memory killer struck") as caught:
        fit(train, storage)
    assert caught.value.rank == 1  # type: ignore[attr-defined]
    assert "rank-00001.log" in str(caught.value)


def test_fork_server_killed_and_retry(storage: Path) -> None:
    def train() -> int:
        if not (storage / "killed").exists():
            dray.train.collective.barrier()
            if dray.train.get_context().get_world_rank() == 0:
                (storage / "killed").touch()
                os.kill(os.getppid(), signal.SIGKILL)
            threading.Event().wait()
        return 7

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == 7


def test_fork_server_killed_between_runs(storage: Path) -> None:
    server = fit(os.getppid, storage).return_value
    os.kill(server, signal.SIGKILL)
    assert survivors([server]) == []
    assert fit(os.getppid, storage).return_value != server
