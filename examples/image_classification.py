"""Trains a ResNet-18 on images of 10 classes with several workers; goes on where it stopped."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import dray.train
import dray.train.torch
from dray.train import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig

IMAGE_SIZE = 28
LEARNING_RATE = 0.001
PARTS = ("train", "t10k")  # as MNIST's files call the training set and the test set


def train_loop(config: dict[str, Any]) -> None:
    context = dray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    train_loader, test_loader = data_loaders(config["data_dir"], config["batch_size"])

    torch.manual_seed(0)
    network = build_model()
    model = dray.train.torch.prepare_model(network)  # its weights are the network's
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    # Of a run that was stopped, go on after the last epoch that it has saved.
    first_epoch = 0
    checkpoint = dray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            network.load_state_dict(load(directory, "model.pt"))
            state = load(directory, "training.pt")
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, config["epochs"]):
        start = time.monotonic()
        if world_size > 1:
            train_loader.sampler.set_epoch(epoch)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - epoch / config["epochs"])
        loss = train(model, optimizer, criterion, train_loader)
        accuracy = evaluate(network, test_loader)
        seconds = time.monotonic() - start

        # All ranks have the same weights, so one of them saves them.
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            if rank == 0:
                state = {"optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(network.state_dict(), os.path.join(directory, "model.pt"))
                torch.save(state, os.path.join(directory, "training.pt"))
                checkpoint = Checkpoint.from_directory(directory)
            metrics = {"epoch": epoch, "loss": loss, "acc": accuracy}
            dray.train.report(metrics, checkpoint=checkpoint)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {accuracy:.3f}, {seconds:.1f} s")


def data_loaders(data_dir: str, batch_size: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return what this rank trains on, other images in each epoch, and what it tests on."""
    context = dray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    train_set, test_set = (read_images(data_dir, part) for part in PARTS)
    size = min(batch_size, len(train_set) // world_size)
    train_loader = DataLoader(train_set, batch_size=size, shuffle=True, drop_last=True)
    # A DistributedSampler would repeat images to give ranks equally many; tests count each once.
    tested = Subset(test_set, range(rank, len(test_set), world_size))
    test_loader = DataLoader(tested, batch_size=256)
    return (
        dray.train.torch.prepare_data_loader(train_loader),
        dray.train.torch.prepare_data_loader(test_loader, add_dist_sampler=False),
    )


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: nn.Module,
    loader: DataLoader[Any],
) -> float:
    """Train for one epoch; return the mean loss over all ranks."""
    model.train()
    total = 0.0
    for images, labels in loader:  # on this worker's device already
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    total, batches = sum_over_ranks(total, len(loader))
    return total / batches


def evaluate(network: nn.Module, loader: DataLoader[Any]) -> float:
    """Return the share of the whole test set, all ranks' parts of it, that is recognised."""
    # Batch norm's running statistics come from each rank's own images; rank 0's will be saved.
    if torch.distributed.is_initialized():
        for buffer in network.buffers():
            torch.distributed.broadcast(buffer, src=0)
    network.eval()
    correct = tested = 0
    with torch.no_grad():
        for images, labels in loader:
            correct += (network(images).argmax(dim=1) == labels).sum().item()
            tested += len(labels)
    all_correct, all_tested = sum_over_ranks(correct, tested)
    return all_correct / all_tested


def sum_over_ranks(*values: float) -> list[float]:
    """Return the sum of each value over all ranks."""
    sums = torch.tensor(values, dtype=torch.float64, device=dray.train.torch.get_device())
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    return sums.tolist()


def load(directory: str, name: str) -> Any:
    """Return what `torch.save` has put in a checkpoint, wherever it was trained."""
    return torch.load(os.path.join(directory, name), map_location="cpu")


# The model: torchvision's, or if there is none, the same network with the same names.


def build_model() -> nn.Module:
    """Return an untrained ResNet-18 for images of one channel and 10 classes."""
    try:
        from torchvision.models import resnet18
    except (ImportError, RuntimeError):  # RuntimeError: a torchvision made for another torch
        return ResNet18(channels=1, num_classes=10)
    model: nn.Module = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
    return model


class ResNet18(nn.Module):
    """ResNet-18 of He et al., 2016."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = nn.Sequential(Block(64, 64), Block(64, 64))
        self.layer2 = nn.Sequential(Block(64, 128, stride=2), Block(128, 128))
        self.layer3 = nn.Sequential(Block(128, 256, stride=2), Block(256, 256))
        self.layer4 = nn.Sequential(Block(256, 512, stride=2), Block(512, 512))
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.maxpool(self.bn1(self.conv1(images)).relu())
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            features = layer(features)
        return self.fc(features.mean(dim=(2, 3)))


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1:
            convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        changed = self.bn2(self.conv2(self.bn1(self.conv1(features)).relu()))
        return (changed + self.downsample(features)).relu()


# The data: files in MNIST's format, of handwritten digits or of FashionMNIST.


def provide_data(name: str, parent: Path) -> Path:
    """Return the directory of a data set, made or downloaded if it is not there yet."""
    if name == "digits":
        directory = parent / "digits"
        if not all(path.exists() for part in PARTS for path in data_files(directory, part)):
            write_digits(directory)
        return directory
    try:
        from torchvision.datasets import FashionMNIST

        FashionMNIST(root=parent, download=True)
    except (ImportError, OSError, RuntimeError) as error:
        raise SystemExit(
            f"--data fashion-mnist needs torchvision and a network, --data digits needs neither: "
            f"{error}"
        ) from error
    return parent / "FashionMNIST" / "raw"


def write_digits(directory: Path) -> None:
    """Write scikit-learn's 1,797 handwritten digits, 8x8 pixels each: a fifth is for testing."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    split = train_test_split(pixels, labels, test_size=0.2, stratify=labels, random_state=0)
    directory.mkdir(parents=True, exist_ok=True)
    for part, arrays in zip(PARTS, (split[::2], split[1::2]), strict=True):
        for path, array in zip(data_files(directory, part), arrays, strict=True):
            write_idx(path, array)


def data_files(directory: Path, part: str) -> tuple[Path, Path]:
    """Return where the images and the labels of a part are."""
    return directory / f"{part}-images-idx3-ubyte", directory / f"{part}-labels-idx1-ubyte"


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an array of bytes in MNIST's format; the file is there whole, or not at all."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(header + array.tobytes())
    draft.replace(path)


def read_idx(path: Path) -> np.ndarray:
    """Read what `write_idx` writes: a type, the number of dimensions, their sizes, the bytes."""
    content = path.read_bytes()
    if content[:3] != bytes([0, 0, 8]):
        raise ValueError(f"{path} is not an IDX file of bytes")
    shape = np.frombuffer(content, dtype=">u4", count=content[3], offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + shape.nbytes).reshape(shape)


def read_images(directory: str, part: str) -> TensorDataset:
    """Return pairs of an image, enlarged and from -1 to 1, and its label."""
    pixels, labels = (read_idx(path) for path in data_files(Path(directory), part))
    images = torch.tensor(pixels).unsqueeze(1) / 255
    images = nn.functional.interpolate(images, size=IMAGE_SIZE, mode="bilinear")
    return TensorDataset(images * 2 - 1, torch.tensor(labels, dtype=torch.long))


# The command.


def main() -> None:
    options = parse_options()
    data_dir = provide_data(options.data, options.data_dir.expanduser().absolute())
    trainer = dray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config={
            "data_dir": str(data_dir),
            "epochs": options.epochs,
            "batch_size": options.batch_size,
        },
        scaling_config=ScalingConfig(
            num_workers=options.num_workers,
            use_gpu=torch.cuda.device_count() >= max(1, options.num_workers),
        ),
        run_config=RunConfig(
            name=options.name,
            storage_path=options.storage_path,
            failure_config=FailureConfig(max_failures=options.max_failures),
        ),
    )
    show(trainer.fit())


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--num-workers", type=int, default=2, help="workers; each has a GPU if there are enough")
    add("--epochs", type=int, default=5, help="epochs, those of an earlier run included")
    add("--batch-size", type=int, default=32, help="images per worker and step")
    add("--data", choices=("digits", "fashion-mnist"), default="digits", help="what to learn")
    add("--data-dir", type=Path, default=Path("~/.cache/dray"), help="where data sets are kept")
    add("--storage-path", default="~/dray_results", help="where runs are kept")
    add("--name", help="the run's name; one used before goes on with that run")
    add("--max-failures", type=int, default=1, help="how often to go on after a worker failed")
    return parser.parse_args()


def show(result: Result) -> None:
    """Print how each epoch went, and how to use the best of them."""
    table = Table("epoch", "loss", "test accuracy", "checkpoint")
    for checkpoint, metrics in result.best_checkpoints:
        name = Path(checkpoint.path).name
        table.add_row(
            str(metrics["epoch"]), f"{metrics['loss']:.3f}", f"{metrics['acc']:.3f}", name
        )
    Console().print(table)
    best = result.get_best_checkpoint("acc", "max")
    print(f"The checkpoints are in {result.path}. To load the best of them, in examples/:\n")
    print("    import torch")
    print("    from image_classification import build_model")
    print("    model = build_model()")
    print(f"    weights = torch.load({os.path.join(best.path, 'model.pt')!r}, map_location='cpu')")
    print("    model.load_state_dict(weights)")


if __name__ == "__main__":
    main()
