"""Trains a small network of Flax on handwritten digits with JAX on several processes."""

from __future__ import annotations

import argparse
import os
from typing import Any

import dray.train
from dray.train import Checkpoint, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig
from dray.train.jax import JaxTrainer

BATCH = 32  # images of all processes together


def train_loop(config: dict[str, Any]) -> None:
    import jax
    import numpy as np
    import optax
    import orbax.checkpoint as ocp
    from flax import nnx
    from jax.sharding import NamedSharding, PartitionSpec
    from sklearn.datasets import load_digits

    # All processes are one program: what it computes with lies on the devices of all of them.
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    by_rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    random = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Linear(64, 64, rngs=random), nnx.relu, nnx.Linear(64, 10, rngs=random)
    )
    optimizer = nnx.Optimizer(model, optax.adam(0.003), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))
    state = jax.device_put(state, everywhere)

    def take_step(state: Any, images: Any, digits: Any) -> tuple[Any, Any]:
        model, optimizer = nnx.merge(graph, state)

        def loss_of(model: Any) -> tuple[Any, Any]:
            found = model(images)
            loss = optax.softmax_cross_entropy_with_integer_labels(found, digits).mean()
            return loss, (found.argmax(axis=1) == digits).mean()

        (_, right), gradients = nnx.value_and_grad(loss_of, has_aux=True)(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), right

    step = jax.jit(take_step)
    checkpointer = ocp.StandardCheckpointer()
    first = 0
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:  # of a run that was stopped, maybe with other processes
        state = checkpointer.restore(os.path.join(checkpoint.path, "state"), state)
        first = checkpoint.get_metadata()["epoch"] + 1

    images, digits = load_digits(return_X_y=True)
    images, digits = (images / 16).astype(np.float32), digits.astype(np.int32)
    rank, size = jax.process_index(), jax.process_count()
    storage = dray.train.get_context().get_storage()
    for epoch in range(first, config["epochs"]):
        order = np.random.default_rng(epoch).permutation(len(images))
        rights = []
        for batch in np.split(order[: len(order) // BATCH * BATCH], len(order) // BATCH):
            mine = np.split(batch, size)[rank]  # this process's part of it
            state, right = step(
                state,
                jax.make_array_from_process_local_data(by_rows, images[mine]),
                jax.make_array_from_process_local_data(by_rows, digits[mine]),
            )
            rights.append(right)
        # All processes write into one directory of the run, each its part of the state.
        path = storage.build_checkpoint_path_from_name(f"epoch-{epoch}")
        checkpointer.save(os.path.join(path, "state"), state)
        checkpointer.wait_until_finished()
        checkpoint = Checkpoint.from_directory(path)
        checkpoint.set_metadata({"epoch": epoch})
        dray.train.report(
            {"epoch": epoch, "accuracy": float(np.mean(rights))},
            checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--num-workers", type=int, default=2, help="processes; 1, 2, 4 ... 32")
    parser.add_argument("--epochs", type=int, default=10, help="epochs, earlier ones included")
    parser.add_argument("--storage-path", default="~/dray_results", help="where runs are kept")
    parser.add_argument("--name", help="the run's name; one used before goes on with that run")
    options = parser.parse_args()
    result = JaxTrainer(
        train_loop,
        train_loop_config={"epochs": options.epochs},
        scaling_config=ScalingConfig(num_workers=options.num_workers),
        run_config=RunConfig(
            name=options.name,
            storage_path=options.storage_path,
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
    assert result.metrics is not None
    print(f"epoch {result.metrics['epoch']}: accuracy {result.metrics['accuracy']:.3f}")
    print(f"The checkpoints are in {result.path}.")


if __name__ == "__main__":
    main()
