"""Trains a small network of Keras on handwritten digits with TensorFlow on several workers."""

from __future__ import annotations

import argparse
from typing import Any

import dray.train
from dray.train import FailureConfig, RunConfig, ScalingConfig
from dray.train.tensorflow import TensorflowCheckpoint, TensorflowTrainer


def make_model() -> Any:
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [tf.keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    return model


def train_loop(config: dict[str, Any]) -> None:
    import tensorflow as tf
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from dray.train.tensorflow.keras import ReportCheckpointCallback

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything is computed
    tf.keras.utils.set_random_seed(0)
    images, digits = load_digits(return_X_y=True)
    split = train_test_split(images / 16, digits, test_size=0.2, random_state=0)
    images, test_images, digits, test_digits = split
    # A batch is that of all workers: each takes its part, also of the images to test with.
    training = tf.data.Dataset.from_tensor_slices((images, digits)).batch(32)
    testing = tf.data.Dataset.from_tensor_slices((test_images, test_digits)).batch(64)

    first = 0
    checkpoint = dray.train.get_checkpoint()
    with strategy.scope():
        if checkpoint is None:
            model = make_model()
        else:  # of a run that was stopped: go on after its last epoch
            model = TensorflowCheckpoint(checkpoint.path).get_model()
            first = checkpoint.get_metadata()["epoch"] + 1
    model.fit(
        training,
        initial_epoch=first,
        epochs=config["epochs"],
        validation_data=testing,
        verbose=0,
        callbacks=[ReportCheckpointCallback()],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--num-workers", type=int, default=2, help="workers")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--epochs", type=int, default=10, help="epochs, earlier ones included")
    parser.add_argument("--storage-path", default="~/dray_results", help="where runs are kept")
    parser.add_argument("--name", help="the run's name; one used before goes on with that run")
    options = parser.parse_args()
    result = TensorflowTrainer(
        train_loop,
        train_loop_config={"epochs": options.epochs},
        scaling_config=ScalingConfig(num_workers=options.num_workers, use_gpu=options.use_gpu),
        run_config=RunConfig(
            name=options.name,
            storage_path=options.storage_path,
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
    assert result.metrics is not None
    print(f"accuracy {result.metrics['val_accuracy']:.3f}")
    print(f"The checkpoints are in {result.path}.")


if __name__ == "__main__":
    main()
