"""TensorFlow on several processes: one model, restarts, errors of a rank, Keras' reports.

They run by `make test-tensorflow`, and are skipped where TensorFlow is not installed.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import dray.data
import dray.train
from dray.errors import ConfigError, StorageError, WorkerGroupError
from dray.train import FailureConfig, Result, RunConfig, ScalingConfig
from tests.support import ctrl_c

pytest.importorskip("tensorflow", reason="tensorflow is not installed: make test-tensorflow")

from dray.train.tensorflow import TensorflowCheckpoint, TensorflowTrainer

on_engines = pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
on_processes = pytest.mark.parametrize("engine_name", ["process"], indirect=True)
pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.filterwarnings("ignore"),  # of TensorFlow itself: what NumPy has deprecated
]


def make_model() -> Any:
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [tf.keras.Input((1,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(1)]
    )
    model.compile(tf.keras.optimizers.Adam(0.1), "mse")
    return model


def learn(config: dict[str, Any]) -> tuple[int, int, str]:
    """Fits a line with Keras, and goes on where it was."""
    import tensorflow as tf

    from dray.train.tensorflow.keras import ReportCheckpointCallback

    tf.keras.utils.set_random_seed(0)
    rank = dray.train.get_context().get_world_rank()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    checkpoint, first = dray.train.get_checkpoint(), 0
    with strategy.scope():
        if checkpoint is None:
            model = make_model()
        else:
            model = TensorflowCheckpoint(checkpoint.path).get_model()
            first = checkpoint.get_metadata()["epoch"] + 1

    def fail(epoch: int, logs: Any) -> None:
        if epoch == 1 and first == 0 and rank == 1 and config.get("how"):
            if config["how"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise tf.errors.DataLossError(None, None, "of rank 1")

    points = tf.reshape(tf.linspace(-1.0, 1.0, 64), (64, 1))
    batches = tf.data.Dataset.from_tensor_slices((points, 3 * points)).batch(16)
    epochs = config.get("epochs", 3)
    report = ReportCheckpointCallback(metrics={"error": "loss"})
    failing = tf.keras.callbacks.LambdaCallback(on_epoch_end=fail)
    model.fit(batches, initial_epoch=first, epochs=epochs, verbose=0, callbacks=[report, failing])
    return first, strategy.num_replicas_in_sync, tf.keras.Model.__module__.partition(".")[0]


def fit(
    storage: Path, function: Any = learn, workers: int = 2, callbacks: Any = (), **config: Any
) -> Result:
    return TensorflowTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=storage,
            failure_config=FailureConfig(int(config.get("how") == "kill")),
            callbacks=list(callbacks),
        ),
    ).fit()


@on_processes
def test_after_a_kill_it_ends_as_if_nothing_had_happened(
    storage: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://nowhere.invalid:1")  # gRPC is not to look there
    with monkeypatch.context() as shown:
        shown.delenv("DRAY_PROGRESS")
        undisturbed = fit(storage / "undisturbed")
    assert "TensorFlow's workers listen on every address" in capfd.readouterr().err
    assert undisturbed.return_value == (0, 2, "tf_keras")
    assert undisturbed.metrics is not None
    assert 0 < undisturbed.metrics["error"] < 9
    assert len(undisturbed.best_checkpoints) == 3
    killed = fit(storage / "killed", how="kill")
    assert killed.return_value == (2, 2, "tf_keras")
    assert killed.metrics == undisturbed.metrics
    assert killed.checkpoint is not None
    assert {name for name in os.listdir(killed.checkpoint.path) if name[0] != "."} == {
        "model.keras"
    }


@pytest.mark.parametrize("name", ["..", "../a.h5", "/tmp/a.h5", "a\0", 1, ["."]])
def test_no_model_is_loaded_from_beside_a_checkpoint(name: Any, tmp_path: Path) -> None:
    (tmp_path / "a.h5").touch()
    (tmp_path / "checkpoint").mkdir()
    checkpoint = TensorflowCheckpoint(tmp_path / "checkpoint")
    checkpoint.set_metadata({TensorflowCheckpoint.MODEL_FILENAME_KEY: name})
    with pytest.raises(StorageError, match="checkpoint has no "):
        checkpoint.get_model()


@on_processes
def test_error_of_rank_1_in_a_callback_comes_with_its_rank(storage: Path) -> None:
    with pytest.raises(WorkerGroupError, match=r"rank 1 failed: DataLossError: .*of rank 1"):
        fit(storage, how="raise")


@on_processes
def test_ctrl_c_ends_it(storage: Path) -> None:
    ctrl_c.ends_run(lambda callbacks: fit(storage, callbacks=callbacks, epochs=10**6))


def by_hand(config: dict[str, Any]) -> tuple[list[float], int]:
    """Trains by a loop of its own, on this worker's part of the data alone."""
    import tensorflow as tf

    from dray.train.tensorflow import prepare_dataset_shard

    rank = dray.train.get_context().get_world_rank()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(0.0)
    # TensorFlow takes a batch for that of all workers, and each step has this worker's part of it.
    size = strategy.num_replicas_in_sync
    mine = tf.data.Dataset.from_tensors(tf.fill([2 * size], [1.0, 3.0][rank]))
    shared = strategy.experimental_distribute_dataset(prepare_dataset_shard(mine))

    @tf.function  # type: ignore[untyped-decorator]
    def step(points: Any) -> Any:
        def on_this_worker(points: Any) -> Any:
            context = tf.distribute.get_replica_context()
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(points))
            weight.assign(total, read_value=False)
            return total

        return strategy.run(on_this_worker, args=(points,))

    totals = [float(strategy.reduce("MEAN", step(points), axis=None)) for points in shared]
    described = json.loads(os.environ["TF_CONFIG"])
    assert described["task"] == {"type": "worker", "index": rank}
    dray.train.report({"total": totals[-1]})
    return totals, len(described["cluster"]["worker"])


@on_engines
def test_a_loop_of_its_own_sees_each_workers_part(storage: Path) -> None:
    result = fit(storage, by_hand)
    assert result.return_value == ([8.0, 8.0], 2)
    assert result.metrics == {"total": 8.0}
    assert fit(storage, by_hand, workers=1).return_value == ([2.0], 1)


@on_processes
def test_callback_reports_what_is_asked(storage: Path) -> None:
    def train(config: dict[str, Any]) -> str:
        import tensorflow as tf

        from dray.train.tensorflow.keras import ReportCheckpointCallback

        points = tf.data.Dataset.from_tensors(([[1.0]], [[3.0]])).repeat(4)
        model = make_model()
        report = ReportCheckpointCallback("train_end", ["train_batch_end"], ["loss"])
        model.fit(points, epochs=2, verbose=0, callbacks=[report])
        with pytest.raises(ConfigError, match="checkpoint_on has 'epoch'; there are epoch_begin"):
            ReportCheckpointCallback(checkpoint_on="epoch")
        with pytest.raises(ConfigError, match="metrics has 'mae', and Keras has logged loss"):
            model.fit(points, verbose=0, callbacks=[ReportCheckpointCallback(metrics="mae")])
        return "refused"

    result = fit(storage, train, workers=1)
    assert result.return_value == "refused"
    assert Path(result.path, "metrics", "rank-00000.jsonl").read_text().count("\n") == 9
    assert len(result.best_checkpoints) == 1


@on_processes
def test_methods_of_a_callback_of_ones_own_are_called(storage: Path) -> None:
    def train(config: dict[str, Any]) -> tuple[bool, list[str]]:
        import tensorflow as tf

        from dray.train.tensorflow.keras import ReportCheckpointCallback

        called = []

        class Report(ReportCheckpointCallback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                super().on_epoch_end(epoch, {**logs, "rate": 0.5})

            def on_train_begin(self, logs: Any = None) -> None:
                super().on_train_begin(logs)
                called.append("train_begin")

        points = tf.data.Dataset.from_tensors(([[1.0]], [[3.0]]))
        report = Report()
        make_model().fit(points, verbose=0, callbacks=[report])
        return report._implements_train_batch_hooks(), called

    result = fit(storage, train, workers=1)
    assert result.return_value == (False, ["train_begin"])
    assert result.metrics is not None
    assert set(result.metrics) == {"loss", "rate"}


@on_processes
def test_callback_reports_to_a_storage_that_is_no_directory(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow.fs")
    (tmp_path / "far away").mkdir()

    def train(config: dict[str, Any]) -> None:
        import tensorflow as tf

        from dray.train.tensorflow.keras import ReportCheckpointCallback

        points = tf.data.Dataset.from_tensors(([[1.0]], [[3.0]]))
        make_model().fit(points, verbose=0, callbacks=[ReportCheckpointCallback()])

    result = TensorflowTrainer(
        train,
        train_loop_config={},
        run_config=RunConfig(
            storage_path="runs",
            storage_filesystem=arrow.SubTreeFileSystem(
                str(tmp_path / "far away"), arrow.LocalFileSystem()
            ),
        ),
    ).fit()
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as path:
        assert "model.keras" in os.listdir(path)
    assert result.checkpoint.get_metadata()["epoch"] == 0


@on_processes
def test_fit_takes_a_share_of_a_dataset(storage: Path) -> None:
    def train(config: dict[str, Any]) -> list[int]:
        import tensorflow as tf
        from dray.air.integrations.keras import (  # type: ignore[import-not-found]
            ReportCheckpointCallback,
        )

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
            model.compile(tf.keras.optimizers.SGD(0.1), "mse")
        shard = dray.train.get_dataset_shard("train")
        pairs = shard.to_tf("x", "y", batch_size=8)
        for _ in range(2):
            model.fit(pairs, verbose=0, callbacks=[ReportCheckpointCallback()])
        seen = [int(row) for batch in shard.iter_tf_batches() for row in batch["number"].numpy()]
        return seen

    rows = [{"x": [n / 64, 1.0], "y": 3 * n / 64, "number": n} for n in range(64)]
    result = TensorflowTrainer(
        train,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=storage),
        datasets={"train": dray.data.from_items(rows)},
    ).fit()
    assert len(result.return_value) == 32
    assert len(result.best_checkpoints) == 2
