"""Validation of checkpoints beside the training: function, arguments and time limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dray.checks import is_number
from dray.errors import ConfigError, shown

if TYPE_CHECKING:
    from dray.train.checkpoint import Checkpoint


class ValidationFn(Protocol):
    """A function that validates a checkpoint.

    Example:
        >>> from dray.train import Checkpoint, ValidationFn
        >>> def validate(checkpoint: Checkpoint, **kwargs) -> dict:
        ...     return {"accuracy": 0.9}
        >>> function: ValidationFn = validate
    """

    def __call__(self, checkpoint: Checkpoint, /, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        """Return metrics of a checkpoint."""


@dataclass
class ValidationTaskConfig:
    """The arguments and the time limit of one validation.

    Args:
        fn_kwargs: Arguments of the function besides the checkpoint, as JSON can say them.
        timeout_s: Seconds after which the validation is given up, its wait for resources
            included; None is never.

    Raises:
        ConfigError: One of them is something else.

    Example:
        >>> from dray.train import ValidationTaskConfig
        >>> ValidationTaskConfig(fn_kwargs={"split": "small"}, timeout_s=600).fn_kwargs
        {'split': 'small'}
    """

    fn_kwargs: dict[str, Any] | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        given = self.fn_kwargs
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"fn_kwargs must be a dict of arguments, not {shown(given)}")
        self.fn_kwargs = dict(given or {})
        if not all(isinstance(name, str) for name in self.fn_kwargs):
            raise ConfigError(f"the keys of fn_kwargs must be names, not those of {shown(given)}")
        limit = self.timeout_s
        if limit is not None and not (is_number(limit) and limit > 0):
            raise ConfigError(f"timeout_s must be None or seconds, more than 0, not {limit!r}")
        self.to_json()

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps of it.

        Raises:
            ConfigError: JSON cannot say it.
        """
        try:
            plain: dict[str, Any] = json.loads(json.dumps(self.fn_kwargs))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                "fn_kwargs must be JSON-serializable, because it is stored with the checkpoint: "
                f"{error}; put other values into the function itself, for example with "
                "functools.partial"
            ) from error
        return {"fn_kwargs": plain, "timeout_s": self.timeout_s}


@dataclass
class ValidationConfig:
    """The way in which `report(validation=...)` validates checkpoints.

    A task calls `fn(checkpoint, **fn_kwargs)` beside the training, one checkpoint after the other.
    The metrics that it returns join those of the checkpoint.

    Args:
        fn: The function.
        task_config: The arguments and the time limit, unless a report says its own.
        ray_remote_kwargs: Options of the task, as `dray.remote` takes them: its resources (one CPU,
            unless they say otherwise), and how often it is tried.

    Raises:
        ConfigError: An argument is malformed.

    Example:
        >>> import pathlib, tempfile
        >>> from dray.train import Checkpoint, DataParallelTrainer, ValidationConfig, report
        >>> def validate(checkpoint):
        ...     return {"length": len(pathlib.Path(checkpoint.path, "model.txt").read_text())}
        >>> def train_loop():
        ...     with tempfile.TemporaryDirectory() as directory:
        ...         pathlib.Path(directory, "model.txt").write_text("weights")
        ...         report({"loss": 0.5}, Checkpoint(directory), validation=True)
        >>> trainer = DataParallelTrainer(train_loop, validation_config=ValidationConfig(validate))
        >>> trainer.fit().metrics
        {'loss': 0.5, 'length': 7}
    """

    fn: ValidationFn
    task_config: ValidationTaskConfig = field(default_factory=ValidationTaskConfig)
    ray_remote_kwargs: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        fn: ValidationFn,
        task_config: ValidationTaskConfig | None = None,
        ray_remote_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not callable(fn):
            raise ConfigError(f"fn must be a function that takes a checkpoint, not {shown(fn)}")
        if task_config is None:
            task_config = ValidationTaskConfig()
        if not isinstance(task_config, ValidationTaskConfig):
            raise ConfigError(
                f"task_config must be a ValidationTaskConfig, not {shown(task_config)}"
            )
        self.fn = fn
        self.task_config = task_config
        self.ray_remote_kwargs = dict(ray_remote_kwargs or {})
        from dray.core.options import task_options  # slow to import, and rarely needed

        if task_options(fn, self.ray_remote_kwargs).num_returns != 1:
            raise ConfigError("a validation returns one dict: leave num_returns out, and no yield")

    def limits(self, asked: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
        """Return the arguments and the time limit of one validation.

        Args:
            asked: Configuration of the report, as `to_json` says it; empty if it has none.
        """
        kwargs = {**(self.task_config.fn_kwargs or {}), **asked.get("fn_kwargs", {})}
        return kwargs, asked.get("timeout_s") if asked else self.task_config.timeout_s
