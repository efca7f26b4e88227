"""JAX on an NVIDIA GPU: what a run computes, keeps and finds again, and processes that share one.

JAX is never used in this process: see test_jax_integration.py.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray.errors import ConfigError
from dray.train import Checkpoint, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig
from dray.train.jax import JaxConfig, JaxTrainer
from tests.support.gates import Gate, until
from tests.support.gpus import MEBIBYTE, on_a_gpu, used_memory

pytestmark = [
    *on_a_gpu(),
    pytest.mark.usefixtures("own_session"),
    pytest.mark.skipif(
        not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)),
        reason="JAX is not installed for CUDA",
    ),
]

PLATFORM = "gpu"


def fit(function: Any, storage: Path, config: JaxConfig | None = None, **options: Any) -> Any:
    scaling = options.pop("scaling", ScalingConfig(num_workers=1, use_gpu=True))
    datasets, given = options.pop("datasets", None), options.pop("given", None)
    return JaxTrainer(
        function,
        train_loop_config=given,
        jax_config=config,
        scaling_config=scaling,
        datasets=datasets,
        run_config=RunConfig(storage_path=storage, name=options.pop("name", "run"), **options),
    ).fit()


def train(config: dict[str, Any]) -> Any:
    """Fits a line, with Orbax's checkpoints in the run; dies once after a report, if it is to."""
    warnings.simplefilter("ignore")  # of the libraries themselves
    import jax
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    inputs = jnp.linspace(-1, 1, 64)
    answers = 3 * inputs + 1

    def descend(weights: Any) -> Any:
        def loss_of(weights: Any) -> Any:
            return ((weights["a"] * inputs + weights["b"] - answers) ** 2).mean()

        loss, slope = jax.value_and_grad(loss_of)(weights)
        return jax.tree.map(lambda w, g: w - 0.5 * g, weights, slope), loss

    take_step = jax.jit(descend)
    weights: Any = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    checkpointer, first, came_with = ocp.StandardCheckpointer(), 0, None
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:
        weights = checkpointer.restore(os.path.join(checkpoint.path, "weights"), weights)
        first = checkpoint.get_metadata()["epoch"] + 1
        came_with = float(weights["a"])
    storage = dray.train.get_context().get_storage()
    loss = jnp.zeros(())
    for epoch in range(first, config["epochs"]):
        for _ in range(2):
            weights, loss = take_step(weights)
        path = storage.build_checkpoint_path_from_name(f"epoch-{epoch}")
        checkpointer.save(os.path.join(path, "weights"), weights)
        checkpointer.wait_until_finished()
        kept = Checkpoint.from_directory(path)
        kept.set_metadata({"epoch": epoch})
        dray.train.report(
            {"epoch": epoch, "loss": float(loss), "a": float(weights["a"])},
            kept,
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )
        if config.get("die") and came_with is None:
            os.kill(os.getpid(), signal.SIGKILL)
    return {device.platform for device in weights["a"].devices()}, first, came_with


def test_a_run_keeps_its_state_with_orbax_and_goes_on(storage: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    before = used_memory()
    first = fit(train, storage, given={"epochs": 2})
    assert first.return_value == ({PLATFORM}, 0, None)
    assert first.metrics["loss"] < 5, first.metrics
    until(lambda: used_memory() < before + 256 * MEBIBYTE)
    again = fit(train, storage, given={"epochs": 3}, on_mismatch="ignore")
    platforms, began, came_with = again.return_value
    assert (platforms, began) == ({PLATFORM}, 2)
    assert came_with == pytest.approx(first.metrics["a"])
    assert again.metrics["loss"] < first.metrics["loss"], (again.metrics, first.metrics)


def test_a_rank_that_is_killed_is_started_again_with_the_whole_gpu(storage: Path) -> None:
    """JAX takes three quarters of the memory, which the next attempt has to find free."""
    pytest.importorskip("orbax.checkpoint")
    result = fit(
        train,
        storage,
        given={"epochs": 2, "die": True},
        failure_config=FailureConfig(max_failures=1),
    )
    assert result.return_value[:2] == ({PLATFORM}, 1), result.return_value


def test_fits_one_after_another_have_the_gpu_each(storage: Path) -> None:
    def compute() -> Any:
        import jax
        import jax.numpy as jnp

        product = jax.jit(lambda x: (x @ x).sum())(jnp.ones((512, 512), jnp.bfloat16))
        half = jnp.ones((4, 4), jnp.bfloat16)
        assert half.dtype == jnp.bfloat16
        return jax.default_backend(), jax.device_count(), float(product), os.getpid()

    found = [fit(compute, storage, name=f"run-{i}").return_value for i in range(3)]
    assert [each[:3] for each in found] == [(PLATFORM, 1, float(512**3))] * 3
    assert len({each[3] for each in found}) == 3


def test_ranks_that_share_a_gpu_are_told_of_nccl_and_may_use_cpus(storage: Path) -> None:
    def compute() -> Any:
        import jax
        from jax.experimental import multihost_utils

        everybody = multihost_utils.process_allgather(jax.numpy.ones(1) * jax.process_index())
        return jax.default_backend(), jax.process_count(), everybody.ravel().tolist()

    shared = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 0.5})
    with pytest.raises(ConfigError, match="NCCL, which cannot connect two ranks on one GPU"):
        fit(compute, storage, scaling=shared)
    on_cpus = fit(compute, storage, JaxConfig(use_gpu=False), scaling=shared, name="on-cpus")
    assert on_cpus.return_value == ("cpu", 2, [0, 1])


def test_tasks_share_a_gpu_if_jax_takes_no_more_than_a_part(gate: Gate) -> None:
    @dray.remote(num_gpus=0.5, runtime_env={"env_vars": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}})
    def compute() -> Any:
        import jax

        total = float(jax.numpy.ones(1000).sum())
        gate.pass_through()  # with its part of the memory
        return jax.default_backend(), total, float(jax.numpy.ones(1 << 20).sum())

    running = [compute.remote() for _ in range(2)]
    gate.heard(2)
    gate.open()
    assert dray.get(running) == [(PLATFORM, 1000, float(1 << 20))] * 2


def test_arrays_travel_between_tasks(gate: Gate) -> None:
    variables = {"env_vars": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}}

    @dray.remote(num_gpus=0.5, runtime_env=variables)
    def made() -> Any:
        import jax.numpy as jnp

        return jnp.arange(4.0), jnp.ones((2, 2), jnp.bfloat16)

    @dray.remote(num_gpus=0.5, runtime_env=variables)
    def looked_at(pair: Any) -> Any:
        numbers, halves = pair
        platforms = {device.platform for device in numbers.devices()}
        return platforms, numbers.tolist(), str(halves.dtype), float(halves.sum())

    expected = ({PLATFORM}, [0, 1, 2, 3], "bfloat16", 4)
    assert dray.get(looked_at.remote(made.remote())) == expected


def test_batches_of_a_dataset_lie_on_the_gpu(storage: Path) -> None:
    pytest.importorskip("pyarrow")
    import dray.data

    def read() -> Any:
        import jax.numpy as jnp

        shard = dray.train.get_dataset_shard("train")
        found = []
        for batch in shard.iter_jax_batches(batch_size=4, dtypes={"id": jnp.float32}, paddings=0):
            ids = batch["id"]
            found.append((ids.tolist(), str(ids.dtype), {d.platform for d in ids.devices()}))
        return found

    found = fit(read, storage, datasets={"train": dray.data.range(6)}).return_value
    assert found == [
        ([0, 1, 2, 3], "float32", {PLATFORM}),
        ([4, 5, 0, 0], "float32", {PLATFORM}),
    ]
