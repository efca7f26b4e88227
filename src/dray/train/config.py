"""The configs of a run: storage, retries, checkpoints to keep, output."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from dray.checks import check_flags, fields_of, is_number, is_whole, plain, refuse_arrays
from dray.compat.absent_names import GIVEN_UP
from dray.compat.arguments import check_arguments, checked_arguments
from dray.compat.attributes import AbsentMember, entry_of
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ConfigError
from dray.train.callback import UserCallback
from dray.train.storage.filesystem import place_at
from dray.train.storage.paths import check_name
from dray.train.storage.place import Place

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _check_absent(config: object, owner: type) -> None:
    """Refuse what a config was given that is a name of Ray's, and has no meaning yet.

    Args:
        config: The config, of `owner` or a class below it.
        owner: The class that has the arguments.

    Raises:
        AbsentArgumentError: One of them is given.
    """
    name = owner.__name__
    absent = {arg: value for arg, value in vars(config).items() if entry_of(f"{name}()", arg)}
    check_arguments(name, absent, ())


@checked_arguments("FailureConfig")
@dataclass
class FailureConfig:
    """Restarts after failures of workers.

    Args:
        max_failures: Number of restarts from the newest checkpoint before the run
            fails; -1 is without limit. The first restart is at once, later ones back off, until the
            run has come further.
        fail_fast: Deprecated.
        controller_failure_limit: -1 or 0: an error on the driver's side ends the run.
        max_preemption_failures: Number of restarts because a node was lost, which does
            not count as a failure; -1 is without limit.
        relax_collectives_on_preemption: Whether `report()` and `get_preemption_info()` go on
            without the ranks of a node that was announced to go and is gone, so that the others can
            still report a checkpoint. Nothing changes if rank 0 is one of these.
        preemption_grace_s: Seconds that ranks may run on after the time at which a node was to go;
            then the run starts again without it. With this or the argument before, those on other
            nodes run on as the node goes; else all start again at once.

    Raises:
        ConfigError: A limit is malformed, or a deprecated argument is given.

    Example:
        >>> from dray.train import FailureConfig
        >>> FailureConfig(max_failures=3).max_failures
        3
    """

    max_failures: int = 0
    fail_fast: object = field(default=GIVEN_UP, repr=False, compare=False)
    controller_failure_limit: int = field(default=-1, repr=False)
    max_preemption_failures: int = -1
    relax_collectives_on_preemption: bool = False
    preemption_grace_s: float = 0.0

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ConfigError if a field, which may have been set since, is malformed."""
        refuse_arrays(fields_of(self))
        _check_absent(self, FailureConfig)
        check_flags(self, "relax_collectives_on_preemption")
        grace_s = self.preemption_grace_s = plain(self.preemption_grace_s)
        if not is_number(grace_s) or not 0 <= grace_s <= threading.TIMEOUT_MAX:
            raise ConfigError(f"preemption_grace_s must be 0 or more seconds, not {grace_s!r}")
        for name in ("max_failures", "max_preemption_failures"):
            limit = plain(getattr(self, name))
            setattr(self, name, limit)
            if not is_whole(limit, -1):
                raise ConfigError(f"{name} must be -1 (no limit), 0 or more, not {limit!r}")


@checked_arguments("CheckpointConfig")
@dataclass
class CheckpointConfig:
    """Retention of checkpoints.

    Args:
        num_to_keep: Keep this many, the best ones, and the newest besides; None keeps all.
        checkpoint_score_attribute: The metric that says which are best; "a/b" names a nested one.
            Without it the newest are best.
        checkpoint_score_order: "max" or "min".
        checkpoint_frequency: Deprecated.
        checkpoint_at_end: Deprecated.
        flush: See a checkpoint's files onto the disk, beside the training, and keep the one before
            until that is done, so that a power cut cannot leave one whose files are lost. False
            leaves that to the operating system: a killed driver or worker still makes no
            difference to a checkpoint.
        checksums: Keep a checksum of every file, and compare it before a restart resumes from a
            checkpoint, and when one that `Result` has read is first used. False compares sizes.

    Raises:
        ConfigError: A value is malformed, or a deprecated argument is given.

    Example:
        >>> from dray.train import CheckpointConfig
        >>> best_two = CheckpointConfig(
        ...     num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
        ... )
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"
    checkpoint_frequency: object = field(default=GIVEN_UP, repr=False, compare=False)
    checkpoint_at_end: object = field(default=GIVEN_UP, repr=False, compare=False)
    _: KW_ONLY
    flush: bool = True
    checksums: bool = True

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ConfigError if a field, which may have been set since, is malformed."""
        refuse_arrays(fields_of(self))
        _check_absent(self, CheckpointConfig)
        keep = self.num_to_keep = plain(self.num_to_keep)
        if keep is not None and not is_whole(keep, 1):
            raise ConfigError(f"num_to_keep must be None (all) or 1 or more, not {keep!r}")
        attribute = self.checkpoint_score_attribute
        if attribute is not None and not isinstance(attribute, str):
            raise ConfigError(
                "checkpoint_score_attribute must be the name of a metric, such as 'loss', or None, "
                f"not {attribute!r}"
            )
        if self.checkpoint_score_order not in ("max", "min"):
            raise ConfigError(
                f"checkpoint_score_order must be 'max' or 'min', not "
                f"{self.checkpoint_score_order!r}"
            )
        check_flags(self, "flush", "checksums")


@checked_arguments("LoggingConfig")
@dataclass
class LoggingConfig:
    """Output of a run.

    Args:
        log_level: The least level of dray's own lines on the terminal: "DEBUG", "INFO", "WARNING",
            "ERROR" or "CRITICAL". Workers' output is always kept in the run directory; below
            WARNING it is shown too.
        fold_repeated: Show a line that comes again within 5 seconds, from any rank, once, with how
            often it came; `DRAY_FOLD_OUTPUT=0` (or `RAY_DEDUP_LOGS=0`) turns it off everywhere.

    Example:
        >>> from dray.train import LoggingConfig
        >>> LoggingConfig(log_level="warning").log_level
        'WARNING'
    """

    log_level: str = "INFO"
    _: KW_ONLY
    fold_repeated: bool = True

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ConfigError if a field, which may have been set since, is malformed."""
        refuse_arrays(fields_of(self))
        level = self.log_level.upper() if isinstance(self.log_level, str) else self.log_level
        if level not in _LEVELS:
            raise ConfigError(f"log_level must be one of {', '.join(_LEVELS)}, not {level!r}")
        self.log_level = level
        check_flags(self, "fold_repeated")


@checked_arguments("RunConfig")
@dataclass
class RunConfig:
    """A run's name, where it is kept, and how it behaves.

    Args:
        name: The run's directory under `storage_path`. A name used before goes on with that run:
            `get_checkpoint()` returns its newest checkpoint. Default: a new name from the time.
        storage_path: A directory, absolute, relative or with `~`, made if missing; or a URL that
            fsspec knows, such as `s3://bucket/prefix`, without credentials in it. Default:
            `~/dray_results`.
        storage_filesystem: A file system of pyarrow or fsspec, on which `storage_path` lies; it
            has the credentials and options that `storage_path` alone does not say.
        failure_config: Limits of restarts.
        checkpoint_config: Choice of the checkpoints to keep.
        callbacks: Called on the driver as the run goes.
        worker_runtime_env: Runtime environment of workers, on top of
            `dray.init(runtime_env=...)`: `env_vars` (name to value) and `working_dir` on every
            engine; `pip`, `uv` and `py_modules`, which the Ray engine installs, and others look
            for; on the Ray engine, also the other fields that Ray has.
        logging_config: Choice of the output.
        sync_config: Deprecated.
        verbose: Deprecated.
        stop: Deprecated.
        progress_reporter: Deprecated.
        log_to_file: Deprecated.
        shared_storage: Says that all nodes see `storage_path`, so that workers do not look
            whether they do: for file systems that show new files late.
        report_barrier: Has every `report()` wait until all ranks have made it, with a checkpoint or
            without, as Ray Train does: files that rank 0 wrote before it are then there for all.
        on_mismatch: Reaction if a run of this name had another train function, config, scaling,
            backend or version: "warn" says what has changed and goes on, "error" refuses,
            "ignore" goes on.

    Raises:
        ConfigError: A value is malformed, or a deprecated argument is given.

    Example:
        >>> from dray.train import CheckpointConfig, FailureConfig, RunConfig
        >>> config = RunConfig(
        ...     name="digits",
        ...     storage_path="~/runs",
        ...     failure_config=FailureConfig(max_failures=3),
        ...     checkpoint_config=CheckpointConfig(num_to_keep=2),
        ... )
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    storage_filesystem: Any = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    callbacks: Sequence[UserCallback] = ()
    worker_runtime_env: Mapping[str, Any] | None = field(default=None, repr=False)
    logging_config: LoggingConfig = field(default_factory=LoggingConfig)
    sync_config: object = field(default=GIVEN_UP, repr=False, compare=False)
    verbose: object = field(default=GIVEN_UP, repr=False, compare=False)
    stop: object = field(default=GIVEN_UP, repr=False, compare=False)
    progress_reporter: object = field(default=GIVEN_UP, repr=False, compare=False)
    log_to_file: object = field(default=GIVEN_UP, repr=False, compare=False)
    _: KW_ONLY
    shared_storage: bool = False
    report_barrier: bool = False
    on_mismatch: Literal["warn", "error", "ignore"] = "warn"

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ConfigError if a field, which may have been set since, is malformed."""
        refuse_arrays(fields_of(self))
        _check_absent(self, RunConfig)
        for name, kind in (
            ("failure_config", FailureConfig),
            ("checkpoint_config", CheckpointConfig),
            ("logging_config", LoggingConfig),
        ):
            value = getattr(self, name)
            if value is None:
                setattr(self, name, kind())
            elif not isinstance(value, kind):
                raise ConfigError(f"{name} must be a dray.train.{kind.__name__}, not {value!r}")
            else:
                value.check()
        if not isinstance(self.callbacks, Sequence | None):
            raise ConfigError(f"callbacks must be a list of callbacks, not {self.callbacks!r}")
        self.callbacks = list(self.callbacks or ())
        for callback in self.callbacks:
            if not isinstance(callback, UserCallback):
                raise ConfigError(
                    f"callbacks must be instances of dray.train.UserCallback, not {callback!r}"
                )
        check_flags(self, "shared_storage", "report_barrier")
        if self.on_mismatch not in ("warn", "error", "ignore"):
            raise ConfigError(
                f"on_mismatch must be 'warn', 'error' or 'ignore', not {self.on_mismatch!r}"
            )
        if self.name is not None:
            check_name(self.name, "RunConfig.name")
        _ = self.storage, self.runtime_env  # they raise what is malformed

    storage_context = AbsentMember()

    @property
    def storage(self) -> Place:
        """The place that `storage_path` and `storage_filesystem` name."""
        path = "~/dray_results" if self.storage_path is None else self.storage_path
        return place_at(path, self.storage_filesystem, "storage_path")

    @property
    def runtime_env(self) -> RuntimeEnv:
        """The runtime environment of `worker_runtime_env`, which may be set until `fit()`."""
        return RuntimeEnv.parse(self.worker_runtime_env, "worker_runtime_env")
