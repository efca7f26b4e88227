"""Accelerate, and what is built on it, in workers without accelerators."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.torch_runs import fit

pytestmark = pytest.mark.usefixtures("process_engine")


def test_it_trains_with_all_workers(storage: Path) -> None:
    def train() -> Any:
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator()
        model, data = accelerator.prepare(
            torch.nn.Linear(1, 1, bias=False),
            torch.utils.data.DataLoader(torch.arange(8.0).reshape(8, 1), batch_size=2),
        )
        seen = [float(x) for batch in data for x in batch]
        rank = accelerator.process_index
        accelerator.backward(model(torch.full((1, 1), float(rank))).sum())
        gradient = float(model.module.weight.grad)
        together = accelerator.gather(torch.tensor([rank])).tolist()
        return accelerator.num_processes, str(accelerator.device), len(seen), gradient, together

    result = fit(train, storage, num_workers=2)
    assert result.return_value == (2, "cpu", 4, 0.5, [0, 1])


def test_what_the_user_has_set_stays(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")

    def train() -> str:
        return os.environ["ACCELERATE_USE_CPU"]

    assert fit(train, storage).return_value == "false"
