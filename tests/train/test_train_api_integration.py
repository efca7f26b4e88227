"""What a train function of Ray Train's API finds and does, on real workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import dray.train
from dray.errors import AbsentNameError, ConfigError
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    DataParallelTrainer,
    FailureConfig,
    ReportedCheckpointStatus,
    Result,
    RunConfig,
    ScalingConfig,
)
from dray.train.backend import Backend, BackendConfig
from tests.support.fleets import Reports
from tests.support.train_runs import rank


def fit(
    function: Callable[..., Any], storage: Path | str, workers: int = 1, **given: Any
) -> Result:
    config = given.pop("run_config", {})
    return DataParallelTrainer(
        function,
        scaling_config=given.pop("scaling_config", ScalingConfig(num_workers=workers)),
        run_config=RunConfig(name="run", storage_path=storage, **config),
        **given,
    ).fit()


@dataclass
class MarkedConfig(BackendConfig):
    mark: str = "a"
    modules_of_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"numpy": ("numpy",)}

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[Any]]:
        mark = self.mark

        @contextlib.contextmanager
        def marked() -> Iterator[None]:
            os.environ["MARK"] = mark
            yield
            print(f"{mark} is over")

        return marked


def test_a_framework_puts_a_context_around_the_train_function(
    process_engine: None, tmp_path: Path
) -> None:
    config = MarkedConfig("b")
    assert config.to_dict() == {"mark": "b"}
    result = fit(
        lambda config: (config["x"], os.environ["MARK"]),
        tmp_path,
        train_loop_config={"x": 1},
        backend_config=config,
    )
    assert result.return_value == (1, "b")
    assert "b is over" in Path(result.path, "logs/attempt-000/rank-00000.log").read_text()


def test_a_runtime_env_may_be_set_until_the_run_begins(
    process_engine: None, tmp_path: Path
) -> None:
    config = RunConfig(storage_path=tmp_path)
    config.worker_runtime_env = {"env_vars": {"SET_LATE": "1"}}
    trainer = DataParallelTrainer(lambda: os.environ["SET_LATE"], run_config=config)
    assert trainer.fit().return_value == "1"
    config.worker_runtime_env = {"variables": {}}
    with pytest.raises(ConfigError, match="worker_runtime_env has no variables"):
        DataParallelTrainer(print, run_config=config).fit()


class Groups(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return type("Groups", (Backend,), {"has_replica_groups": True})


def test_groups_of_replicas_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(AbsentNameError, match="all workers of a run restart together"):
        fit(print, tmp_path, backend_config=Groups())
    assert not list(tmp_path.iterdir())


def test_storage_says_where_the_run_is(process_engine: None, tmp_path: Path) -> None:
    def train() -> tuple[str, ...]:
        storage = dray.train.get_context().get_storage()
        (source := Path("made-here")).mkdir(exist_ok=True)
        (source / "weights").write_text("w")
        kept = storage.persist_current_checkpoint(Checkpoint(source), "mine")
        assert Path(kept.path, "weights").read_text() == "w"
        return (
            storage.storage_fs_path,
            storage.experiment_dir_name,
            storage.experiment_fs_path,
            storage.build_checkpoint_path_from_name("mine"),
            storage.extract_checkpoint_dir_name_from_path(kept.path),
        )

    found = fit(
        train, tmp_path, run_config={"worker_runtime_env": {"working_dir": str(tmp_path)}}
    ).return_value
    run = str(tmp_path / "run")
    assert found == (str(tmp_path), "run", run, f"{run}/mine", "mine")


@pytest.mark.parametrize("where", ["directory", "memory://copied"])
def test_what_is_only_copied_into_a_run_is_no_checkpoint_of_it(
    process_engine: None, tmp_path: Path, where: str
) -> None:
    def save() -> None:
        with dray.train.checkpoint_dir() as path:
            Path(path, "weights").touch()
            checkpoint = Checkpoint(path)
            checkpoint.set_metadata({"a": 1})
            dray.train.report({"step": 1}, checkpoint)

    def copy(config: dict[str, Any]) -> tuple[Checkpoint | None, list[str]]:
        storage = dray.train.get_context().get_storage()
        kept = storage.persist_current_checkpoint(config["saved"], "mine")
        saved = config["saved"].to_directory(storage.build_checkpoint_path_from_name("downloaded"))
        assert os.listdir(kept.path) == os.listdir(saved)
        return dray.train.get_checkpoint(), sorted(os.listdir(saved))

    saved = fit(save, tmp_path / where if where == "directory" else where, workers=0).checkpoint
    for _ in range(2):
        result = fit(copy, tmp_path, train_loop_config={"saved": saved}, workers=0)
        assert result.return_value == (None, [".metadata.json", "weights"])
        assert result.checkpoint is None


class Sharing(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return type("Sharing", (Backend,), {"share_cuda_visible_devices": True})


def test_rays_variable_decides_whether_devices_are_shared(
    session: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> None:
        dray.train.report({"shown": os.environ["CUDA_VISIBLE_DEVICES"]})

    monkeypatch.setenv("DRAY_PROGRESS", "0")
    session({"num_cpus": 2, "num_gpus": 2})
    for value, config, shown in (("0", Sharing(), ["0", "1"]), ("1", BackendConfig(), ["0,1"] * 2)):
        monkeypatch.setenv("TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES", value)
        seen = Reports()
        scaling = ScalingConfig(num_workers=2, use_gpu=True)
        fit(
            train,
            tmp_path,
            scaling_config=scaling,
            backend_config=config,
            run_config={"callbacks": [seen]},
        )
        assert [each["shown"] for each in seen.first] == shown


def saved(directory: Path, text: str) -> Checkpoint:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"of-rank-{rank()}").write_text(text)
    return Checkpoint(directory)


def listed(**given: Any) -> list[tuple[str, Any]]:
    found = dray.train.get_all_reported_checkpoints(**given)
    assert {each.status for each in found} <= {ReportedCheckpointStatus.COMMITTED}
    return [(Path(each.checkpoint.path).name, each.metrics["step"]) for each in found]


def test_a_rank_lists_the_checkpoints_of_all_reports_that_it_has_made(
    engine: str, storage: Path
) -> None:
    """Also one that brought none to them, and after a restart, whose reports go on."""
    at = storage / "source"

    def train() -> None:
        resumed = dray.train.get_checkpoint()
        begin = 0 if resumed is None else 2
        assert len(listed()) == begin
        for step in range(begin, 4):
            last = rank() == dray.train.get_context().get_world_size() - 1
            dray.train.report({"step": step}, saved(at / str(rank()), "") if last else None)
            assert [found for _, found in listed()] == list(range(step + 1))
            if step == 1:
                dray.train.collective.barrier()
                raise RuntimeError

    failures = FailureConfig(max_failures=1)
    result = fit(train, storage, 2, run_config={"failure_config": failures})
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [0, 1, 2, 3]


def test_only_checkpoints_that_are_kept_are_listed(process_engine: None, storage: Path) -> None:
    def train() -> list[tuple[str, Any]]:
        for step in range(3):
            dray.train.report({"step": step}, saved(storage / "source", ""), f"at-{step}")
        return listed()

    kept = {"checkpoint_config": CheckpointConfig(num_to_keep=2)}
    assert fit(train, storage, run_config=kept).return_value == [("at-1", 1), ("at-2", 2)]


def test_a_list_comes_in_time_although_a_rank_is_behind(
    process_engine: None, storage: Path
) -> None:
    def train() -> None:
        dray.train.report({"step": 0}, saved(storage / str(rank()), "") if rank() else None)
        if rank() == 0:
            assert listed() == [("checkpoint_000000", 0)]
            dray.train.report({"step": 1})
            assert listed(timeout_s=0) == [("checkpoint_000000", 0)]
            assert listed(timeout_s=0.01) == [("checkpoint_000000", 0)]
            for wrong in (-1, "1", True, float("nan")):
                with pytest.raises(ConfigError, match="timeout_s must be None or seconds"):
                    listed(timeout_s=wrong)
        dray.train.collective.barrier()
        if rank() == 1:
            dray.train.report({"step": 1})

    fit(train, storage, 2)


def test_what_lies_in_the_run_already_is_committed_where_it_is(engine: str, storage: Path) -> None:
    """Each rank writes its part to one place; the manifest has the checksums of all."""

    def train() -> None:
        place = dray.train.get_context().get_storage().build_checkpoint_path_from_name("mine")
        mode = CheckpointUploadMode.NO_UPLOAD
        for text in ("first", "second"):
            checkpoint = saved(Path(place), text)
            inodes = os.stat(place).st_ino
            dray.train.report({"step": 0}, checkpoint, None, mode, True)
            assert os.stat(place).st_ino == inodes
        with pytest.raises(ConfigError, match="must lie in the run's directory"):
            dray.train.report({}, saved(storage / "else", ""), checkpoint_upload_mode=mode)
        with pytest.raises(ConfigError, match="the run directory has"):
            dray.train.report({}, Checkpoint(f"{place}/../logs"), checkpoint_upload_mode=mode)

    workers = 1 if engine == "inline" else 2
    result = fit(train, storage, workers)
    assert result.checkpoint is not None
    assert result.checkpoint.path == f"{result.path}/mine"
    (again,) = Result.from_path(result.path).best_checkpoints
    with again[0].as_directory() as path:
        texts = {file.name: file.read_text() for file in Path(path).glob("of-*")}
    assert texts == {f"of-rank-{each}": "second" for each in range(workers)}
    Path(path, "of-rank-0").write_text("seconds")
    with pytest.warns(UserWarning, match="mine is damaged"):
        assert Result.from_path(result.path).checkpoint is None


def test_a_function_of_the_users_brings_checkpoints_into_the_run(
    process_engine: None, storage: Path
) -> None:
    """Each rank its files, into a directory of the same name, a new one after a restart."""

    def bring(checkpoint: Checkpoint, name: str) -> Checkpoint:
        place = dray.train.get_context().get_storage().build_checkpoint_path_from_name(name)
        os.makedirs(place, exist_ok=True)
        for file in Path(checkpoint.path).iterdir():
            with open(os.path.join(place, file.name), "x") as copy:
                copy.write(file.read_text().upper())
        return Checkpoint(place)

    def train() -> None:
        source = storage / f"source-{rank()}"
        for name in (None, "named"):
            dray.train.report(
                {},
                saved(source, "brought"),
                name,
                checkpoint_upload_fn=bring,
                delete_local_checkpoint_after_upload=True,
            )
            assert not source.exists()
        if dray.train.get_context().get_world_size() > 1:
            with pytest.raises(ConfigError, match="must lie in the run's directory"):
                dray.train.report({}, saved(source, ""), checkpoint_upload_fn=lambda c, _: c)
            with pytest.raises(ConfigError, match="what checkpoint_upload_fn returns must be a"):
                dray.train.report({}, saved(source, ""), checkpoint_upload_fn=lambda *_: None)  # type: ignore[arg-type]

    result = fit(train, storage, 2)
    found = {Path(each.path).name: each for each, _ in result.best_checkpoints}
    assert list(found) == ["checkpoint_000000", "named"]
    for checkpoint in found.values():
        files = {file.name: file.read_text() for file in Path(checkpoint.path).glob("of-*")}
        assert files == {"of-rank-0": "BROUGHT", "of-rank-1": "BROUGHT"}


def test_the_local_checkpoint_is_deleted_once_it_is_committed(
    process_engine: None, storage: Path
) -> None:
    def train() -> list[bool]:
        there = []
        for delete in (None, False, True):
            checkpoint = saved(storage / "source", "kept")
            dray.train.report({}, checkpoint, delete_local_checkpoint_after_upload=delete)
            there.append(os.path.exists(checkpoint.path))
        # What the run has already is no copy of anything; what it lies in is not the rank's.
        newest = dray.train.get_checkpoint()
        assert newest is not None
        mode = CheckpointUploadMode.ASYNC  # which deletes unless it is told otherwise
        dray.train.report({}, newest, checkpoint_upload_mode=mode)
        dray.train.report({}, newest, delete_local_checkpoint_after_upload=True)
        (storage / "link").symlink_to(storage)
        for above in (storage, storage / "run", storage / "link"):
            for delete in (False, True):
                way: Any = {"delete_local_checkpoint_after_upload": delete}
                with pytest.raises(ConfigError, match="it contains the run's directory"):
                    dray.train.report({}, Checkpoint(above), **way)
        return there

    result = fit(train, storage)
    assert result.return_value == [True, True, False]
    assert len(result.best_checkpoints) == 5
    assert all(os.listdir(checkpoint.path) for checkpoint, _ in result.best_checkpoints)
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path, "of-rank-0").read_text() == "kept"


def test_a_checkpoint_on_a_far_storage_does_not_hold_the_run(process_engine: None) -> None:
    def train() -> None:
        for above in ("memory://above", "memory://above/run"):
            with pytest.raises(ConfigError, match="it contains the run's directory"):
                dray.train.report({}, Checkpoint(above))

    config = RunConfig(name="run", storage_path="memory://above")
    DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=0), run_config=config).fit()


def test_ways_of_reporting_that_are_not_there_yet_say_so(
    process_engine: None, storage: Path
) -> None:
    def train() -> None:
        with pytest.raises(ConfigError, match="must be a CheckpointUploadMode, not 'SYNC'"):
            dray.train.report({}, checkpoint_upload_mode="SYNC")  # type: ignore[arg-type]
        dray.train.report({"step": 1})

    assert fit(train, storage).metrics == {"step": 1}


def test_workers_work_where_the_driver_does_or_as_rays_variable_says(
    process_engine: None, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> str:
        Path(f"made-by-{rank()}").touch()
        dray.train.collective.barrier()
        return os.getcwd() if all(Path(f"made-by-{each}").exists() for each in (0, 1)) else ""

    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "1")
    result = fit(train, storage, 2)
    assert result.return_value == f"{result.path}/working_dir"
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")
    assert fit(os.getcwd, storage).return_value == os.getcwd()


def test_an_older_program_that_asks_the_session_of_ray_air(storage: Path) -> None:
    def train() -> list[object]:
        from dray.air import session  # type: ignore[import-not-found]  # an alias

        session.report({"rank": session.get_world_rank()})
        rows = list(session.get_dataset_shard("train").iter_rows())
        return [session.get_world_size(), session.get_local_rank(), session.get_checkpoint(), rows]

    result = fit(train, storage, datasets={"train": [{"a": 1}]})
    assert isinstance(result, dray.air.result.Result)  # nobody has imported that
    assert result.return_value == [1, 0, None, [{"a": 1}]]
    assert result.metrics == {"rank": 0}
