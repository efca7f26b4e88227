"""XGBoost on an NVIDIA GPU, by a train function and by the older form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.train import RunConfig, ScalingConfig
from tests.support.gpus import on_a_gpu

xgboost = pytest.importorskip("xgboost")
if not xgboost.build_info()["USE_CUDA"]:
    pytest.skip("this XGBoost is built without CUDA", allow_module_level=True)

from dray.train.xgboost import RayTrainReportCallback, XGBoostTrainer  # noqa: E402

pytestmark = [*on_a_gpu(), pytest.mark.usefixtures("process_engine")]

PARAMS = {
    "objective": "multi:softprob",
    "num_class": 10,
    "max_depth": 4,
    "eval_metric": "mlogloss",
    "device": "cuda",
}
ROUNDS = 6


def boost(*callbacks: Any) -> Any:
    from sklearn.datasets import load_digits

    data = xgboost.DMatrix(*load_digits(return_X_y=True))
    history: dict[str, Any] = {}
    model = xgboost.train(
        PARAMS,
        data,
        ROUNDS,
        evals=[(data, "train")],
        evals_result=history,
        verbose_eval=False,
        callbacks=[*callbacks],
    )
    return history["train"]["mlogloss"], '"device":"cuda:0"' in model.save_config()


def test_a_worker_boosts_on_its_gpu_as_one_process_does(storage: Path) -> None:
    trainer = XGBoostTrainer(
        lambda: boost(RayTrainReportCallback()),
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(storage_path=storage),
    )
    result = trainer.fit()
    losses, on_the_gpu = result.return_value
    assert on_the_gpu
    assert losses == pytest.approx(boost()[0], rel=1e-5)
    assert result.checkpoint is not None
    assert RayTrainReportCallback.get_model(result.checkpoint).num_boosted_rounds() == ROUNDS


def test_the_older_form_boosts_on_the_gpu(storage: Path) -> None:
    import pandas as pd
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    frame = pd.DataFrame(pixels, columns=[f"pixel{i}" for i in range(64)]).assign(label=labels)
    trainer = XGBoostTrainer(
        params=PARAMS,
        label_column="label",
        num_boost_round=ROUNDS,
        datasets={"train": dray.data.from_pandas(frame)},
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(storage_path=storage),
    )
    result = trainer.fit()
    assert result.metrics is not None
    assert result.metrics["train-mlogloss"] == pytest.approx(boost()[0][-1], rel=1e-4)
