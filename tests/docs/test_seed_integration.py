"""The book chapter's program, with `dray` for `ray`, runs as it is but for the machine and data."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dray.train import Result
from examples import image_classification as example
from tests.support.programs import environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("torchvision") is None,
        reason="the chapter's program imports torchvision, which is not installed",
    ),
]

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "seed_program.py"

# Two CPUs in place of four GPUs, two epochs in place of ten, and the same weights each time.
SUBSTITUTIONS = {
    "def train_loop():\n": "def train_loop():\n    torch.manual_seed(0)\n",
    "ScalingConfig(num_workers=4, use_gpu=True)": "ScalingConfig(num_workers=2, use_gpu=False)",
    "for epoch in range(10):": "for epoch in range(2):",
}

# PyPI's torchvision for Linux is made for a torch with CUDA; beside another one its C++ operators
# do not load, and its import fails unless these two are declared. The program calls neither.
DECLARATIONS = """
try:
    import torchvision
except RuntimeError:
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def write_program(directory: Path) -> Path:
    text = PROGRAM.read_text()
    for original, substitute in SUBSTITUTIONS.items():
        assert text.count(original) == 1
        text = text.replace(original, substitute)
    directory.mkdir()
    program = directory / PROGRAM.name
    program.write_text(text)
    return program


def write_data(directory: Path) -> None:
    """Write digits of 28x28 pixels where torchvision looks before it downloads."""
    raw = directory / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    digits = load_digits()
    enlarged: Any = np.arange(28) * 8 // 28
    images = (digits.images * 255 / 16).astype(np.uint8)[:, enlarged][:, :, enlarged]
    labels = digits.target.astype(np.uint8)
    for part, share in zip(example.PARTS, (slice(1437), slice(1437, None)), strict=True):
        for path, array in zip(example.data_files(raw, part), (images, labels), strict=True):
            example.write_idx(path, array[share])


def test_chapters_program(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    program = write_program(tmp_path / "chapter")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(DECLARATIONS)
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=program.parent,
        env=environment(tmp_path, PYTHONPATH=str(site)),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr + done.stdout

    result = Result.from_path(tmp_path / "data" / "torch_ckpt" / "exp_fashionmnist_resnet18")
    reports = [metrics for _, metrics in result.best_checkpoints]
    assert [metrics["epoch"] for metrics in reports] == [0, 1]
    assert result.metrics == reports[-1]
    assert result.metrics["acc"] > 0.5
    for metrics in reports:
        printed = {"acc": metrics["acc"], "epoch": metrics["epoch"]}
        assert f"(rank 0) {printed}\n" in done.stdout
    assert "Downloading" not in done.stdout + done.stderr

    # The example's own network has the names and shapes of torchvision's.
    model = example.ResNet18(channels=1, num_classes=10)
    for checkpoint, _ in result.best_checkpoints:
        weights = torch.load(Path(checkpoint.path, "model.pt"))
        model.load_state_dict({name.removeprefix("module."): w for name, w in weights.items()})
