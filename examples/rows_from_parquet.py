"""Learn digits from files of Parquet, each worker its share; goes on where it was ended."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import dray.data
import dray.train
from dray.data.preprocessors import Chain, Concatenator, StandardScaler
from dray.train import Checkpoint, Result, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer, prepare_model


def write_digits(folder: Path) -> None:
    """Write the digits that come with scikit-learn, unless they are there."""
    from sklearn.datasets import load_digits

    if not folder.exists():
        frame = load_digits(as_frame=True).frame.rename(columns=str)
        dray.data.from_pandas(frame).repartition(4).write_parquet(folder)


def train_loop(config: dict[str, Any]) -> None:
    import torch

    net = torch.nn.Linear(64, 10)
    model = prepare_model(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    begin = 0
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as path:
            saved = torch.load(os.path.join(path, "model.pt"))
        begin = saved["epoch"]
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    shard = dray.train.get_dataset_shard("train")
    for epoch in range(begin, config["epochs"]):
        right = rows = 0
        for batch in shard.iter_torch_batches(batch_size=32):
            scores = model(batch["pixels"])
            loss = torch.nn.functional.cross_entropy(scores, batch["target"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((scores.argmax(1) == batch["target"]).sum())
            rows += len(scores)
        with tempfile.TemporaryDirectory() as folder:
            saved = {"epoch": epoch + 1, "model": net.state_dict()}
            saved["optimizer"] = optimizer.state_dict()
            torch.save(saved, os.path.join(folder, "model.pt"))
            dray.train.report({"epoch": epoch, "accuracy": right / rows}, Checkpoint(folder))


def main() -> Result:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--name", default="digits")
    parser.add_argument("--storage-path", default=None)
    parser.add_argument("--data", type=Path, default=Path("digits"))
    options = parser.parse_args()
    write_digits(options.data)
    digits = dray.data.read_parquet(options.data)
    pixels = [name for name in digits.columns() or [] if name != "target"]
    change = Chain(StandardScaler(pixels), Concatenator(pixels, "pixels", dtype="float32"))
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"epochs": options.epochs},
        datasets={"train": change.fit_transform(digits).random_shuffle(seed=0)},
        scaling_config=ScalingConfig(num_workers=options.num_workers),
        run_config=RunConfig(name=options.name, storage_path=options.storage_path),
    )
    return trainer.fit()


if __name__ == "__main__":
    print(main().metrics)
