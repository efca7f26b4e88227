"""The image classification example: what it prints, writes and saves is what it says."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dray.train import Result
from examples import image_classification as example
from tests.support.programs import run_example

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(example.__file__)


@dataclass
class Short:
    """A run of one epoch, with defaults else."""

    home: Path
    output: str

    def run(self, epochs: int, *options: str) -> str:
        """Run it up to an epoch."""
        options = ("--num-workers=2", "--name=short", f"--epochs={epochs}", *options)
        return run_example(SCRIPT.stem, self.home, *options)

    @property
    def data(self) -> Path:
        return self.home / ".cache" / "dray"

    @property
    def runs(self) -> Path:
        return self.home / "dray_results"

    @property
    def result(self) -> Result:
        return Result.from_path(self.runs / "short")


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Short:
    run = Short(tmp_path_factory.mktemp("example"), output="")
    run.output = run.run(epochs=1)
    return run


def test_shows_epochs_and_where_checkpoints_are(short: Short) -> None:
    checkpoint, metrics = short.result.best_checkpoints[0]
    loss, accuracy = f"{metrics['loss']:.3f}", f"{metrics['acc']:.3f}"
    assert f"(rank 0) epoch 0: loss {loss}, test accuracy {accuracy}, " in short.output
    assert f"│ 0     │ {loss} │ {accuracy}         │ checkpoint_000000 │" in short.output
    assert f"The checkpoints are in {short.result.path}. " in short.output
    assert [path.name for path in short.runs.iterdir()] == ["short"]
    assert checkpoint.path in short.output


def test_checkpoint_is_as_good_as_reported(short: Short, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load it as the example says, and test it on the whole test set in one process."""
    lines = [line for line in short.output.splitlines() if line.startswith("    ")]
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    names: dict[str, torch.nn.Module] = {}
    exec(textwrap.dedent("\n".join(lines)), names)
    model = names["model"].eval()
    images, labels = example.read_images(str(short.data / "digits"), "t10k").tensors
    with torch.no_grad():
        accuracy = (model(images).argmax(dim=1) == labels).double().mean().item()
    _, metrics = short.result.best_checkpoints[0]
    assert metrics["acc"] == pytest.approx(accuracy, abs=1e-6)
    assert sum(weights.numel() for weights in model.parameters()) == 11_175_370


def test_same_name_goes_on_and_learns_well(short: Short) -> None:
    output = short.run(3, f"--data-dir={short.data}", f"--storage-path={short.runs}")
    assert "going on from checkpoint_000000" in output
    assert "(rank 0) epoch 0:" not in output
    assert "(rank 0) epoch 1:" in output
    epochs = [metrics for _, metrics in short.result.best_checkpoints]
    assert [metrics["epoch"] for metrics in epochs] == [0, 1, 2]
    assert epochs[2]["acc"] >= 0.9


def test_files_are_scikit_learns_digits_in_mnists_format(short: Short) -> None:
    pixels, labels = [], []
    for part, count in (("train", 1437), ("t10k", 360)):
        paths = example.data_files(short.data / "digits", part)
        sizes = np.array([0x803, count, 8, 8], dtype=">u4"), np.array([0x801, count], dtype=">u4")
        for path, header in zip(paths, sizes, strict=True):
            assert path.read_bytes().startswith(header.tobytes())
        pixels.append(example.read_idx(paths[0]))
        labels.append(example.read_idx(paths[1]))
        shares = np.bincount(labels[-1]) / count
        assert shares == pytest.approx(np.full(10, 0.1), abs=0.005)  # as in the whole
    digits = load_digits()
    expected = np.rint(digits.images * 255 / 16)
    assert rows(np.concatenate(pixels), np.concatenate(labels)) == rows(expected, digits.target)


def rows(images: np.ndarray, labels: np.ndarray) -> list[list[float]]:
    """Return images and their labels in an order of their own."""
    return sorted(np.column_stack([labels, images.reshape(len(images), -1)]).tolist())


def test_says_what_fashion_mnist_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(SystemExit, match="--data fashion-mnist needs torchvision and a network"):
        example.provide_data("fashion-mnist", tmp_path)
