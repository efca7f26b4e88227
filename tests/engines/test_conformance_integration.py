"""What every engine must do alike: one suite, run once on each."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import dray.train
from dray.errors import ConfigError
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    UserCallback,
)

pytestmark = pytest.mark.usefixtures("engine")


def fit(function: Any, storage: Path, workers: int = 2, **options: Any) -> Result:
    """Run a function on up to `workers` workers; the inline engine always has one."""
    run_options = {
        name: options.pop(name)
        for name in ("failure_config", "checkpoint_config", "callbacks", "worker_runtime_env")
        if name in options
    }
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name=options.pop("name", "run"), storage_path=storage, **run_options),
        **options,
    ).fit()


def save(directory: str, **files: str) -> Checkpoint:
    for name, text in files.items():
        Path(directory, name).write_text(text)
    return Checkpoint.from_directory(directory)


def test_returns_what_rank_zero_returns(storage: Path) -> None:
    result = fit(lambda: {"rank": dray.train.get_context().get_world_rank()}, storage)
    assert result.return_value == {"rank": 0}
    assert result.error is None
    assert result.path == str(storage / "run")


def test_function_gets_its_config(storage: Path) -> None:
    result = fit(lambda config: config["x"] + 1, storage, train_loop_config={"x": 41})
    assert result.return_value == 42


def test_function_gets_an_empty_config_if_there_is_none(storage: Path) -> None:
    assert fit(lambda config: config, storage).return_value == {}


def test_function_runs_in_the_main_thread(storage: Path) -> None:
    def train() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert fit(train, storage).return_value is True


def test_context_tells_who_is_who(storage: Path, engine: str) -> None:
    def train() -> None:
        context = dray.train.get_context()
        dray.train.report(
            {
                "world": context.get_world_size(),
                "rank": context.get_world_rank(),
                "local": context.get_local_rank(),
                "local_world": context.get_local_world_size(),
                "node": context.get_node_rank(),
                "name": context.get_experiment_name(),
                "variables": [os.environ[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK")],
            }
        )

    world = 1 if engine == "inline" else 3  # the inline engine has one worker, this process
    fit(train, storage, workers=3)
    for rank in range(world):
        line = json.loads((storage / f"run/metrics/rank-{rank:05d}.jsonl").read_text())
        assert line["metrics"] == {
            "world": world,
            "rank": rank,
            "local": rank,
            "local_world": world,
            "node": 0,
            "name": "run",
            "variables": [str(rank), str(world), str(rank)],
        }


def test_metrics_come_back_as_they_were(storage: Path) -> None:
    def train() -> None:
        dray.train.report(
            {
                "nan": math.nan,
                "inf": -math.inf,
                "none": None,
                "text": "naïve ☃",
                "np": np.float32(0.1),
                "np_nan": np.float64("nan"),
                "int": np.int64(7),
                "bool": np.bool_(True),
                "nested": {"a": {"b": 1.5}, 3: [1, (2, math.inf)]},
                "big": 2**70,
            }
        )

    for result in (fit(train, storage), Result.from_path(storage / "run")):
        metrics = result.metrics
        assert metrics is not None
        assert math.isnan(metrics.pop("nan"))
        assert math.isnan(metrics["np_nan"])
        assert type(metrics.pop("np_nan")) is np.float64
        assert type(metrics["np"]) is np.float32
        assert type(metrics["int"]) is np.int64
        assert type(metrics["bool"]) is np.bool_
        assert metrics == {
            "inf": -math.inf,
            "none": None,
            "text": "naïve ☃",
            "np": np.float32(0.1),
            "int": 7,
            "bool": True,
            "nested": {"a": {"b": 1.5}, 3: [1, (2, math.inf)]},
            "big": 2**70,
        }


def test_every_report_is_kept_without_a_checkpoint(storage: Path) -> None:
    def train() -> None:
        for step in range(50):
            dray.train.report({"step": step, "loss": {"train": 1 / (step + 1)}})

    result = fit(train, storage)
    assert result.metrics == {"step": 49, "loss": {"train": 0.02}}
    assert result.checkpoint is None
    frame = result.metrics_dataframe
    assert list(frame["step"]) == list(range(50))
    assert list(frame.columns) == ["step", "loss/train"]


def test_ranks_need_not_report_equally_often(storage: Path) -> None:
    def train() -> None:
        for step in range(3 if dray.train.get_context().get_world_rank() == 0 else 1):
            dray.train.report({"step": step})

    assert fit(train, storage).metrics == {"step": 2}


def test_checkpoint_holds_the_files_of_all_ranks(storage: Path, engine: str) -> None:
    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        with tempfile.TemporaryDirectory() as directory:
            os.mkdir(os.path.join(directory, "sub"))
            Path(directory, "sub", f"rank-{rank}").write_text(str(rank))
            checkpoint = save(directory, shared=f"from rank {rank}")
            dray.train.report({"rank": rank}, checkpoint=checkpoint)
            assert os.path.exists(os.path.join(directory, "shared"))  # the directory stays ours

    result = fit(train, storage)
    assert result.checkpoint is not None
    assert result.checkpoint.path == str(storage / "run" / "checkpoint_000000")
    with result.checkpoint.as_directory() as path:
        ranks = ["rank-0"] if engine == "inline" else ["rank-0", "rank-1"]
        assert sorted(os.listdir(os.path.join(path, "sub"))) == ranks
        assert Path(path, "shared").read_text() == "from rank 0"
    assert result.best_checkpoints == [(result.checkpoint, {"rank": 0})]


def test_one_rank_may_bring_the_checkpoint(storage: Path) -> None:
    def train() -> None:
        if dray.train.get_context().get_world_rank() == 0:
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({"x": 1}, checkpoint=save(directory, model="weights"))
        else:
            dray.train.report({"x": 2})

    result = fit(train, storage)
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path, "model").read_text() == "weights"


def test_only_rank_zero_reports_a_checkpoint_at_all(storage: Path) -> None:
    """A rank that never reports is not waited for once its function has ended."""

    def train() -> None:
        if dray.train.get_context().get_world_rank() == 0:
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({"x": 1}, checkpoint=save(directory, model="weights"))

    assert fit(train, storage).checkpoint is not None


def test_get_checkpoint_follows_the_reports(storage: Path) -> None:
    def train() -> list[str | None]:
        seen: list[str | None] = []
        for _ in range(2):
            known = dray.train.get_checkpoint()
            seen.append(os.path.basename(known.path) if known else None)
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({}, checkpoint=save(directory, a="a"))
        known = dray.train.get_checkpoint()
        return [*seen, os.path.basename(known.path) if known else None]

    expected = [None, "checkpoint_000000", "checkpoint_000001"]
    assert fit(train, storage).return_value == expected


def test_checkpoint_can_be_named(storage: Path) -> None:
    def train() -> None:
        with tempfile.TemporaryDirectory() as directory:
            dray.train.report({}, checkpoint=save(directory, a="a"), checkpoint_dir_name="epoch=1")

    result = fit(train, storage)
    assert result.checkpoint == Checkpoint(storage / "run" / "epoch=1")


def test_checkpoint_names_that_are_the_runs_own(storage: Path) -> None:
    names = ["metrics", "logs", "run.json", "events.jsonl", ".lock", ".best"]

    def train() -> list[str]:
        messages = []
        with tempfile.TemporaryDirectory() as directory:
            for name in names:
                try:
                    dray.train.report({}, save(directory, a="a"), checkpoint_dir_name=name)
                except ConfigError as error:
                    messages.append(str(error))
        return messages

    result = fit(train, storage)
    assert [re.findall(r"must be another name than '(.+?)'", m) for m in result.return_value] == [
        [name] for name in names
    ]
    assert (result.metrics, result.checkpoint) == ({}, None)  # they count, without one
    assert set(os.listdir(result.path)) >= {"metrics", "logs", "run.json", "events.jsonl"}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_within_a_run(storage: Path, workers: int) -> None:
    def inner() -> int:
        dray.train.report({"inner": 1})
        return 7

    def outer() -> None:
        dray.train.report({"before": 1})
        found = DataParallelTrainer(
            inner,
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(name="inner", storage_path=storage),
        ).fit()
        assert dray.train.get_context().get_experiment_name() == "run"
        dray.train.report({"after": found.return_value, **(found.metrics or {})})

    assert fit(outer, storage, workers=1).metrics == {"after": 7, "inner": 1}


def test_best_checkpoints_are_kept_and_ranked(storage: Path) -> None:
    def train() -> None:
        for step, accuracy in enumerate([0.5, 0.9, 0.7, 0.1]):
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report(
                    {"step": step, "val": {"acc": accuracy}}, checkpoint=save(directory, a="a")
                )

    result = fit(
        train,
        storage,
        checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="val/acc"),
    )
    names = [os.path.basename(checkpoint.path) for checkpoint, _ in result.best_checkpoints]
    # The newest, and the best two.
    assert names == ["checkpoint_000003", "checkpoint_000002", "checkpoint_000001"]
    assert result.get_best_checkpoint("val/acc", "max").path.endswith("checkpoint_000001")
    assert result.get_best_checkpoint("step", "max").path.endswith("checkpoint_000003")
    with pytest.raises(ValueError, match="there are step, val"):
        result.get_best_checkpoint("nope", "max")
    again = Result.from_path(storage / "run")
    assert again.best_checkpoints == result.best_checkpoints


def test_retry_goes_on_from_the_newest_checkpoint(storage: Path) -> None:
    def train() -> int:
        checkpoint = dray.train.get_checkpoint()
        start = int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0
        for step in range(start, 4):
            dray.train.collective.barrier()  # a killed rank would leave its temporary directory
            if step == 2 and start == 0:
                raise RuntimeError("flaky")
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({"step": step}, checkpoint=save(directory, step=str(step)))
        return start

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == 2
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3]
    lines = (storage / "run/events.jsonl").read_text().splitlines()
    states = [event["state"] for event in map(json.loads, lines) if "state" in event]
    assert states == [
        "SCHEDULING",
        "STARTING",
        "RUNNING",
        "FAILING",
        "RESTARTING",
        "STARTING",
        "RUNNING",
        "FINISHING",
        "FINISHED",
    ]


def test_history_leaves_out_what_a_restart_went_back_over(storage: Path) -> None:
    def train() -> None:
        first = dray.train.get_checkpoint() is None
        if first:
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({"step": 0, "first": True}, checkpoint=save(directory, a="a"))
        dray.train.collective.barrier()  # a killed rank would leave its temporary directory
        for step in (1, 2, 3):
            dray.train.report({"step": step, "first": first})
            if first and step == 2:
                raise RuntimeError("flaky")

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    frame = result.metrics_dataframe
    assert list(frame["step"]) == [0, 1, 2, 3]
    assert list(frame["first"]) == [True, False, False, False]


def test_a_name_used_before_goes_on(storage: Path) -> None:
    def train() -> str | None:
        checkpoint = dray.train.get_checkpoint()
        with tempfile.TemporaryDirectory() as directory:
            dray.train.report({}, checkpoint=save(directory, a="a"))
        return os.path.basename(checkpoint.path) if checkpoint else None

    assert fit(train, storage).return_value is None
    assert fit(train, storage).return_value == "checkpoint_000000"
    assert fit(train, storage, name="other").return_value is None


def test_a_damaged_checkpoint_is_passed_over(
    storage: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> str | None:
        checkpoint = dray.train.get_checkpoint()
        for _ in range(2):
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({}, checkpoint=save(directory, model="weights"))
        return os.path.basename(checkpoint.path) if checkpoint else None

    fit(train, storage)
    (storage / "run/checkpoint_000001/model").write_text("wEights")
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    assert fit(train, storage).return_value == "checkpoint_000000"
    assert (
        "checkpoint_000001 is damaged (model is not as it was committed)" in capfd.readouterr().err
    )


def test_error_is_the_users_own(storage: Path) -> None:
    class Odd(ValueError):
        def __init__(self, code: int) -> None:
            super().__init__(f"odd {code}")
            self.code = code

        def __reduce__(self) -> Any:
            return (Odd, (self.code,))

    def train() -> None:
        if dray.train.get_context().get_world_rank() == 0:
            raise Odd(7)
        dray.train.collective.barrier()

    with pytest.raises(ValueError, match="rank 0 failed: Odd: odd 7") as caught:
        fit(train, storage)
    error = caught.value
    assert isinstance(error, dray.train.WorkerGroupError)
    assert isinstance(error, dray.train.TrainingFailedError)
    assert error.rank == 0
    assert error.code == 7  # type: ignore[attr-defined]
    assert list(error.worker_failures) == [0]
    assert str(storage / "run") in str(error)


def test_no_more_failures_than_allowed(storage: Path) -> None:
    def train() -> None:
        with open(storage / "attempts", "a") as file:
            file.write("x")
        raise RuntimeError("always")

    with pytest.raises(RuntimeError, match="failure number 2 of the run"):
        fit(train, storage, workers=1, failure_config=FailureConfig(max_failures=1))
    assert (storage / "attempts").read_text() == "xx"


def test_sys_exit_is_a_failure_unless_zero(storage: Path) -> None:
    import sys

    def leave(config: dict[str, int]) -> None:
        sys.exit(config["status"])

    assert fit(leave, storage, train_loop_config={"status": 0}).return_value is None
    with pytest.raises(dray.train.WorkerGroupError, match=r"called sys\.exit\(3\)"):
        fit(leave, storage, train_loop_config={"status": 3})


def test_callbacks_see_the_run(storage: Path, engine: str) -> None:
    class Record(UserCallback):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def before_run(self, run_context: Any) -> None:
            self.seen.append(("before", run_context.name))

        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            self.seen.append(("report", metrics, checkpoint is not None))

        def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
            self.seen.append(("exception", {r: str(e) for r, e in worker_exceptions.items()}))

        def after_run(self, run_context: Any) -> None:
            self.seen.append(("after", run_context.attempt))

    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        if dray.train.get_checkpoint() is None:
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({"rank": rank}, checkpoint=save(directory, a="a"))
            dray.train.collective.barrier()
            if rank == 0:
                raise RuntimeError("flaky")
            dray.train.collective.barrier()

    record = Record()
    fit(train, storage, callbacks=[record], failure_config=FailureConfig(max_failures=1))
    ranks = [{"rank": 0}] if engine == "inline" else [{"rank": 0}, {"rank": 1}]
    assert record.seen == [
        ("before", "run"),
        ("report", ranks, True),
        ("exception", {0: "flaky"}),
        ("after", 1),
    ]


def test_an_error_in_a_callback_ends_the_run(storage: Path) -> None:
    class Broken(UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            raise KeyError("oops")

    def train() -> None:
        dray.train.report({})
        if dray.train.get_context().get_world_size() > 1:
            threading.Event().wait()  # for ever: the controller must end it

    with pytest.raises(dray.train.ControllerError, match="KeyError: 'oops'") as caught:
        fit(train, storage, callbacks=[Broken()])
    assert isinstance(caught.value.controller_failure, KeyError)


def test_collectives(storage: Path) -> None:
    def train() -> Any:
        rank = dray.train.get_context().get_world_rank()
        dray.train.collective.barrier()
        value: Any = dray.train.collective.broadcast_from_rank_zero(
            {"from": rank, "big": b"x" * 10**6}
        )
        return value["from"], len(value["big"])

    assert fit(train, storage).return_value == (0, 10**6)


def test_tensor_in_metrics_is_refused(storage: Path) -> None:
    def train() -> None:
        import torch

        dray.train.report({"loss": {"total": torch.tensor(1.0)}})

    with pytest.raises(dray.errors.ConfigError, match=r"'loss\.total' is a torch\.Tensor.*\.item"):
        fit(train, storage)


def test_worker_gets_the_environment_asked_for(storage: Path) -> None:
    result = fit(
        lambda: os.environ["COLOUR"], storage, worker_runtime_env={"env_vars": {"COLOUR": "red"}}
    )
    assert result.return_value == "red"


def test_variables_asked_for_may_name_others(storage: Path) -> None:
    variables = {"COLOUR": "red", "COLOURS": "${COLOUR} and blue"}
    result = fit(lambda: os.environ["COLOURS"], storage, worker_runtime_env={"env_vars": variables})
    assert result.return_value == "red and blue"


def test_worker_imports_from_the_path_asked_for(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "module_of_the_path.py").write_text("VALUE = 8")

    def train() -> int:
        import module_of_the_path  # type: ignore[import-not-found]

        return int(module_of_the_path.VALUE)

    variables = {"PYTHONPATH": str(tmp_path)}
    assert fit(train, storage, worker_runtime_env={"env_vars": variables}).return_value == 8


def test_worker_runs_in_the_directory_asked_for(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/module_of_the_run.py").write_text("VALUE = 7")

    def train() -> tuple[str, int]:
        import module_of_the_run  # type: ignore[import-not-found]

        return os.getcwd(), module_of_the_run.VALUE

    result = fit(train, storage, worker_runtime_env={"working_dir": str(tmp_path / "work")})
    assert result.return_value == (str(tmp_path / "work"), 7)


def test_worker_runs_where_the_driver_does(storage: Path) -> None:
    assert fit(os.getcwd, storage).return_value == os.getcwd()


def test_label_selector_that_no_node_matches(storage: Path) -> None:
    trainer = DataParallelTrainer(
        print,
        scaling_config=ScalingConfig(label_selector={"planet": "mars"}),
        run_config=RunConfig(storage_path=storage),
    )
    with pytest.raises(dray.errors.InfeasibleError, match="no node has the labels planet=mars"):
        trainer.fit()


def test_the_run_is_its_directory(storage: Path, engine: str) -> None:
    def train() -> None:
        print("hello", flush=True)
        logging.getLogger("own").info("a record")
        logging.getLogger("own").debug("no record")
        with tempfile.TemporaryDirectory() as directory:
            dray.train.report({"x": 1}, checkpoint=save(directory, model="weights"))

    fit(train, storage, workers=1)
    files = sorted(
        str(p.relative_to(storage / "run"))
        for p in (storage / "run").rglob("*")
        if p.is_file() and p.name != ".lock"
    )
    logs = [] if engine == "inline" else ["logs/attempt-000/rank-00000.log"]
    assert files == [
        "checkpoint_000000/.dray.json",
        "checkpoint_000000/model",
        "events.jsonl",
        *logs,  # inline, output goes where it always goes
        "metrics/rank-00000.jsonl",
        "run.json",
    ]
    run = json.loads((storage / "run/run.json").read_text())
    assert run["engine"] == engine
    # What a run says is the same on every engine, byte for byte but for the time.
    manifest = (storage / "run/checkpoint_000000/.dray.json").read_text()
    assert re.sub(r'"(time|crc32)":[0-9.]+', r'"\1":0', manifest) == json.dumps(
        {
            "format": 1,
            "report": 0,
            "world_size": 1,
            "time": 0,
            "files": {"model": [7, f"xxh3_64:{xxhash.xxh3_64_hexdigest(b'weights')}"]},
            "ranks": {"0": {"metrics": {"x": 1}}},
            "crc32": 0,
        },
        separators=(",", ":"),
    )
    line = (storage / "run/metrics/rank-00000.jsonl").read_bytes()
    assert re.sub(rb'"(time|crc32)":[0-9.]+', rb'"\1":0', line) == (
        b'{"report":0,"attempt":0,"time":0,"metrics":{"x":1},"crc32":0}\n'
    )
    assert (storage / "run/checkpoint_000000/model").read_bytes() == b"weights"
    if engine != "inline":
        log = (storage / "run/logs/attempt-000/rank-00000.log").read_bytes()
        assert log == b"hello\nINFO:own:a record\n"


def test_functions_of_the_loop_are_refused_outside(engine: str) -> None:
    for function in (
        lambda: dray.train.report({}),
        dray.train.get_context,
        dray.train.get_checkpoint,
        dray.train.collective.barrier,
    ):
        with pytest.raises(RuntimeError, match="outside a train function"):
            function()


def test_two_runs_of_one_name_at_a_time_are_refused(storage: Path) -> None:
    class Another(UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            with pytest.raises(dray.errors.StorageError, match=r"another fit\(\) is at the run"):
                fit(lambda: None, storage)

    fit(lambda: dray.train.report({}), storage, workers=1, callbacks=[Another()])
