"""XGBoost on several processes: one model of all rows, reports, restarts, errors."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dray.train
from dray.errors import ConfigError, MissingDependencyError, StorageError
from dray.train import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig, WorkerGroupError
from tests.support import ctrl_c

xgboost = pytest.importorskip("xgboost")

from xgboost.callback import TrainingCallback  # noqa: E402

from dray.train.xgboost import (  # noqa: E402
    RayTrainReportCallback,
    XGBoostCheckpoint,
    XGBoostConfig,
    XGBoostTrainer,
)

PARAMS = {"objective": "multi:softprob", "num_class": 10, "max_depth": 4}
ROUNDS = 6

on_engines = pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
on_processes = pytest.mark.parametrize("engine_name", ["process"], indirect=True)
pytestmark = pytest.mark.usefixtures("engine")


def digits() -> tuple[Any, Any]:
    """Returns images of digits: 64 columns of whole numbers from 0 to 16, fewer than bins."""
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def boost(config: dict[str, Any]) -> tuple[int, int]:
    """Grows trees on every second row, or what each rank has of rows; goes on where it was."""
    context = dray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    pixels, labels = digits()
    data = xgboost.DMatrix(pixels[rank::size], labels[rank::size])
    checkpoint = dray.train.get_checkpoint()
    model = None if checkpoint is None else RayTrainReportCallback.get_model(checkpoint)
    callbacks = [RayTrainReportCallback(frequency=2)]
    if model is None and config.get("fail"):
        callbacks.append(Failing(config["fail"]))
    left = config.get("rounds", ROUNDS) - (0 if model is None else model.num_boosted_rounds())
    xgboost.train(
        PARAMS,
        data,
        left,
        evals=[(data, "train")],
        verbose_eval=False,
        xgb_model=model,
        callbacks=callbacks,
    )
    return left, xgboost.collective.get_rank()


class Failing(TrainingCallback):
    """Kills rank 1's process in its fifth round, or raises there."""

    def __init__(self, how: str) -> None:
        self.how = how

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if epoch == 4 and dray.train.get_context().get_world_rank() == 1:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError("by the callback")
        return False


def fit(storage: Path, workers: int = 2, callbacks: Any = (), **config: Any) -> Result:
    return XGBoostTrainer(
        boost,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            storage_path=storage,
            failure_config=FailureConfig(config.get("failures", 0)),
            callbacks=list(callbacks),
        ),
    ).fit()


def predictions(result: Result) -> Any:
    assert result.checkpoint is not None
    model = RayTrainReportCallback.get_model(result.checkpoint)
    assert model.num_boosted_rounds() == ROUNDS
    model.set_param({"nthread": 1})
    return model.predict(xgboost.DMatrix(digits()[0], nthread=1))


def alone() -> Any:
    pixels, labels = digits()
    data = xgboost.DMatrix(pixels, labels, nthread=1)
    return xgboost.train({**PARAMS, "nthread": 1}, data, ROUNDS).predict(data)


@on_processes
def test_two_workers_grow_the_trees_of_one_process(storage: Path) -> None:
    result = fit(storage)
    assert result.return_value == (ROUNDS, 0)
    assert result.metrics is not None
    assert list(result.metrics) == ["train-mlogloss"]
    assert len(result.best_checkpoints) == 3
    # Columns of fewer values than bins are cut alike; sums of floats come in another order.
    np.testing.assert_allclose(predictions(result), alone(), rtol=0, atol=1e-4)


def normal_rows() -> tuple[Any, Any]:
    """Returns columns of 20,000 distinct values, and a label that depends on three of them."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(20_000, 8))
    return rows, rows[:, 0] * rows[:, 1] + rows[:, 2] + random.normal(size=20_000) > 0


@on_processes
def test_loss_where_columns_are_cut_by_merged_sketches(storage: Path) -> None:
    params = {"objective": "binary:logistic", "max_depth": 4}

    def train() -> float:
        rows, labels = normal_rows()
        rank, size = xgboost.collective.get_rank(), xgboost.collective.get_world_size()
        data = xgboost.DMatrix(rows[rank::size], labels[rank::size])
        model = xgboost.train(params, data, 10)
        found = model.predict(xgboost.DMatrix(rows))
        return float(-np.log(np.where(labels, found, 1 - found)).mean())

    two = XGBoostTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=storage),
    ).fit()
    assert two.return_value == pytest.approx(train(), rel=0.01)


@on_processes
def test_one_worker_and_a_second_run_give_equal_bits(storage: Path) -> None:
    assert np.array_equal(predictions(fit(storage, workers=1)), alone())
    assert np.array_equal(predictions(fit(storage)), predictions(fit(storage)))


@on_engines
def test_killed_worker_goes_on_with_the_rounds_that_are_left(storage: Path) -> None:
    result = fit(storage, fail="kill", failures=1)
    assert result.return_value == (ROUNDS - 4, 0)
    assert np.array_equal(predictions(result), predictions(fit(storage)))


@on_processes
def test_ctrl_c_ends_it(storage: Path) -> None:
    ctrl_c.ends_run(lambda callbacks: fit(storage, callbacks=callbacks, rounds=10**6))


@on_processes
def test_error_of_rank_1_comes_with_its_rank(storage: Path) -> None:
    with pytest.raises(WorkerGroupError, match="rank 1 failed: ZeroDivisionError: by the callback"):
        fit(storage, fail="raise")


@on_processes
def test_callback_reports_what_is_asked(storage: Path) -> None:
    def train() -> None:
        data = xgboost.DMatrix(np.eye(4), [0, 0, 1, 1])
        callback = RayTrainReportCallback(
            metrics={"error": "train-rmse"},
            filename="trees.json",
            checkpoint_at_end=True,
            results_postprocessing_fn=lambda results: {**results, "twice": 2 * results["error"]},
        )
        for rounds in (2, 3):  # one callback may see several trainings
            evals = [(data, "train")]
            xgboost.train({}, data, rounds, evals=evals, verbose_eval=False, callbacks=[callback])

    result = XGBoostTrainer(train, run_config=RunConfig(storage_path=storage)).fit()
    assert result.metrics is not None
    assert result.metrics["twice"] == 2 * result.metrics["error"]
    assert type(result.metrics["error"]) is float
    assert result.checkpoint is not None
    model = RayTrainReportCallback.get_model(result.checkpoint, filename="trees.json")
    assert model.num_boosted_rounds() == 3
    with pytest.raises(StorageError, match=r"has no model.ubj; pass the name of the file"):
        RayTrainReportCallback.get_model(result.checkpoint)


@pytest.mark.parametrize("engine_name", ["inline"], indirect=True)
def test_cross_validation_reports_means_and_deviations(storage: Path) -> None:
    def train() -> Any:
        data = xgboost.DMatrix(np.eye(4), [0, 0, 1, 1])
        return xgboost.cv({}, data, 2, nfold=2, callbacks=[RayTrainReportCallback(frequency=1)])

    result = XGBoostTrainer(train, run_config=RunConfig(storage_path=storage)).fit()
    last = result.return_value.iloc[-1].to_dict()
    assert result.metrics == {
        name.removesuffix("-mean").replace("-std", "-stdv"): value for name, value in last.items()
    }
    assert result.checkpoint is None


@on_processes
def test_unknown_metric_names_those_that_there_are(storage: Path) -> None:
    def train() -> None:
        data = xgboost.DMatrix(np.eye(4), [0, 0, 1, 1])
        callbacks = [RayTrainReportCallback(metrics="eval-rmse")]
        xgboost.train({}, data, 2, evals=[(data, "train")], callbacks=callbacks)

    with pytest.raises(ConfigError, match="metrics has 'eval-rmse', and the results are train-rm"):
        XGBoostTrainer(train, run_config=RunConfig(storage_path=storage)).fit()


@on_processes
def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="xgboost_communicator must be 'rabit', not 'federated'"):
        XGBoostConfig(xgboost_communicator="federated")
    with pytest.raises(ConfigError, match="must be an XGBoostConfig, not 'rabit'"):
        XGBoostTrainer(print, xgboost_config="rabit")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="frequency must be a number of rounds"):
        RayTrainReportCallback(frequency=-1)
    with pytest.raises(ConfigError, match="filename must be the name of a file, not 'a/b'"):
        RayTrainReportCallback(filename="a/b")
    older: Any = XGBoostTrainer
    with pytest.raises(ConfigError, match=r"needs label_column=\.\.\., and datasets="):
        older(params={}, num_boost_round=3, datasets={"train": []})
    with pytest.raises(ConfigError, match="takes train_loop_per_worker, or params, label_column"):
        older(print, label_column="y")
    with pytest.raises(ConfigError, match="'scaling_confg'; did you mean scaling_config"):
        older(print, scaling_confg=None)
    with pytest.raises(DeprecationWarning, match=r"preprocessor.*transform the datasets first"):
        older(params={}, label_column="y", datasets={"train": []}, preprocessor=print)
    with pytest.raises(AttributeError, match=r"has no get_model.*RayTrainReportCallback.get_model"):
        older.get_model(Checkpoint("/tmp"))


@on_processes
def test_the_older_form_boosts_on_datasets_and_goes_on(storage: Path) -> None:
    """With categories that no rank has all of."""
    (storage / "rows").mkdir(parents=True)
    table = pd.DataFrame({"kind": [*"ab" * 40, *"cd" * 40]})
    table["y"] = table["kind"].isin(["b", "c"]).astype(int)
    for file, part in enumerate((table[:80], table[80:])):
        part.astype({"kind": "category"}).to_parquet(storage / f"rows/{file}.parquet")

    def fit(rounds: int) -> Any:
        return XGBoostTrainer(
            label_column="y",
            params={"objective": "binary:logistic", "eval_metric": ["logloss"]},
            num_boost_round=rounds,
            datasets={"train": str(storage / "rows"), "valid": str(storage / "rows")},
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(name="older", storage_path=storage),
            verbose_eval=False,
        ).fit()

    first = fit(2)
    assert sorted(first.metrics) == ["train-logloss", "valid-logloss"]
    assert first.metrics["train-logloss"] == pytest.approx(first.metrics["valid-logloss"])
    result = fit(5)
    assert RayTrainReportCallback.get_model(result.checkpoint).num_boosted_rounds() == 5
    assert result.metrics["train-logloss"] < 0.5
    again = fit(5)  # no round is left
    assert (again.metrics, again.checkpoint) == (result.metrics, result.checkpoint)
    with pytest.raises(WorkerGroupError, match="label_column is 'z', and the columns of"):
        XGBoostTrainer(
            label_column="z", datasets={"train": table}, run_config=RunConfig(storage_path=storage)
        ).fit()


@on_processes
def test_the_older_form_goes_on_from_a_file_of_another_name(storage: Path) -> None:
    def fit(rounds: int) -> Result:
        return XGBoostTrainer(
            label_column="y",
            params={},
            num_boost_round=rounds,
            datasets={"train": pd.DataFrame({"x": np.arange(80.0), "y": np.arange(80) % 2})},
            run_config=RunConfig(name="older", storage_path=storage),
            callbacks=[RayTrainReportCallback(filename="trees.json")],
            verbose_eval=False,
        ).fit()

    fit(2)
    checkpoint = fit(5).checkpoint
    assert checkpoint is not None
    model = RayTrainReportCallback.get_model(checkpoint, filename="trees.json")
    assert model.num_boosted_rounds() == 5


def test_a_callback_saves_the_model_of_each_training(storage: Path) -> None:
    def train() -> None:
        data = xgboost.DMatrix(np.eye(4), [0, 0, 1, 1])
        callback = RayTrainReportCallback()
        for depth in (1, 2):
            xgboost.train({"max_depth": depth}, data, 3, callbacks=[callback])

    result = XGBoostTrainer(train, run_config=RunConfig(storage_path=storage)).fit()
    assert len(result.best_checkpoints) == 2


def test_checkpoint_holds_a_model(tmp_path: Path) -> None:
    model = xgboost.train({}, xgboost.DMatrix(np.eye(2), [0, 1]), 3)
    checkpoint = XGBoostCheckpoint.from_model(model, path=str(tmp_path / "kept"))
    assert os.listdir(checkpoint.path) == ["model.ubj"]
    assert checkpoint.get_model().num_boosted_rounds() == 3


@on_processes
def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import dray.train.xgboost as ours

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "dray.train.xgboost.callback")
    monkeypatch.delitem(vars(ours), "RayTrainReportCallback", raising=False)
    for use in (lambda: XGBoostTrainer(print), lambda: ours.RayTrainReportCallback):
        with pytest.raises(MissingDependencyError, match=r"pip install 'dray\[xgboost\]'"):
            use()
