"""Trains a small network on handwritten digits with DeepSpeed's ZeRO on several workers."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import dray.train
from dray.train import (
    Checkpoint,
    CheckpointUploadMode,
    FailureConfig,
    RunConfig,
    ScalingConfig,
)
from dray.train.torch import TorchTrainer


def train_loop(config: dict[str, Any]) -> None:
    import deepspeed

    images, digits = load_digits(return_X_y=True)
    images, digits = torch.tensor(images / 16).float(), torch.tensor(digits)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    engine, _, training, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        training_data=TensorDataset(images, digits),
        config={
            "train_micro_batch_size_per_gpu": 16,
            "optimizer": {"type": "Adam", "params": {"lr": 0.003, "torch_adam": True}},
            "zero_optimization": {"stage": config["stage"]},
        },
    )
    first = 0
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:  # of a run that was stopped, go on after its last epoch
        engine.load_checkpoint(checkpoint.path)
        first = checkpoint.get_metadata()["epoch"] + 1
    storage = dray.train.get_context().get_storage()
    for epoch in range(first, config["epochs"]):
        training.data_sampler.set_epoch(epoch)
        for batch in training:
            inputs, labels = (part.to(engine.device) for part in batch)
            engine.backward(F.cross_entropy(engine(inputs), labels))
            engine.step()
        with torch.no_grad():
            found = engine(images.to(engine.device)).argmax(dim=1).cpu()
        accuracy = (found == digits).float().mean().item()
        # All ranks write into one directory of the run, each its part of the optimizer.
        directory = storage.build_checkpoint_path_from_name(f"epoch-{epoch}")
        engine.save_checkpoint(directory)
        checkpoint = Checkpoint.from_directory(directory)
        checkpoint.set_metadata({"epoch": epoch})
        dray.train.report(
            {"epoch": epoch, "accuracy": accuracy},
            checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--num-workers", type=int, default=2, help="workers")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--stage", type=int, default=2, help="how far ZeRO shards: 0 to 3")
    parser.add_argument("--epochs", type=int, default=10, help="epochs, earlier ones included")
    parser.add_argument("--storage-path", default="~/dray_results", help="where runs are kept")
    parser.add_argument("--name", help="the run's name; one used before goes on with that run")
    options = parser.parse_args()
    result = TorchTrainer(
        train_loop,
        train_loop_config={"epochs": options.epochs, "stage": options.stage},
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
