"""XGBoost's callback that reports rounds and saves models, and checkpoints that hold a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from dray.checks import require
from dray.train.boosting import BoosterCheckpoint, RoundReports, model_file
from dray.train.checkpoint import Checkpoint

require("xgboost", "dray[xgboost]")

import xgboost  # noqa: E402 (what is above says how to install it)
from xgboost.callback import TrainingCallback  # noqa: E402

_MODEL = "model.ubj"


class RayTrainReportCallback(TrainingCallback):  # type: ignore[misc]
    """A callback that reports the metrics of every round, and saves the model as a checkpoint.

    A round does not wait for its report. Only when the model is saved, all ranks wait until the
    checkpoint is committed.

    Args:
        metrics: Results to report, such as "eval-logloss": a name, names, or a dict of new
            name -> name; default: all.
        filename: Name of the model's file in a checkpoint.
        frequency: Number of rounds after which the model is saved again; 0 saves it only at the
            end.
        checkpoint_at_end: Whether the model is saved after the last round.
        results_postprocessing_fn: Function from the results, by name, to the metrics to report.

    Raises:
        ConfigError: An argument is malformed.

    Example:
        >>> from dray.train.xgboost import RayTrainReportCallback, XGBoostTrainer
        >>> def train_loop():
        ...     import numpy, xgboost
        ...     data = xgboost.DMatrix(numpy.eye(4), [0, 0, 1, 1])
        ...     report = RayTrainReportCallback(metrics={"error": "train-rmse"}, frequency=2)
        ...     xgboost.train({}, data, 4, evals=[(data, "train")], callbacks=[report])
        >>> result = XGBoostTrainer(train_loop).fit()
        >>> len(result.best_checkpoints), list(result.metrics)
        (2, ['error'])
    """

    CHECKPOINT_NAME: ClassVar[str] = _MODEL

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = CHECKPOINT_NAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, float]], Mapping[str, float]] | None = None,
    ) -> None:
        super().__init__()
        self._reports = RoundReports(
            metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn
        )
        self._last: dict[str, float] = {}

    @property
    def filename(self) -> str:
        """Name of the model's file in a checkpoint."""
        return self._reports.filename

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> xgboost.Booster:
        """Load the model of a checkpoint.

        To continue its training, pass it to `xgboost.train` as `xgb_model`, with the rounds that
        are left: `num_boost_round=total - model.num_boosted_rounds()`.

        Args:
            checkpoint: The checkpoint.
            filename: The callback's `filename`.

        Raises:
            StorageError: The checkpoint has no such file.
        """
        with model_file(checkpoint, filename) as path:
            return xgboost.Booster(model_file=path)

    def before_training(self, model: Any) -> Any:
        """Reset the state of an earlier training."""
        self._last = {}
        self._reports.begin()
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:
        """Report a round."""
        self._last = _newest(evals_log)
        rounds = model.num_boosted_rounds() if self._reports.frequency else 0  # a call into C
        due = self._reports.is_due(rounds)
        self._reports.report(self._last, rounds, _saves(model) if due else None)
        return False

    def after_training(self, model: Any) -> Any:
        """Save the model, if it is not saved yet."""
        rounds, save = model.num_boosted_rounds(), _saves(model)
        if save is not None and self._reports.at_end and not self._reports.is_saved(rounds):
            self._reports.report(self._last, rounds, save)
        return model


DrayTrainReportCallback = RayTrainReportCallback


def _saves(model: Any) -> Callable[[str], object] | None:
    """Return the function that saves a model; None for the models of a cross-validation."""
    save: Callable[[str], object] | None = getattr(model, "save_model", None)
    return save


def _newest(evals_log: Mapping[str, Any]) -> dict[str, float]:
    """Return the newest results by name; cross-validation adds their standard deviations."""
    found: dict[str, float] = {}
    for data, of_data in evals_log.items():
        for metric, values in of_data.items():
            name, value = f"{data}-{metric}", values[-1]
            if isinstance(value, tuple):
                found[name], found[f"{name}-stdv"] = map(_plain, value)
            else:
                found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, float) else value  # also NumPy's


class XGBoostCheckpoint(BoosterCheckpoint[xgboost.Booster]):
    """A checkpoint with the file `model.ubj`.

    Example:
        >>> import numpy, shutil, xgboost
        >>> from dray.train.xgboost import XGBoostCheckpoint
        >>> model = xgboost.train({}, xgboost.DMatrix(numpy.eye(2), [0, 1]), 3)
        >>> checkpoint = XGBoostCheckpoint.from_model(model)
        >>> checkpoint.get_model().num_boosted_rounds()
        3
        >>> shutil.rmtree(checkpoint.path)
    """

    MODEL_FILENAME, _kind = _MODEL, xgboost.Booster
