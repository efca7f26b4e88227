"""DeepSpeed in workers without accelerators: its ZeRO, and its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.train import Result, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer

pytest.importorskip("deepspeed", reason="deepspeed is not installed: see docs/accelerate.md")

# It compiles a part of itself when it first starts on a machine.
pytestmark = [
    pytest.mark.usefixtures("process_engine"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),  # of DeepSpeed itself: what PyTorch has deprecated
]


def fit(path: Path, **config: Any) -> Result:
    from examples.deepspeed_digits import train_loop

    return TorchTrainer(
        train_loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=path.parent, name=path.name),
    ).fit()


@pytest.mark.parametrize("stage", [1, 2])
def test_a_run_that_goes_on_ends_as_one_that_was_not_stopped(storage: Path, stage: int) -> None:
    whole = fit(storage / "whole", epochs=3, stage=stage).metrics
    assert whole is not None
    assert whole["accuracy"] > 0.85
    fit(storage / "stopped", epochs=1, stage=stage)
    assert fit(storage / "stopped", epochs=3, stage=stage).metrics == whole
    parts = (storage / "stopped" / "epoch-2").rglob("zero_pp_rank_*_optim_states.pt")
    assert len(list(parts)) == 2
