"""The train function of a trainer that was given parameters of `lightgbm.train` and datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightgbm

from dray.train.boosting import OlderForm
from dray.train.constants import TRAIN_DATASET_KEY
from dray.train.context import get_checkpoint
from dray.train.lightgbm.callback import RayTrainReportCallback


def train(form: OlderForm, network: Mapping[str, Any]) -> None:
    """Boost the rounds that are left, on this rank's share of the rows.

    Args:
        form: The training.
        network: Parameters by which ranks reach each other.
    """
    checkpoint = get_checkpoint()
    report, options = form.reporting(RayTrainReportCallback)
    model = None if checkpoint is None else report.get_model(checkpoint, report.filename)
    left = form.num_boost_round - (0 if model is None else model.current_iteration())
    if left <= 0:
        return
    table = lightgbm.Dataset(*form.rows(TRAIN_DATASET_KEY))
    evaluated = [lightgbm.Dataset(*form.rows(name), reference=table) for name in form.evaluated]
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
