"""A report wakes nobody, and is known all the same: late, but before all that comes after it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.engines import status_socket
from dray.engines.rpc import io_thread
from dray.errors import WorkerGroupError
from dray.train import UserCallback
from tests.support.gates import PATIENCE_S, Gate
from tests.train.run.test_reports_integration import fit, save

pytestmark = pytest.mark.usefixtures("process_engine")

# More than the socket to the driver holds.
MANY = 3000


def shown_report() -> int | None:
    """The newest report that `dray status` shows of this program's training."""
    [own] = [found for found in status_socket.sessions() if found["pid"] == os.getpid()]
    report: int | None = own["trainings"][0]["report"]
    return report


def test_the_last_of_many_is_shown_though_nothing_follows(storage: Path, tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def train() -> None:
        for step in range(MANY):
            dray.train.report({"step": step})
        gate.pass_through()

    running = threading.Thread(target=fit, args=(train, storage))
    running.start()
    gate.heard(2)
    until = time.monotonic() + PATIENCE_S
    while shown_report() != MANY - 1:
        assert time.monotonic() < until
    gate.open()
    running.join()


def test_it_counts_though_its_rank_is_killed_right_after(storage: Path) -> None:
    def train() -> None:
        dray.train.report({"step": 0})
        save(1, storage)
        if dray.train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerGroupError, match=r"rank 1.*SIGKILL"):
        fit(train, storage)
    assert (storage / "run/checkpoint_000000").is_dir()


@pytest.mark.parametrize("of", ["class", "instance"])
def test_a_callback_that_wants_reports_gets_each_at_once(
    of: str, storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = [Gate(tmp_path, str(step)) for step in range(3)]

    def after_report(run_context: Any, metrics: Any, checkpoint: Any) -> None:
        gates[metrics[0]["step"]].open()

    callback = UserCallback()
    if of == "class":
        callback = type("Listens", (UserCallback,), {"after_report": staticmethod(after_report)})()
    else:
        monkeypatch.setattr(callback, "after_report", after_report)

    def train() -> str:
        for step in range(3):
            dray.train.report({"step": step})
            gates[step].wait()
        return "heard of each"

    monkeypatch.setattr(io_thread, "REST_S", 1000.0)
    assert fit(train, storage, workers=1, callbacks=[callback]).return_value == "heard of each"
