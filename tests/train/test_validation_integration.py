"""Checkpoints that are validated by tasks beside the training: `report(validation=...)`."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray.errors import ConfigError, SerializationError
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointConsistencyMode,
    DataParallelTrainer,
    FailureConfig,
    ReportedCheckpointStatus,
    Result,
    RunConfig,
    RunContext,
    ScalingConfig,
    UserCallback,
    ValidationConfig,
    ValidationTaskConfig,
)
from tests.support.gates import Gate, until

COMMITTED = CheckpointConsistencyMode.COMMITTED


def trainer(
    function: Callable[..., Any],
    storage: Path,
    validation: ValidationConfig | None,
    workers: int = 1,
    **config: Any,
) -> DataParallelTrainer:
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="run", storage_path=storage, **config),
        validation_config=validation,
    )


def report(number: int, validation: bool | ValidationTaskConfig = True, **more: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "number").write_text(str(number))
        dray.train.report({"number": number}, Checkpoint(directory), validation=validation, **more)


def number_in(checkpoint: Checkpoint) -> int:
    with checkpoint.as_directory() as directory:
        return int(Path(directory, "number").read_text())


def statuses(mode: CheckpointConsistencyMode, **more: Any) -> list[tuple[int, str, int | None]]:
    return [
        (each.metrics["number"], each.status.name, each.metrics.get("score"))
        for each in dray.train.get_all_reported_checkpoints(mode, **more)
    ]


def test_metrics_of_a_validation_join_those_of_its_checkpoint(engine: str, storage: Path) -> None:
    """The best is the best after its validation, and none is deleted before."""

    def validate(checkpoint: Checkpoint, sign: int, plus: int = 0) -> dict[str, Any]:
        if sign == 0:
            raise RuntimeError("no sign")
        return {"score": sign * number_in(checkpoint) + plus, "nested": {"sign": sign}}

    def train() -> list[Any]:
        for number in (0, 5, 4):
            report(number)
        before = statuses(CheckpointConsistencyMode.VALIDATED)
        report(9, ValidationTaskConfig({"sign": 0}))
        report(7, ValidationTaskConfig({"plus": 100}))
        report(1, validation=False)
        return [before, statuses(CheckpointConsistencyMode.VALIDATED)]

    validation = ValidationConfig(validate, ValidationTaskConfig({"sign": -1}))
    keep = CheckpointConfig(2, "score", "max")
    workers = 1 if engine == "inline" else 2
    result = trainer(train, storage, validation, workers, checkpoint_config=keep).fit()
    assert result.return_value == [
        [(number, "VALIDATED", -number) for number in (0, 4)],
        [(0, "VALIDATED", 0), (7, "VALIDATED", 93), (1, "COMMITTED", None)],
    ]
    assert result.metrics == {"number": 1}
    again = Result.from_path(result.path)
    for each in (result, again):
        best = [metrics["number"] for _, metrics in each.best_checkpoints]
        assert best == [1, 0, 7]
        assert number_in(each.get_best_checkpoint("score", "min")) == 0
    table = again.metrics_dataframe
    assert list(table["number"]) == [0, 5, 4, 9, 7, 1]
    assert list(table["score"].fillna(-1)) == [0, -1, -1, -1, 93, -1]
    assert table["nested/sign"][4] == -1


def test_fit_waits_for_validations_that_had_no_room_beside_the_workers(
    session: Any,
    storage: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    session(num_cpus=2)

    def validate(checkpoint: Checkpoint) -> dict[str, Any]:
        return {"score": number_in(checkpoint)}

    def train() -> list[Any]:
        report(3)
        report(4)
        return statuses(COMMITTED) + statuses(CheckpointConsistencyMode.VALIDATED, timeout_s=0.01)

    result = trainer(train, storage, ValidationConfig(validate), workers=2).fit()
    assert result.return_value == 2 * [
        (3, "PENDING_VALIDATION", None),
        (4, "PENDING_VALIDATION", None),
    ]
    assert result.metrics == {"number": 4, "score": 4}
    assert "waiting for the validation of checkpoint_000000 and 1 more" in capfd.readouterr().err
    states = [
        event["state"]
        for event in map(json.loads, Path(result.path, "events.jsonl").read_text().splitlines())
        if event["event"] == "state"
    ]
    assert states[-3:] == ["FINISHING", "VALIDATING", "FINISHED"]


def test_what_a_failed_run_has_left_is_validated_before_it_ends_or_as_it_goes_on(
    session: Any, storage: Path, gate: Gate, second_gate: Gate
) -> None:
    """The session ends while a failed run waits for a validation; the run goes on, and fails."""

    def validate(checkpoint: Checkpoint, score: int = 0) -> dict[str, Any]:
        if not score:
            second_gate.open()
            gate.wait()
        return {"score": score}

    def train() -> None:
        if dray.train.get_checkpoint() is None:
            report(0)
            report(1, ValidationTaskConfig({"score": 5}))
            second_gate.wait()
            raise RuntimeError("it has failed")
        report(2, ValidationTaskConfig({"score": 7}))
        raise RuntimeError("it has failed again")

    def end_session() -> None:
        until(lambda: '"VALIDATING"' in (storage / "run" / "events.jsonl").read_text())
        dray.shutdown()

    class EndSession(UserCallback):
        def after_exception(self, run_context: RunContext, worker_exceptions: Any) -> None:
            threading.Thread(target=end_session).start()

    def scores() -> list[Any]:
        found = Result.from_path(storage / "run").best_checkpoints
        return [metrics.get("score") for _, metrics in found]

    session(num_cpus=4)
    validation = ValidationConfig(validate)
    with pytest.raises(RuntimeError, match="it has failed"):
        trainer(train, storage, validation, callbacks=[EndSession()]).fit()
    assert scores() == [None, None]
    gate.open()
    session(num_cpus=4)
    with pytest.raises(RuntimeError, match="it has failed again"):
        trainer(train, storage, validation).fit()
    assert scores() == [0, 5, 7]


def test_validations_that_fail_say_which_and_lose_nothing(
    process_engine: None,
    storage: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")

    def validate(checkpoint: Checkpoint, how: str) -> Any:
        if how == "raises":
            raise ValueError("no such thing")
        if how == "dies":
            os._exit(3)
        if how == "takes long":
            time.sleep(60)
        return 3 if how == "returns 3" else {"score": object()}

    def train() -> list[str]:
        for number, how in enumerate(hows):
            report(number, ValidationTaskConfig({"how": how}, 0.3 if "long" in how else None))
        return [each.status.name for each in dray.train.get_all_reported_checkpoints()]

    hows = ["raises", "dies", "takes long", "returns 3", "returns no metric"]
    validation = ValidationConfig(validate, ray_remote_kwargs={"max_retries": 0, "num_cpus": 0.5})
    result = trainer(train, storage, validation).fit()
    failed = ReportedCheckpointStatus.VALIDATION_FAILED.name
    late = ReportedCheckpointStatus.VALIDATION_TIMEOUT.name
    assert result.return_value == [failed, failed, late, failed, failed]
    assert [number_in(checkpoint) for checkpoint, _ in result.best_checkpoints] == [0, 1, 2, 3, 4]
    told = capfd.readouterr().err
    assert "the validation of checkpoint_000000 failed, the checkpoint stays" in told
    assert "no such thing" in told
    assert "the validation of checkpoint_000002 was given up after 0.3 s" in told
    assert "the validation function must return a dict, not 3" in told


def test_a_restart_does_not_disturb_a_validation(
    process_engine: None, storage: Path, gate: Gate, second_gate: Gate
) -> None:
    def validate(checkpoint: Checkpoint) -> dict[str, Any]:
        second_gate.open()
        gate.wait()
        return {"score": number_in(checkpoint)}

    def train() -> list[Any]:
        if dray.train.get_checkpoint() is None:
            report(1)
            second_gate.wait()
            os._exit(1)
        gate.open()
        return statuses(CheckpointConsistencyMode.VALIDATED)

    once = FailureConfig(max_failures=1)
    result = trainer(train, storage, ValidationConfig(validate), failure_config=once).fit()
    assert result.return_value == [(1, "VALIDATED", 1)]


def test_ctrl_c_ends_a_validation_which_runs_again_when_the_run_goes_on(
    process_engine: None, storage: Path, gate: Gate, second_gate: Gate
) -> None:
    def validate(checkpoint: Checkpoint) -> dict[str, Any]:
        gate.pass_through()
        return {"score": number_in(checkpoint)}

    def train() -> list[Any]:
        if dray.train.get_checkpoint() is None:
            report(1)
            second_gate.wait()
        return statuses(CheckpointConsistencyMode.VALIDATED)

    class CtrlC(UserCallback):
        def after_report(self, *_: Any, **__: Any) -> None:
            gate.heard()
            os.kill(os.getpid(), signal.SIGINT)

    validation = ValidationConfig(validate)
    with pytest.raises(KeyboardInterrupt):
        trainer(train, storage, validation, callbacks=[CtrlC()]).fit()
    until(lambda: dray.available_resources() == dray.cluster_resources())
    gate.open()
    result = trainer(train, storage, validation).fit()
    assert result.return_value == [(1, "VALIDATED", 1)]


def test_what_cannot_be_validated_is_refused(process_engine: None, storage: Path) -> None:
    anything: Any = object()

    def train() -> None:
        with pytest.raises(ConfigError, match=r"validation=\.\.\. needs a checkpoint"):
            dray.train.report({}, validation=True)
        with pytest.raises(ConfigError, match="must be a bool or ValidationTaskConfig, not"):
            report(0, anything)
        with pytest.raises(ConfigError, match=r"validation_config=ValidationConfig\(fn\)"):
            report(0)

    def fine(checkpoint: Checkpoint) -> dict[str, Any]:
        return {"lock": lock}

    lock = threading.Lock()
    trainer(train, storage, None).fit()
    for make, match in (
        (lambda: ValidationConfig(anything), "fn must be a function"),
        (lambda: ValidationConfig(fine, anything), "must be a ValidationTaskConfig"),
        (lambda: ValidationConfig(fine, ray_remote_kwargs={"cpus": 1}), "cpus"),
        (lambda: ValidationConfig(fine, ray_remote_kwargs={"num_returns": 2}), "one dict"),
        (lambda: ValidationTaskConfig(timeout_s=0), "more than 0, not 0"),
        (lambda: ValidationTaskConfig({"a": anything}), "JSON-serializable"),
        (lambda: trainer(train, storage, anything), "must be a ValidationConfig"),
    ):
        with pytest.raises(ConfigError, match=match):
            make()
    with pytest.raises(SerializationError, match="the function of validation_config"):
        trainer(train, storage, ValidationConfig(fine)).fit()
