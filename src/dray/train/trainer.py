"""The trainer: checks what is asked, opens the run's directory, and runs the controller."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from dray import session
from dray.answers import AbsentMember, absent_name, answer_for, answers_arguments, check_arguments
from dray.engines import load
from dray.engines.base import Engine
from dray.engines.rpc import wire
from dray.errors import ConfigError, InfeasibleError, StorageError
from dray.settings import Settings
from dray.status import to_json
from dray.train.backend import Backend, BackendConfig
from dray.train.config import CheckpointConfig, RunConfig
from dray.train.data_config import DataConfig, Datasets, checked_datasets
from dray.train.planning.plan import Plan, Planned, make_plan
from dray.train.ray_datasets import check_engine, is_rays, split_on_start
from dray.train.result import Result
from dray.train.run import description
from dray.train.run.controller import Controller
from dray.train.run.events import Outcome
from dray.train.run.interruption import Termination, interrupts_go_to
from dray.train.run.progress import Progress, format_metrics
from dray.train.run.retention import lookup
from dray.train.run.screens import open_screen
from dray.train.run.state import State
from dray.train.scaling import ScalingConfig
from dray.train.storage.place import Place, RemotePath, modules_of, path_within
from dray.train.storage.run_directory import RunDirectory
from dray.train.validation import ValidationConfig
from dray.train.worker.train_worker import Job

T = TypeVar("T")
R = TypeVar("R")


@answers_arguments("DataParallelTrainer")
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
        absent = {
            "resume_from_checkpoint": resume_from_checkpoint,
            "metadata": metadata,
        }
        check_arguments("DataParallelTrainer", absent, ())
        self._takes_config = _takes_config(
            train_loop_per_worker, given=train_loop_config is not None
        )
        self._function = train_loop_per_worker
        self._function_config = _checked_function_config(train_loop_config)
        self._backend_config = _checked(backend_config, BackendConfig, "backend_config")
        if self._backend_config.backend_cls.has_replica_groups:
            raise absent_name("Backend", "has_replica_groups")
        self._scaling = _checked(scaling_config, ScalingConfig, "scaling_config")
        self._config = _checked(run_config, RunConfig, "run_config")
        if not isinstance(validation_config, ValidationConfig | None):
            raise ConfigError(
                f"validation_config must be a ValidationConfig, not {validation_config!r}"
            )
        self._validation = validation_config
        self._datasets = checked_datasets(datasets, dataset_config)
        if self._scaling.num_workers and not Settings().plan_path:
            # Imports of the workers begin now, beside whatever the driver still has to do.
            of_framework = self._backend_config.modules_for(train_loop_per_worker)
            modules = (*of_framework, *modules_of(self._config.storage))
            session.prepare(modules, self._config.runtime_env)

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
        with _engine_for(self._scaling) as engine:
            return self._plan_on(engine)

    def _plan_on(self, engine: Engine, impossible: InfeasibleError | None = None) -> Plan:
        return make_plan(engine, self._scaling, self._config, self._backend(), impossible)

    def _backend(self) -> tuple[Backend, BackendConfig]:
        backend = self._backend_config.backend_cls()
        wished = Settings().share_devices
        if wished is not None:
            backend.share_cuda_visible_devices = wished
        of_ray = {name: value for name, value in self._datasets.by_name.items() if is_rays(value)}
        if of_ray:
            split_on_start(backend, of_ray, self._datasets.config)
        return backend, self._backend_config

    def fit(self) -> Result:
        """Run the function to its end on every worker.

        Ctrl-C once ends the run at the next report of every rank, or after `DRAY_STOP_GRACE_S`
        (default 10 s) without a report; a run of the same name goes on from its newest checkpoint.
        Ctrl-C twice ends it at once. SIGTERM does what Ctrl-C does once, and then ends the program,
        unless the program has said what SIGTERM is to do.

        Returns:
            What the run has come to.

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
        where = Settings().plan_path
        if where:
            raise Planned(self.plan(), Path(where))
        storage = self._config.storage
        with Termination() as termination, _engine_for(self._scaling) as engine:
            self._check_feasible(engine)
            datasets = self._shipped(engine)  # what it has staged is there until the run is over
            job = self._job(engine, datasets)
            directory = RunDirectory(storage / (self._config.name or _new_name(storage)))
            directory.open()
            try:
                return self._run(engine, directory, job, termination)
            finally:
                directory.close()

    def _check_feasible(self, engine: Engine) -> None:
        """Refuse what can never be met, before anything is made."""
        workers = self._scaling.min_workers if engine.distributed else 1
        engine.await_nodes(self._scaling.request(workers))
        try:
            engine.check(self._scaling.request(workers), self._config.runtime_env)
        except InfeasibleError as error:
            why = self._plan_on(engine, error).why
            raise InfeasibleError(why, asked=error.asked, available=error.available) from None

    def _job(self, engine: Engine, datasets: Datasets) -> bytes | Job:
        config = dict(self._function_config)
        function = _in_context(self._function, self._backend_config.train_func_context)
        arguments = (config,) if self._takes_config else ()
        if not engine.distributed:
            return Job(function, arguments, datasets)
        if self._validation is not None:
            wire.dump(self._validation.fn, "the function of validation_config")
        name = getattr(self._function, "__name__", repr(self._function))
        wire.dump(function, f"the train function {name!r}")
        wire.dump(arguments, "train_loop_config")
        return wire.dump(Job(function, arguments, datasets), "datasets")

    def _shipped(self, engine: Engine) -> Datasets:
        """Return the datasets as workers read them: what ranks cannot share by number is staged."""
        given = self._datasets
        if not given.by_name:
            return given
        from dray.data.accepted import dataset_of

        named: dict[str, Any] = {}
        for name, value in given.by_name.items():
            if is_rays(value):
                check_engine(engine, name)
                named[name] = None  # each rank is given its share as it starts
            else:
                named[name] = dataset_of(value, name).to_ship()
        return Datasets(named, given.config)

    def _run(
        self, engine: Engine, directory: RunDirectory, job: bytes | Job, termination: Termination
    ) -> Result:
        settings = Settings()
        progress = self._progress(directory, settings)
        with contextlib.closing(progress):  # also if the run cannot begin
            directory.warn = progress.warn
            self._describe(engine, directory, progress)
            controller = Controller(
                engine,
                directory,
                self._scaling,
                self._config,
                self._backend(),
                job,
                progress,
                settings,
                validation=self._validation,
            )
            return self._follow(engine, controller, directory, progress, termination)

    def _progress(self, directory: RunDirectory, settings: Settings) -> Progress:
        logging_config = self._config.logging_config
        return Progress(
            directory.name,
            directory.path,
            open_screen(settings.progress),
            logging_config.log_level,
            fold=settings.fold_output and logging_config.fold_repeated,
        )

    def _describe(self, engine: Engine, directory: RunDirectory, progress: Progress) -> None:
        """Write run.json; tell in what the run differs from the one that had its name before."""
        described = description.describe(
            engine.name, self._function, self._scaling, self._config, self._backend_config
        )
        before, choice = description.read(directory), self._config.on_mismatch
        differences = description.differences(before, described)
        changed = "; ".join(differences)
        otherwise = f"give RunConfig another name, or delete {directory.path}"
        if changed and choice == "error":
            raise ConfigError(
                f"the run {directory.name!r} was another one: {changed}. To train anew, "
                f"{otherwise}; to go on with it all the same, leave out on_mismatch='error'"
            )
        if changed and choice == "warn":
            progress.warn(
                f"goes on with a run that was another one: {changed}. If that is not meant, "
                f"{otherwise}"
            )
        directory.write_run(description.with_history(described, before))
        if changed:
            directory.record("changed since the last start", changes=differences)

    def _follow(
        self,
        engine: Engine,
        controller: Controller,
        directory: RunDirectory,
        progress: Progress,
        termination: Termination,
    ) -> Result:
        """Have the controller run to the end, where Ctrl-C, SIGTERM and `dray status` reach it."""
        state = State.ABORTED
        shown = engine.show("trainings", lambda: to_json(controller.status()))
        try:
            termination.goes_to(controller.interrupt)
            with interrupts_go_to(controller.interrupt):
                outcome = engine.drive(controller.run)
            state = outcome.state
        finally:
            shown()
            progress.close()
            result = self._result(directory)
            progress.summary(state, self._best(result))
        return self._conclude(outcome, result)

    def _result(self, directory: RunDirectory) -> Result:
        """Return what the directory says; if it cannot be read, the run has ended all the same."""
        try:
            directory.recover()  # workers have ended: what they had begun to stage is nobody's
            return Result.read(directory, self._config.checkpoint_config)
        except StorageError as error:
            directory.warn_once(
                f"{error}. What the run has reported cannot be read: its Result has no metrics and "
                "no checkpoint"
            )
            return Result(None, None, None, path_within(directory.path))

    def _conclude(self, outcome: Outcome, result: Result) -> Result:
        if outcome.error is not None:
            raise outcome.error
        if outcome.state is State.ABORTED:
            raise KeyboardInterrupt(
                f"the run was stopped; run again with RunConfig(name={Path(result.path).name!r}) "
                "to go on from its newest checkpoint"
            )
        result.return_value = outcome.return_value
        return result

    def _best(self, result: Result) -> str:
        config: CheckpointConfig = self._config.checkpoint_config
        attribute = config.checkpoint_score_attribute
        if attribute is not None and result.best_checkpoints:
            checkpoint, metrics = result.best_checkpoints[-1]
            return f"best {attribute}={lookup(metrics, attribute)} in {checkpoint.place.name}"
        return f"last {format_metrics(result.metrics)}" if result.metrics else ""


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


def _in_context(
    function: Callable[..., R], context: Callable[[], AbstractContextManager[object]]
) -> Callable[..., R]:
    """Return a train function that runs in what a framework makes around it."""
    if context is contextlib.nullcontext:
        return function

    @functools.wraps(function)
    def within(*args: object) -> R:
        with context():
            return function(*args)

    return within


def _checked(value: object, kind: type[T], name: str) -> T:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {kind.__name__}, not {value!r}")
    return value


def _checked_function_config(config: object) -> Mapping[str, object]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        remedy = "vars(...) of it is one" if hasattr(config, "__dict__") else "such as {'lr': 0.1}"
        raise ConfigError(f"train_loop_config must be a dict, not {config!r}; {remedy}")
    return config


@contextlib.contextmanager
def _engine_for(scaling: ScalingConfig) -> Iterator[Engine]:
    """Give the session's engine, or for num_workers=0 an inline one, of what the session has."""
    if scaling.num_workers:
        yield session.current_engine()
        return
    engine = load("inline", session.local_options(), Settings())
    try:
        yield engine
    finally:
        engine.close()


def _new_name(storage: Place) -> str:
    """Return a name that nobody has, and make its directory, so that nobody takes it."""
    stem = time.strftime("run-%Y-%m-%d_%H-%M-%S")
    if isinstance(storage, RemotePath):
        return f"{stem}-{secrets.token_hex(3)}"
    for number in itertools.count(1):
        name = stem if number == 1 else f"{stem}-{number}"
        try:
            (storage / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # whoever opens the directory says it better
            pass
        return name
    raise AssertionError("there is always a next number")


answer_for(__name__)
