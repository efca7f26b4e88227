"""Keras 3 on the back ends of PyTorch and JAX, with all workers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.train import RunConfig, ScalingConfig
from dray.train.jax import JaxTrainer
from dray.train.torch import TorchTrainer, prepare_model

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed"),
    pytest.mark.usefixtures("process_engine"),
    pytest.mark.filterwarnings("ignore"),  # of Keras itself: what NumPy has deprecated
]


def run_on(trainer: Any, backend: str, function: Any, storage: Path) -> Any:
    variables = {"env_vars": {"KERAS_BACKEND": backend}}
    return trainer(
        function,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=storage, worker_runtime_env=variables),
    ).fit()


def test_a_model_of_keras_trains_by_pytorch(storage: Path) -> None:
    def train() -> tuple[str, list[float]]:
        import keras
        import torch

        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        prepared = prepare_model(model)
        optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1)
        points = torch.full((4, 1), [1.0, 0.0][dray.train.get_context().get_world_rank()])
        for _ in range(100):
            optimizer.zero_grad()
            (prepared(points) - 3 * points).pow(2).mean().backward()
            optimizer.step()
        weights = [torch.zeros(1, 1) for _ in range(2)]
        torch.distributed.all_gather(weights, next(prepared.parameters()).detach())
        return keras.backend.backend(), [round(weight.item(), 2) for weight in weights]

    # Half the workers have nothing to learn from, and learn what the others do.
    assert run_on(TorchTrainer, "torch", train, storage).return_value == ("torch", [3.0, 3.0])


def test_fit_of_keras_trains_with_all_processes_of_jax(storage: Path) -> None:
    def train() -> tuple[str, float]:
        import jax
        import keras
        import numpy as np

        keras.utils.set_random_seed(0)  # the same weights on all workers
        share = keras.distribution.DataParallel(devices=jax.devices(), auto_shard_dataset=False)
        keras.distribution.set_distribution(share)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        points: Any = np.full((8, 1), [1.0, 0.0][jax.process_index()], "float32")
        model.fit(points, 3 * points, batch_size=4, epochs=30, verbose=0)
        return keras.backend.backend(), round(float(np.asarray(model.get_weights()[0])[0, 0]), 2)

    assert run_on(JaxTrainer, "jax", train, storage).return_value == ("jax", 3.0)
