"""The train function of a trainer that has parameters of `lightgbm.train` instead of a function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightgbm

from dray.train.boosting import OlderForm
from dray.train.constants import TRAIN_DATASET_KEY
from dray.train.context import get_checkpoint
from dray.train.lightgbm.callback import RayTrainReportCallback
from dray.train.lightgbm.frames import normalize_pandas_for_lightgbm


def train(form: OlderForm, network: Mapping[str, Any]) -> None:
    """Boost the rounds that are left, on this rank's share of the rows.

    Args:
        network: Parameters that connect the ranks.
    """
    checkpoint = get_checkpoint()
    report, options = form.reporting(RayTrainReportCallback)
    model = None if checkpoint is None else report.get_model(checkpoint, report.filename)
    left = form.num_boost_round - (0 if model is None else model.current_iteration())
    if left <= 0:
        return
    table = _table(form, TRAIN_DATASET_KEY)
    evaluated = [_table(form, name, reference=table) for name in form.evaluated]
    trained = lightgbm.train(
        {"tree_learner": "data", **form.params, **network},
        table,
        left,
        valid_sets=[table, *evaluated],
        valid_names=[TRAIN_DATASET_KEY, *form.evaluated],
        init_model=model,
        **options,
    )
    for callback in options["callbacks"]:
        if isinstance(callback, RayTrainReportCallback):
            callback.save_stopped(trained)


def _table(
    form: OlderForm, name: str, reference: lightgbm.Dataset | None = None
) -> lightgbm.Dataset:
    rows, labels = form.rows(name)
    labels = normalize_pandas_for_lightgbm(labels.to_frame())[form.label_column]
    return lightgbm.Dataset(normalize_pandas_for_lightgbm(rows), labels, reference=reference)
