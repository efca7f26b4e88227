"""The public names: what is exported is listed, what is listed exists, and imports stay light."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib import metadata
from types import ModuleType

import pytest

# The names that a script which moves over from Ray Train expects, by public module.
EXPECTED = {
    "dray": (
        "init shutdown is_initialized nodes cluster_resources available_resources remote get put "
        "wait cancel kill get_actor method get_runtime_context exit_actor ObjectRef "
        "ObjectRefGenerator DynamicObjectRefGenerator timeline"
    ),
    "dray.exceptions": (
        "RayError RayTaskError RayActorError WorkerCrashedError GetTimeoutError ObjectLostError "
        "TaskCancelledError ActorDiedError ActorUnavailableError ObjectStoreFullError"
    ),
    "dray.util": "ActorPool placement_group remove_placement_group placement_group_table",
    "dray.util.scheduling_strategies": (
        "PlacementGroupSchedulingStrategy NodeAffinitySchedulingStrategy "
        "NodeLabelSchedulingStrategy"
    ),
    "dray.util.queue": "Queue Empty Full",
    "dray.util.dask": "disable_dask_on_ray enable_dask_on_ray ray_dask_get ray_dask_get_sync",
    "dray.util.joblib": "register_ray",
    "dray.testing": "FakeHost drain_node kill_node tpu_slice",
    "dray.accelerators": "Family Found families family_of",
    "dray.util.accelerators": "NVIDIA_A100 NVIDIA_H200 AMD_INSTINCT_MI300x GOOGLE_TPU_V6E",
    "dray.train": (
        "ScalingConfig RunConfig CheckpointConfig FailureConfig LoggingConfig Checkpoint Result "
        "PreemptionError PreemptionInfo get_preemption_info "
        "report get_context get_checkpoint TrainContext UserCallback BackendConfig "
        "DataParallelTrainer Plan TrainingFailedError WorkerGroupError ControllerError collective "
        "CheckpointUploadMode CheckpointConsistencyMode ReportedCheckpoint "
        "ReportedCheckpointStatus TRAIN_DATASET_KEY ValidationConfig ValidationFn "
        "ValidationTaskConfig"
    ),
    "dray.train.backend": "Backend BackendConfig",
    "dray.train.collective": "barrier broadcast_from_rank_zero",
    "dray.train.xgboost": ("XGBoostTrainer XGBoostConfig RayTrainReportCallback XGBoostCheckpoint"),
    "dray.train.lightgbm": (
        "LightGBMTrainer LightGBMConfig RayTrainReportCallback LightGBMCheckpoint "
        "get_network_params"
    ),
    "dray.train.torch": (
        "TorchTrainer TorchConfig prepare_model prepare_data_loader get_device get_devices "
        "enable_reproducibility TorchCheckpoint"
    ),
    "dray.train.jax": "JaxTrainer JaxConfig",
    "dray.train.v2.jax": "JaxTrainer JaxConfig",
}


# Those whose names are there where an extra is.
OF_EXTRAS = {"dray.train.xgboost": "xgboost", "dray.train.lightgbm": "lightgbm"}


def public_module(name: str) -> ModuleType:
    if name in OF_EXTRAS:
        pytest.importorskip(OF_EXTRAS[name])
    return importlib.import_module(name)


def printed(code: str) -> str:
    """Return what a program prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("name", EXPECTED)
def test_listed_names_exist_and_expected_ones_are_listed(name: str) -> None:
    module = public_module(name)
    assert len(module.__all__) == len(set(module.__all__))
    assert [n for n in module.__all__ if not hasattr(module, n)] == []
    assert set(EXPECTED[name].split()) <= set(module.__all__)


@pytest.mark.parametrize("name", ["dray.train", "dray"])
def test_what_a_root_exports_is_listed(name: str) -> None:
    code = (
        f"import types, {name} as m; "
        "print(*(n for n, v in vars(m).items() "
        "if not n.startswith('_') and not isinstance(v, types.ModuleType)))"
    )
    listed = set(importlib.import_module(name).__all__)
    assert set(printed(code).split()) - listed == set()


@pytest.mark.parametrize("name", EXPECTED)
def test_public_objects_are_documented(name: str) -> None:
    module = public_module(name)
    for public in module.__all__:
        value = getattr(module, public)
        if callable(value):
            assert value.__doc__, f"{name}.{public} has no docstring"


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        (
            "import dray",
            "asyncio cloudpickle importlib.resources json socket inspect dataclasses logging "
            "dray.engines.base",
        ),
        (
            "import dray; dray.init()",
            "asyncio ssl http.client importlib.metadata multiprocessing "
            "dray.engines.process.hub.hub",
        ),
        (
            "import dray.train.torch, dray.train.xgboost, dray.train.lightgbm",
            "torch xgboost lightgbm ray pandas pyarrow numpy rich",
        ),
    ],
)
def test_nothing_is_imported_before_it_is_needed(code: str, unneeded: str) -> None:
    look = f"import sys; print({{*{unneeded.split()}}} & {{*sys.modules}})"
    assert printed(f"{code}; {look}") == "set()"


def test_frameworks_are_there_without_an_import_of_their_own() -> None:
    names = ("huggingface", "jax", "lightgbm", "lightning", "tensorflow", "torch", "xgboost")
    assert not set(names) - set(printed("import dray.train; print(*dir(dray.train))").split())
    code = "import dray.train; print(dray.train.tensorflow.TensorflowTrainer.__name__)"
    assert printed(code) == "TensorflowTrainer"


def test_import_starts_nothing() -> None:
    code = (
        "import threading, signal, os; before = dict(os.environ), signal.getsignal(signal.SIGINT); "
        "import dray.train.torch; "
        "after = dict(os.environ), signal.getsignal(signal.SIGINT); "
        "print(before == after, threading.active_count(), dray.is_initialized())"
    )
    assert printed(code) == "True 1 False"


def test_the_extra_for_ray_brings_what_makes_its_environments() -> None:
    wanted = [text for text in metadata.requires("dray") or () if text.endswith('extra == "ray"')]
    names = {re.split(r"[^\w-]", text, maxsplit=1)[0] for text in wanted}
    assert names == {"ray", "virtualenv"}  # which runtime_env={"pip": ...} is made with
