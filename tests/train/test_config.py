"""Configs say at construction what is wrong with them."""

from __future__ import annotations

import argparse
import json
import operator
import threading
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dray.errors import ConfigError
from dray.train import (
    CheckpointConfig,
    DataConfig,
    DataParallelTrainer,
    FailureConfig,
    LoggingConfig,
    RunConfig,
    ScalingConfig,
)
from dray.train.jax import JaxConfig
from dray.train.torch import TorchConfig, TorchTrainer


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (FailureConfig, {"max_failures": -2}, "-1"),
        (FailureConfig, {"max_failures": 1.5}, "max_failures"),
        (FailureConfig, {"max_failures": np.float64(2)}, "max_failures"),
        (FailureConfig, {"max_failures": True}, "max_failures"),
        (CheckpointConfig, {"num_to_keep": 0}, "1 or more"),
        (CheckpointConfig, {"num_to_keep": np.int8(0)}, "1 or more"),
        (CheckpointConfig, {"checkpoint_score_order": "up"}, "'max' or 'min'"),
        (CheckpointConfig, {"checkpoint_score_attribute": 0}, "the name of a metric, .* not 0"),
        (CheckpointConfig, {"checkpoint_score_attribute": ["a"]}, "the name of a metric"),
        (LoggingConfig, {"log_level": "LOUD"}, "DEBUG, INFO, WARNING"),
        (RunConfig, {"name": "a/b"}, "the name of one directory"),
        (RunConfig, {"name": ".."}, "the name of one directory"),
        (RunConfig, {"failure_config": {}}, r"dray\.train\.FailureConfig"),
        (RunConfig, {"callbacks": [print]}, r"instances of dray\.train\.UserCallback"),
        (RunConfig, {"worker_runtime_env": {"env": {}}}, "has no env; there are env_vars"),
        (RunConfig, {"worker_runtime_env": {"env_vars": {"A": 1}}}, "strings to strings"),
        (RunConfig, {"worker_runtime_env": {"env_vars": {"A=B": "1"}}}, "have no '='"),
        (RunConfig, {"worker_runtime_env": {"env_vars": {"": "1"}}}, "names are not empty"),
        (RunConfig, {"worker_runtime_env": {"env_vars": {"A": "1\0"}}}, "null character"),
        (RunConfig, {"worker_runtime_env": [1]}, "must be a dict"),
        (RunConfig, {"worker_runtime_env": {"working_dir": 3}}, "path of a directory, not 3"),
        (RunConfig, {"report_barrier": "False"}, "report_barrier must be True or False"),
        (RunConfig, {"shared_storage": "no"}, "shared_storage must be True or False, not 'no'"),
        (DataConfig, {"equal": "False"}, "equal must be True or False, not 'False'"),
        (DataConfig, {"resume": 1}, "resume must be True or False, not 1"),
        (RunConfig, {"storage_path": "nosuch://bucket/x"}, "fsspec knows no nosuch://"),
        (RunConfig, {"storage_path": 5}, "storage_path must be the path of a directory, not 5"),
    ],
)
def test_other_configs_that_are_refused(kind: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**options)


@pytest.mark.parametrize(
    "variables",
    [{"A": b"sEcReT"}, {"A": "sEcReT\0"}, [("A", "sEcReT")], '{"A": "sEcReT"}', {"A": "sEcReT"}],
)
def test_no_value_of_a_variable_is_shown(variables: Any) -> None:
    for given in ({"env_vars": variables}, str(variables)):
        try:
            said = repr(RunConfig(worker_runtime_env=given))  # type: ignore[arg-type]
        except ConfigError as error:
            said = str(error)
        assert "sEcReT" not in said


@pytest.mark.parametrize(
    ("config", "name", "value", "message"),
    [
        ("scaling", "num_workers", -1, "num_workers must be 0 .* or more, not -1"),
        ("scaling", "num_workers", "2", "num_workers must be a whole number"),
        ("run", "name", "../esc", "the name of one directory"),
        ("run.failure_config", "max_failures", -2, "max_failures must be -1"),
        ("run.checkpoint_config", "num_to_keep", -1, "num_to_keep must be None .* or 1 or more"),
        ("run.logging_config", "log_level", "loud", "log_level must be one of DEBUG"),
        ("backend", "timeout_s", "5", "timeout_s must be a number of seconds"),
        ("dataset", "equal", "no", "equal must be True or False"),
    ],
)
def test_what_is_set_after_a_trainer_is_made_is_checked_when_it_begins(
    config: str, name: str, value: Any, message: str, tmp_path: Path
) -> None:
    configs: dict[str, Any] = {
        "scaling": ScalingConfig(num_workers=0),
        "run": RunConfig(storage_path=tmp_path / "runs"),
        "backend": TorchConfig(),
        "dataset": DataConfig(),
    }
    given = {f"{kind}_config": config for kind, config in configs.items()}
    trainer = DataParallelTrainer(lambda: None, **given)
    setattr(operator.attrgetter(config)(types.SimpleNamespace(**configs)), name, value)
    for begin in (trainer.plan, trainer.fit):
        with pytest.raises(ConfigError, match=message):
            begin()
    assert list(tmp_path.iterdir()) == []


def test_a_level_may_be_set_in_small_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "0")
    run = RunConfig(storage_path=tmp_path)
    scaling = ScalingConfig(num_workers=0)
    trainer = DataParallelTrainer(lambda: None, scaling_config=scaling, run_config=run)
    run.logging_config.log_level = "debug"
    assert trainer.fit().error is None


def test_storage_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert RunConfig(storage_path="./rel/../x").storage == tmp_path / "x"
    assert RunConfig(storage_path=Path("x")).storage == tmp_path / "x"
    assert RunConfig(storage_path="~/x").storage == tmp_path / "home/x"
    assert RunConfig(storage_path="file:///a/b").storage == Path("/a/b")
    assert RunConfig().storage == tmp_path / "home/dray_results"
    moved = RunConfig()
    moved.storage_path = "nosuch://bucket/x"
    with pytest.raises(ConfigError, match="fsspec knows no nosuch://"):
        _ = moved.storage


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (argparse.Namespace(lr=1), r"must be a dict, not Namespace\(lr=1\); vars\(\.\.\.\) of it"),
        ("lr=1", r"must be a dict, not 'lr=1'; such as \{'lr': 0\.1\}"),
        ([("lr", 1)], "must be a dict"),
    ],
)
def test_configs_of_train_functions_that_are_refused(given: Any, message: str) -> None:
    config = ScalingConfig(num_workers=0)
    with pytest.raises(ConfigError, match=message):
        DataParallelTrainer(print, train_loop_config=given, scaling_config=config)


def test_mappings_are_configs_of_train_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "0")
    for given, seen in ((types.MappingProxyType({"lr": 1}), {"lr": 1}), ({}, {}), (None, {})):
        trainer = DataParallelTrainer(
            lambda config: config,
            train_loop_config=given,
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(storage_path=tmp_path),
        )
        assert trainer.fit().return_value == seen


def test_configs_take_what_comes_first_without_its_name() -> None:
    assert FailureConfig(3) == FailureConfig(max_failures=3)
    assert LoggingConfig("DEBUG") == LoggingConfig(log_level="DEBUG")
    assert RunConfig("a", "b") == RunConfig(name="a", storage_path="b")
    assert TorchConfig("gloo", "tcp", 5) == TorchConfig(
        backend="gloo", init_method="tcp", timeout_s=5
    )
    assert CheckpointConfig(1, "loss", "min") == CheckpointConfig(
        num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min"
    )


def test_log_level_is_upper_cased() -> None:
    assert LoggingConfig(log_level="warning").log_level == "WARNING"


def test_whole_numbers_of_numpy_are_kept_as_pythons() -> None:
    found = [FailureConfig(np.int64(-1)).max_failures, CheckpointConfig(np.uint8(3)).num_to_keep]
    assert [(type(each), each) for each in found] == [(int, -1), (int, 3)]


@dataclass(kw_only=True)
class MarkedConfig(ScalingConfig):
    marks: Any = None
    lock: Any = None
    notes: dict[Any, Any] = field(default_factory=dict)


def test_a_run_tells_what_json_cannot_say_by_how_python_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "0")
    notes = {("a", 1): [Path("b")], "plain": (1, None), 2: True}
    result = DataParallelTrainer(
        lambda: None,
        scaling_config=MarkedConfig(num_workers=0, marks={"x"}, notes=notes, lock=threading.Lock()),
        run_config=RunConfig(storage_path=tmp_path),
    ).fit()
    told = json.loads(Path(result.path, "run.json").read_text())["scaling_config"]
    assert told["marks"] == "{'x'}"
    assert told["notes"] == {"('a', 1)": [repr(Path("b"))], "plain": [1, None], "2": True}
    assert told["num_workers"] == 0


@pytest.mark.parametrize("kind", [JaxConfig, TorchConfig])
@pytest.mark.parametrize(
    ("given", "kept"), [(np.int64(120), 120), (np.float32(0.5), 0.5), (np.float64(2), 2.0), (7, 7)]
)
def test_seconds_of_numpy_are_kept_as_pythons(kind: Any, given: Any, kept: float) -> None:
    found = kind(timeout_s=given).timeout_s
    assert (type(found), found) == (type(kept), kept)


@pytest.mark.parametrize("kind", [JaxConfig, TorchConfig])
@pytest.mark.parametrize("given", [True, np.bool_(1), "5", np.nan, np.inf, np.int64(0), -1])
def test_what_is_no_number_of_seconds(kind: Any, given: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s must be a number of seconds, more than 0"):
        kind(timeout_s=given)


def test_names_of_backends() -> None:
    assert TorchConfig(backend="NCCL").backend == "nccl"  # PyTorch takes it so as well
    with pytest.raises(ConfigError, match="backend must be a name such as 'gloo', not ''"):
        TorchConfig(backend="")


@pytest.mark.parametrize("given", [0, 1, np.bool_(False), "false"])
@pytest.mark.parametrize("name", ["use_tpu", "use_gpu"])
def test_jax_is_told_true_false_or_nothing(name: str, given: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be True, False, or None"):
        JaxConfig(**{name: given})


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        (ScalingConfig, "num_worker", "num_workers"),
        (RunConfig, "storage", "storage_path"),
        (LoggingConfig, "level", "log_level"),
        (FailureConfig, "max_failure", "max_failures"),
        (CheckpointConfig, "num_keep", "num_to_keep"),
    ],
)
def test_a_misspelt_argument_is_told_with_the_one_that_is_meant(
    kind: type, wrong: str, right: str
) -> None:
    with pytest.raises(TypeError, match=f"no argument '{wrong}'; did you mean {right}"):
        kind(**{wrong: 1})


@pytest.mark.parametrize("kind", [DataParallelTrainer, TorchTrainer])
def test_what_a_trainer_takes_by_name_alone(kind: Any) -> None:
    with pytest.raises(ConfigError, match="pass the dict after that by name") as told:
        kind(print, {"lr": 0.1})
    assert isinstance(told.value, TypeError)
    assert "takes train_loop_per_worker by position" in str(told.value)


def test_a_subclass_may_have_attributes_of_its_own() -> None:
    class Weighted(ScalingConfig):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.weights = np.ones(3)

    Weighted(num_workers=2).check()
