"""The trainer: checks what is asked, and has workers' imports begin."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dray import session
from dray.compat.arguments import check_arguments, checked_arguments
from dray.compat.attributes import AbsentMember, absent_name, attach_getattr
from dray.errors import ConfigError
from dray.settings import Settings
from dray.train.backend import BackendConfig
from dray.train.config import RunConfig
from dray.train.data_config import DataConfig, checked_datasets
from dray.train.run.collection_pause import CollectionPause
from dray.train.scaling import ScalingConfig
from dray.train.storage.place import modules_of
from dray.train.validation import ValidationConfig

if TYPE_CHECKING:
    from dray.train.fitting import Fitting
    from dray.train.planning.plan import Plan
    from dray.train.result import Result

T = TypeVar("T")

# Modules with which workers read datasets.
_READING = ("dray.data.iterator", "dray.data.forms.tensors", "pyarrow.parquet")


@checked_arguments("DataParallelTrainer")
class DataParallelTrainer:
    """Runs one function on many workers.

    Args:
        train_loop_per_worker: The function; it takes no argument, or one: the config.
        train_loop_config: Argument of the function, if it takes one.
        backend_config: The framework to set up; default: none.
        scaling_config: Number of workers, and resources of each; default: one, with one CPU.
        run_config: The run's name, place and behaviour.
        datasets: Name -> data, of which `get_dataset_shard` gives each rank its share: a
            `dray.data.Dataset`, or what one is made of.
        dataset_config: Choices of how ranks share them.
        resume_from_checkpoint: None; deprecated.
        metadata: None; deprecated.
        validation_config: Function for `report(validation=...)`, and its task.

    Raises:
        ConfigError: The function does not take zero or one argument, or a config is malformed.

    Example:
        >>> from dray.train import DataParallelTrainer, ScalingConfig, report
        >>> def train_loop(config):
        ...     for step in range(config["steps"]):
        ...         report({"step": step})
        >>> trainer = DataParallelTrainer(
        ...     train_loop,
        ...     train_loop_config={"steps": 3},
        ...     scaling_config=ScalingConfig(num_workers=2),
        ... )
        >>> trainer.fit().metrics
        {'step': 2}
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], object] | Callable[[dict[str, Any]], object],
        *,
        train_loop_config: Mapping[str, object] | None = None,
        backend_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        resume_from_checkpoint: object = None,
        metadata: object = None,
        validation_config: ValidationConfig | None = None,
    ) -> None:
        absent = {"resume_from_checkpoint": resume_from_checkpoint, "metadata": metadata}
        check_arguments("DataParallelTrainer", absent, (), called=type(self).__name__)
        self._takes_config = _takes_config(
            train_loop_per_worker, given=train_loop_config is not None
        )
        self._function = train_loop_per_worker
        self._function_config = _checked_function_config(train_loop_config)
        self._backend_config = checked(backend_config, BackendConfig, "backend_config")
        self._scaling = checked(scaling_config, ScalingConfig, "scaling_config")
        self._config = checked(run_config, RunConfig, "run_config")
        if not isinstance(validation_config, ValidationConfig | None):
            raise ConfigError(
                f"validation_config must be a ValidationConfig, not {validation_config!r}"
            )
        self._validation = validation_config
        self._datasets = checked_datasets(datasets, dataset_config)
        if self._scaling.num_workers and not Settings().plan_path:
            # Imports of the workers begin now, beside whatever the driver still has to do.
            of_framework = self._backend_config.modules_for(train_loop_per_worker)
            of_data = _READING if self._datasets.by_name else ()
            modules = (*of_framework, *of_data, *modules_of(self._config.storage))
            session.prepare(modules, self._config.runtime_env)
        if self._backend_config.backend_cls.has_replica_groups:
            raise absent_name("Backend", "has_replica_groups")

    as_trainable = AbsentMember()
    restore = AbsentMember()
    can_restore = AbsentMember()

    def plan(self) -> Plan:
        """Return what `fit()` would do now; start and reserve nothing.

        Returns:
            Which worker would go to which node with which devices, backend, interface and threads;
            or why it cannot start now, node by node, and the nearest change that would fit. Print
            it, or take its fields.

        Raises:
            ConfigError: The accelerators and the framework's options do not go together, or the
                engine cannot make the runtime environment.

        Example:
            >>> from dray.train import DataParallelTrainer, ScalingConfig
            >>> trainer = DataParallelTrainer(print, scaling_config=ScalingConfig(num_workers=2))
            >>> trainer.plan().fits
            True
        """
        return self._fitting().plan()

    def fit(self) -> Result:
        """Run the function to its end on every worker.

        Ctrl-C once ends the run at the next report of every rank, or after `DRAY_STOP_GRACE_S`
        (default 10 s) without a report; a run of the same name goes on from its newest checkpoint.
        Ctrl-C twice ends it at once. SIGTERM does what Ctrl-C does once, and then ends the program,
        unless the program has a handler of its own for SIGTERM.

        Returns:
            The run's metrics, checkpoints and rank 0's return value.

        Raises:
            WorkerGroupError: A worker failed, more often than `FailureConfig` allows. It is also
                an instance of the failing function's exception.
            ControllerError: A callback failed, or a checkpoint could not be committed. It is also
                an instance of that failure's type.
            InfeasibleError: The machine does not have what is asked.
            StartTimeoutError: The resources asked for did not become free in time.
            SerializationError: The function cannot be sent to workers.
            StorageError: The run's directory cannot be written, or is in use.
            KeyboardInterrupt: The user pressed Ctrl-C.
        """
        pause = CollectionPause()
        try:
            return self._fitting().fit(pause)
        finally:
            pause.end()

    def _fitting(self) -> Fitting:
        # Slow to import, and workers import their framework meanwhile.
        from dray.train.fitting import Fitting

        self._scaling.check()
        self._config.check()
        self._backend_config.check()
        self._datasets.config.check()
        return Fitting(
            self._function,
            self._takes_config,
            self._function_config,
            self._backend_config,
            self._scaling,
            self._config,
            self._validation,
            self._datasets,
        )


def _takes_config(function: object, *, given: bool) -> bool:
    """Return whether a train function takes the config.

    Args:
        function: The train function; one with `*args` takes the config if there is one.
        given: Whether there is one.

    Raises:
        ConfigError: It is no function, or needs more arguments than one, or its body would not run.
    """
    if not callable(function):
        raise ConfigError(f"train_loop_per_worker must be a function, not {function!r}")
    _check_runs(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some built-in functions have none to show
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in positional if p.default is p.empty]
    required += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    keyword_only = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    if len(required) > 1 or keyword_only:
        raise ConfigError(
            f"the train function takes no argument or one (the config), but "
            f"{getattr(function, '__name__', function)!r} needs {', '.join(required)}; put them "
            "into train_loop_config"
        )
    starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return bool(positional) or (starred and given)


def _check_runs(function: Callable[..., object]) -> None:
    """Refuse functions that return at once, with their body still to be run by somebody."""
    while isinstance(function, functools.partial):
        function = function.func
    body = function if inspect.isroutine(function) else type(function).__call__
    name = f"the train function {getattr(function, '__name__', function)!r}"
    if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
        raise ConfigError(
            f"{name} is async: its body would not run; make it a plain function that calls "
            "asyncio.run(...) inside"
        )
    if inspect.isgeneratorfunction(body):
        raise ConfigError(f"{name} has a yield: its body would not run; call report(...) instead")


def checked(value: object, kind: type[T], name: str) -> T:
    """Return a config that was given to a trainer, or, for None, the default one."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOX" else "a"
        raise ConfigError(f"{name} must be {article} {kind.__name__}, not {value!r}")
    return value


def _checked_function_config(config: object) -> Mapping[str, object]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        remedy = "vars(...) of it is one" if hasattr(config, "__dict__") else "such as {'lr': 0.1}"
        raise ConfigError(f"train_loop_config must be a dict, not {config!r}; {remedy}")
    return config


attach_getattr(__name__)
