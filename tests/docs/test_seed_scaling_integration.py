"""The snippets of Ray Train's page on scale and accelerators, with `dray` for `ray`.

The devices are simulated, on the process engine and on a Ray cluster, so what a snippet asserts of
torch.cuda is true by decree; where a snippet only makes a config, a run with it shows what workers
get. Neither PyTorch nor Ray is imported here, for workers without them import this file, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray import session
from dray.errors import InfeasibleError
from dray.testing import tpu_slice
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig, UserCallback
from dray.train.backend import Backend, BackendConfig
from dray.train.torch import TorchTrainer
from tests.support.fleets import Meanwhile, Reports, fleet_of, free
from tests.support.gates import until

pytestmark = pytest.mark.timeout(180)

NODES: list[dict[str, Any]] = [
    {"node_id": "a100", "num_cpus": 16, "num_gpus": 8, "accelerator_type": "A100"},
    {"node_id": "v100", "num_cpus": 16, "num_gpus": 8, "accelerator_type": "V100"},
    *tpu_slice("4x4", "TPU-V6E", name="broken", num_cpus=1)[:1],  # its other hosts are gone
    *tpu_slice("4x4", "TPU-V6E", name="one", num_cpus=1),
    *tpu_slice("4x4", "TPU-V6E", name="two", num_cpus=1),
    *tpu_slice("2x2x4", "TPU-V4", name="three", num_cpus=1),
]


@pytest.fixture(scope="module", params=["process", pytest.param("ray", marks=pytest.mark.cluster)])
def fleet(request: pytest.FixtureRequest, _quiet: None) -> Iterator[str]:
    """A session with sixteen GPUs of two types, and three TPU slices."""
    variables = {"NCCL_SOCKET_IFNAME": "ens5", "JAX_PLATFORMS": "cpu"}
    with fleet_of(request.param, NODES, variables):
        yield request.param


class Sharing(BackendConfig):
    """No framework, but devices are shared as with PyTorch: much quicker to start."""

    @property
    def backend_cls(self) -> type[Backend]:
        return type("SharingBackend", (Backend,), {"share_cuda_visible_devices": True})


def fleet_decides() -> bool:
    """Whether workers are where the plan says: a cluster chooses among the nodes that fit."""
    return session.current_engine().name == "process"


def look() -> None:
    """Report what a rank finds."""
    from dray.train.worker.current_session import current_session

    context = dray.train.get_context()
    dray.train.report(
        {
            "place": [context.get_node_rank(), context.get_local_rank()],
            "ids": [i for ids in current_session("look").assignment.devices.values() for i in ids],
            "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "chips": os.environ.get("TPU_VISIBLE_CHIPS"),
        }
    )


def run(config: ScalingConfig, storage: Path, *callbacks: UserCallback) -> list[dict[str, Any]]:
    """Run workers with a config, as planned; return what each of them finds, by rank."""
    reports = Reports()
    trainer = DataParallelTrainer(
        look,
        backend_config=Sharing(),
        scaling_config=config,
        run_config=RunConfig(storage_path=storage, callbacks=[reports, *callbacks]),
    )
    until(lambda: trainer.plan().fits)
    plan = trainer.plan()
    trainer.fit()
    found = reports.first
    assert len(found) == plan.num_workers
    if fleet_decides():
        places = [[worker.node_rank, worker.local_rank] for worker in plan.workers]
        assert [each["place"] for each in found] == places
    return found


def snippet(text: str, **names: Any) -> dict[str, Any]:
    """Run a snippet of the page with `dray` for `ray`; return its names."""
    text = text.replace("ray.", "dray.").replace("import ray", "import dray")
    text = text.replace(IS_AVAILABLE, f"torch.cuda.is_available = lambda: True\n    {IS_AVAILABLE}")
    namespace = {"__name__": "__main__", **names}
    exec(compile(text, "snippet", "exec"), namespace)
    return namespace


IS_AVAILABLE = "assert torch.cuda.is_available()"


@pytest.fixture(autouse=True)
def home(fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the snippets' runs are kept: they say nothing of it."""
    if fleet == "ray":
        from tests.support.clusters import comes_free

        assert comes_free()
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_number_of_workers(fleet: str, storage: Path) -> None:
    names = snippet("""
from ray.train import ScalingConfig

scaling_config = ScalingConfig(
    num_workers=8
)
""")
    found = run(names["scaling_config"], storage)
    assert len(found) == 8
    assert all(each["ids"] == [] for each in found)


def test_a_gpu_for_each_worker(fleet: str, storage: Path) -> None:
    names = snippet("""
from ray.train import ScalingConfig

scaling_config = ScalingConfig(
    num_workers=8,
    use_gpu=True
)
""")
    found = run(names["scaling_config"], storage)
    assert sorted(each["ids"][0] for each in found) == [str(i) for i in range(8)]
    assert {each["cuda"] for each in found} == {"0,1,2,3,4,5,6,7"}


def test_tpu_slices(fleet: str, storage: Path) -> None:
    names = snippet("""
from ray.train import ScalingConfig

# Single slice: 4 v6e VMs in a 4x4 topology
scaling_config = ScalingConfig(
    num_workers=4,
    use_tpu=True,
    topology="4x4",
    accelerator_type="TPU-V6E",
)
""")
    found = run(names["scaling_config"], storage)
    assert [each["place"] for each in found] == [[node, 0] for node in range(4)]
    assert all(len(each["ids"]) == 4 for each in found)

    names = snippet("""
from ray.train import ScalingConfig

# Multi-slice: 2 v6e slices, 8 VMs total
scaling_config = ScalingConfig(
    num_workers=8,
    use_tpu=True,
    topology="4x4",
    accelerator_type="TPU-V6E",
)
""")
    trainer = DataParallelTrainer(look, scaling_config=names["scaling_config"])
    until(lambda: trainer.plan().fits)  # Ray tells what is free with a delay
    slices = [worker.node for worker in trainer.plan().workers]
    hosts = {node["NodeID"]: node["Labels"] for node in dray.nodes()}
    order = [
        (hosts[node]["ray.io/tpu-slice-name"], hosts[node]["ray.io/tpu-worker-id"])
        for node in slices
    ]
    assert sorted(order) == [(name, str(host)) for name in ("one", "two") for host in range(4)]
    assert [host for _, host in order] == [*"01230123"]
    assert len({name for name, _ in order[:4]}) == 1
    run(names["scaling_config"], storage)


@pytest.mark.parametrize("signature", ["train_func():", "train_func(config):"])
def test_the_device_of_a_worker(fleet: str, signature: str) -> None:
    """The older page's function takes a config."""
    text = """
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, get_device


def train_func():
    assert torch.cuda.is_available()

    device = get_device()
    assert device == torch.device("cuda:0")

trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(
        num_workers=1,
        use_gpu=True
    )
)
trainer.fit()
"""
    snippet(text.replace("train_func():", signature))


def test_jax_on_a_tpu_slice(fleet: str) -> None:
    snippet("""
import ray.train
from ray.train import ScalingConfig
from ray.train.v2.jax import JaxTrainer


def train_func():
    import jax
    devices = jax.devices()
    ray.train.report({"num_devices": len(devices)})

trainer = JaxTrainer(
    train_func,
    scaling_config=ScalingConfig(
        num_workers=4,
        use_tpu=True,
        topology="4x4",
        accelerator_type="TPU-V6E",
    )
)
result = trainer.fit()
assert result.metrics == {"num_devices": 4}
""")


def test_several_devices_of_a_worker(fleet: str) -> None:
    snippet("""
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, get_device, get_devices


def train_func():
    assert torch.cuda.is_available()

    device = get_device()
    devices = get_devices()
    assert device == torch.device("cuda:0")
    assert devices == [torch.device("cuda:0"), torch.device("cuda:1")]

trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(
        num_workers=1,
        use_gpu=True,
        resources_per_worker={"GPU": 2}
    )
)
trainer.fit()
""")


def test_fewer_chips_than_a_host_has(fleet: str, storage: Path) -> None:
    names = snippet("""
from ray.train import ScalingConfig

scaling_config = ScalingConfig(
    num_workers=4,
    use_tpu=True,
    topology="4x4",
    accelerator_type="TPU-V6E",
    resources_per_worker={"TPU": 2},
)
""")
    chips = sum(node.get("resources", {}).get("TPU", 0) for node in NODES)
    until(lambda: free("TPU") == [chips])

    both_slices = DataParallelTrainer(
        look, scaling_config=replace(names["scaling_config"], num_workers=8)
    )
    until(lambda: both_slices.plan().fits)

    def the_slice_is_taken_whole() -> None:
        until(lambda: free("TPU") == [chips - 16])
        until(lambda: not both_slices.plan().fits)

    found = run(names["scaling_config"], storage, Meanwhile(the_slice_is_taken_whole))
    assert [each["place"] for each in found] == [[node, 0] for node in range(4)]
    assert all(each["chips"] == "0,1" for each in found)


def test_accelerator_types(fleet: str, storage: Path) -> None:
    names = snippet("""
from ray.train import ScalingConfig
gpus = ScalingConfig(
    num_workers=1,
    use_gpu=True,
    accelerator_type="A100"
)
tpus = ScalingConfig(
    num_workers=4,
    use_tpu=True,
    topology="2x2x4",
    accelerator_type="TPU-V4",
)
""")
    for config, kind in ((names["gpus"], "A100"), (names["tpus"], "TPU-V4")):
        (*_, worker) = DataParallelTrainer(look, scaling_config=config).plan().workers
        (node,) = [node for node in dray.nodes() if node["NodeID"] == worker.node]
        assert node["Resources"][f"accelerator_type:{kind}"] == 1
        run(config, storage)


def test_communication_backend(fleet: str) -> None:
    def train() -> str:
        from torch import distributed

        return str(distributed.get_backend())

    names = snippet(
        """
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(
        num_workers=num_training_workers,
        use_gpu=True, # Defaults to NCCL
    ),
    torch_config=TorchConfig(backend="gloo"),
)
""",
        train_func=train,
        num_training_workers=2,
    )
    assert names["trainer"].plan().backend == "gloo"
    assert names["trainer"].fit().return_value == "gloo"
    by_default = TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2, use_gpu=True))
    assert by_default.plan().backend == "nccl"


def test_resources_per_worker(fleet: str, storage: Path) -> None:
    names = snippet("""
from ray.train import ScalingConfig

scaling_config = ScalingConfig(
    num_workers=8,
    resources_per_worker={
        "CPU": 4,
        "GPU": 2,
    },
    use_gpu=True,
)
""")
    found = run(names["scaling_config"], storage)
    pairs = [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]
    assert [each["ids"] for each in found] == pairs * 2
    assert [each["place"] for each in found] == [[n, i] for n in range(2) for i in range(4)]


def test_fractions_of_gpus(fleet: str, storage: Path) -> None:
    names = snippet("""
from ray.train import ScalingConfig

scaling_config = ScalingConfig(
    num_workers=8,
    resources_per_worker={
        "CPU": 4,
        "GPU": 0.5,
    },
    use_gpu=True,
)
""")
    found = run(names["scaling_config"], storage)
    assert [each["ids"] for each in found] == [["0"], ["0"], ["1"], ["1"]] * 2
    assert {each["cuda"] for each in found} == {"0,1"}


@pytest.mark.filterwarnings("ignore:trainer_resources is deprecated:DeprecationWarning")
def test_trainer_resources(fleet: str, storage: Path) -> None:
    names = snippet("""
from ray.train import ScalingConfig

none = ScalingConfig(
    num_workers=4,
    resources_per_worker={
        "CPU": 2,
    },
    trainer_resources={
        "CPU": 0,
    }
)
some = ScalingConfig(
    num_workers=8,
    trainer_resources={
        "CPU": 4,
        "GPU": 1,
    }
)
""")
    assert len(run(names["none"], storage)) == 4
    cpus, gpus = sum(node["num_cpus"] for node in NODES), 16
    until(lambda: free("CPU", "GPU") == [cpus, gpus])
    held = [cpus - 8 - 4, gpus - 1]
    run(names["some"], storage, Meanwhile(lambda: until(lambda: free("CPU", "GPU") == held)))


def test_shared_gpus_in_a_plan(fleet: str) -> None:
    shared = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 0.5})
    until(lambda: TorchTrainer(look, scaling_config=shared).plan().fits)
    assert TorchTrainer(look, scaling_config=shared).plan().backend == "gloo"
    # Seventeen of them do not fit sixteen GPUs, though their sum does.
    odd = ScalingConfig(num_workers=17, use_gpu=True, resources_per_worker={"GPU": 0.6})
    with pytest.raises(InfeasibleError, match="num_workers=16 would fit now"):
        DataParallelTrainer(look, scaling_config=odd).fit()


def test_a_range_takes_all_again_and_again(
    fleet: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster shows what a run has given back as taken for a while, the longer on a busy one."""
    monkeypatch.setattr("dray.engines.ray.reservations._LAG_S", 30)

    def fit() -> Any:
        return (
            DataParallelTrainer(
                lambda: dray.train.get_context().get_world_size(),
                scaling_config=ScalingConfig(
                    num_workers=(1, 2), use_gpu=True, resources_per_worker={"GPU": 8}
                ),
                run_config=RunConfig(storage_path=storage),
            )
            .fit()
            .return_value
        )

    assert [fit() for _ in range(3)] == [2, 2, 2]


def test_network_interface_for_nccl(fleet: str) -> None:
    """The session was begun with the snippet's `runtime_env`."""
    trainer = TorchTrainer(
        lambda: os.environ["NCCL_SOCKET_IFNAME"],
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
    )
    assert trainer.plan().interface == "ens5"
    assert trainer.fit().return_value == "ens5"
