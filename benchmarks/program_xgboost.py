"""Program: trains with XGBoost, under a library or in plain processes with its tracker.

Arguments: those of `benchmarks.stepping`.
"""

from collections.abc import Mapping
from typing import Any

import numpy
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

from benchmarks.stepping import Config, Steps, main, names_of, side_by_side

of_library = names_of("xgboost")
PARAMS = {"objective": "binary:logistic", "max_depth": 6, "nthread": 1}


class Told(xgboost.callback.TrainingCallback):
    """A callback that records the rounds."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self._steps.stepped()
        return False


def train(config: Config) -> None:
    rank = collective.get_rank()
    chance = numpy.random.default_rng(rank)
    numbers = chance.normal(size=(20_000, 32))
    data = xgboost.DMatrix(numbers, numbers[:, 0] > 0, nthread=1)
    steps = Steps(config, rank)
    callbacks = [Told(steps)]
    if of_library is not None:
        report = of_library.RayTrainReportCallback()
        callbacks.insert(0, steps.watch(report, "after_iteration"))
    evals = [(data, "train")]
    xgboost.train(PARAMS, data, config["steps"], evals=evals, callbacks=callbacks, verbose_eval=0)


def work(rank: int, meeting: Mapping[str, Any], config: Config) -> None:
    with collective.CommunicatorContext(**meeting, dmlc_task_id=str(rank)):
        train(config)


def alone(config: Config) -> None:
    tracker = RabitTracker(n_workers=config["workers"], host_ip="127.0.0.1", sortby="task")
    tracker.start()
    side_by_side(work, tracker.worker_args(), config)
    tracker.wait_for()


if __name__ == "__main__":
    main(train, alone, framework="xgboost")
