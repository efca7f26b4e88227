"""The result of a run, read from its directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.errors import ConfigError, MissingDependencyError, StorageError
from dray.train.checkpoint import Checkpoint
from dray.train.config import CheckpointConfig
from dray.train.metrics import decode
from dray.train.retention import lookup, ranked
from dray.train.run_directory import RUN, RunDirectory, local_path, read_lines

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Result:
    """What a run has come to.

    Attributes:
        path: The run's directory.
        metrics: The last report of rank 0, with or without a checkpoint; None if there is none.
        checkpoint: The newest checkpoint, or None.
        best_checkpoints: (checkpoint, metrics) of all that were kept: from the worst to the best
            if `CheckpointConfig` named a score, else from the oldest to the newest.
        return_value: What the train function of rank 0 returned; None after `from_path`, or if it
            cannot be sent to the driver, of which a warning tells.
        error: None: `fit()` raises why a run failed, and the run's directory does not keep it.

    Example:
        >>> result = trainer.fit()
        >>> result.metrics["loss"]
        >>> with result.checkpoint.as_directory() as path:
        ...     model.load_state_dict(torch.load(f"{path}/model.pt"))
    """

    path: str
    metrics: dict[str, Any] | None
    checkpoint: Checkpoint | None
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] = field(repr=False)
    return_value: Any = None
    error: BaseException | None = None

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> Result:
        """Returns the result of a run of any time, finished or not.

        Args:
            path: The run's directory.

        Raises:
            ConfigError: `path` is something else than a directory's path, such as a URL.
            StorageError: There is no run in that directory.
        """
        directory = RunDirectory(local_path(path, "path"))
        try:
            text = (directory.path / RUN).read_text(encoding="utf-8")
        except OSError as error:
            raise StorageError(
                f"{directory.path} is not a run's directory: it has no run.json. Give the path "
                "that fit() printed: <storage_path>/<name>"
            ) from error
        kept = CheckpointConfig(**json.loads(text)["checkpoint_config"])
        return cls.read(directory, kept)

    @classmethod
    def read(cls, directory: RunDirectory, config: CheckpointConfig, **known: Any) -> Result:
        """Returns the result that a directory holds.

        Args:
            directory: The run's directory.
            config: Which checkpoints are best.
            known: What the directory does not say.
        """
        checkpoints = directory.checkpoints()
        last = None
        for record in history(directory, rank=0):
            last = record
        return cls(
            path=str(directory.path),
            metrics=None if last is None else decode(last),
            checkpoint=Checkpoint(checkpoints[-1].path) if checkpoints else None,
            best_checkpoints=[
                (Checkpoint(c.path), c.rank_zero_metrics()) for c in ranked(checkpoints, config)
            ],
            **known,
        )

    @property
    def metrics_dataframe(self) -> pandas.DataFrame:
        """Every report of rank 0, one row each, as a pandas DataFrame; nested names as "a/b".

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingDependencyError("pandas", "pandas") from None
        records = history(RunDirectory(Path(self.path)), rank=0)
        return pandas.DataFrame([_flatten(decode(record)) for record in records])

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint:
        """Returns the kept checkpoint with the best value of a metric.

        Args:
            metric: Its name; "a/b" names a nested one.
            mode: "max" or "min".

        Raises:
            ConfigError: `mode` is neither, or no checkpoint came with that metric.
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
            raise ConfigError(
                f"no checkpoint of {self.path} came with a number called {metric!r}; "
                f"there are {', '.join(names) or 'no checkpoints with metrics'}"
            )
        best = max if mode == "max" else min
        return best(finite, key=lambda pair: pair[0])[1]


def history(directory: RunDirectory, rank: int) -> list[dict[str, Any]]:
    """Returns a rank's reports as the run stands: what a restart went back over is left out."""
    records: list[dict[str, Any]] = []
    for record in read_lines(directory.metrics_path(rank)):
        while records and records[-1]["report"] >= record["report"]:
            records.pop()
        records.append(record)
    return records


def _flatten(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}/"))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
