"""LightGBM's callback that reports rounds and saves models, and checkpoints that hold a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from dray.checks import require
from dray.train.boosting import BoosterCheckpoint, RoundReports, model_file
from dray.train.checkpoint import Checkpoint

require("lightgbm", "dray[lightgbm]")

import lightgbm  # noqa: E402 (what is above says how to install it)

_MODEL = "model.txt"
# After LightGBM's own logging and recording, and before its early stopping, which ends the round.
_ORDER = 25


class RayTrainReportCallback:
    """A callback that reports the metrics of every round, and saves the model as a checkpoint.

    A round does not wait for its report. Only when the model is saved, all ranks wait until the
    checkpoint is committed. If training stops early, LightGBM does not call callbacks at its end:
    set `frequency` to save the model every few rounds.

    Args:
        metrics: Results to report, such as "test-binary_logloss": a name, names, or a dict of
            new name -> name; default: all.
        filename: Name of the model's file in a checkpoint.
        frequency: Number of rounds after which the model is saved again; 0 saves it only at the
            end.
        checkpoint_at_end: Whether the model is saved with the last round.
        results_postprocessing_fn: Function from the results, by name, to the metrics to report.

    Raises:
        ConfigError: An argument is malformed.

    Example:
        >>> from dray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback
        >>> def train_loop():
        ...     import lightgbm, numpy
        ...     data = lightgbm.Dataset(numpy.arange(99.0)[:, None], numpy.arange(99.0))
        ...     callbacks = [RayTrainReportCallback(metrics={"error": "seen-l2"}, frequency=2)]
        ...     lightgbm.train(
        ...         {"verbosity": -1}, data, 4, [data], ["seen"], callbacks=callbacks
        ...     )
        >>> result = LightGBMTrainer(train_loop).fit()
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
        self._reports = RoundReports(
            metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn
        )
        self.order = _ORDER

    @property
    def filename(self) -> str:
        """Name of the model's file in a checkpoint."""
        return self._reports.filename

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> lightgbm.Booster:
        """Load the model of a checkpoint.

        To continue its training, pass it to `lightgbm.train` as `init_model`, with the rounds that
        are left: `num_boost_round=total - model.current_iteration()`.

        Args:
            checkpoint: The checkpoint.
            filename: The callback's `filename`.

        Raises:
            StorageError: The checkpoint has no such file.
        """
        with model_file(checkpoint, filename) as path:
            return lightgbm.Booster(model_file=path)

    def __call__(self, env: Any) -> None:
        """Report a round."""
        if env.iteration == env.begin_iteration:
            self._reports.begin()
        rounds = env.iteration + 1
        last = rounds == env.end_iteration
        due = self._reports.is_due(rounds) or (last and self._reports.at_end)
        save = env.model.save_model if due and isinstance(env.model, lightgbm.Booster) else None
        self._reports.report(dict(_results(env.evaluation_result_list or ())), rounds, save)

    def save_stopped(self, model: lightgbm.Booster) -> None:
        """Report a model whose training has stopped early; LightGBM calls no callback for that.

        Args:
            model: The model; its rounds up to the best one are saved, with that round's results.
        """
        rounds = model.current_iteration()
        if self._reports.at_end and not self._reports.is_saved(rounds):
            best = model.best_score.items()
            results = [(data, name, value, 0) for data, of in best for name, value in of.items()]
            self._reports.report(dict(_results(results)), rounds, model.save_model)


DrayTrainReportCallback = RayTrainReportCallback


def _results(evaluated: Iterable[Sequence[Any]]) -> Iterator[tuple[str, float]]:
    """Yield results by name; cross-validation adds their standard deviations."""
    for data, metric, value, _, *deviation in evaluated:
        yield f"{data}-{metric}", float(value)
        if deviation and deviation[0] is not None:
            yield f"{data}-{metric}-stdv", float(deviation[0])


class LightGBMCheckpoint(BoosterCheckpoint[lightgbm.Booster]):
    """A checkpoint with the file `model.txt`.

    Example:
        >>> import lightgbm, numpy, shutil
        >>> from dray.train.lightgbm import LightGBMCheckpoint
        >>> data = lightgbm.Dataset(numpy.arange(99.0)[:, None], numpy.arange(99.0))
        >>> model = lightgbm.train({"verbosity": -1}, data, 3)
        >>> checkpoint = LightGBMCheckpoint.from_model(model)
        >>> checkpoint.get_model().current_iteration()
        3
        >>> shutil.rmtree(checkpoint.path)
    """

    MODEL_FILENAME, _kind = _MODEL, lightgbm.Booster
