"""Training on a fleet of GPUs, NPUs, HPUs, Neuron cores and TPU slices, process engine and Ray."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.errors import InfeasibleError
from dray.testing import FakeHost, tpu_slice
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig, UserCallback
from dray.train.jax import JaxTrainer
from dray.train.torch import TorchTrainer
from tests.accelerators.test_devices_integration import FAMILIES, fit, look
from tests.support.fleets import Meanwhile, Reports, fleet_of, free
from tests.support.gates import until
from tests.support.vendors import STUBS

pytestmark = pytest.mark.timeout(180)

NODES: list[dict[str, Any]] = [
    {
        "node_id": "mixed",
        "num_cpus": 4,
        "num_gpus": 4,
        "accelerator_type": "A100",
        "resources": {"NPU": 2, "HPU": 2, "neuron_cores": 2, "my_resource": 3},
    },
    *tpu_slice("2x2x2", "TPU-V4", name="b", num_cpus=1),
    *tpu_slice("2x2x2", "TPU-V4", name="a", num_cpus=1),
]


RAY = pytest.param("ray", marks=pytest.mark.cluster)


@pytest.fixture(scope="module", params=["process", RAY])
def fleet(request: pytest.FixtureRequest, _quiet: None) -> Iterator[None]:
    """A session with them."""
    if request.param == "ray":  # which looks for Habana's package as it is imported
        importlib.import_module("ray")
    with FakeHost(modules=STUBS), fleet_of(request.param, NODES, {"JAX_PLATFORMS": "cpu"}):
        yield


def first_reports(
    trainer: type[DataParallelTrainer],
    function: Any,
    storage: Path,
    *callbacks: UserCallback,
    **scaling: Any,
) -> list[dict[str, Any]]:
    """Return what every rank reports first, by rank."""
    reports = Reports()
    trainer(
        function,
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(storage_path=storage, callbacks=[reports, *callbacks]),
    ).fit()
    return reports.first


@pytest.mark.parametrize("fleet", [RAY], indirect=True)
@pytest.mark.parametrize(
    ("resource", "variable", "shown", "devices", "backend", "stub"),
    [pytest.param(*case[1:], id=case[1]) for case in FAMILIES if case[0] is None],
)
def test_accelerators_that_are_no_gpus(
    fleet: None,
    storage: Path,
    resource: str,
    variable: str,
    shown: str,
    devices: list[str],
    backend: str,
    stub: str,
) -> None:
    """On the process engine, `test_every_family` has them."""
    config = ScalingConfig(num_workers=2, resources_per_worker={resource: 1, "CPU": 0.5})
    assert TorchTrainer(look, scaling_config=config).plan().backend == backend
    found = fit(config, storage, variable, stub=stub)
    assert [each["devices"] for each in found] == [[device] for device in devices]
    assert [each["shown"] for each in found] == [shown] * 2
    assert [each["backend"] for each in found] == [backend] * 2


def test_a_jax_worker_sees_its_own_gpus(fleet: None, storage: Path) -> None:
    """Never the first devices of everybody, as workers with PyTorch do."""

    def see() -> None:
        dray.train.report({"shown": os.environ["CUDA_VISIBLE_DEVICES"]})

    gpus = {"use_gpu": True, "resources_per_worker": {"GPU": 2, "CPU": 0.5}}
    found = first_reports(JaxTrainer, see, storage, num_workers=2, **gpus)
    assert [each["shown"] for each in found] == ["0,1", "2,3"]


@pytest.mark.parametrize("slices", [1, 2])
def test_jax_is_one_program_over_tpu_slices(fleet: None, storage: Path, slices: int) -> None:
    """With no chips here, its processes talk on their CPUs."""

    def gather() -> None:
        import jax
        import numpy
        from jax.experimental.multihost_utils import process_allgather

        from dray.train.worker.current_session import current_session

        told = {k[10:]: v for k, v in os.environ.items() if k.startswith("MEGASCALE_")}
        assignment = current_session("gather").assignment
        own = numpy.array([jax.process_index(), dray.train.get_context().get_world_rank()])
        gathered = process_allgather(own).tolist()
        dray.train.report({"gathered": gathered, "told": told, "address": assignment.address})

    of_slices = {"use_tpu": True, "topology": "2x2x2", "accelerator_type": "TPU-V4"}
    workers = 2 * slices
    found = first_reports(JaxTrainer, gather, storage, num_workers=workers, **of_slices)
    ranks = [[rank, rank] for rank in range(workers)]
    assert [each["gathered"] for each in found] == [ranks] * workers
    several = {"COORDINATOR_ADDRESS": found[0]["address"], "PORT": "8081", "NUM_SLICES": "2"}
    assert [each["told"] for each in found] == (
        [{}, {}]
        if slices == 1
        else [{**several, "SLICE_ID": str(rank // 2)} for rank in range(workers)]
    )


def test_resources_of_the_users_and_memory(fleet: None, storage: Path) -> None:
    mebibytes = 64
    each = {"my_resource": 1, "memory": mebibytes << 20, "CPU": 0.5}

    def refused(workers: int, **more: float) -> str:
        config = ScalingConfig(num_workers=workers, resources_per_worker={**each, **more})
        with pytest.raises(InfeasibleError) as error:
            DataParallelTrainer(print, scaling_config=config).fit()
        return str(error.value)

    def held() -> bool:
        mine, memory = free("my_resource", "memory")
        return (mine, all_memory - memory) == (1, 2 * mebibytes << 20)

    until(lambda: free("my_resource") == [3])
    (all_memory,) = free("memory")
    found = first_reports(
        DataParallelTrainer,
        lambda: dray.train.report({"node": dray.get_runtime_context().get_node_id()}),
        storage,
        Meanwhile(lambda: until(held)),
        num_workers=2,
        resources_per_worker=each,
    )
    (mixed,) = [node for node in dray.nodes() if "my_resource" in node["Resources"]]
    assert [each["node"] for each in found] == [mixed["NodeID"]] * 2
    assert "4 my_resource asked, 3 my_resource exist" in refused(4)
    assert "1 TiB memory asked" in refused(1, memory=1 << 40)
