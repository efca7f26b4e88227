"""A small model of Lightning, and a run that trains it."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

import dray.train
from dray.train import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig, ValidationConfig
from dray.train.lightning import (
    RayDDPStrategy,
    RayLightningEnvironment,
    RayTrainReportCallback,
    prepare_trainer,
)
from dray.train.torch import TorchTrainer


class Line(pl.LightningModule):
    """Learns the line through 16 points, by an optimizer that remembers its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = (self.layer(batch) - 3 * batch).pow(2).mean()
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("validation_loss", (self.layer(batch) - 3 * batch).pow(2).mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        points = torch.linspace(-1, 1, 16).reshape(16, 1)
        return torch.utils.data.DataLoader(points, batch_size=2, shuffle=True)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)


class Counter(pl.Callback):
    """Counts batches, across restarts; what it has to do at one of them it does once."""

    def __init__(self, fail_at: int = 0, fails: Any = None) -> None:
        self.batches, self._fail_at, self._fails = 0, fail_at, fails

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.batches += 1
        if self.batches == self._fail_at:
            self._fails(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches = state_dict["batches"]


def kill_in_epoch_1_once(trainer: Any) -> None:
    """Kills rank 1, once epoch 0 is reported, and not after the restart."""
    (place,) = Path(dray.train.get_context().get_storage().storage_fs_path).parent.glob("killed")
    marker = place / "killed-once"
    if dray.train.get_context().get_world_rank() == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def make_trainer(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    """Returns a Trainer that says nothing and writes nothing of its own."""
    warnings.simplefilter("ignore")  # of data loaders without processes, and deprecated classes
    quiet = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger")
    given = {
        "accelerator": "cpu",
        "strategy": RayDDPStrategy(),
        "plugins": [RayLightningEnvironment()],
        **dict.fromkeys(quiet, False),
        **options,
    }
    return pl.Trainer(callbacks=list(callbacks), **given)


def train(config: dict[str, Any]) -> tuple[float, int]:
    """Trains, and goes on where the run's last checkpoint is; returns the weight and a count."""
    pl.seed_everything(0)
    counter = Counter(config.get("fail_at", 0), config.get("fails"))
    callback = RayTrainReportCallback(**config.get("reports", {}))
    trainer = prepare_trainer(make_trainer(counter, callback, max_epochs=config.get("epochs", 3)))
    model, path = Line(), None
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:
        path = os.path.join(checkpoint.path, RayTrainReportCallback.CHECKPOINT_NAME)
    trainer.fit(model, shard() if config.get("shards") else None, ckpt_path=path)
    return model.layer.weight.item(), counter.batches


def shard() -> Any:
    """Returns this rank's batches of the points."""

    def to_tensor(batch: dict[str, Any]) -> torch.Tensor:
        return torch.as_tensor(batch["x"], dtype=torch.float32).reshape(-1, 1)

    points = dray.train.get_dataset_shard("points")
    return points.iter_torch_batches(batch_size=2, collate_fn=to_tensor)


def files_in(checkpoint: Checkpoint) -> dict[str, Any]:
    """Validates a checkpoint."""
    return {"files": sorted(os.listdir(checkpoint.path))}


def fit(
    storage: Path, function: Any = train, workers: int = 2, callbacks: Any = (), **config: Any
) -> Result:
    """Trains with some workers, which may fail once."""
    return TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            name=config.get("name"),
            storage_path=storage,
            failure_config=FailureConfig(max_failures=1),
            callbacks=list(callbacks),
        ),
        validation_config=ValidationConfig(files_in),
        datasets={"points": [{"x": x / 8 - 1} for x in range(16)]},
    ).fit()
