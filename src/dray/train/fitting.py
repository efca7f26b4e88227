"""One `fit()` of a trainer: opens the run's directory, and runs the controller."""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from dray import session
from dray.engines import load
from dray.engines.base import Engine
from dray.engines.rpc import wire
from dray.errors import ConfigError, InfeasibleError, StorageError
from dray.settings import Settings
from dray.train.backend import Backend, BackendConfig
from dray.train.config import CheckpointConfig, RunConfig
from dray.train.data_config import Datasets
from dray.train.planning.plan import Plan, end_script, make_plan
from dray.train.ray_datasets import check_engine, is_rays, split_on_start
from dray.train.result import Result
from dray.train.run import description
from dray.train.run.collection_pause import CollectionPause
from dray.train.run.controller import Controller
from dray.train.run.failure import Outcome
from dray.train.run.interruption import GoesTo, interrupts_go_to, termination_held
from dray.train.run.output.progress import Progress, format_metrics
from dray.train.run.output.screens import open_screen
from dray.train.run.retention import lookup
from dray.train.run.state import State
from dray.train.scaling import ScalingConfig
from dray.train.storage.place import Place, RemotePath, path_within
from dray.train.storage.run_directory import RunDirectory
from dray.train.validation import ValidationConfig
from dray.train.worker.train_worker import Job

R = TypeVar("R")


@dataclass(frozen=True)
class Fitting:
    """The arguments of a trainer, checked, and what is done with them."""

    function: Callable[..., object]
    takes_config: bool
    function_config: Mapping[str, object]
    backend_config: BackendConfig
    scaling: ScalingConfig
    config: RunConfig
    validation: ValidationConfig | None
    datasets: Datasets

    def plan(self) -> Plan:
        """Return what `fit` would do now."""
        with _engine_for(self.scaling) as engine:
            return self._plan_on(engine)

    def _plan_on(self, engine: Engine, impossible: InfeasibleError | None = None) -> Plan:
        return make_plan(engine, self.scaling, self.config, self._backend(), impossible)

    def _backend(self) -> tuple[Backend, BackendConfig]:
        backend = self.backend_config.backend_cls()
        wished = Settings().share_devices
        if wished is not None:
            backend.share_cuda_visible_devices = wished
        of_ray = {name: value for name, value in self.datasets.by_name.items() if is_rays(value)}
        if of_ray:
            split_on_start(backend, of_ray, self.datasets.config)
        return backend, self.backend_config

    def fit(self, pause: CollectionPause) -> Result:
        """Run the function to its end on every worker; see `DataParallelTrainer.fit`.

        Args:
            pause: Ends when workers run, or before anything in this process that may take long.
        """
        settings = Settings()
        if settings.plan_path:
            end_script(self.plan(), Path(settings.plan_path))
        if settings.launched_processes > 1:
            raise ConfigError(
                f"torchrun has started this script in {settings.launched_processes} processes, "
                "and each would train on its own: start it with python, and set "
                f"ScalingConfig(num_workers={settings.launched_processes})"
            )
        storage = self.config.storage
        with termination_held() as termination_goes_to, _engine_for(self.scaling) as engine:
            self._check_feasible(engine)
            if self.datasets.by_name or not engine.distributed:
                pause.end()
            datasets = self._shipped(engine)  # what it has staged is there until the run is over
            job = self._job(engine, datasets)
            directory = RunDirectory(storage / (self.config.name or _new_name(storage)))
            directory.storage.open()
            try:
                return self._run(engine, directory, job, termination_goes_to, pause)
            finally:
                directory.storage.close()

    def _check_feasible(self, engine: Engine) -> None:
        """Refuse what can never be met, before anything is made."""
        workers = self.scaling.min_workers if engine.distributed else 1
        engine.await_nodes(self.scaling.request(workers))
        try:
            engine.check(self.scaling.request(workers), self.config.runtime_env)
        except InfeasibleError as error:
            why = self._plan_on(engine, error).why
            raise InfeasibleError(why, asked=error.asked, available=error.available) from None

    def _job(self, engine: Engine, datasets: Datasets) -> bytes | Job:
        config = dict(self.function_config)
        function = _in_context(self.function, self.backend_config.train_func_context)
        arguments = (config,) if self.takes_config else ()
        if not engine.distributed:
            return Job(function, arguments, datasets)
        if self.validation is not None:
            wire.dump(self.validation.fn, "the function of validation_config")
        name = getattr(self.function, "__name__", repr(self.function))
        wire.dump(function, f"the train function {name!r}")
        wire.dump(arguments, "train_loop_config")
        return wire.dump(Job(function, arguments, datasets), "datasets")

    def _shipped(self, engine: Engine) -> Datasets:
        """Return the datasets as workers read them: what ranks cannot share by number is staged."""
        given = self.datasets
        if not given.by_name:
            return given
        from dray.data.accepted import dataset_of
        from dray.data.context import DataContext

        named: dict[str, Any] = {}
        for name, value in given.by_name.items():
            if is_rays(value):
                check_engine(engine, name)
                named[name] = None  # each rank is given its share as it starts
            else:
                named[name] = dataset_of(value, name).to_ship()
        return Datasets(named, given.config, DataContext.get_current())

    def _run(
        self,
        engine: Engine,
        directory: RunDirectory,
        job: bytes | Job,
        termination_goes_to: GoesTo,
        pause: CollectionPause,
    ) -> Result:
        """Have a controller run to the end, where Ctrl-C, SIGTERM and `dray status` reach it."""
        settings, output = Settings(), self.config.logging_config
        screen, fold = open_screen(settings.progress), settings.fold_output and output.fold_repeated
        progress = Progress(directory.name, directory.path, screen, output.log_level, fold=fold)
        with contextlib.closing(progress):  # also if the run cannot begin
            directory.warn = progress.warn
            self._describe(engine, directory, progress)
            controller = Controller(
                engine,
                directory,
                self.scaling,
                self.config,
                self._backend(),
                job,
                progress,
                settings,
                validation=self.validation,
                started=pause.end,
            )
            state = State.ABORTED
            shown = engine.show("trainings", lambda: asdict(controller.status()))
            try:
                termination_goes_to(controller.interrupt)
                with interrupts_go_to(controller.interrupt):
                    outcome = engine.drive(controller.run)
                state = outcome.state
            finally:
                shown()
                progress.close()
                result = self._result(directory)
                progress.summary(state, self._best(result))
            return self._conclude(outcome, result)

    def _describe(self, engine: Engine, directory: RunDirectory, progress: Progress) -> None:
        """Write run.json; tell in what the run differs from the one that had its name before."""
        given = (self.function, self.function_config, self.scaling, self.config)
        described = description.describe(engine.name, *given, self.backend_config)
        before, choice = description.read(directory), self.config.on_mismatch
        differences = description.differences(before, described)
        changed = "; ".join(differences)
        otherwise = f"give RunConfig another name, or delete {directory.path}"
        if changed and choice == "error":
            raise ConfigError(
                f"the run {directory.name!r} was started with other code or settings: {changed}. "
                f"To train anew, {otherwise}; to continue it all the same, leave out "
                "on_mismatch='error'"
            )
        if changed and choice == "warn":
            progress.warn(
                f"continues a run that was started with other code or settings: {changed}. If "
                f"you do not want that, {otherwise}"
            )
        directory.write_run(description.with_history(described, before))
        if changed:
            directory.record("changed since the last start", changes=differences)

    def _result(self, directory: RunDirectory) -> Result:
        """Return what the directory says; if it cannot be read, the run has ended all the same."""
        try:
            # Workers have ended: what they had begun to stage is nobody's.
            directory.storage.recover()
            return Result.read(directory, self.config.checkpoint_config)
        except StorageError as error:
            directory.warn_once(
                f"{error}. The run's reports cannot be read, so its Result has no metrics and no "
                "checkpoint"
            )
            return Result(None, None, None, path_within(directory.path))

    def _conclude(self, outcome: Outcome, result: Result) -> Result:
        if outcome.error is not None:
            raise outcome.error
        if outcome.state is State.ABORTED:
            name = Path(result.path).name
            advice = (
                f"run again with RunConfig(name={name!r}) to continue from its newest checkpoint"
            )
            if outcome.checkpoint is None:
                advice = "it has no checkpoint to continue from"
            raise KeyboardInterrupt(f"the run was stopped; {advice}")
        result.return_value = outcome.return_value
        return result

    def _best(self, result: Result) -> str:
        config: CheckpointConfig = self.config.checkpoint_config
        attribute = config.checkpoint_score_attribute
        if attribute is not None and result.best_checkpoints:
            checkpoint, metrics = result.best_checkpoints[-1]
            return f"best {attribute}={lookup(metrics, attribute)} in {checkpoint.place.name}"
        return f"last {format_metrics(result.metrics)}" if result.metrics else ""


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
    with contextlib.suppress(OSError):  # whoever opens the run's directory says it better
        storage.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        name = stem if number == 1 else f"{stem}-{number}"
        try:
            (storage / name).mkdir()
        except FileExistsError:
            continue
        except OSError:  # as above
            pass
        return name
    raise AssertionError("there is always a next number")
