"""The result of a run, read from its directory."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dray.checks import require
from dray.compat.attributes import AbsentMember
from dray.errors import ConfigError, NoSuchCheckpointError
from dray.train.checkpoint import Checkpoint
from dray.train.config import CheckpointConfig
from dray.train.run.retention import lookup, ranked
from dray.train.storage.filesystem import arrow_filesystem, place_at, shown_filesystem
from dray.train.storage.manifest import Committed
from dray.train.storage.metrics_codec import decode, decode_all
from dray.train.storage.place import Place, path_within
from dray.train.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas


class _Reports:
    """The table of a run's reports: read when it is asked for, unless somebody has given one."""

    def __get__(self, result: Result | None, owner: type) -> Any:
        given = None if result is None else vars(result).get("metrics_dataframe")
        return given if result is None or given is not None else _read_reports(result)

    def __set__(self, result: Result, given: Any) -> None:
        vars(result)["metrics_dataframe"] = given


@dataclass(repr=False, eq=False)
class Result:
    """The result of a run.

    Attributes:
        metrics: The last report of rank 0, with or without a checkpoint, and what the validation of
            its checkpoint has found; None if there is none.
        checkpoint: The newest checkpoint that is not known to be damaged, or None.
        error: None: `fit()` raises why a run failed, and the run's directory does not keep it.
        path: The run's directory, within its file system.
        metrics_dataframe: Every report of rank 0, one row each, as a pandas DataFrame; nested names
            as "a/b", and beside them what validations of kept checkpoints have found. Without
            pandas a `MissingDependencyError`.
        best_checkpoints: (checkpoint, metrics) of all that were kept: from the worst to the best
            if `CheckpointConfig` named a score, else from the oldest to the newest.
        return_value: Return value of the train function on rank 0; None after `from_path`, or if it
            cannot be sent to the driver, of which a warning tells.

    Example:
        >>> import pathlib, tempfile
        >>> from dray.train import Checkpoint, DataParallelTrainer, report
        >>> def train_loop():
        ...     with tempfile.TemporaryDirectory() as directory:
        ...         pathlib.Path(directory, "model.txt").write_text("weights")
        ...         report({"loss": 0.5}, Checkpoint(directory))
        >>> result = DataParallelTrainer(train_loop).fit()
        >>> result.metrics["loss"]
        0.5
        >>> with result.checkpoint.as_directory() as path:
        ...     pathlib.Path(path, "model.txt").read_text()
        'weights'
    """

    metrics: dict[str, Any] | None
    checkpoint: Checkpoint | None
    error: BaseException | None
    path: str
    metrics_dataframe: pandas.DataFrame = _Reports()
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] = field(default_factory=list)
    _storage_filesystem: Any = None
    return_value: Any = None

    def __repr__(self) -> str:
        shown = {
            "error": self.error and type(self.error).__name__,
            "metrics": self.metrics,
            "path": self.path,
            "filesystem": shown_filesystem(self._place),
            "checkpoint": self.checkpoint,
        }
        if self.error is None:
            del shown["error"]
        lines = ",\n".join(f"  {name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}(\n{lines}\n)"

    @property
    def filesystem(self) -> Any:
        """The file system of `path`: the one that was given, or one of pyarrow.

        Raises:
            MissingDependencyError: None was given, and pyarrow is not installed.
        """
        given = self._storage_filesystem
        return arrow_filesystem(self._place) if given is None else given

    @functools.cached_property
    def _place(self) -> Place:
        return place_at(self.path, self._storage_filesystem, "path")

    config = AbsentMember()

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> Result:
        """Return the result of a run of any time, finished or not.

        Lines of metrics and checkpoints that are damaged are left out, and a warning names the
        file; of more than 4 MiB of metrics only the end is read, unless you ask for the
        `metrics_dataframe`. Checkpoints are compared with the sizes of their files at once, and
        with their checksums when they are first used.

        Args:
            path: The run's directory, or its URL, such as `s3://bucket/prefix/name`.
            storage_filesystem: A file system of pyarrow or fsspec, on which it lies.

        Raises:
            ConfigError: `path` is something else than a directory's path or a URL, or
                `storage_filesystem` is none of pyarrow or fsspec.
            MissingDependencyError: The package that reads such a URL is not installed.
            NoRunError: There is no run in that directory.
            StorageError: The run cannot be read.
        """
        directory = RunDirectory(place_at(path, storage_filesystem, "path"))
        described = directory.read_run()
        try:
            kept = CheckpointConfig(**described["checkpoint_config"])
        except (KeyError, TypeError, ConfigError) as error:
            raise directory.damaged_run(f"checkpoint_config: {error}") from error
        return cls.read(directory, kept, _storage_filesystem=storage_filesystem)

    @classmethod
    def read(cls, directory: RunDirectory, config: CheckpointConfig, **known: Any) -> Result:
        """Return the result that a directory holds.

        Args:
            config: Order of the checkpoints, best first.
            known: Facts that are not in the directory.

        Raises:
            StorageError: The directory cannot be read.
        """
        committed = directory.sound_checkpoints()
        last = directory.last_report(0, _is_report)
        metrics = None if last is None else {**decode(last), **_found(committed[-1:], last)}
        handed = {
            each.path: Checkpoint.of_run(
                each.to_compare(checksums=config.checksums), verified=directory.is_verified(each)
            )
            for each in committed
        }
        result = cls(
            path=path_within(directory.path),
            metrics=metrics,
            checkpoint=handed[committed[-1].path] if committed else None,
            best_checkpoints=[
                (handed[each.path], each.rank_zero_metrics()) for each in ranked(committed, config)
            ],
            **{"error": None, **known},
        )
        result._place = directory.path
        return result

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint:
        """Return the kept checkpoint with the best value of a metric.

        Args:
            metric: Its name; "a/b" names a nested one.
            mode: "max" or "min".

        Raises:
            ConfigError: `mode` is neither.
            NoSuchCheckpointError: No checkpoint came with that metric.
        """
        if mode not in ("max", "min"):
            raise ConfigError(f"mode must be 'max' or 'min', not {mode!r}")
        scored = [
            (value, checkpoint)
            for checkpoint, metrics in self.best_checkpoints
            if isinstance(value := lookup(metrics, metric), int | float) or hasattr(value, "dtype")
        ]
        finite = [(value, checkpoint) for value, checkpoint in scored if value == value]
        if not finite:
            names = sorted({name for _, metrics in self.best_checkpoints for name in metrics})
            raise NoSuchCheckpointError(
                f"Invalid metric name {metric!r}: no checkpoint of {self.path} was reported with "
                f"such a number; there are {', '.join(names) or 'no checkpoints with metrics'}"
            )
        best = max if mode == "max" else min
        return best(finite, key=lambda pair: pair[0])[1]


def _read_reports(result: Result) -> pandas.DataFrame:
    require("pandas", "pandas")
    import pandas

    directory = RunDirectory(result._place)
    validated = {each.report: [each] for each in directory.checkpoints() if each.validation}
    return pandas.DataFrame(
        [
            _flatten({**decode(record), **_found(validated.get(record["report"], []), record)})
            for record in history(directory, rank=0)
        ]
    )


def _found(committed: Sequence[Committed], record: Mapping[str, object]) -> dict[str, Any]:
    """Return what the validation of a report's checkpoint, if it is among these, has found."""
    own = [each.validation for each in committed if each.report == record["report"]]
    return decode_all(each.metrics for each in own if each is not None and each.metrics)


def history(directory: RunDirectory, rank: int) -> list[dict[str, Any]]:
    """Return a rank's reports as the run stands, without reports that a restart went back over.

    Raises:
        StorageError: They cannot be read.
    """
    records: list[dict[str, Any]] = []
    for record in directory.reports(rank, _is_report):
        while records and records[-1]["report"] >= record["report"]:
            records.pop()
        records.append(record)
    return records


def _is_report(record: Mapping[str, object]) -> bool:
    """Return whether a line is a report that can be decoded; older ones have no checksum."""
    if not isinstance(record.get("report"), int) or not isinstance(record.get("metrics"), dict):
        return False
    try:
        decode(record)
    except ValueError:
        return False
    return True


def _flatten(metrics: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}/"))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
