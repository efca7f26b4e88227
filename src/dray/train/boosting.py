"""Code shared by XGBoost and LightGBM: reports of rounds, models as checkpoints, threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from dray import train  # report() is looked up at each call
from dray.checks import is_whole, plain
from dray.compat.arguments import check_arguments
from dray.compat.attributes import entry_of
from dray.errors import ConfigError, StorageError
from dray.train.checkpoint import Checkpoint
from dray.train.chosen_metrics import chosen, names_of
from dray.train.constants import TRAIN_DATASET_KEY
from dray.train.context import get_context
from dray.train.datasets import get_dataset_shard
from dray.train.worker.cpu_affinity import asked_threads
from dray.train.worker.current_session import current_session

if TYPE_CHECKING:
    import pandas as pd

Results = Mapping[str, float]
Reporting = TypeVar("Reporting")
Booster = TypeVar("Booster")
C = TypeVar("C", bound="BoosterCheckpoint[Any]")


def limit_threads(library: ctypes.CDLL) -> None:
    """Limit a library, for calls of this thread, to the number of threads of the worker.

    OpenMP reads `OMP_NUM_THREADS` when it is loaded, and in a fork it was loaded before.

    Args:
        library: A library that is linked with OpenMP.
    """
    threads = asked_threads(os.environ)
    set_threads = getattr(library, "omp_set_num_threads", None)
    if threads and set_threads is not None:
        set_threads(threads)


class RoundReports:
    """The reports of a boosted model: the metrics of every round, and of some rounds the model.

    Raises:
        ConfigError: An argument is malformed.
    """

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None,
        filename: str,
        frequency: int,
        checkpoint_at_end: bool,
        results_postprocessing_fn: Callable[[dict[str, float]], Mapping[str, float]] | None,
    ) -> None:
        self._names = names_of(metrics) or None
        every = plain(frequency)
        if not is_whole(every, 0):
            raise ConfigError(f"frequency must be a number of rounds, 0 or more, not {frequency!r}")
        if not isinstance(filename, str) or not filename or os.path.basename(filename) != filename:
            raise ConfigError(f"filename must be the name of a file, not {filename!r}")
        self.filename = filename
        self.frequency = every
        self.at_end = checkpoint_at_end
        self._postprocess = results_postprocessing_fn
        self.begin()

    def begin(self) -> None:
        """Forget the saved model of an earlier training."""
        self._saved_at = -1

    def is_due(self, rounds: int) -> bool:
        """Return whether the model is to be saved after so many rounds."""
        return self.frequency > 0 and rounds % self.frequency == 0

    def is_saved(self, rounds: int) -> bool:
        """Return whether the model of so many rounds has been saved."""
        return self._saved_at == rounds

    def report(
        self, results: Results, rounds: int = 0, save: Callable[[str], object] | None = None
    ) -> None:
        """Report the results of a round.

        Args:
            results: The newest value of each evaluation result, by name.
            rounds: Number of rounds of the model, if it is to be saved.
            save: Function that saves the model to a path, if it is to be saved; all ranks give one
                or none.
        """
        metrics = self._chosen(results)
        if save is None:
            train.report(metrics)
            return
        self._saved_at = rounds
        if get_context().get_world_rank() != 0:
            train.report(metrics)
            return
        with tempfile.TemporaryDirectory(prefix="dray-model-") as directory:
            save(os.path.join(directory, self.filename))
            train.report(metrics, checkpoint=Checkpoint(directory))

    def _chosen(self, results: Results) -> Mapping[str, float]:
        found = results
        if self._names is not None:
            there = f"the results are {', '.join(results) or 'none: evaluate some data'}"
            found = chosen(results, self._names, there)
        return found if self._postprocess is None else self._postprocess(dict(found))


@contextlib.contextmanager
def model_file(checkpoint: Checkpoint, filename: str) -> Iterator[str]:
    """Yield the path of the model's file of a checkpoint.

    Raises:
        ConfigError: The argument is no checkpoint.
        StorageError: The checkpoint has no such file.
    """
    if not isinstance(checkpoint, Checkpoint):
        raise ConfigError(f"checkpoint must be a dray.train.Checkpoint, not {checkpoint!r}")
    with checkpoint.as_directory() as directory:
        path = os.path.join(directory, filename)
        if not os.path.exists(path):
            raise StorageError(
                f"{checkpoint.path} has no {filename}; pass the name of the file that the "
                "callback wrote: get_model(checkpoint, filename=...)"
            )
        yield path


class BoosterCheckpoint(Checkpoint, Generic[Booster]):
    """A checkpoint that holds a model, in a file with a fixed name."""

    MODEL_FILENAME: ClassVar[str]
    _kind: ClassVar[Callable[..., Any]]  # the model's type

    @classmethod
    def from_model(cls: type[C], booster: Booster, *, path: str | None = None) -> C:
        """Save a model.

        Args:
            booster: The model.
            path: The directory; default: a new temporary one, which you delete.
        """
        directory = path or tempfile.mkdtemp(prefix="dray-checkpoint-")
        os.makedirs(directory, exist_ok=True)
        model: Any = booster
        model.save_model(os.path.join(directory, cls.MODEL_FILENAME))
        return cls(directory)

    def get_model(self) -> Booster:
        """Load the model.

        Raises:
            StorageError: The checkpoint has no model.
        """
        with model_file(self, self.MODEL_FILENAME) as path:
            model: Booster = self._kind(model_file=path)
            return model


def with_all_categories(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame that has the categories of all ranks; all ranks must call this function.

    Trees use the codes of categories, and each rank has only the categories of its own files. The
    codes follow the order of the names, so that a run that resumes on other workers has the same
    codes.
    """
    own = {
        name: kind.categories.tolist()
        for name, kind in frame.dtypes.items()
        if hasattr(kind, "categories")
    }
    of_ranks = current_session("with_all_categories").join("with_all_categories", own)
    for name in own:
        everywhere = itertools.chain.from_iterable(of.get(name, ()) for of in of_ranks)
        known = list(dict.fromkeys(everywhere))
        if not frame.dtypes[name].ordered:
            known.sort(key=lambda category: (type(category).__name__, category))
        frame[name] = frame[name].cat.set_categories(known)
    return frame


@dataclass(frozen=True)
class OlderForm:
    """A training in Ray's older form: datasets and parameters instead of a train function.

    Attributes:
        num_boost_round: Rounds of the model, including those before a restart.
        datasets: Names of the datasets; one is for training, the others are for evaluation.
        options: Further arguments of the framework's `train`.
    """

    label_column: str
    params: Mapping[str, Any]
    num_boost_round: int
    datasets: Sequence[str]
    options: Mapping[str, Any]

    def rows(self, name: str) -> tuple[Any, Any]:
        """Return this rank's share of a dataset: a DataFrame, and the labels.

        Raises:
            ConfigError: The dataset lacks the column of labels.
        """
        frame = get_dataset_shard(name).materialize().to_pandas()
        if self.label_column not in frame:
            raise ConfigError(
                f"label_column is {self.label_column!r}, and the columns of datasets[{name!r}] are "
                f"{', '.join(map(str, frame.columns))}"
            )
        frame = with_all_categories(frame)
        return frame.drop(columns=[self.label_column]), frame[self.label_column]

    def reporting(self, kind: type[Reporting]) -> tuple[Reporting, dict[str, Any]]:
        """Return the reporting callback, new if the options have none, and the options with it."""
        callbacks = list(self.options.get("callbacks") or [])
        given = [callback for callback in callbacks if isinstance(callback, kind)]
        report = given[0] if given else kind()
        with_it = callbacks if given else [*callbacks, report]
        return report, {**self.options, "callbacks": with_it}

    @property
    def evaluated(self) -> list[str]:
        """The names of the datasets that are only for evaluation."""
        return [name for name in self.datasets if name != TRAIN_DATASET_KEY]


def train_function(
    trainer: type,
    train_loop: Callable[..., Any] | None,
    train_older: Callable[[OlderForm], None],
    label_column: str | None,
    params: Mapping[str, Any] | None,
    num_boost_round: int | None,
    datasets: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> Callable[..., Any]:
    """Return the train function of a trainer: the given one, or the one of the older form.

    Raises:
        ConfigError: Both are given, or neither, or the older form is incomplete.
    """
    name, known = trainer.__name__, tuple(inspect.signature(trainer).parameters)[:-1]
    if label_column is None and params is None and num_boost_round is None:
        check_arguments(name, options, known)
        if train_loop is None:
            raise ConfigError(f"{name} needs train_loop_per_worker, or params and label_column")
        return train_loop
    if train_loop is not None:
        raise ConfigError(
            f"{name} takes train_loop_per_worker, or params, label_column and num_boost_round: "
            "call the framework's train() with them in the function"
        )
    named = tuple(datasets or ())
    if label_column is None or TRAIN_DATASET_KEY not in named:
        raise ConfigError(
            f"{name} without train_loop_per_worker needs label_column=..., and "
            f"datasets={{{TRAIN_DATASET_KEY!r}: ...}}"
        )
    gone = {each: value for each, value in options.items() if entry_of(f"{name}()", each)}
    check_arguments(name, gone, known)  # in the driver, before a worker's train() refuses them
    options = {each: value for each, value in options.items() if each not in gone}
    rounds = plain(10 if num_boost_round is None else num_boost_round)
    if not is_whole(rounds, 1):
        raise ConfigError(f"num_boost_round must be 1 or more, not {num_boost_round!r}")
    form = OlderForm(label_column, dict(params or {}), rounds, named, dict(options))
    return functools.partial(train_older, form)
