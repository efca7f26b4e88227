"""Lightning in workers: the same numbers after a restart, the run's ranks, reports as asked."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler

import dray.train
from dray.errors import ConfigError, MissingDependencyError, WorkerGroupError
from dray.train import Checkpoint, CheckpointUploadMode, Result
from dray.train.lightning import (
    RayDeepSpeedStrategy,
    RayTrainReportCallback,
    prepare_trainer,
)
from dray.train.torch import prepare_data_loader
from tests.support import ctrl_c
from tests.train.lightning import lightning_runs
from tests.train.lightning.lightning_runs import fit

process_engine = pytest.mark.usefixtures("process_engine")
on_engines = pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
# Of Lightning itself: few data loader workers and batches, in a test.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")


def saved(checkpoint: Checkpoint) -> list[str]:
    return [name for name in os.listdir(checkpoint.path) if not name.startswith(".")]


def reported(result: Result) -> list[tuple[int, int]]:
    return [(metrics["epoch"], metrics["step"]) for _, metrics in result.best_checkpoints]


@on_engines
@pytest.mark.usefixtures("engine")
def test_after_a_kill_it_ends_as_if_nothing_had_happened(storage: Path) -> None:
    undisturbed = fit(storage / "undisturbed")
    assert undisturbed.metrics is not None
    assert undisturbed.metrics["epoch"] == 2
    assert undisturbed.metrics["step"] == 12
    assert undisturbed.metrics["validation_loss"] < 9
    files = [saved(checkpoint) for checkpoint, _ in undisturbed.best_checkpoints]
    assert files == [["checkpoint.ckpt"]] * 3

    kill = lightning_runs.kill_in_epoch_1_once
    killed = fit(storage / "killed", fail_at=6, fails=kill)
    assert killed.return_value == undisturbed.return_value
    assert killed.metrics == undisturbed.metrics
    assert reported(killed) == [(0, 4), (1, 8), (2, 12)]


@process_engine
def test_batches_of_a_shard_go_on_amid_an_epoch(storage: Path) -> None:
    asked: dict[str, Any] = {"shards": True, "reports": {"every_n_train_steps": 2}}
    undisturbed = fit(storage / "undisturbed", **asked)
    kill = lightning_runs.kill_in_epoch_1_once
    killed = fit(storage / "killed", fail_at=7, fails=kill, **asked)
    assert killed.return_value == undisturbed.return_value


@process_engine
def test_a_prepared_loader_is_left_as_it_is(storage: Path) -> None:
    def train(config: dict[str, Any]) -> list[int]:
        points = [torch.ones(1)] * 16
        own = DataLoader(points, batch_size=2, sampler=SubsetRandomSampler(range(16)))
        loaders = [
            prepare_data_loader(own),
            prepare_data_loader(DataLoader(points, batch_size=2), resumable=True),
        ]
        steps = []
        for loader in loaders:
            trainer = lightning_runs.make_trainer(max_epochs=2)
            trainer.fit(lightning_runs.Line(), loader)
            steps.append(trainer.global_step)
        return steps

    assert fit(storage, train).return_value == [8, 8]


@process_engine
def test_a_resumable_loader_gives_the_rest_to_any_number_of_ranks(storage: Path) -> None:
    class Reader(lightning_runs.Line):
        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            rows.append((self.trainer.current_epoch, index, batch.flatten().tolist()))
            return super().training_step(batch, index)

    rows: list[Any] = []

    def read(config: dict[str, Any]) -> list[Any]:
        points = torch.arange(20.0).reshape(20, 1)
        loader = DataLoader(points, batch_size=2, shuffle=True)
        report = RayTrainReportCallback(every_n_train_steps=2, every_n_epochs=0)
        options = {"max_epochs": 2, "max_steps": config["steps"], "val_check_interval": 0.5}
        trainer = lightning_runs.make_trainer(report, **options)
        checkpoint, path = dray.train.get_checkpoint(), None
        if checkpoint is not None:
            path = os.path.join(checkpoint.path, RayTrainReportCallback.CHECKPOINT_NAME)
        warnings.filterwarnings("error", ".*your dataloader is not resumable")
        trainer.fit(Reader(), prepare_data_loader(loader, resumable=True), ckpt_path=path)
        of_ranks: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(of_ranks, rows)
        return [row for of_rank in of_ranks for row in of_rank]

    def of_epoch(epoch: int) -> list[float]:
        return sorted(row for number, _, batch in seen if number == epoch for row in batch)

    for ranks in ((2, 2), (1, 2), (2, 1)):
        seen: list[Any] = []
        for workers, steps in zip(ranks, (4 // ranks[0], -1), strict=True):
            run = storage / str(ranks)
            seen += fit(run, read, workers, name="rest", steps=steps).return_value
        assert of_epoch(0) == of_epoch(1) == list(range(20))
        indices = [index for epoch, index, _ in seen if epoch == 1]
        assert sorted(indices) == sorted([*range(10 // ranks[1])] * ranks[1])


@process_engine
def test_an_error_of_a_rank_is_its_own(storage: Path) -> None:
    def fail(trainer: Any) -> None:
        if trainer.global_rank == 1:
            raise pl.utilities.exceptions.MisconfigurationException("of rank 1")

    with pytest.raises(WorkerGroupError, match="of rank 1") as caught:
        fit(storage, fail_at=2, fails=fail)
    assert type(caught.value.worker_failures[1]).__name__ == "MisconfigurationException"


@process_engine
def test_ctrl_c_ends_it(storage: Path) -> None:
    ctrl_c.ends_run(lambda callbacks: fit(storage, callbacks=callbacks, epochs=10**6))


@process_engine
def test_reports_come_when_asked_for(storage: Path) -> None:
    def fail(trainer: Any) -> None:
        raise pl.utilities.exceptions.MisconfigurationException("stop here")

    reports = {"every_n_epochs": 0, "every_n_train_steps": 3, "on_validation": True}
    result = fit(storage / "steps", workers=1, epochs=1, reports=reports)
    assert reported(result) == [(0, 3), (0, 6), (0, 8)]
    reports = {"every_n_epochs": 0, "on_exception": True}
    result = fit(storage / "error", workers=1, fail_at=3, fails=fail, reports=reports)
    assert reported(result) == [(0, 2)]  # from which it went on
    with pytest.raises(WorkerGroupError, match=r"on_exception=True\) needs .*num_workers=1"):
        fit(storage / "many", reports={"on_exception": True})
    assert not [*storage.glob("many/**/checkpoint.ckpt")]


@process_engine
@pytest.mark.parametrize("mode", [CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC])
def test_it_can_save_elsewhere_first_and_have_it_validated(
    storage: Path, mode: CheckpointUploadMode
) -> None:
    result = fit(storage, epochs=1, reports={"checkpoint_upload_mode": mode, "validation": True})
    assert result.metrics is not None
    assert result.metrics["files"][-1:] == ["checkpoint.ckpt"]
    assert result.checkpoint is not None
    assert saved(result.checkpoint) == ["checkpoint.ckpt"]


@process_engine
def test_flags_that_contradict_the_run_are_refused_by_name(storage: Path) -> None:
    flags: list[dict[str, Any]] = [
        {"devices": 3},
        {"num_nodes": 2},
        {"strategy": "ddp"},
        {"plugins": None},
        {"devices": 2},
        {},
    ]

    def train(config: dict[str, Any]) -> list[str]:
        said = []
        for options in flags:
            trainer = lightning_runs.make_trainer(**options)
            try:
                prepare_trainer(trainer)
                said.append("")
            except ConfigError as error:
                said.append(str(error))
        return said

    answers = fit(storage, train).return_value
    assert [text.partition("=")[0] for text in answers] == [
        "Trainer(devices",
        "Trainer(num_nodes",
        "Trainer(strategy",
        "Trainer(plugins",
        "",
        "",
    ]


def test_a_malformed_period_is_refused() -> None:
    with pytest.raises(ConfigError, match="every_n_epochs must be a whole number"):
        RayTrainReportCallback(every_n_epochs=-1)


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is not None, reason="deepspeed is installed"
)
def test_deepspeed_says_what_to_install() -> None:
    with pytest.raises(MissingDependencyError, match="pip install deepspeed"):
        RayDeepSpeedStrategy()


def test_the_names_are_for_the_package_in_use() -> None:
    code = (
        "import sys, pytorch_lightning as pl; from dray.train import lightning as dl; "
        "assert issubclass(dl.RayDDPStrategy, pl.strategies.DDPStrategy); "
        "assert issubclass(dl.DrayTrainReportCallback, pl.Callback); "
        "assert 'lightning' not in sys.modules"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
