"""XGBoost: the trainer, and the communicator of its workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dray.checks import require
from dray.compat.attributes import AbsentMember, attach_getattr
from dray.errors import ConfigError
from dray.train.backend import Backend, BackendConfig
from dray.train.boosting import OlderForm, limit_threads, train_function
from dray.train.config import RunConfig
from dray.train.data_config import DataConfig
from dray.train.run.worker_group import WorkerGroup
from dray.train.scaling import ScalingConfig
from dray.train.trainer import DataParallelTrainer, checked
from dray.train.validation import ValidationConfig
from dray.train.worker.current_session import current_session

if TYPE_CHECKING:
    from dray.train.xgboost.callback import (
        DrayTrainReportCallback,
        RayTrainReportCallback,
        XGBoostCheckpoint,
    )

__all__ = [
    "DrayTrainReportCallback",
    "RayTrainReportCallback",
    "XGBoostCheckpoint",
    "XGBoostConfig",
    "XGBoostTrainer",
]


class XGBoostBackend(Backend):
    """The hooks that start a tracker on rank 0, through which several workers connect."""

    _channels = ("rabit", "no communicator")

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Start the tracker, and send its address to every rank; one worker needs none."""
        size = len(worker_group)
        if size == 1:
            return
        address = worker_group.workers[0].address
        tracker = worker_group.execute_single(0, _start_tracker, address, size)
        worker_group.execute(_meet_at, tracker)
        worker_group.collectives = self._channels[0]


@dataclass
class XGBoostConfig(BackendConfig):
    """Options of the workers' communicator.

    Args:
        xgboost_communicator: "rabit", XGBoost's own.

    Raises:
        ConfigError: Another communicator is named.

    Example:
        >>> from dray.train.xgboost import XGBoostConfig
        >>> XGBoostConfig().framework
        'xgboost'
    """

    backend_cls = XGBoostBackend
    framework = "xgboost"
    modules = (*BackendConfig.modules, "xgboost", "dray.train.xgboost.callback")

    xgboost_communicator: str = "rabit"

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ConfigError if an option is malformed; options may be set after construction."""
        if self.xgboost_communicator != "rabit":
            raise ConfigError(
                f"xgboost_communicator must be 'rabit', not {self.xgboost_communicator!r}: dray "
                "has no other one"
            )

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return the context manager in which the training thread is in the communicator."""
        return _communicator


class XGBoostTrainer(DataParallelTrainer):
    """A trainer that runs a train function on many workers, which train one XGBoost model.

    Each worker loads its own part of the rows and calls `xgboost.train`. Histograms and metrics are
    summed over all workers, so that every worker ends with the same model.

    Args:
        train_loop_per_worker: The train function. It takes no argument, or one: the config.
        train_loop_config: Argument of the function, if it takes one.
        xgboost_config: Settings of the communication between workers.
        scaling_config: Number of workers, and resources of each; default: one with one CPU.
        run_config: The run's name, place and behaviour.
        datasets: Name -> a `dray.data.Dataset`, or data to make one of. `get_dataset_shard` gives
            each rank its share.
        dataset_config: Options for sharing the datasets among ranks.
        validation_config: The function that `report(validation=...)` runs, and its options.
        metadata: Deprecated; must be None.
        resume_from_checkpoint: Deprecated; must be None.

        label_column: Column of the labels, in the older form without a function.
        params: Parameters of `xgboost.train`, in the older form.
        num_boost_round: Number of rounds, in the older form; default: 10.
        **train_kwargs: Further arguments of `xgboost.train`, in the older form.

    Raises:
        ConfigError: An argument is malformed.
        MissingDependencyError: xgboost is not installed.

    Example:
        >>> from dray.train import ScalingConfig, get_context
        >>> from dray.train.xgboost import RayTrainReportCallback, XGBoostTrainer
        >>> def train_loop():
        ...     import numpy, xgboost
        ...     rows = numpy.arange(8.0)[get_context().get_world_rank() :: 2]
        ...     data = xgboost.DMatrix(rows[:, None], rows > 3)
        ...     params = {"objective": "binary:logistic"}
        ...     xgboost.train(params, data, 5, callbacks=[RayTrainReportCallback()])
        >>> scaling = ScalingConfig(num_workers=2)
        >>> result = XGBoostTrainer(train_loop, scaling_config=scaling).fit()
        >>> RayTrainReportCallback.get_model(result.checkpoint).num_boosted_rounds()
        5
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any] | None = None,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        xgboost_config: XGBoostConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        metadata: Any = None,
        resume_from_checkpoint: Any = None,
        label_column: str | None = None,
        params: Mapping[str, Any] | None = None,
        num_boost_round: int | None = None,
        **train_kwargs: Any,
    ) -> None:
        require("xgboost", "dray[xgboost]")
        config = checked(xgboost_config, XGBoostConfig, "xgboost_config")
        function = train_function(
            XGBoostTrainer,
            train_loop_per_worker,
            _train_older,
            label_column,
            params,
            num_boost_round,
            datasets,
            train_kwargs,
        )
        super().__init__(
            function,
            train_loop_config=train_loop_config,
            backend_config=config,
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )

    get_model = AbsentMember()


def _train_older(form: OlderForm) -> None:
    from dray.train.xgboost.older_form import train

    train(form)


# The functions below run in the worker.

_tracker: Any = None  # rank 0's; it ends with the process
_meeting: Mapping[str, Any] | None = None


def _start_tracker(address: str, size: int) -> dict[str, Any]:
    """Start a tracker at an address, on a port that the kernel chooses; return its arguments."""
    from xgboost.tracker import RabitTracker

    global _tracker
    _tracker = RabitTracker(n_workers=size, host_ip=address, sortby="task")
    _tracker.start()
    return dict(_tracker.worker_args())


def _meet_at(tracker: Mapping[str, Any]) -> None:
    """Store the tracker's address, with this rank's id."""
    global _meeting
    rank = current_session("XGBoostTrainer").assignment.rank
    _meeting = {**tracker, "dmlc_task_id": f"{rank:08d}"}  # ids are sorted as text


@contextlib.contextmanager
def _communicator() -> Iterator[None]:
    """Join the communicator, which belongs to this thread, and leave it at the end.

    A rank whose function fails does not leave the communicator: otherwise the others would fail
    too, and the first error would be a matter of chance.
    """
    from xgboost import collective
    from xgboost.core import _LIB

    limit_threads(_LIB)
    if _meeting is None:
        yield
        return
    collective.init(**_meeting)
    yield
    collective.finalize()


attach_getattr(
    __name__,
    names={
        "dray.train.xgboost.callback": [
            "DrayTrainReportCallback",
            "RayTrainReportCallback",
            "XGBoostCheckpoint",
        ]
    },
)
