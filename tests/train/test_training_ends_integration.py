"""How a training ends: what it returns, who waits in vain, and errors without a text."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

import dray.train
from dray.errors import ConfigError, StorageError
from dray.train import (
    Checkpoint,
    ControllerError,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    UserCallback,
    WorkerGroupError,
)
from tests.support.gates import Gate, until
from tests.support.holding import Watch, hold
from tests.support.limits import room_in_files
from tests.support.programs import run, write
from tests.support.train_runs import fit

pytestmark = pytest.mark.usefixtures("engine")

on_processes = pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)


def events(storage: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (storage / "run/events.jsonl").read_text().splitlines()]


# What the function returns.


class LoadsOnlyWhereItTrained:
    """Pickles, but asks for what only a worker has, as a model of a process group does."""

    def __reduce__(self) -> Any:
        return (_model_of_the_group, ())


def _model_of_the_group() -> LoadsOnlyWhereItTrained:
    dray.train.get_context()
    return LoadsOnlyWhereItTrained()


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (threading.Lock, r"the return value of rank 0 \(a _thread.lock\) cannot be pickled"),
        (LoadsOnlyWhereItTrained, r"does not load in the driver \(NotInTrainingError"),
    ],
)
def test_a_return_value_that_cannot_be_sent_fails_nothing(
    storage: Path, capfd: Any, monkeypatch: Any, engine: str, returned: Any, reason: str
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")

    def train() -> Any:
        dray.train.report({"loss": 1.0})
        return returned()

    result: Result = fit(train, storage, failure_config=FailureConfig(max_failures=2))
    assert result.metrics == {"loss": 1.0}
    assert [e["attempt"] for e in events(storage) if e.get("state") == "RUNNING"] == [0]
    shown = capfd.readouterr().err
    if engine == "inline":  # nothing had to be sent
        assert type(result.return_value) is type(returned())
        assert "return value" not in shown
        return
    assert result.return_value is None
    assert "the return value of rank 0 cannot be sent" in shown
    assert "; Result.return_value is None" in shown
    [lost] = [event for event in events(storage) if event["event"] == "return value lost"]
    assert re.search(reason, lost["cause"])


@on_processes
def test_only_rank_zero_sends_what_it_returns(storage: Path) -> None:
    class Costly:
        def __reduce__(self) -> Any:
            raise AssertionError("pickled")

    def train() -> Any:
        return Costly() if dray.train.get_context().get_world_rank() else 7

    assert fit(train, storage).return_value == 7


# What is a train function.


def generates(config: Any) -> Iterator[int]:
    yield 1


async def waits(config: Any) -> None: ...


async def waits_and_generates() -> AsyncIterator[int]:
    yield 1


class Called:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a, b: None, "needs a, b; put them into train_loop_config"),
        (lambda *, a: None, "needs a; put"),
        (42, "must be a function, not 42"),
        (generates, "'generates' has a yield"),
        (waits, r"'waits' is async.*asyncio\.run"),
        (waits_and_generates, "'waits_and_generates' is async"),
        (functools.partial(functools.partial(waits), {}), "'waits' is async"),
        (Called(), "is async"),
        (functools.partial(Called()), "is async"),
    ],
)
def test_what_is_no_train_function_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataParallelTrainer(function)


def test_starred_arguments_take_the_config_if_there_is_one(storage: Path) -> None:
    def decorated(function: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    assert fit(lambda *config: config, storage / "1", config={"lr": 1}).return_value == ({"lr": 1},)
    assert fit(decorated(lambda c: c["lr"]), storage / "2", config={"lr": 1}).return_value == 1
    assert fit(decorated(lambda: "no config"), storage / "3").return_value == "no config"


# Who waits in vain.


@on_processes
def test_a_rank_that_comes_to_a_collective_when_another_has_returned(storage: Path) -> None:
    def train() -> None:
        if dray.train.get_context().get_world_rank() == 0:
            saved = storage / "saved"
            saved.mkdir()
            dray.train.report({}, Checkpoint(saved))  # waits for ranks that still run
            dray.train.collective.broadcast_from_rank_zero(5)

    expected = (
        r"rank 0 waits in broadcast_from_rank_zero\(\) for rank 1, whose function has returned; "
        "every rank must call it"
    )
    with pytest.raises(TrainingFailedError, match=expected):
        fit(train, storage)


@on_processes
def test_a_rank_that_returns_when_another_waits_in_a_collective(storage: Path) -> None:
    def train() -> None:
        waits = storage / "run" / "waits"
        if dray.train.get_context().get_world_rank() == 0:
            threading.Timer(0.2, waits.touch).start()
            dray.train.collective.barrier()
        while not waits.exists():
            time.sleep(0.01)

    with pytest.raises(TrainingFailedError, match=r"rank 0 waits in barrier\(\) for rank 1, whose"):
        fit(train, storage)


# What ends a run on the driver's side.


def test_a_checkpoint_that_cannot_be_committed_is_a_failed_training(storage: Path) -> None:
    def train() -> None:
        directory = storage / "saved"
        directory.mkdir()
        for number in range(500):  # their names alone are more than 16 KiB
            (directory / f"file number {number:020}").touch()
        dray.train.report({}, Checkpoint(directory))

    with room_in_files(16 * 1024), pytest.raises(TrainingFailedError) as caught:
        fit(train, storage, workers=1)
    assert isinstance(caught.value, ControllerError)
    assert isinstance(caught.value, StorageError)
    assert isinstance(caught.value.controller_failure, StorageError)
    assert caught.value.__cause__ is caught.value.controller_failure
    assert "not by a worker: StorageError: the checkpoint" in str(caught.value)


# Errors without a text.


class QuotaError(Exception):
    def __str__(self) -> str:
        return self.response.text  # type: ignore[attr-defined]

    __repr__ = __str__


def test_an_error_whose_text_fails_is_a_workers_error(storage: Path, engine: str) -> None:
    tries = storage.parent / "tries"

    def train() -> None:
        with open(tries, "a") as file:
            file.write("x")
        raise QuotaError

    with pytest.raises(QuotaError) as caught:
        fit(train, storage, workers=1, failure_config=FailureConfig(max_failures=1))
    assert isinstance(caught.value, WorkerGroupError)
    assert "rank 0 failed: QuotaError: <its str() failed>" in str(caught.value)
    if engine != "inline":  # its traceback needs no text
        assert "raise QuotaError" in str(caught.value)
    assert tries.read_text() == "xx"


def test_an_error_of_a_callback_whose_text_fails_is_told(storage: Path) -> None:
    class Broken(UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            raise QuotaError

    with pytest.raises(ControllerError, match=r"QuotaError: <its str\(\) failed>"):
        fit(lambda: dray.train.report({}), storage, callbacks=[Broken()])


# Who may have what the workers had.


@pytest.mark.parametrize("engine_name", ["process"], indirect=True)
def test_what_a_worker_had_is_free_when_it_has_ended(storage: Path) -> None:
    """Also when the run fails on the driver's side: the memory of a GPU is taken until then."""

    @dray.remote(num_cpus=8)
    def runs(pid: int) -> bool:
        return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

    class Fails(UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            looks.append(runs.remote(metrics[0]["pid"]))
            raise KeyError("callback")

    def train() -> None:
        takes_long_to_free = bytearray(b"x" * 10**9)
        dray.train.report({"pid": os.getpid(), "size": len(takes_long_to_free)})
        threading.Event().wait()

    looks: list[Any] = []
    assert dray.get(runs.remote(os.getpid()))  # its worker is there when the next look comes
    with pytest.raises(ControllerError):
        DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(resources_per_worker={"CPU": 8}),
            run_config=RunConfig(storage_path=storage, callbacks=[Fails()]),
        ).fit()
    assert dray.get(looks) == [False]


@contextlib.contextmanager
def shut_down_amid(function: Any, storage: Path, what: str, **run: Any) -> Iterator[None]:
    """Run a function in a thread, and end the session after the block, amid what `fit()` does."""
    errors: list[BaseException] = []

    def fit_and_fail() -> None:
        try:
            fit(function, storage, **run)
        except ControllerError as error:
            errors.append(error)

    thread = threading.Thread(target=fit_and_fail)
    thread.start()
    yield
    dray.shutdown()
    thread.join(60)
    (error,) = errors
    assert f"dray.shutdown() was called while fit() {what}" in str(error)


@on_processes
def test_a_run_in_a_thread_ends_with_the_session(engine: str, storage: Path, gate: Gate) -> None:
    def train(config: dict[str, Gate]) -> None:
        config["gate"].pass_through()

    with shut_down_amid(train, storage, "was at work", workers=1, config={"gate": gate}):
        gate.heard()
    assert not ray.is_initialized()  # what kills too late would make Ray connect anew


@on_processes
def test_a_run_that_waits_ends_with_the_session(
    engine: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    holder = hold(num_cpus=4)
    with shut_down_amid(print, storage, "waited for resources", workers=8):
        watch.wait_for("run: waiting up to")
    del holder
    until(lambda: "dray-reserve" not in {thread.name for thread in threading.enumerate()})
    assert not ray.is_initialized()  # Ray would connect anew, or start a cluster, for who is late


def test_a_trainer_of_a_session_that_is_over_does_not_wait(engine: str, storage: Path) -> None:
    class Ends(UserCallback):
        def before_run(self, run_context: Any) -> None:
            dray.shutdown()

    with pytest.raises(ControllerError, match="shutdown"):
        fit(print, storage, workers=1, callbacks=[Ends()])


@on_processes
def test_a_run_that_backs_off_ends_with_the_session(
    engine: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.train.run.failure._FIRST_BACK_OFF_S", 600.0)
    monkeypatch.setattr("dray.train.run.failure._LONGEST_BACK_OFF_S", 600.0)
    watch = Watch(monkeypatch)

    def train() -> None:
        raise LookupError

    again = FailureConfig(max_failures=-1)
    with shut_down_amid(train, storage, "waited to restart", workers=1, failure_config=again):
        watch.wait_for("run: restarting in 600 s")
    assert not ray.is_initialized()


def test_processes_of_joblib_end_before_what_they_need(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    script = write(
        tmp_path / "script.py",
        """
        def train():
            import joblib
            print(joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(-i) for i in range(3)))

        fit(train, workers=1)
        """,
    )
    ended = run(script, tmp_path / "runs")
    assert "[0, 1, 2]" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
