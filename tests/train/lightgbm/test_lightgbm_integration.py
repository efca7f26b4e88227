"""LightGBM on several processes: one model of all rows, reports, restarts, errors."""

from __future__ import annotations

import importlib
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dray.data
import dray.train
from dray.errors import ConfigError, MissingDependencyError
from dray.train import FailureConfig, Result, RunConfig, ScalingConfig, WorkerGroupError
from tests.support import ctrl_c

lightgbm = pytest.importorskip("lightgbm")

from dray.train.lightgbm import (  # noqa: E402
    LightGBMCheckpoint,
    LightGBMTrainer,
    RayTrainReportCallback,
    get_network_params,
)

PARAMS = {
    "objective": "binary",
    "tree_learner": "data",
    "num_leaves": 7,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
ROUNDS = 6

on_engines = pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
on_processes = pytest.mark.parametrize("engine_name", ["process"], indirect=True)
pytestmark = pytest.mark.usefixtures("engine")


def tumours() -> tuple[Any, Any]:
    """Returns 569 rows of 30 columns, and which of them are benign."""
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer(return_X_y=True)


def boost(config: dict[str, Any]) -> int:
    """Grows trees on what each rank has of rows; goes on where it was."""
    context = dray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    rows, labels = tumours()
    data = lightgbm.Dataset(rows[rank::size], labels[rank::size])
    checkpoint = dray.train.get_checkpoint()
    model = None if checkpoint is None else RayTrainReportCallback.get_model(checkpoint)
    callbacks: list[Any] = [RayTrainReportCallback(frequency=2)]
    if model is None and config.get("fail"):
        callbacks.append(failing(config["fail"]))
    left = config.get("rounds", ROUNDS) - (0 if model is None else model.current_iteration())
    lightgbm.train(
        PARAMS | get_network_params(),
        data,
        left,
        valid_sets=[data],
        init_model=model,
        callbacks=callbacks,
    )
    return left


def failing(how: str) -> Any:
    """Returns what kills rank 1's process in its fifth round, or raises there."""

    def callback(env: Any) -> None:
        if env.iteration == 4 and dray.train.get_context().get_world_rank() == 1:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError("by the callback")

    callback.order = 40  # type: ignore[attr-defined]
    return callback


def fit(storage: Path, workers: int = 2, callbacks: Any = (), **config: Any) -> Result:
    return LightGBMTrainer(
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
    assert model.current_iteration() == ROUNDS
    return model.predict(tumours()[0], num_threads=1)


def alone() -> Any:
    rows, labels = tumours()
    params = {**PARAMS, "num_threads": 1}
    model = lightgbm.train(params, lightgbm.Dataset(rows, labels), ROUNDS)
    return model.predict(rows, num_threads=1)


def loss(found: Any) -> float:
    return float(-np.log(np.where(tumours()[1], found, 1 - found)).mean())


@on_processes
def test_two_workers_grow_trees_together(storage: Path) -> None:
    result = fit(storage)
    assert result.return_value == ROUNDS
    assert result.metrics is not None
    assert list(result.metrics) == ["training-binary_logloss"]
    assert len(result.best_checkpoints) == 3
    # Each worker cuts its share of the columns into bins by its own rows.
    assert loss(predictions(result)) == pytest.approx(loss(alone()), rel=0.1)


@on_processes
def test_one_worker_and_a_second_run_give_equal_bits(storage: Path) -> None:
    assert np.array_equal(predictions(fit(storage, workers=1)), alone())
    assert np.array_equal(predictions(fit(storage)), predictions(fit(storage)))


@on_engines
def test_killed_worker_goes_on_with_the_rounds_that_are_left(storage: Path) -> None:
    result = fit(storage, fail="kill", failures=1)
    assert result.return_value == ROUNDS - 4
    np.testing.assert_allclose(predictions(result), predictions(fit(storage)), rtol=1e-12)


@on_processes
def test_ctrl_c_ends_it(storage: Path) -> None:
    ctrl_c.ends_run(lambda callbacks: fit(storage, callbacks=callbacks, rounds=10**6))


@on_processes
def test_error_of_rank_1_comes_with_its_rank(storage: Path) -> None:
    with pytest.raises(WorkerGroupError, match="rank 1 failed: ZeroDivisionError: by the callback"):
        fit(storage, fail="raise")


@on_processes
def test_ports_are_held_until_they_are_asked_for(storage: Path) -> None:
    def train() -> tuple[bool, bool, list[str]]:
        from dray.train import lightgbm as ours

        assert ours._network is not None
        port = ours._network["local_listen_port"]
        held = is_taken(port)
        params = get_network_params()
        assert params == get_network_params()
        return held, is_taken(port), sorted(params)

    def is_taken(port: int) -> bool:
        with socket.socket() as other:
            try:
                other.bind(("", port))
            except OSError:
                return True
        return False

    result = LightGBMTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=storage),
    ).fit()
    names = ["local_listen_port", "machines", "num_machines"]
    assert result.return_value == (True, False, names)


@on_processes
def test_wrong_arguments_and_places() -> None:
    with pytest.warns(UserWarning, match="outside a train function of LightGBMTrainer"):
        assert get_network_params() == {}
    with pytest.raises(ConfigError, match="must be a LightGBMConfig, not 3"):
        LightGBMTrainer(print, lightgbm_config=3)  # type: ignore[arg-type]
    older: Any = LightGBMTrainer
    with pytest.raises(ConfigError, match="needs train_loop_per_worker, or params"):
        older()


@on_processes
def test_the_older_form_boosts_on_datasets(tmp_path: Path) -> None:
    """With nullable numbers, numbers of Arrow, and categories that no rank has all of."""
    for file, kinds in enumerate((["d", "b"], ["a", "c"])):
        table = pd.DataFrame({"x": pd.array([1, None] * 50, "Int64"), "kind": kinds * 50})
        table["y"] = table["kind"].isin(["b", "c"]).astype("int64[pyarrow]")
        table.astype({"kind": "category"}).to_parquet(tmp_path / f"{file}.parquet")
    rows = dray.data.read_parquet(str(tmp_path))

    def fit() -> Any:
        return LightGBMTrainer(
            label_column="y",
            params={"objective": "binary", "verbosity": -1, "num_threads": 1},
            num_boost_round=3,
            datasets={"train": rows, "valid": rows},
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(name="older", storage_path=tmp_path),
        ).fit()

    result = fit()
    model = RayTrainReportCallback.get_model(result.checkpoint)
    assert model.current_iteration() == 3
    assert model.pandas_categorical == [["a", "b", "c", "d"]]  # however many ranks there are
    assert sorted(result.metrics) == ["train-binary_logloss", "valid-binary_logloss"]
    again = fit()  # no round is left
    assert (again.metrics, again.checkpoint) == (result.metrics, result.checkpoint)


def test_the_older_form_goes_on_from_a_file_of_another_name(tmp_path: Path) -> None:
    rows = [{"x": float(number % 50), "y": int(number % 50 > 20)} for number in range(200)]

    def fit(rounds: int) -> Result:
        return LightGBMTrainer(
            label_column="y",
            params={"verbosity": -1, "num_threads": 1},
            num_boost_round=rounds,
            datasets={"train": rows},
            run_config=RunConfig(name="older", storage_path=tmp_path),
            callbacks=[RayTrainReportCallback(filename="trees.txt")],
        ).fit()

    fit(2)
    checkpoint = fit(5).checkpoint
    assert checkpoint is not None
    model = RayTrainReportCallback.get_model(checkpoint, filename="trees.txt")
    assert model.current_iteration() == 5


@on_processes
def test_the_older_form_keeps_the_model_of_a_training_that_stops_early(tmp_path: Path) -> None:
    rows, labels = tumours()
    columns = {f"x{i}": rows[:, i] for i in range(3)}
    noisy = (labels + np.random.default_rng(0).integers(0, 2, len(labels))) % 2
    table = pa.table({**columns, "benign": noisy})
    result = LightGBMTrainer(
        datasets={"train": table[:400], "valid": table[400:]},
        label_column="benign",
        num_boost_round=200,
        params={**PARAMS, "early_stopping_round": 2},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="early", storage_path=tmp_path),
    ).fit()
    assert result.checkpoint is not None
    rounds = RayTrainReportCallback.get_model(result.checkpoint).current_iteration()
    assert 0 < rounds < 200
    assert result.metrics is not None
    assert "valid-binary_logloss" in result.metrics
    of_ranks = [path.read_text() for path in (tmp_path / "early/metrics").glob("rank-*")]
    losses = [re.findall("valid-binary_logloss[^,}]*", told) for told in of_ranks]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("engine_name", ["inline"], indirect=True)
def test_a_callback_saves_the_model_of_each_training_that_stops_early(tmp_path: Path) -> None:
    def train() -> None:
        rows = np.arange(99.0)[:, None]
        callback = RayTrainReportCallback()
        for _ in range(2):
            data = lightgbm.Dataset(rows, rows[:, 0])
            worse = lightgbm.Dataset(rows, -rows[:, 0])
            callback.save_stopped(
                lightgbm.train(
                    {"verbosity": -1, "num_threads": 1, "early_stopping_round": 1},
                    data,
                    valid_sets=[worse],
                    callbacks=[callback],
                )
            )

    result = LightGBMTrainer(train, run_config=RunConfig(storage_path=tmp_path)).fit()
    assert len(result.best_checkpoints) == 2


@pytest.mark.parametrize("engine_name", ["inline"], indirect=True)
def test_callbacks_call_the_report_that_a_program_has_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = dray.train.report
    monkeypatch.setattr(
        "dray.train.report", lambda metrics, **more: report({"mine": len(metrics)}, **more)
    )

    def train() -> None:
        data = lightgbm.Dataset(np.arange(99.0)[:, None], np.arange(99.0))
        quiet = {"verbosity": -1, "num_threads": 1}
        callback = RayTrainReportCallback(frequency=2, checkpoint_at_end=False)
        lightgbm.train(quiet, data, 2, valid_sets=[data], callbacks=[callback])

    result = LightGBMTrainer(train, run_config=RunConfig(storage_path=tmp_path)).fit()
    assert result.metrics == {"mine": 1}
    assert result.checkpoint is not None


def test_checkpoint_holds_a_model(tmp_path: Path) -> None:
    rows = np.arange(99.0)
    data = lightgbm.Dataset(rows[:, None], rows)
    model = lightgbm.train({"verbosity": -1, "num_threads": 1}, data, 3)
    checkpoint = LightGBMCheckpoint.from_model(model, path=str(tmp_path / "kept"))
    assert os.listdir(checkpoint.path) == ["model.txt"]
    assert checkpoint.get_model().current_iteration() == 3


@on_processes
def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import dray.train.lightgbm as ours

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "dray.train.lightgbm.callback")
    monkeypatch.delitem(vars(ours), "RayTrainReportCallback", raising=False)
    for use in (lambda: LightGBMTrainer(print), lambda: ours.RayTrainReportCallback):
        with pytest.raises(MissingDependencyError, match=r"pip install 'dray\[lightgbm\]'"):
            use()
