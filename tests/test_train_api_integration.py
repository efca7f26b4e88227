"""What a train function of Ray Train's API finds and does, on real workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.errors import AbsentNameError
from dray.train import Checkpoint, DataParallelTrainer, Result, RunConfig, ScalingConfig
from dray.train.backend import Backend, BackendConfig
from tests.fleets import Reports


def fit(function: Callable[..., Any], storage: Path, workers: int = 1, **given: Any) -> Result:
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
