"""What is promised about a report: it is kept once every rank has made it, whatever fails then."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import dray.train
from dray.errors import SerializationError, StorageError
from dray.train import (
    Checkpoint,
    CheckpointUploadMode,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    UserCallback,
)
from tests.support.gates import Gate, until

pytestmark = pytest.mark.usefixtures("process_engine")


def fit(function: Any, storage: Path, workers: int = 2, config: Any = None, **run: Any) -> Result:
    return DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(name="run", storage_path=storage, **run),
    ).fit()


def events(storage: Path, kind: str) -> list[dict[str, Any]]:
    lines = (storage / "run/events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def states(storage: Path) -> list[str]:
    return [event["state"] for event in events(storage, "state")]


def start() -> int:
    """Where a train function goes on: after the report of the checkpoint that it finds."""
    checkpoint = dray.train.get_checkpoint()
    return int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0


def save(step: int, storage: Path) -> None:
    """Make a report with a checkpoint, which the others make without."""
    if dray.train.get_context().get_world_rank() != 0:
        dray.train.report({"step": step}, checkpoint=None)
        return
    saved = storage / "saved"
    saved.mkdir(exist_ok=True)
    (saved / "step").write_text(str(step))
    dray.train.report({"step": step}, Checkpoint(saved))


def raise_error() -> None:
    raise RuntimeError("right after the report")


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("who", [{0, 1}, {1}], ids=["every rank", "rank 1"])
@pytest.mark.parametrize("fails", [raise_error, kill_self])
def test_what_ranks_have_reported_when_they_fail_is_kept(
    storage: Path, fails: Any, who: set[int]
) -> None:
    """Also while rank 0 is about to make the report, and writes its checkpoint."""

    def train() -> int:
        first = start()
        for step in range(first, 4):
            save(step, storage)
            if step == 2 and first == 0 and dray.train.get_context().get_world_rank() in who:
                fails()
        return first

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == 3
    assert len(list((storage / "run").glob("checkpoint_*"))) == 4
    assert len(events(storage, "worker failed")) <= 2


def test_a_rank_that_still_writes_its_checkpoint_is_waited_for(storage: Path, gate: Gate) -> None:
    def train(config: Any) -> int:
        first = start()
        if first == 0:
            if dray.train.get_context().get_world_rank() == 0:
                config["gate"].pass_through()
            else:
                dray.train.report({})
                raise RuntimeError("early")
        save(0, storage)
        return first

    def open_when_drained() -> None:
        gate.heard()
        while "DRAINING" not in (storage / "run/events.jsonl").read_text():
            threading.Event().wait(0.01)
        gate.open()

    opener = threading.Thread(target=open_when_drained)
    opener.start()
    once = FailureConfig(max_failures=1)
    assert fit(train, storage, config={"gate": gate}, failure_config=once).return_value == 1
    opener.join()
    assert states(storage)[3:6] == ["DRAINING", "FAILING", "RESTARTING"]


def test_equal_reports_are_not_waited_for(storage: Path) -> None:
    def train() -> int:
        first = start()
        if first == 0:
            save(0, storage)
            dray.train.collective.barrier()
            if dray.train.get_context().get_world_rank() == 1:
                kill_self()
            threading.Event().wait()
        return first

    once = FailureConfig(max_failures=1)
    assert fit(train, storage, failure_config=once).return_value == 1
    assert "DRAINING" not in states(storage)


def test_a_rank_that_does_not_report_is_not_waited_for_long(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_REPORT_GRACE_S", "0.05")

    def train() -> int:
        if dray.train.get_context().get_world_rank() == 1:
            threading.Event().wait()
        dray.train.report({})
        raise RuntimeError("rank 1 has not made it")

    with pytest.raises(RuntimeError, match="rank 1 has not made it"):
        fit(train, storage)
    assert states(storage)[3:] == ["DRAINING", "FAILING", "ERRORED"]


# RunConfig(report_barrier=True).


def test_with_a_barrier_every_report_waits_for_every_rank(storage: Path) -> None:
    """Five reports, of which only rank 0's bring a checkpoint: five checkpoints, in every run."""

    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        for step in range(5):
            written = storage / f"before-{step}"
            if rank == 0:
                written.touch()
            save(step, storage)
            assert written.exists()
            checkpoint = dray.train.get_checkpoint()
            assert checkpoint is not None
            assert Path(checkpoint.path, "step").read_text() == str(step)
        raise RuntimeError("after five")

    with pytest.raises(RuntimeError, match="after five"):
        fit(train, storage, report_barrier=True)
    assert len(list((storage / "run").glob("checkpoint_*"))) == 5
    assert json.loads((storage / "run/run.json").read_text())["report_barrier"] is True


def test_with_a_barrier_metrics_alone_wait_too(storage: Path) -> None:
    def train() -> list[bool]:
        seen = []
        for step in range(3):
            if dray.train.get_context().get_world_rank() == 1:
                (storage / f"of-rank-1-{step}").touch()
            dray.train.report({"step": step})
            seen.append((storage / f"of-rank-1-{step}").exists())
        return seen

    assert fit(train, storage, report_barrier=True).return_value == [True] * 3


def test_whatever_a_rank_raises_while_it_copies_the_others_hear_of_it(storage: Path) -> None:
    def train() -> str:
        saved = storage / f"saved-{dray.train.get_context().get_world_rank()}"
        saved.mkdir(parents=True)
        (saved / saved.name).write_text("weights")
        if dray.train.get_context().get_world_rank() == 1:
            no_room = mock.patch("os.fchmod", side_effect=MemoryError("no room"))
            with no_room, pytest.raises(MemoryError):
                dray.train.report({}, Checkpoint(saved))
        else:
            with pytest.raises(StorageError, match="rank 1: MemoryError: no room"):
                dray.train.report({}, Checkpoint(saved))
        dray.train.report({"step": 1}, Checkpoint(saved))
        return "both went on"

    result = fit(train, storage)
    assert result.return_value == "both went on"
    assert [metrics for _, metrics in result.best_checkpoints] == [{"step": 1}]


def shards(result: Result) -> list[dict[str, str]]:
    """The files of each checkpoint of a run, without its manifest."""
    return [
        {path.name: path.read_text() for path in Path(checkpoint.path).glob("of-*")}
        for checkpoint, _ in result.best_checkpoints
    ]


def dangling_link(saved: Path) -> dict[str, Any]:
    (saved / "link").symlink_to(saved / "nowhere")
    return {}


def upload_fails(saved: Path) -> dict[str, Any]:
    def upload(checkpoint: Checkpoint, name: str) -> Checkpoint:
        raise ConnectionError("upload failed")

    return {"checkpoint_upload_fn": upload}


def no_metric(saved: Path) -> dict[str, Any]:
    return {"metrics": {"loss": object()}}


def no_room_for_metrics(saved: Path) -> dict[str, Any]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    return {}


def no_checkpoint(saved: Path) -> dict[str, Any]:
    return {"checkpoint": str(saved)}


SYNC, ASYNC = CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC


@pytest.mark.parametrize(
    ("spoil", "mode"),
    [
        (dangling_link, SYNC),
        (dangling_link, ASYNC),
        (upload_fails, SYNC),  # else it is the upload that fails, after the report
        (no_metric, SYNC),
        (no_metric, ASYNC),
        (no_room_for_metrics, SYNC),
        (no_checkpoint, SYNC),
    ],
)
def test_a_report_that_fails_on_one_rank_counts_on_all(
    storage: Path, spoil: Any, mode: CheckpointUploadMode
) -> None:
    """Whoever goes on does so with the next report, so that no checkpoint mixes two steps."""

    def train() -> int:
        rank, caught = dray.train.get_context().get_world_rank(), 0
        for step in range(4):
            saved = storage / f"saved-{rank}-{step}"
            saved.mkdir(parents=True)
            (saved / f"of-{rank}").write_text(f"step {step}")
            spoilt = spoil(saved) if rank == 1 and step == 1 else {}
            options = {"metrics": {"step": step}, "checkpoint": Checkpoint(saved), **spoilt}
            try:
                dray.train.report(checkpoint_upload_mode=mode, **options)
            except (OSError, ValueError):
                caught += 1
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            dray.train.get_all_reported_checkpoints()  # waits until the report is done
        return caught

    result = fit(train, storage)
    assert result.return_value == 1
    wanted = [{"of-0": f"step {step}", "of-1": f"step {step}"} for step in (0, 2, 3)]
    assert shards(result) == wanted
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [0, 2, 3]


def test_metrics_that_cannot_be_kept_cost_no_other_rank_its_checkpoint(storage: Path) -> None:
    class Count(UserCallback):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            self.seen.append((metrics, checkpoint is not None))

    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        if rank == 1:
            save(0, storage)
        else:
            with pytest.raises(ValueError, match="'loss' is a builtins"):
                dray.train.report({"loss": object()})
        dray.train.report({"step": 1})

    def save(step: int, storage: Path) -> None:
        saved = storage / "saved"
        saved.mkdir()
        dray.train.report({"step": step}, Checkpoint(saved))

    count = Count()
    result = fit(train, storage, callbacks=[count])
    assert count.seen == [([{}, {"step": 0}], True), ([{"step": 1}, {"step": 1}], False)]
    assert [metrics for _, metrics in result.best_checkpoints] == [{"step": 0}]
    assert result.metrics == {"step": 1}


def test_a_report_that_tells_of_an_upload_before_is_made(storage: Path) -> None:
    def train() -> int:
        rank, caught = dray.train.get_context().get_world_rank(), 0
        saved = storage / f"saved-{rank}"
        saved.mkdir(parents=True)
        (saved / f"of-{rank}").write_text("step 0")
        if rank == 0:
            dray.train.collective.barrier()  # until the other one's files are gone
        dray.train.report({}, Checkpoint(saved), checkpoint_upload_mode=ASYNC)
        if rank == 1:
            shutil.rmtree(saved)
            dray.train.collective.barrier()
        dray.train.get_all_reported_checkpoints()  # waits until the report is done
        saved.mkdir(exist_ok=True)
        for step in (1, 2, 3):
            (saved / f"of-{rank}").write_text(f"step {step}")
            try:
                dray.train.report({"step": step}, Checkpoint(saved))
            except StorageError:
                caught += 1
        return caught

    result = fit(train, storage)
    assert result.return_value == 1
    assert shards(result) == [
        {"of-0": f"step {step}", "of-1": f"step {step}"} for step in (1, 2, 3)
    ]


@pytest.mark.timeout(60)
def test_a_rank_may_report_beside_a_collective(storage: Path) -> None:
    """The ranks come to them in another order, each of them to the first one in a thread."""

    def train() -> str:
        saved = storage / f"saved-{dray.train.get_context().get_world_rank()}"
        saved.mkdir(parents=True)
        report = threading.Thread(target=dray.train.report, args=({}, Checkpoint(saved)))
        if dray.train.get_context().get_world_rank() == 0:
            report.start()
            until(lambda: (storage / "run/metrics/rank-00000.jsonl").stat().st_size > 0)
            dray.train.collective.barrier()
        else:
            dray.train.collective.barrier()
            report.start()
        report.join()
        return "both came"

    assert fit(train, storage).return_value == "both came"


@pytest.mark.timeout(60)
def test_data_that_cannot_be_sent_counts_as_no_collective(storage: Path) -> None:
    def train() -> object:
        broadcast = dray.train.collective.broadcast_from_rank_zero
        if dray.train.get_context().get_world_rank() == 0:
            with pytest.raises(SerializationError, match="broadcast data"):
                broadcast(threading.Lock())
        return broadcast("plain")

    assert fit(train, storage).return_value == "plain"


def test_the_lowest_rank_names_the_checkpoint(storage: Path) -> None:
    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        if rank == 0:  # the last one to report
            until(lambda: (storage / "run/metrics/rank-00001.jsonl").stat().st_size > 0)
        saved = storage / f"saved-{rank}"
        saved.mkdir(parents=True)
        dray.train.report({}, Checkpoint(saved), checkpoint_dir_name=f"of-rank-{rank}")

    result = fit(train, storage)
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path).name == "of-rank-0"
