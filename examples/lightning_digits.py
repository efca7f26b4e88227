"""Trains a small network of Lightning on handwritten digits with several workers."""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dray.train
from dray.train import FailureConfig, RunConfig, ScalingConfig
from dray.train.lightning import (
    RayDDPStrategy,
    RayLightningEnvironment,
    RayTrainReportCallback,
    prepare_trainer,
)
from dray.train.torch import TorchTrainer


class Digits(pl.LightningModule):
    """Tells the ten digits apart, from images of 8 by 8 points."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, digits = batch
        loss = F.cross_entropy(self.network(images), digits)
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, digits = batch
        right = (self.network(images).argmax(dim=1) == digits).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.003)


def data_loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return the images to train with, and every fifth one, to validate with."""
    images, digits = load_digits(return_X_y=True)
    every = TensorDataset(torch.tensor(images / 16).float(), torch.tensor(digits))
    held_out = range(0, len(every), 5)
    rest = sorted(set(range(len(every))) - set(held_out))
    training = DataLoader(torch.utils.data.Subset(every, rest), batch_size=32, shuffle=True)
    return training, DataLoader(torch.utils.data.Subset(every, held_out), batch_size=64)


def train_loop(config: dict[str, Any]) -> None:
    pl.seed_everything(0)
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        enable_checkpointing=False,  # the callback has them
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    # Of a run that was stopped, go on after the last epoch that it has reported.
    checkpoint = dray.train.get_checkpoint()
    path = checkpoint and os.path.join(checkpoint.path, RayTrainReportCallback.CHECKPOINT_NAME)
    prepare_trainer(trainer).fit(Digits(), *data_loaders(), ckpt_path=path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--num-workers", type=int, default=2, help="workers")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--epochs", type=int, default=10, help="epochs, earlier ones included")
    parser.add_argument("--storage-path", default="~/dray_results", help="where runs are kept")
    parser.add_argument("--name", help="the run's name; one used before goes on with that run")
    options = parser.parse_args()
    result = TorchTrainer(
        train_loop,
        train_loop_config={"epochs": options.epochs},
        scaling_config=ScalingConfig(num_workers=options.num_workers, use_gpu=options.use_gpu),
        run_config=RunConfig(
            name=options.name,
            storage_path=options.storage_path,
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
    assert result.metrics is not None
    print(f"epoch {result.metrics['epoch']}: accuracy {result.metrics['accuracy']:.3f}")
    print(f"The checkpoints are in {result.path}.")


if __name__ == "__main__":
    main()
