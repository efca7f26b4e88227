"""What every engine must do alike: one suite, run once on each."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import xxhash

import dray.train
from dray.train import (
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    UserCallback,
)
from tests.support.train_runs import fit, save

pytestmark = pytest.mark.usefixtures("engine")


def test_returns_what_rank_zero_returns(storage: Path) -> None:
    result = fit(lambda: {"rank": dray.train.get_context().get_world_rank()}, storage)
    assert result.return_value == {"rank": 0}
    assert result.error is None
    assert result.path == str(storage / "run")


def test_function_gets_its_config(storage: Path) -> None:
    result = fit(lambda config: config["x"] + 1, storage, config={"x": 41})
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

    assert fit(leave, storage, config={"status": 0}).return_value is None
    with pytest.raises(dray.train.WorkerGroupError, match=r"called sys\.exit\(3\)"):
        fit(leave, storage, config={"status": 3})


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
    line = line.replace(b',"told":true', b"")  # for the driver that reads it there
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
            with pytest.raises(dray.errors.StorageError, match=r"another fit\(\) uses the run"):
                fit(lambda: None, storage)

    fit(lambda: dray.train.report({}), storage, workers=1, callbacks=[Another()])
