"""What libraries that connect workers find in the environment: interfaces, and slices of TPUs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray import host
from dray.testing import FakeHost, tpu_slice
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig
from dray.train.jax import JaxConfig, JaxTrainer
from dray.train.torch import TorchTrainer
from tests.support.fleets import Reports

# What torch_xla does to PyTorch when it is imported.
XLA = """
from torch import distributed

def gloo(store, rank, size, timeout):
    return distributed.ProcessGroupGloo(store, rank, size, timeout)

distributed.Backend.register_backend("xla", gloo, devices=["xla", "cpu"])
"""
SLICES = ("COORDINATOR_ADDRESS", "PORT", "NUM_SLICES", "SLICE_ID")


def test_pytorch_hears_of_several_slices_and_not_of_one(
    session: Any, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> None:
        told = {name: os.environ.get(f"MEGASCALE_{name}") for name in SLICES}
        dray.train.report(told)

    def told(workers: int, **variables: str) -> list[list[str | None]]:
        reports = Reports()
        TorchTrainer(
            train,
            scaling_config=ScalingConfig(
                num_workers=workers, use_tpu=True, topology="2x2x2", accelerator_type="TPU-V4"
            ),
            run_config=RunConfig(
                storage_path=storage,
                callbacks=[reports],
                worker_runtime_env={"env_vars": variables},
            ),
        ).fit()
        return [list(report.values()) for report in reports.first]

    for name in SLICES:  # as pods of several slices have
        monkeypatch.setenv(f"MEGASCALE_{name}", "7")
    with FakeHost(modules={"torch_xla.distributed.xla_backend": XLA}):
        session(*tpu_slice("2x2x2", "TPU-V4", name="a"), *tpu_slice("2x2x2", "TPU-V4", name="b"))
        assert told(2) == [[None] * 4] * 2
        assert told(4) == [["127.0.0.1", "7", "2", str(rank // 2)] for rank in range(4)]
        assert told(4, MEGASCALE_PORT="9000")[0][1] == "9000"
        dray.shutdown()


CHOSEN = {"NCCL_SOCKET_IFNAME": "ens5", "GLOO_SOCKET_IFNAME": "eth9"}


@pytest.mark.parametrize(
    ("node", "trainer", "options", "interface"),
    [
        ({"num_gpus": 2, "accelerator_type": "A100"}, TorchTrainer, {}, "ens5"),
        ({"num_gpus": 2, "accelerator_type": "A100"}, JaxTrainer, {}, "ens5"),
        ({"num_gpus": 2, "accelerator_type": "AMD-Instinct-MI300X-OAM"}, JaxTrainer, {}, "ens5"),
        (
            {"num_gpus": 2, "accelerator_type": "A100"},
            *(JaxTrainer, {"jax_config": JaxConfig(use_gpu=False)}, "lo"),
        ),
        ({}, TorchTrainer, {}, "eth9"),
        ({}, JaxTrainer, {}, "lo"),
        ({}, DataParallelTrainer, {}, "lo"),
        ({"resources": {"HPU": 2}}, TorchTrainer, {}, "lo"),
        ({"num_gpus": 2, "accelerator_type": "Intel-GPU-Max-1550"}, TorchTrainer, {}, "lo"),
        ({"resources": {"neuron_cores": 2}}, TorchTrainer, {}, "lo"),
    ],
)
@pytest.mark.skipif(host.interface_of("127.0.0.1") != "lo", reason="needs Linux")
def test_a_plan_names_the_interface_that_will_be_used(
    session: Any,
    node: dict[str, Any],
    trainer: type[DataParallelTrainer],
    options: dict[str, Any],
    interface: str,
) -> None:
    session({"num_cpus": 4, **node}, runtime_env={"env_vars": CHOSEN})
    scaling = ScalingConfig(
        num_workers=2,
        use_gpu="num_gpus" in node,
        resources_per_worker=dict.fromkeys(node.get("resources", {}), 1) or None,
    )
    assert trainer(print, scaling_config=scaling, **options).plan().interface == interface


NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@pytest.mark.parametrize("engine_name", ["ray"], indirect=True)
@pytest.mark.usefixtures("engine")
def test_jax_on_gpus_takes_the_interface_of_the_nodes_address(storage: Path) -> None:
    """As if there were GPUs: JAX is not asked for them."""

    def train() -> Any:
        address = dray.nodes()[0]["NodeManagerAddress"]
        return address, *(os.environ.get(name) for name in NAMES)

    def found(**variables: str) -> Any:
        trainer = JaxTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=storage, worker_runtime_env={"env_vars": variables}),
        )
        return trainer.fit().return_value

    address, gloo, nccl = found(JAX_PLATFORMS="cuda,cpu")
    interface = host.interface_of(address)
    assert gloo == interface is not None
    assert nccl == (None if address == "127.0.0.1" else f"={interface}")
    assert found(JAX_PLATFORMS="cuda", NCCL_SOCKET_IFNAME="ens5")[2] == "ens5"
    assert found(JAX_PLATFORMS="cpu")[1:] == (None, None)
