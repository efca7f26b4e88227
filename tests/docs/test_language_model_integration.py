"""The language model example: it learns, sharded as well as replicated, and goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dray.train import Result
from examples import language_model as example
from tests.support.programs import run_example

pytestmark = pytest.mark.timeout(600)


@dataclass
class Short:
    """A run of a few steps on pieces of 16 bytes, with two workers."""

    directory: Path
    strategy: str

    def run(self, steps: int, *options: str) -> str:
        """Run it up to a step; return what it prints."""
        small = ("--num-workers=2", "--batch-size=8", "--context=16", "--report-every=10")
        place = (f"--storage-path={self.directory}", f"--name={self.strategy}")
        most = (f"--strategy={self.strategy}", f"--steps={steps}", "--sample-length=20")
        return run_example("language_model", self.directory, *small, *place, *most, *options)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        result = Result.from_path(self.directory / self.strategy)
        return [metrics for _, metrics in result.best_checkpoints]

    def weights(self) -> dict[str, torch.Tensor]:
        result = Result.from_path(self.directory / self.strategy)
        assert result.checkpoint is not None
        with result.checkpoint.as_directory() as directory:
            loaded: dict[str, torch.Tensor] = torch.load(Path(directory) / "model.pt")
        return loaded


def test_both_strategies_learn_the_same_and_go_on(tmp_path: Path) -> None:
    """At last the sharded model goes on in one process."""
    runs = [Short(tmp_path, strategy) for strategy in ("ddp", "fsdp")]
    for run in runs:
        output = run.run(20)
        first, second = run.metrics
        assert first["loss"] < math.log(example.BYTES)
        assert second["loss"] < 0.9 * first["loss"]
        assert second["validation_loss"] < first["validation_loss"]
        assert f"(rank 0) step 20: loss {second['loss']:.4f}" in output
        assert f"(rank 0) {example.PROMPT}" in output
        assert f"│ 20   │ {second['loss']:.3f} │ " in output

        output = run.run(40)
        assert "(rank 0) step 20:" not in output
        assert "(rank 0) step 30:" in output
        assert [metrics["step"] for metrics in run.metrics] == [10, 20, 30, 40]
        assert run.metrics[2]["loss"] < second["loss"]

    ddp, fsdp = (run.metrics for run in runs)
    for name in ("loss", "validation_loss"):
        assert [m[name] for m in ddp] == pytest.approx([m[name] for m in fsdp], abs=1e-3)
    replicated, sharded = (run.weights() for run in runs)
    assert replicated.keys() == sharded.keys() == example.GPT(context=16).state_dict().keys()
    for name, weights in replicated.items():
        torch.testing.assert_close(sharded[name], weights, atol=0.01, rtol=0)

    runs[1].run(50, "--num-workers=1", "--strategy=ddp")
    first, *_, before, last = runs[1].metrics
    assert last["step"] == 50
    assert last["loss"] < (first["loss"] + before["loss"]) / 2


def test_a_byte_is_predicted_from_those_before() -> None:
    torch.manual_seed(0)
    model = example.GPT(context=8)
    text = torch.randint(example.BYTES, (1, 8))
    changed = text.clone()
    changed[0, 5] += 1
    with torch.no_grad():
        difference = (model(text) - model(changed)).abs().amax(dim=-1)[0]
    assert difference[:5].max() == 0
    assert difference[5:].min() > 0


def test_pieces_are_those_of_the_text() -> None:
    windows = example.Windows(torch.arange(10, dtype=torch.uint8), context=3, stride=3)
    pieces = [(given.tolist(), following.tolist()) for given, following in windows]
    assert pieces == [([i, i + 1, i + 2], [i + 1, i + 2, i + 3]) for i in (0, 3, 6)]


@pytest.mark.slow
def test_learns_more_than_frequencies(tmp_path: Path) -> None:
    """With the default options, but for a third of the steps."""
    output = run_example("language_model", tmp_path, "--sample-length=20", "--steps=160")
    (path,) = (tmp_path / "dray_results").iterdir()
    text = example.read_text()
    known = example.loss_by_frequency(text[len(text) * 9 // 10 :])
    assert f"the bytes' frequencies {known:.3f}" in output
    metrics = Result.from_path(path).metrics
    assert metrics is not None
    assert metrics["validation_loss"] < 0.9 * known
