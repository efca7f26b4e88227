"""Variables that show a train function its devices: dray's, the user's, and JAX's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray.accelerators import families
from dray.errors import ConfigError
from dray.testing import FakeHost
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig
from dray.train.backend import Backend, BackendConfig
from dray.train.jax import JaxConfig, JaxTrainer
from dray.train.worker.current_session import current_session
from dray.train.worker.device_visibility import device_indices
from tests.support.fleets import Reports

LIMITS = {name for family in families() for name in family.variables}


class Sharing(Backend):
    """Devices are visible as with PyTorch, which takes a second of a core to import."""

    share_cuda_visible_devices = True


class SharingConfig(BackendConfig):
    """For runs with variables of their own: a fork server has them from its start."""

    backend_cls = Sharing


def fit_with(config: ScalingConfig, storage: Path, variable: str, value: str) -> Any:
    """Return what every rank finds when the user sets a variable for workers."""
    limits = LIMITS

    def look_at_places() -> None:  # by value, for which no worker imports this module
        dray.train.report(
            {
                "places": device_indices(current_session("a test").assignment, os.environ),
                "shown": os.environ.get(variable),
                "limits": {name: os.environ[name] for name in limits if name in os.environ},
            }
        )

    reports = Reports()
    DataParallelTrainer(
        look_at_places,
        backend_config=SharingConfig(),
        scaling_config=config,
        run_config=RunConfig(
            storage_path=storage,
            callbacks=[reports],
            worker_runtime_env={"env_vars": {variable: value}},
        ),
    ).fit()
    return reports.first


def test_what_the_user_sets_for_workers_stays(session: Any, storage: Path) -> None:
    session({"num_cpus": 4, "num_gpus": 2})
    config = ScalingConfig(num_workers=2, use_gpu=True)
    found = fit_with(config, storage, "CUDA_VISIBLE_DEVICES", "6,7")
    assert {rank["shown"] for rank in found} == {"6,7"}
    assert [rank["places"] for rank in found] == [[0], [1]]
    with pytest.raises(ConfigError, match=r"has GPU .*, but CUDA_VISIBLE_DEVICES='7' does not"):
        fit_with(config, storage, "CUDA_VISIBLE_DEVICES", "7")


AMD, INTEL = "AMD-Instinct-MI300X-OAM", "Intel-GPU-Max-1550"


HIP, ROCR = "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


MASK, SELECTOR = "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"


@pytest.mark.parametrize(
    ("kind", "given", "value", "node"),
    [
        (AMD, HIP, "0,1", {}),
        (AMD, ROCR, "0,1", {HIP: "0,1,2"}),
        (AMD, "CUDA_VISIBLE_DEVICES", "0,1", {ROCR: "0,1,2"}),
        (INTEL, MASK, "0,1,2,3", {SELECTOR: "level_zero:0,1"}),
        (INTEL, SELECTOR, "level_zero:0,1", {MASK: "0,1,2"}),
    ],
)
def test_of_a_familys_variables_a_worker_has_the_one_that_the_user_sets(
    session: Any, storage: Path, kind: str, given: str, value: str, node: dict[str, str]
) -> None:
    """Each would count within what another one leaves."""
    with FakeHost(environment=node):
        session({"num_cpus": 4, "num_gpus": 2, "accelerator_type": kind})
        found = fit_with(ScalingConfig(num_workers=2, use_gpu=True), storage, given, value)
        dray.shutdown()
    assert [rank["places"] for rank in found] == [[0], [1]]
    assert [rank["limits"] for rank in found] == [{given: value}] * 2


def test_a_list_of_the_users_that_names_some_of_the_ids_and_others(
    session: Any, storage: Path
) -> None:
    """The devices of all ranks are looked up in one way: else two of them meet on one."""
    session({"num_cpus": 4, "num_gpus": 4})
    config = ScalingConfig(num_workers=4, use_gpu=True)
    found = fit_with(config, storage, "CUDA_VISIBLE_DEVICES", "0,2,4,6")
    assert [rank["places"] for rank in found] == [[i] for i in range(4)]
    found = fit_with(config, storage, "CUDA_VISIBLE_DEVICES", "3,2,1,0")
    assert [rank["places"] for rank in found] == [[i] for i in (3, 2, 1, 0)]


def test_a_list_of_the_users_that_is_a_ranks_own(session: Any, storage: Path) -> None:
    session({"num_cpus": 4, "num_gpus": 2})
    (found,) = fit_with(ScalingConfig(use_gpu=True), storage, "CUDA_VISIBLE_DEVICES", "0")
    assert (found["shown"], found["places"]) == ("0", [0])
    config = ScalingConfig(num_workers=2, use_gpu=True)
    with pytest.raises(ConfigError, match="rank 1 has GPU 1, but CUDA_VISIBLE_DEVICES='0' does"):
        fit_with(config, storage, "CUDA_VISIBLE_DEVICES", "0")


def test_without_a_framework_a_worker_sees_its_own(session: Any, storage: Path) -> None:
    session({"num_cpus": 4, "num_gpus": 2})

    def train() -> None:
        dray.train.report({"shown": os.environ["CUDA_VISIBLE_DEVICES"]})

    reports = Reports()
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
        run_config=RunConfig(storage_path=storage, callbacks=[reports]),
    ).fit()
    assert [rank["shown"] for rank in reports.first] == ["0", "1"]


def test_a_jax_worker_sees_its_own(session: Any, storage: Path) -> None:
    """Never the first devices of everybody."""
    session({"num_cpus": 4, "num_gpus": 4}, runtime_env={"env_vars": {"JAX_PLATFORMS": "cpu"}})

    def train() -> None:
        dray.train.report({"shown": os.environ["CUDA_VISIBLE_DEVICES"]})

    reports = Reports()
    JaxTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 2}),
        run_config=RunConfig(storage_path=storage, callbacks=[reports]),
    ).fit()
    assert [rank["shown"] for rank in reports.first] == ["0,1", "2,3"]


def test_jax_without_support_for_what_workers_have(
    session: Any, storage: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX itself would use the CPU and say nothing."""
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    session({"num_cpus": 4, "num_gpus": 1})

    def train() -> str:
        import jax

        return str(jax.default_backend())

    gpu = ScalingConfig(use_gpu=True)
    run = RunConfig(storage_path=storage)
    result = JaxTrainer(train, scaling_config=gpu, run_config=run).fit()
    assert result.return_value == "cpu"
    assert "rank 0: JAX has no support for cuda here" in capfd.readouterr().err
    sure = JaxConfig(use_gpu=True)
    with pytest.raises(ConfigError, match=r"rank 0: JAX has no support .*pip install 'jax\[cuda"):
        JaxTrainer(train, jax_config=sure, scaling_config=gpu, run_config=run).fit()
