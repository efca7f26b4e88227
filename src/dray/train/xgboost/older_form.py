"""The train function of a trainer that has parameters of `xgboost.train` instead of a function."""

from __future__ import annotations

import xgboost

from dray.train.boosting import OlderForm
from dray.train.constants import TRAIN_DATASET_KEY
from dray.train.context import get_checkpoint
from dray.train.xgboost.callback import RayTrainReportCallback


def train(form: OlderForm) -> None:
    """Boost the rounds that are left, on this rank's share of the rows."""
    checkpoint = get_checkpoint()
    report, options = form.reporting(RayTrainReportCallback)
    model = None if checkpoint is None else report.get_model(checkpoint, report.filename)
    left = form.num_boost_round - (0 if model is None else model.num_boosted_rounds())
    if left <= 0:
        return
    tables = {name: _table(form, name) for name in (TRAIN_DATASET_KEY, *form.evaluated)}
    xgboost.train(
        dict(form.params),
        tables[TRAIN_DATASET_KEY],
        left,
        evals=[(table, name) for name, table in tables.items()],
        xgb_model=model,
        **options,
    )


def _table(form: OlderForm, name: str) -> xgboost.DMatrix:
    rows, labels = form.rows(name)
    return xgboost.DMatrix(rows, labels, enable_categorical=True)
