"""Trains a network that workers share, and goes on with another number of them.

Every worker saves its part of each weight, and loads the parts that are its own then:

    python examples/sharded_checkpoint.py --name=digits --num-workers=4 --cpus=0.5 --epochs=5
    python examples/sharded_checkpoint.py --name=digits --num-workers=2 --epochs=10
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F

import dray.train
from dray.train import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer, prepare_model

BATCH = 256


class Network(nn.Module):
    """Tells the ten digits apart, from images of 8 by 8 points."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.blocks = nn.ModuleList(nn.Linear(128, 128) for _ in range(2))  # sharded one by one
        self.last = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(images))
        for block in self.blocks:
            x = x + F.relu(block(x))
        logits: torch.Tensor = self.last(x)
        return logits


def save(model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, directory: str) -> None:
    """Write this worker's part into a directory of its own."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "epoch": epoch}, checkpoint_id=directory)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, directory: str) -> int:
    """Read what is this worker's part now; return the epoch after which it was saved."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "epoch": 0}
    dcp.load(state, checkpoint_id=directory)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return int(state["epoch"])


def train_loop(config: dict[str, Any]) -> None:
    context = dray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    torch.manual_seed(0)
    model = prepare_model(Network(), parallel_strategy=config["strategy"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    images, digits = config["images"], config["digits"]
    held_out, training = slice(None, 256), slice(256, None)

    done = 0
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            done = load(model, optimizer, directory)

    for epoch in range(done + 1, config["epochs"] + 1):
        order = torch.randperm(
            len(digits[training]), generator=torch.Generator().manual_seed(epoch)
        )
        for batch in order.split(BATCH)[:-1]:  # all of the same size
            own = batch[rank::world_size]
            loss = F.cross_entropy(model(images[training][own]), digits[training][own])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = model(images[held_out]).argmax(dim=1) == digits[held_out]
        metrics = {"epoch": epoch, "accuracy": right.float().mean().item()}
        with dray.train.checkpoint_dir() as directory:
            save(model, optimizer, epoch, directory)
            # The checkpoint is what all workers have written, taken together.
            dray.train.report(metrics, Checkpoint(directory))


def data() -> dict[str, torch.Tensor]:
    from sklearn.datasets import load_digits  # only the driver needs it

    images, digits = load_digits(return_X_y=True)
    return {"images": torch.tensor(images / 16).float(), "digits": torch.tensor(digits)}


def run(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-workers", type=int, default=2, help="workers")
    parser.add_argument("--cpus", type=float, default=1, help="CPUs of each worker")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--strategy", choices=["fsdp", "ddp"], default="fsdp")
    parser.add_argument("--epochs", type=int, default=10, help="epochs, earlier ones included")
    parser.add_argument("--storage-path", default="~/dray_results", help="where runs are kept")
    parser.add_argument("--name", help="the run's name; one used before goes on with that run")
    options = parser.parse_args(arguments)
    return TorchTrainer(
        train_loop,
        train_loop_config={"epochs": options.epochs, "strategy": options.strategy, **data()},
        scaling_config=ScalingConfig(
            num_workers=options.num_workers,
            use_gpu=options.use_gpu,
            resources_per_worker={"CPU": options.cpus},
        ),
        run_config=RunConfig(
            name=options.name,
            storage_path=options.storage_path,
            failure_config=FailureConfig(max_failures=1),
            on_mismatch="ignore",  # another number of workers is what this is about
        ),
    ).fit()


def main() -> None:
    result = run()
    assert result.metrics is not None
    print(f"epoch {result.metrics['epoch']}: accuracy {result.metrics['accuracy']:.3f}")
    print(f"The checkpoints are in {result.path}.")


if __name__ == "__main__":
    main()
