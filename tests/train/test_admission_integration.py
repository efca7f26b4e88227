"""How many workers a run with a least and a most of them begins with, beside other runs."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.session
import dray.train
from dray.errors import NodeDiedError
from dray.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, UserCallback
from tests.support.gates import until
from tests.support.holding import Watch, hold


def world_size() -> int:
    return dray.train.get_context().get_world_size()


@pytest.mark.parametrize(
    ("nodes", "options", "size"),
    [
        ([{"num_cpus": 2}] * 2, {"placement_strategy": "STRICT_SPREAD"}, 2),
        ([{"num_cpus": 2}] * 2, {"placement_strategy": "STRICT_PACK"}, 2),
        (
            [{"num_cpus": 4, "labels": {"z": "a"}}, {"num_cpus": 1, "labels": {"z": "b"}}],
            {"label_selector": [{"z": "a"}, {"z": "b"}, {"z": "b"}, {"z": "b"}]},
            2,
        ),
    ],
)
def test_as_many_as_fit_together(
    session: Any, storage: Path, nodes: Any, options: dict[str, Any], size: int
) -> None:
    session(*nodes)
    trainer = DataParallelTrainer(
        world_size,
        scaling_config=ScalingConfig(num_workers=(1, 4), **options),
        run_config=RunConfig(storage_path=storage),
    )
    assert trainer.plan().num_workers == size
    assert trainer.fit().return_value == size


class Holds(UserCallback):
    """Keeps a run's resources until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def after_report(self, *_: Any) -> None:
        self.begun.set()
        assert self.may_end.wait(60)


class InThread(threading.Thread):
    """A run in a thread of its own."""

    def __init__(self, storage: Path, name: str, *callbacks: Any, **scaling: Any) -> None:
        super().__init__(daemon=True)
        self._run_config = RunConfig(name=name, storage_path=storage, callbacks=callbacks)
        self._scaling = ScalingConfig(**scaling)
        self.size = 0
        self.start()

    def run(self) -> None:
        def report() -> int:
            dray.train.report({})
            return world_size()

        trainer = DataParallelTrainer(
            report, scaling_config=self._scaling, run_config=self._run_config
        )
        self.size = trainer.fit().return_value


def test_who_waited_first_grows_first(
    session: Any, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(num_cpus=4)
    watch = Watch(monkeypatch)
    holds, holds_too = Holds(), Holds()
    first = InThread(storage, "first", holds, num_workers=1, resources_per_worker={"CPU": 4})
    assert holds.begun.wait(60)
    second = InThread(storage, "second", num_workers=(1, 8))
    watch.wait_for("second: waiting up to")
    third = InThread(storage, "third", holds_too, num_workers=1, resources_per_worker={"CPU": 4})
    watch.wait_for("third: waiting up to")
    holds.may_end.set()
    second.join(60)  # if the third had begun, it would not end before it may
    holds_too.may_end.set()
    third.join(60)
    first.join(60)
    assert (first.size, second.size, third.size) == (1, 4, 1)


def test_a_reason_to_wait_is_said_again_when_it_changes(
    session: Any, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    session({"num_cpus": 3, "num_gpus": 3})
    holders = {missing: hold(num_gpus=1) for missing in (3, 2, 1)}
    run = InThread(storage, "run", num_workers=3, use_gpu=True)
    for missing, holder in holders.items():
        watch.wait_for(f"3 needs {missing} more GPU.")
        dray.kill(holder)
    run.join(60)
    assert run.size == 3
    said = [line for line in watch.getvalue().splitlines() if "run: waiting up to" in line]
    assert [line.rpartition("needs ")[2] for line in said] == [f"{n} more GPU." for n in (3, 2, 1)]


class LetsGo(UserCallback):
    """Has another's resources given back after a report."""

    def __init__(self, holder: Any, report: int) -> None:
        self.holder, self.report = holder, report

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        if metrics[0]["step"] == self.report:
            dray.kill(self.holder)
            until(lambda: dray.available_resources().get("CPU") == 2)


def grows(saves: bool, scratch: Path) -> list[int]:
    """Report the number of workers for ten steps, and return those that this attempt has made."""
    checkpoint, made = dray.train.get_checkpoint(), []
    first = int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0
    for step in range(first, 10):
        dray.train.collective.barrier()
        with tempfile.TemporaryDirectory(dir=scratch) as directory:
            Path(directory, "step").write_text(str(step))
            mine = saves and dray.train.get_context().get_world_rank() == 0
            of_all = {"step": step, "size": world_size()}
            dray.train.report(of_all, Checkpoint(directory) if mine else None)
        made.append(step)
    return made


@pytest.mark.parametrize(("saves", "interval_s", "size"), [(1, 0, 3), (0, 0, 1), (1, 600, 1)])
def test_a_run_grows_at_a_checkpoint_when_there_is_room(
    session: Any, storage: Path, tmp_path: Path, saves: bool, interval_s: float, size: int
) -> None:
    session(num_cpus=3)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = DataParallelTrainer(
        lambda: grows(saves, scratch),
        scaling_config=ScalingConfig(
            num_workers=(1, 4), elastic_resize_monitor_interval_s=interval_s
        ),
        run_config=RunConfig(storage_path=storage, callbacks=[LetsGo(hold(num_cpus=2), 1)]),
    ).fit()
    rows = result.metrics_dataframe
    assert list(rows["step"]) == list(range(10))  # none is lost, and none comes twice
    sizes = list(rows["size"])
    assert sizes == [1] * 3 + [size] * 7
    assert result.return_value == [step for step in range(10) if sizes[step] == size]
    assert not list(scratch.iterdir())


def test_a_rank_that_does_not_come_to_a_report_does_not_keep_a_run_small(
    session: Any, storage: Path
) -> None:
    def train() -> int:
        if world_size() == 2:
            rank = dray.train.get_context().get_world_rank()
            for step in range(3):
                with dray.train.checkpoint_dir() as directory:
                    if rank == 0:
                        Path(directory, "step").touch()
                    dray.train.report({"step": step}, Checkpoint(directory) if rank == 0 else None)
            threading.Event().wait()
        return world_size()

    session(num_cpus=4)
    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=(2, 4), elastic_resize_monitor_interval_s=0),
        run_config=RunConfig(storage_path=storage, callbacks=[LetsGo(hold(num_cpus=2), 1)]),
    ).fit()
    assert result.return_value == 4


def test_a_node_that_dies_while_it_is_given_is_asked_for_no_more(
    session: Any, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(num_cpus=2)
    engine = type(dray.session.current_engine())
    reserve, given = engine.reserve, []

    def dying_once(self: Any, request: Any) -> Any:
        given.append(reserve(self, request))
        if len(given) > 1:
            return given[-1]
        given[0].result().release()
        dead: Future[Any] = Future()
        dead.set_exception(NodeDiedError(None, details="its node is gone"))
        return dead

    monkeypatch.setattr(engine, "reserve", dying_once)
    run = InThread(storage, "run", num_workers=(1, 4))
    run.join(60)
    assert (run.size, len(given)) == (2, 2)
