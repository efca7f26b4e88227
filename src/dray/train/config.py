"""What a user asks of a run: how wide, where it is kept, when to retry, what to keep."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dray.accelerators import check_quantities
from dray.engines.contract import Request
from dray.engines.labels import check_selector
from dray.engines.placing import STRATEGIES
from dray.engines.room import from_fixed, to_fixed
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ConfigError, join_names
from dray.train.callback import UserCallback

_RESOURCES = ("CPU", "GPU", "TPU", "memory")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(kw_only=True)
class ScalingConfig:
    """How many workers a run has, and what each of them gets.

    Args:
        num_workers: Worker processes; 0 runs the function in this process, for debugging.
        use_gpu: Whether each worker gets a GPU.
        resources_per_worker: Name to quantity: "CPU" (cores), "GPU", "memory" (bytes), or a
            custom name. Default: one CPU, or with `use_gpu` one GPU.
        placement_strategy: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD" over the nodes.
        label_selector: Which nodes workers may run on: label to "value", "!value", "in(a, b)" or
            "!in(a, b)"; or a list of these, one a worker.

    Raises:
        ConfigError: A value is malformed; the message says what is allowed.

    Example:
        >>> from dray.train import ScalingConfig
        >>> ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}).total_resources
        {'CPU': 1}
    """

    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    label_selector: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None

    def __post_init__(self) -> None:
        workers = self.num_workers
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
            raise ConfigError(
                f"num_workers must be a whole number, 0 (run in this process) or more, "
                f"not {workers!r}"
            )
        if self.placement_strategy not in STRATEGIES:
            raise ConfigError(
                f"placement_strategy must be one of {', '.join(STRATEGIES)}, "
                f"not {self.placement_strategy!r}"
            )
        for name in self.resources_per_worker or {}:
            self._check_name(name)
        asked = to_fixed(self.resources_per_worker or {})
        check_quantities(self.resources_per_worker or {}, "resources_per_worker")
        if self.use_gpu and (self.resources_per_worker or {}).get("GPU") == 0:
            raise ConfigError(
                "use_gpu=True with resources_per_worker={'GPU': 0} contradicts itself; drop one"
            )
        if "GPU" in asked and not self.use_gpu:
            raise ConfigError(
                f"resources_per_worker asks for GPU: {self.resources_per_worker['GPU']}, "  # type: ignore[index]
                "which needs use_gpu=True"
            )

        self._check_selectors()

    def _check_selectors(self) -> None:
        chosen = self.label_selector
        if chosen is None or isinstance(chosen, Mapping):
            check_selector(chosen or {}, "label_selector")
            return
        if not isinstance(chosen, list | tuple):
            raise ConfigError(f"label_selector must be a dict or a list of dicts, not {chosen!r}")
        if len(chosen) != self.num_workers:
            raise ConfigError(
                f"label_selector has {len(chosen)} entries for {self.num_workers} workers; give "
                "one dict for all of them, or one for each"
            )
        for index, selector in enumerate(chosen):
            check_selector(selector, f"label_selector[{index}]")

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a resource's name must be a string, not {name!r}")
        known = {known.lower(): known for known in _RESOURCES}
        if name.lower() in known and name not in _RESOURCES:
            raise ConfigError(
                f"the resource {name!r} does not exist; did you mean {known[name.lower()]!r}? "
                f"There are {join_names(_RESOURCES)}, and the names that dray.init(resources=...) "
                "declares"
            )

    @property
    def bundle(self) -> dict[str, float]:
        """What one worker asks for."""
        asked = from_fixed(to_fixed(self.resources_per_worker or {}))
        if self.use_gpu:
            asked.setdefault("GPU", 1)
        return asked or {"CPU": 1}

    def request(self, workers: int) -> Request:
        """Returns what so many workers ask an engine for."""
        chosen = self.label_selector
        if chosen is None or isinstance(chosen, Mapping):
            selectors = [dict(chosen)] * workers if chosen else []
        else:
            selectors = [dict(selector) for selector in chosen[:workers]]
        return Request([self.bundle] * workers, self.placement_strategy, selectors)

    @property
    def total_resources(self) -> dict[str, float]:
        """What all workers ask for together."""
        return {name: quantity * self.num_workers for name, quantity in self.bundle.items()}

    @property
    def num_cpus_per_worker(self) -> float:
        """The CPUs of each worker."""
        return self.bundle.get("CPU", 0)

    @property
    def num_gpus_per_worker(self) -> float:
        """The GPUs of each worker."""
        return self.bundle.get("GPU", 0)


@dataclass(kw_only=True)
class FailureConfig:
    """What happens when a worker fails.

    Args:
        max_failures: How often the workers are restarted from the newest checkpoint before the run
            fails; -1 is without limit. The first restart is at once, later ones back off.
    """

    max_failures: int = 0

    def __post_init__(self) -> None:
        limit = self.max_failures
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < -1:
            raise ConfigError(f"max_failures must be -1 (no limit), 0 or more, not {limit!r}")


@dataclass(kw_only=True)
class CheckpointConfig:
    """Which checkpoints are kept.

    Args:
        num_to_keep: Keep this many, the newest always among them; None keeps all.
        checkpoint_score_attribute: The metric that says which are best; "a/b" names a nested one.
            Without it the newest are best.
        checkpoint_score_order: "max" or "min".
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"

    def __post_init__(self) -> None:
        keep = self.num_to_keep
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
            raise ConfigError(f"num_to_keep must be None (all) or 1 or more, not {keep!r}")
        if self.checkpoint_score_order not in ("max", "min"):
            raise ConfigError(
                f"checkpoint_score_order must be 'max' or 'min', not "
                f"{self.checkpoint_score_order!r}"
            )


@dataclass(kw_only=True)
class LoggingConfig:
    """What a run prints.

    Args:
        log_level: The least level of dray's own lines on the terminal: "DEBUG", "INFO", "WARNING",
            "ERROR" or "CRITICAL". Workers' output is always kept in the run directory; below
            WARNING it is shown too.
    """

    log_level: str = "INFO"

    def __post_init__(self) -> None:
        level = self.log_level.upper() if isinstance(self.log_level, str) else self.log_level
        if level not in _LEVELS:
            raise ConfigError(f"log_level must be one of {', '.join(_LEVELS)}, not {level!r}")
        self.log_level = level


@dataclass(kw_only=True)
class RunConfig:
    """A run's name, where it is kept, and how it behaves.

    Args:
        name: The run's directory under `storage_path`. A name used before goes on with that run:
            `get_checkpoint()` returns its newest checkpoint. Default: a new name from the time.
        storage_path: A directory, absolute, relative or with `~`, made if missing. Default:
            `~/dray_results`.
        failure_config: When to restart.
        checkpoint_config: Which checkpoints to keep.
        logging_config: What to print.
        callbacks: Called on the driver as the run goes.
        worker_runtime_env: What workers find around themselves, on top of
            `dray.init(runtime_env=...)`: `env_vars` (name to value) and `working_dir` on every
            engine; `pip`, `py_modules` and what else Ray knows on the Ray engine.
        shared_storage: Says that all nodes see `storage_path`, so that workers do not look
            whether they do: for file systems that show new files late.

    Attributes:
        runtime_env: `worker_runtime_env`, parsed.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging_config: LoggingConfig = field(default_factory=LoggingConfig)
    callbacks: Sequence[UserCallback] = ()
    worker_runtime_env: Mapping[str, Any] | None = None
    shared_storage: bool = False
    runtime_env: RuntimeEnv = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
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
        self.callbacks = list(self.callbacks or ())
        for callback in self.callbacks:
            if not isinstance(callback, UserCallback):
                raise ConfigError(
                    f"callbacks must be instances of dray.train.UserCallback, not {callback!r}"
                )
        if self.name is not None:
            check_name(self.name, "RunConfig.name")
        self.runtime_env = RuntimeEnv.parse(self.worker_runtime_env, "worker_runtime_env")

    @property
    def storage(self) -> Path:
        """The absolute form of `storage_path`."""
        path = "~/dray_results" if self.storage_path is None else os.fspath(self.storage_path)
        scheme = re.match(r"^([a-z][a-z0-9+.-]+)://", path)
        if scheme and scheme[1] != "file":
            raise ConfigError(
                f"storage_path={path!r}: {scheme[1]}:// storage is not supported yet; use a local "
                "or network-mounted directory"
            )
        return Path(os.path.abspath(Path(path.removeprefix("file://")).expanduser()))


def check_name(name: object, what: str) -> None:
    """Checks that a name can be that of a directory.

    Raises:
        ConfigError: It cannot.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0]+", name) or name in (".", ".."):
        raise ConfigError(f"{what} must be the name of one directory, not {name!r}")
