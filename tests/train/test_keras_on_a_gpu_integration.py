"""Keras 3 on the back end of PyTorch, on a GPU, twice in a program."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from dray.train import RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer, get_device, prepare_model
from tests.support.gpus import on_a_gpu

pytestmark = [
    *on_a_gpu(),
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed"),
    pytest.mark.usefixtures("process_engine"),
    pytest.mark.filterwarnings("ignore"),  # of Keras itself: what NumPy has deprecated
]


def test_a_model_of_keras_trains_by_pytorch(storage: Path) -> None:
    def train() -> dict[str, Any]:
        import keras
        import torch

        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        prepared = prepare_model(model)
        optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1)
        points = torch.linspace(-1, 1, 8, device=get_device()).reshape(8, 1)
        for _ in range(200):
            optimizer.zero_grad()
            (prepared(points) - 3 * points).pow(2).mean().backward()
            optimizer.step()
        weight = next(prepared.parameters())
        return {
            "back end": keras.backend.backend(),
            "device": str(weight.device),
            "weight": round(weight.item(), 2),
        }

    variables = {"env_vars": {"KERAS_BACKEND": "torch"}}
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(storage_path=storage, worker_runtime_env=variables),
    )
    expected = {"back end": "torch", "device": "cuda:0", "weight": 3.0}
    assert trainer.fit().return_value == expected
    # Keras asks for GPUs as it is imported, and CUDA works in no fork of what has asked.
    assert trainer.fit().return_value == expected
