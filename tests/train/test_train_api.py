"""Ray Train's public names, arguments and module paths: each is there, or says what to use."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

import dray.train
import dray.train.torch
from dray.errors import AbsentArgumentError, AbsentError, ConfigError, DrayError
from dray.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    ControllerError,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    TrainContext,
    WorkerGroupError,
)
from dray.train.torch import TorchCheckpoint, TorchTrainer

# Of Ray 2.60, by inspect.signature: the names in order with their defaults; after "*" by keyword.
GIVEN_UP = "DEPRECATED"
SIGNATURES: dict[str, dict[str, Any]] = {
    "ScalingConfig": {
        "trainer_resources": None,
        "num_workers": 1,
        "use_gpu": False,
        "resources_per_worker": None,
        "placement_strategy": "PACK",
        "accelerator_type": None,
        "label_selector": None,
        "use_tpu": False,
        "topology": None,
        "elastic_resize_monitor_interval_s": 60.0,
    },
    "RunConfig": {
        "name": None,
        "storage_path": None,
        "storage_filesystem": None,
        "failure_config": None,
        "checkpoint_config": None,
        "callbacks": None,
        "worker_runtime_env": None,
        "logging_config": None,
        "sync_config": GIVEN_UP,
        "verbose": GIVEN_UP,
        "stop": GIVEN_UP,
        "progress_reporter": GIVEN_UP,
        "log_to_file": GIVEN_UP,
    },
    "FailureConfig": {
        "max_failures": 0,
        "fail_fast": GIVEN_UP,
        "controller_failure_limit": -1,
        "max_preemption_failures": -1,
        "relax_collectives_on_preemption": False,
        "preemption_grace_s": 0.0,
    },
    "CheckpointConfig": {
        "num_to_keep": None,
        "checkpoint_score_attribute": None,
        "checkpoint_score_order": "max",
        "checkpoint_frequency": GIVEN_UP,
        "checkpoint_at_end": GIVEN_UP,
    },
    "LoggingConfig": {"log_level": "INFO"},
    "Checkpoint": {"path": ..., "filesystem": None},
    "Result": {
        "metrics": ...,
        "checkpoint": ...,
        "error": ...,
        "path": ...,
        "metrics_dataframe": None,
        "best_checkpoints": None,
        "_storage_filesystem": None,
        "return_value": None,
    },
    "Result.from_path": {"path": ..., "storage_filesystem": None},
    "Result.get_best_checkpoint": {"metric": ..., "mode": ...},
    "WorkerGroupError": {"error_message": ..., "worker_failures": ...},
    "ControllerError": {"controller_failure": ...},
    "ReportedCheckpoint": {"checkpoint": ..., "metrics": ..., "status": ...},
    "get_checkpoint": {},
    "get_all_reported_checkpoints": {
        "consistency_mode": CheckpointConsistencyMode.VALIDATED,
        "timeout_s": None,
    },
    "report": {
        "metrics": ...,
        "checkpoint": None,
        "checkpoint_dir_name": None,
        "checkpoint_upload_mode": CheckpointUploadMode.SYNC,
        "delete_local_checkpoint_after_upload": None,
        "checkpoint_upload_fn": None,
        "validation": False,
    },
    "get_context": {},
    "get_dataset_shard": {"dataset_name": None},
    "collective.barrier": {},
    "collective.broadcast_from_rank_zero": {"data": ...},
    "DataParallelTrainer": {
        "train_loop_per_worker": ...,
        "*train_loop_config": None,
        "*backend_config": None,
        "*scaling_config": None,
        "*run_config": None,
        "*datasets": None,
        "*dataset_config": None,
        "*resume_from_checkpoint": None,
        "*metadata": None,
        "*validation_config": None,
    },
    "torch.TorchTrainer": {
        "train_loop_per_worker": ...,
        "*train_loop_config": None,
        "*torch_config": None,
        "*scaling_config": None,
        "*run_config": None,
        "*datasets": None,
        "*dataset_config": None,
        "*validation_config": None,
        "*metadata": None,
        "*resume_from_checkpoint": None,
    },
    "torch.TorchConfig": {"backend": None, "init_method": "env", "timeout_s": 1800},
    "torch.get_device": {},
    "torch.get_devices": {},
    "torch.prepare_model": {
        "model": ...,
        "move_to_device": True,
        "parallel_strategy": "ddp",
        "parallel_strategy_kwargs": None,
    },
    "torch.prepare_data_loader": {
        "data_loader": ...,
        "add_dist_sampler": True,
        "move_to_device": True,
        "auto_transfer": True,
    },
    "torch.enable_reproducibility": {"seed": 0},
    "jax.JaxTrainer": {
        "train_loop_per_worker": ...,
        "*train_loop_config": None,
        "*jax_config": None,
        "*scaling_config": None,
        "*dataset_config": None,
        "*run_config": None,
        "*datasets": None,
        "*validation_config": None,
    },
}


def shown(parameter: inspect.Parameter) -> tuple[str, Any]:
    """Return name and default; what Ray makes of None later, dray makes at once."""
    default = parameter.default
    if default is parameter.empty:
        default = ...
    elif default == () or "factory" in repr(default):
        default = None
    return ("*" if parameter.kind is parameter.KEYWORD_ONLY else "") + parameter.name, default


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_begin_as_rays(name: str) -> None:
    value: Any = dray.train
    for part in name.split("."):
        value = getattr(value, part)
    parameters = inspect.signature(value).parameters.values()
    found = [shown(p) for p in parameters if p.name != "self"]
    wanted = list(SIGNATURES[name].items())
    assert found[: len(wanted)] == wanted
    assert all(own.startswith("*") for own, _ in found[len(wanted) :])


# Of Ray 2.60: every public name of Ray Train, and the modules that its own tests import from.
NAMES = {
    "dray.train": (
        "get_checkpoint get_context get_dataset_shard report BackendConfig Checkpoint "
        "CheckpointConfig DataConfig FailureConfig Result RunConfig ScalingConfig SyncConfig "
        "TrainContext TrainingFailedError TRAIN_DATASET_KEY CheckpointUploadMode "
        "CheckpointConsistencyMode ControllerError NCCLHangError LoggingConfig PreemptionError "
        "PreemptionInfo ReportedCheckpoint ReportedCheckpointStatus UserCallback WorkerGroupError "
        "ValidationConfig ValidationFn ValidationTaskConfig get_all_reported_checkpoints "
        "get_preemption_info torch collective backend"
    ),
    "dray.train.torch": (
        "TorchTrainer TorchCheckpoint TorchConfig accelerate get_device get_devices prepare_model "
        "prepare_optimizer prepare_data_loader backward enable_reproducibility"
    ),
    "dray.train.torch.config": "TorchConfig",
    "dray.train.torch.torch_trainer": "TorchTrainer",
    "dray.train.torch.torch_checkpoint": "TorchCheckpoint",
    "dray.train.torch.train_loop_utils": "prepare_model get_device accelerate",
    "dray.train.torch.xla": "TorchXLAConfig",
    "dray.train.collective": "barrier broadcast_from_rank_zero",
    "dray.train.collective.collectives": "barrier broadcast_from_rank_zero",
    "dray.train.backend": "Backend BackendConfig",
    "dray.train.constants": (
        "TRAIN_DATASET_KEY DEFAULT_STORAGE_PATH RAY_CHDIR_TO_TRIAL_DIR "
        "ENABLE_SHARE_CUDA_VISIBLE_DEVICES_ENV TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S"
    ),
    "dray.train.context": "TrainContext get_context",
    "dray.train.data_parallel_trainer": "DataParallelTrainer",
    "dray.train.base_trainer": "TrainingFailedError BaseTrainer",
    "dray.train.v2.jax": "JaxConfig JaxTrainer",
    "dray.train.v2.jax.config": "JaxConfig",
    "dray.train.v2.torch.torch_trainer": "TorchTrainer",
    "dray.train.v2.torch.train_loop_utils": "prepare_data_loader",
    "dray.train.v2.api.callback": "RayTrainCallback UserCallback",
    "dray.train.v2.api.config": (
        "CheckpointConfig FailureConfig LoggingConfig RunConfig ScalingConfig"
    ),
    "dray.train.v2.api.context": "TrainContext",
    "dray.train.v2.api.data_parallel_trainer": "DataParallelTrainer",
    "dray.train.v2.api.exceptions": (
        "RayTrainError ControllerError NCCLHangError PreemptionError TrainingFailedError "
        "WorkerGroupError"
    ),
    "dray.train.v2.api.preemption": "PreemptionInfo",
    "dray.train.v2.api.report_config": "CheckpointConsistencyMode CheckpointUploadMode",
    "dray.train.v2.api.reported_checkpoint": "ReportedCheckpoint ReportedCheckpointStatus",
    "dray.train.v2.api.result": "Result",
    "dray.train.v2.api.train_fn_utils": (
        "get_checkpoint report get_all_reported_checkpoints get_preemption_info"
    ),
    "dray.train.v2.api.validation_config": "ValidationConfig ValidationTaskConfig",
    "dray.air": "CheckpointConfig FailureConfig Result RunConfig ScalingConfig",
    "dray.air.config": "CheckpointConfig FailureConfig RunConfig ScalingConfig",
    "dray.train.xgboost": "XGBoostTrainer XGBoostConfig",
    "dray.train.lightgbm": "LightGBMTrainer",
    "dray.train.tensorflow": "TensorflowTrainer prepare_dataset_shard",
    "dray.train.tensorflow.keras": "ReportCheckpointCallback",
    "dray.train.horovod": "HorovodTrainer HorovodConfig",
    "dray.train.v2.xgboost.xgboost_trainer": "XGBoostTrainer",
    "dray.train.v2.lightgbm": "LightGBMTrainer",
}
PAIRS = [(module, name) for module, names in NAMES.items() for name in names.split()]
ABSENT = """
    SyncConfig NCCLHangError accelerate backward
    prepare_optimizer TorchXLAConfig BaseTrainer
    HorovodTrainer HorovodConfig
"""


@pytest.mark.parametrize(("module", "name"), PAIRS)
def test_every_public_name_is_there_or_says_what_to_use(module: str, name: str) -> None:
    found: dict[str, Any] = {}
    if name == "ReportCheckpointCallback":
        pytest.importorskip("tensorflow")  # it is one of Keras' callbacks
    if name not in ABSENT.split():
        exec(f"from {module} import {name}", found)
        assert found[name] is getattr(importlib.import_module(module), name)
        return
    with pytest.raises(AbsentError, match=r"dray\.\S+ has no \w+(, and .*)?: \w+") as caught:
        exec(f"from {module} import {name}", found)
    assert isinstance(caught.value, ImportError)


def test_the_same_object_is_under_every_path() -> None:
    from dray.air.config import ScalingConfig as of_air  # type: ignore[import-not-found]
    from dray.train.v2.api.config import (  # type: ignore[import-not-found]
        ScalingConfig as of_api,
    )

    assert of_air is of_api is ScalingConfig
    lazy: Any = dray
    assert lazy.air.ScalingConfig is lazy.train.v2.api.config.ScalingConfig is ScalingConfig
    assert "TorchTrainer" in dir(lazy.train.v2.torch)


def loop() -> None:
    pass


# The module, of which the type checker knows that these names are not there.
TRAIN: Any = dray.train

NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


@pytest.mark.parametrize(
    "call",
    [
        lambda: FailureConfig(0, GIVEN_UP, 3),
        lambda: DataParallelTrainer(print, num_workers=2),  # type: ignore[call-arg]
        lambda: DataParallelTrainer(print, storage_path="s3://runs"),  # type: ignore[call-arg]
    ],
)
def test_what_is_not_there_yet_is_refused_where_it_is_written(call: Any) -> None:
    with pytest.raises(AbsentArgumentError, match=r"\(\) has no argument '\w+': \w+") as caught:
        call()
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: TorchTrainer(loop, metadata={"a": 1}), marks=NEEDS_TORCH),
        pytest.param(
            lambda: TorchTrainer(loop, resume_from_checkpoint=Checkpoint("/a")), marks=NEEDS_TORCH
        ),
        lambda: TorchTrainer.restore("/a"),
        lambda: TorchTrainer.can_restore("/a"),
        lambda: RunConfig(sync_config=1),
        lambda: RunConfig(verbose=0),
        lambda: RunConfig(stop={"a": 1}),
        lambda: RunConfig(progress_reporter=1),
        lambda: RunConfig(log_to_file=True),
        lambda: FailureConfig(fail_fast=True),
        lambda: FailureConfig(1, False),
        lambda: CheckpointConfig(checkpoint_frequency=1),
        lambda: CheckpointConfig(checkpoint_at_end=False),
        lambda: Result({}, None, None, "/a").config,
        lambda: TrainContext.get_metadata,
        lambda: TrainContext.get_trial_name,
        lambda: TrainContext.get_trial_id,
        lambda: TrainContext.get_trial_resources,
        lambda: TrainContext.get_trial_dir,
        lambda: TRAIN.torch.accelerate(),
        lambda: TRAIN.torch.backward(1),
        lambda: TRAIN.torch.prepare_optimizer(1),
        lambda: TRAIN.SyncConfig(),
    ],
)
def test_what_ray_gives_up_is_refused_as_ray_does(call: Any) -> None:
    with pytest.raises(DeprecationWarning, match="Ray has deprecated it: ") as caught:
        call()
    assert isinstance(caught.value, DrayError)


def test_an_argument_that_a_trainer_lacks_is_named_with_those_it_has() -> None:
    with pytest.raises(AbsentArgumentError, match="'scaling_confg'; did you mean scaling_config"):
        TorchTrainer(loop, scaling_confg=None)  # type: ignore[call-arg]
    with pytest.raises(AbsentArgumentError, match=r"JaxTrainer\(\) has no argument 'metadata'"):
        TRAIN.jax.JaxTrainer(loop, metadata={"a": 1})


@NEEDS_TORCH
def test_what_asks_for_nothing_is_accepted() -> None:
    none: Any = None
    for trainer in (DataParallelTrainer, TorchTrainer):
        trainer(
            loop,
            scaling_config=ScalingConfig(num_workers=0),
            datasets={},
            dataset_config=None,
            validation_config=None,
            metadata=None,
            resume_from_checkpoint=None,
        )
    made = RunConfig("a", "/b", None, none, none, none, None, none)
    assert made == RunConfig(name="a", storage_path="/b")
    assert FailureConfig(2, GIVEN_UP, -1, -1, False, 0.0) == FailureConfig(max_failures=2)
    assert CheckpointConfig(2, "loss", "min", GIVEN_UP, GIVEN_UP).num_to_keep == 2


def test_scaling_takes_what_ray_takes_by_position() -> None:
    given = ScalingConfig(None, 2, True, {"CPU": 1}, "SPREAD", "A100", {"a": "b"}, False, None, 5)
    assert given == ScalingConfig(
        num_workers=2,
        use_gpu=True,
        resources_per_worker={"CPU": 1},
        placement_strategy="SPREAD",
        accelerator_type="A100",
        label_selector={"a": "b"},
        elastic_resize_monitor_interval_s=5,
    )
    with pytest.raises(TypeError):
        ScalingConfig(None, 2, False, None, "PACK", None, None, False, None, 5, True)  # type: ignore[call-arg]


def test_results_are_made_and_shown_as_rays(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    result = Result({"loss": 1}, checkpoint, None, str(tmp_path))
    assert result.best_checkpoints == []
    assert repr(checkpoint) == f"Checkpoint(filesystem=local, path={tmp_path})"
    assert repr(result) == (
        f"Result(\n  metrics={{'loss': 1}},\n  path={str(tmp_path)!r},\n  filesystem='local',\n"
        f"  checkpoint={checkpoint!r}\n)"
    )
    failed = Result(None, None, ValueError("no"), str(tmp_path), "table")
    assert repr(failed).startswith("Result(\n  error='ValueError',")
    assert failed.metrics_dataframe == "table"


def test_a_run_or_checkpoint_that_is_not_there_is_also_a_runtime_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="is not a run's directory"):
        Result.from_path(tmp_path)
    with pytest.raises(RuntimeError, match="Invalid metric name 'loss': no checkpoint of"):
        Result({}, None, None, str(tmp_path)).get_best_checkpoint("loss", "min")


def test_errors_are_made_and_travel_as_rays() -> None:
    for error in (WorkerGroupError("bad", {1: ValueError("x")}), ControllerError(KeyError("x"))):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
    assert WorkerGroupError("bad", {1: ValueError("x")}).worker_failures[1].args == ("x",)
    assert WorkerGroupError(error_message="bad", worker_failures={}).rank is None


def test_file_systems_that_are_taken(tmp_path: Path) -> None:
    filesystem = pytest.importorskip("fsspec").filesystem
    local, elsewhere = filesystem("file"), filesystem("memory")
    checkpoint = Checkpoint(tmp_path, local)
    assert checkpoint.filesystem is local
    assert checkpoint == Checkpoint(tmp_path)
    RunConfig(storage_path=tmp_path, storage_filesystem=local)
    far = Checkpoint("memory://a/b", elsewhere)
    assert (far.path, far) == ("/a/b", Checkpoint("/a/b", elsewhere))
    assert far != Checkpoint("/a/b")
    assert repr(far) == "Checkpoint(filesystem=memory, path=/a/b)"
    refusals = (
        lambda: RunConfig(storage_path="a", storage_filesystem="memory"),
        lambda: Checkpoint(tmp_path, 1),
        lambda: Result.from_path(tmp_path, object()),
    )
    for refused in refusals:
        with pytest.raises(ConfigError, match="must be a file system of fsspec or pyarrow"):
            refused()


def test_torch_checkpoints_hold_a_models_state_or_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = torch.nn.Linear(2, 1)
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = TorchCheckpoint.from_state_dict(state)
        whole = TorchCheckpoint.from_model(model)
        again = held.get_model(torch.nn.Linear(2, 1))
        assert torch.equal(again.weight, model.weight)
        assert torch.equal(whole.get_model().weight, model.weight)
        around = torch.nn.ModuleDict({"module": model, "head": torch.nn.Linear(1, 1)})
        TorchCheckpoint.from_state_dict(around.state_dict()).get_model(around)
    assert isinstance(held, Checkpoint)
    with pytest.raises(ConfigError, match="a model's state"):
        held.get_model()
    with pytest.raises(ConfigError, match="load it by get_model"):
        whole.get_model(torch.nn.Linear(2, 1))
    with pytest.raises(OSError, match=r"has no model\.pt"):
        TorchCheckpoint(tmp_path).get_model()


def test_refusals_name_the_trainer_that_was_called() -> None:
    class OwnTrainer(DataParallelTrainer):
        pass

    with pytest.raises(DeprecationWarning, match=r"^OwnTrainer\(\) has no argument 'metadata', "):
        OwnTrainer(print, metadata={"a": 1})
    with pytest.raises(DeprecationWarning, match=r"^OwnTrainer has no restore, "):
        OwnTrainer.restore("/a")
