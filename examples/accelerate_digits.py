"""Trains a small network on handwritten digits with Accelerate on several workers."""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

import dray.train
from dray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer


def data_loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return the images to train with, and every fifth one, to test with."""
    images, digits = load_digits(return_X_y=True)
    every = TensorDataset(torch.tensor(images / 16).float(), torch.tensor(digits))
    held_out = range(0, len(every), 5)
    rest = sorted(set(range(len(every))) - set(held_out))
    training = DataLoader(Subset(every, rest), batch_size=16, shuffle=True)
    return training, DataLoader(Subset(every, held_out), batch_size=64)


def train_loop(config: dict[str, Any]) -> None:
    set_seed(0)
    accelerator = Accelerator(
        gradient_accumulation_steps=2,
        # The order of an epoch follows from its number, so that a restart finds the same.
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    training, testing = data_loaders()
    model, optimizer, training, testing = accelerator.prepare(model, optimizer, training, testing)

    first = 0
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:  # of a run that was stopped, go on after its last epoch
        accelerator.load_state(checkpoint.path)
        first = checkpoint.get_metadata()["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        training.set_epoch(epoch)
        for images, digits in training:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(images), digits)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accuracy = measure(accelerator, model, testing)
        with tempfile.TemporaryDirectory() as directory:
            accelerator.save_state(directory)  # rank 0's has the model, each one its random state
            checkpoint = Checkpoint.from_directory(directory)
            checkpoint.set_metadata({"epoch": epoch})
            dray.train.report({"epoch": epoch, "accuracy": accuracy}, checkpoint)


def measure(accelerator: Accelerator, model: nn.Module, testing: DataLoader[Any]) -> float:
    """Return which part of the test images the model tells right, on all workers together."""
    right = []
    for images, digits in testing:
        with torch.no_grad():
            found = model(images).argmax(dim=1)
        right.append(accelerator.gather_for_metrics(found == digits))
    return torch.cat(right).float().mean().item()


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
