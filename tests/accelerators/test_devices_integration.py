"""What a worker of each family finds: its devices in PyTorch, what it sees, how ranks talk.

No device is there: nodes are simulated, and vendors' packages for PyTorch are stubs that register
what the real ones register, with gloo behind the vendor's backend.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

import dray
import dray.train
from dray.errors import ConfigError
from dray.testing import FakeHost
from dray.train import RunConfig, ScalingConfig
from dray.train.torch import TorchConfig, TorchTrainer, get_devices
from tests.support.fleets import Reports
from tests.support.vendors import GPUS, NCCL, STUBS

COLLECTIVE = (
    *("FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "FI_EFA_FORK_SAFE"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Any:
    """Return what runs have told the user since the last call."""
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    return lambda: capfd.readouterr().err


def look(config: dict[str, str]) -> None:
    """Report what a rank finds."""
    devices = get_devices()
    stub = sys.modules.get(config.get("stub", ""))
    dray.train.report(
        {
            "devices": [str(device) for device in devices],
            "shown": os.environ.get(config["variable"]),
            "collective": {name: os.environ[name] for name in COLLECTIVE if name in os.environ},
            "accelerate": os.environ["ACCELERATE_TORCH_DEVICE"],
            "unmapped": os.environ.get("ACCELERATE_BYPASS_DEVICE_MAP"),
            "backend": distributed.get_backend(),
            "set": stub.Device.chosen if stub is not None else None,
        }
    )


def fit(config: ScalingConfig, storage: Path, variable: str, **options: Any) -> Any:
    """Return what every rank finds, by rank."""
    reports = Reports()
    TorchTrainer(
        look,
        train_loop_config={"variable": variable, "stub": options.pop("stub", "")},
        scaling_config=config,
        run_config=RunConfig(storage_path=storage, callbacks=[reports], **options.pop("run", {})),
        **options,
    ).fit()
    return reports.first


FAMILIES = [
    ("A100", "GPU", "CUDA_VISIBLE_DEVICES", "0,1", ["cuda:0", "cuda:1"], "nccl", ""),
    ("MXC500", "GPU", "CUDA_VISIBLE_DEVICES", "0,1", ["cuda:0", "cuda:1"], "nccl", ""),
    (
        *("AMD-Instinct-MI300X-OAM", "GPU", "ROCR_VISIBLE_DEVICES", "0,1"),
        *(["cuda:0", "cuda:1"], "nccl", ""),
    ),
    (
        *("Intel-GPU-Max-1550", "GPU", "ONEAPI_DEVICE_SELECTOR", "level_zero:0,1"),
        *(["xpu:0", "xpu:1"], "xccl", ""),
    ),
    (None, "NPU", "ASCEND_RT_VISIBLE_DEVICES", "0,1", ["npu:0", "npu:1"], "hccl", "torch_npu"),
    (
        *(None, "HPU", "HABANA_VISIBLE_MODULES", "0,1", ["hpu", "hpu"], "hccl"),
        "habana_frameworks.torch.distributed.hccl",
    ),
    (
        *(None, "neuron_cores", "NEURON_RT_VISIBLE_CORES", "0,1", ["xla:0", "xla:0"], "xla"),
        "torch_xla.distributed.xla_backend",
    ),
]


@pytest.mark.parametrize("kind", ["A100", "Intel-GPU-Max-1550"])
def test_the_device_is_chosen_before_the_function_runs(
    session: Any, storage: Path, kind: str
) -> None:
    gloo = TorchConfig(backend="gloo")
    gloo.modules += ("gpu_stub",)
    with FakeHost(modules={"gpu_stub": GPUS}):
        session({"num_cpus": 4, "num_gpus": 2, "accelerator_type": kind})
        config = ScalingConfig(num_workers=2, use_gpu=True)
        found = fit(config, storage, "PATH", stub="gpu_stub", torch_config=gloo)
        dray.shutdown()
    name = "cuda" if kind == "A100" else "xpu"
    assert [each["set"] for each in found] == [f"{name}:0", f"{name}:1"]


def test_every_family(session: Any, storage: Path) -> None:
    """On a node of each, in one session."""
    nodes: list[dict[str, Any]] = [{"num_cpus": 0, "resources": {row[1]: 2}} for row in FAMILIES]
    for node, (kind, *_) in zip(nodes, FAMILIES, strict=True):
        node.update({"accelerator_type": kind} if kind else {})
    with FakeHost(modules=STUBS):
        session({"num_cpus": 4}, *nodes)
        for row in FAMILIES:
            check_family(storage, *row)
        dray.shutdown()


def check_family(
    storage: Path,
    kind: str | None,
    resource: str,
    variable: str,
    shown: str,
    devices: list[str],
    backend: str,
    stub: str,
) -> None:
    config = ScalingConfig(
        num_workers=2,
        use_gpu=resource == "GPU",
        resources_per_worker={"CPU": 0, resource: 1},
        accelerator_type=kind,
    )
    assert TorchTrainer(look, scaling_config=config).plan().backend == backend
    run = {"worker_runtime_env": {"env_vars": {"FI_EFA_FORK_SAFE": "0"}}}  # the user's own
    found = fit(config, storage, variable, stub=stub, run=run)
    assert [each["devices"] for each in found] == [[device] for device in devices]
    assert [each["shown"] for each in found] == [shown, shown]
    rest = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"} if backend == "xla" else {}
    assert [each["collective"] for each in found] == [{**rest, "FI_EFA_FORK_SAFE": "0"}] * 2
    assert [each["accelerate"] for each in found] == devices
    # PyTorch without CUDA or XPU cannot use these, and says so; with the stubs it can use the rest.
    assert {each["backend"] for each in found} == {backend if stub else "gloo"}
    if resource == "NPU":
        assert [each["set"] for each in found] == devices


def test_an_apple_gpu_is_for_one_worker(session: Any, storage: Path, shown: Any) -> None:
    session({"num_cpus": 4, "num_gpus": 2, "accelerator_type": "M2-Pro"})
    (found,) = fit(ScalingConfig(use_gpu=True), storage, "CUDA_VISIBLE_DEVICES")
    assert (found["devices"], found["shown"], found["backend"]) == (["mps"], None, "gloo")
    assert re.search("rank 0: torch .* cannot use mps devices here", shown())
    with pytest.raises(
        ConfigError, match=r"gloo cannot carry mps tensors between Apple GPUs; use one worker"
    ):
        fit(ScalingConfig(num_workers=2, use_gpu=True), storage, "CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("node", "asked", "tensors"),
    [
        ({"num_gpus": 1, "accelerator_type": "Intel-GPU-Max-1550"}, {"GPU": 0.5}, "xpu"),
        ({"resources": {"NPU": 1}}, {"NPU": 0.5}, "npu"),
    ],
)
def test_a_shared_device_whose_tensors_gloo_does_not_carry(
    session: Any, storage: Path, shown: Any, node: Any, asked: dict[str, float], tensors: str
) -> None:
    with FakeHost(modules=STUBS):
        session({"num_cpus": 4, **node})
        config = ScalingConfig(num_workers=2, use_gpu="GPU" in asked, resources_per_worker=asked)
        message = rf"gloo cannot carry {tensors} tensors .*; give each worker a whole device"
        with pytest.raises(ConfigError, match=message):
            TorchTrainer(look, scaling_config=config).plan()
        gloo = TorchConfig(backend="gloo")  # for tensors on the CPU
        (note,) = TorchTrainer(look, scaling_config=config, torch_config=gloo).plan().notes
        assert note.startswith(f"gloo cannot carry {tensors} tensors between")
        shown()
        found = fit(config, storage, "CUDA_VISIBLE_DEVICES", torch_config=gloo)
        dray.shutdown()
    assert {rank["backend"] for rank in found} == {"gloo"}
    assert note in shown()


def test_tpu_chips_are_not_shared(session: Any, storage: Path) -> None:
    """A process takes all chips that it sees."""
    with FakeHost(modules=STUBS):
        session({"num_cpus": 4, "resources": {"TPU": 4}})
        config = ScalingConfig(use_tpu=True, resources_per_worker={"TPU": 2})
        (found,) = fit(config, storage, "TPU_VISIBLE_CHIPS")
        dray.shutdown()
    assert found["shown"] == "0,1"
    assert found["devices"] == ["xla:0", "xla:1"]


@pytest.mark.parametrize(
    ("each", "ids", "devices", "unmapped"),
    [
        (0.5, "0,1", [["cuda:0"], ["cuda:0"], ["cuda:1"]], [None, "true", "true"]),
        (2, "0,1,2,3", [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]], [None, "true"]),
        (1, "0,1,2,3", [["cuda:0"], ["cuda:1"], ["cuda:2"], ["cuda:3"]], [None] * 4),
    ],
)
def test_several_and_parts_of_gpus(
    session: Any, storage: Path, each: float, ids: str, devices: list[list[str]], unmapped: Any
) -> None:
    """Accelerate would have PyTorch take the GPU of the local rank."""
    session({"num_cpus": 4, "num_gpus": 4})
    config = ScalingConfig(
        num_workers=len(devices), use_gpu=True, resources_per_worker={"GPU": each, "CPU": 0.1}
    )
    found = fit(config, storage, "CUDA_VISIBLE_DEVICES")
    assert [rank["devices"] for rank in found] == devices
    assert [rank["unmapped"] for rank in found] == unmapped
    assert {rank["shown"] for rank in found} == {ids}


def test_gpus_by_uuid_and_beyond_nine(session: Any, storage: Path) -> None:
    ids = "GPU-bbbb,10,2,GPU-aaaa"
    with FakeHost(environment={"CUDA_VISIBLE_DEVICES": ids}):
        session(num_gpus=4, num_cpus=4)
        config = ScalingConfig(num_workers=4, use_gpu=True)
        found = fit(config, storage, "CUDA_VISIBLE_DEVICES")
        dray.shutdown()
    assert {rank["shown"] for rank in found} == {ids}
    assert [rank["devices"] for rank in found] == [[f"cuda:{i}"] for i in range(4)]


def test_slices_of_a_gpu(session: Any, storage: Path, shown: Any) -> None:
    """CUDA shows a process one slice, and NCCL takes two slices of a GPU for the same one."""
    with FakeHost(environment={"CUDA_VISIBLE_DEVICES": "MIG-b,MIG-a"}):
        session(num_gpus=2, num_cpus=4)
        config = ScalingConfig(num_workers=2, use_gpu=True)
        plan = TorchTrainer(look, scaling_config=config).plan()
        found = fit(config, storage, "CUDA_VISIBLE_DEVICES")
        alone = TorchTrainer(look, scaling_config=ScalingConfig(use_gpu=True)).plan()
        both = ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 2})
        message = "rank 0 has the MIG slices MIG-b, MIG-a, but a process can see only one; ask"
        with pytest.raises(ConfigError, match=message):
            TorchTrainer(look, scaling_config=both).plan()
        with pytest.raises(ConfigError, match=message):
            fit(both, storage, "CUDA_VISIBLE_DEVICES")
        dray.shutdown()
    assert [rank["shown"] for rank in found] == ["MIG-b", "MIG-a"]
    assert [rank["devices"] for rank in found] == [["cuda:0"], ["cuda:0"]]
    assert (plan.backend, alone.backend) == ("gloo", "nccl")
    assert {rank["backend"] for rank in found} == {"gloo"}
    assert "workers share devices" in plan.notes[0]
    assert plan.notes[0] in shown()


def test_gpus_that_others_hold_stay_hidden(session: Any, storage: Path) -> None:
    session({"num_cpus": 4, "num_gpus": 4})

    @dray.remote(num_gpus=1)
    class Holder:
        def ready(self) -> bool:
            return True

    holder = Holder.remote()
    assert dray.get(holder.ready.remote())
    found = fit(ScalingConfig(num_workers=2, use_gpu=True), storage, "CUDA_VISIBLE_DEVICES")
    assert {rank["shown"] for rank in found} == {"1,2"}
    assert [rank["devices"] for rank in found] == [["cuda:0"], ["cuda:1"]]


def test_a_run_within_a_task_has_its_devices(session: Any, storage: Path) -> None:
    session({"num_cpus": 4, "num_gpus": 4, "accelerator_type": "A100"})

    @dray.remote(num_cpus=0, num_gpus=1)
    def train() -> Any:
        trainer = TorchTrainer(
            lambda: str(get_devices()[0]),
            scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
            run_config=RunConfig(storage_path=storage),
        )
        return trainer.plan().backend, trainer.fit().return_value

    assert dray.get(train.remote()) == ("nccl", "cuda:0")


def test_opting_out(session: Any, storage: Path) -> None:
    with FakeHost(environment={"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}):
        session({"num_cpus": 4, "num_gpus": 4})
        config = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 2})
        found = fit(config, storage, "CUDA_VISIBLE_DEVICES")
        dray.shutdown()
    assert [rank["shown"] for rank in found] == [None, None]
    assert [rank["devices"] for rank in found] == [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]]


def test_a_shared_gpu_and_nccl(session: Any, storage: Path, shown: Any) -> None:
    session({"num_cpus": 4, "num_gpus": 2, "resources": {"NPU": 1}})
    config = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 0.5})
    plan = TorchTrainer(look, scaling_config=config).plan()
    assert plan.backend == "gloo"
    assert "workers share devices, which nccl cannot connect" in plan.notes[0]
    found = fit(config, storage, "CUDA_VISIBLE_DEVICES")
    assert {rank["backend"] for rank in found} == {"gloo"}
    trouble = "rank 0: torch .* cannot use cuda devices here"
    assert re.search(f"workers share devices(?s:.*){trouble}", shown())
    fit(config, storage, "CUDA_VISIBLE_DEVICES", torch_config=TorchConfig(backend="gloo"))
    assert re.search(f"{trouble}$", shown().rstrip())
    nccl = TorchConfig(backend="cpu:gloo,cuda:nccl")
    with pytest.raises(ConfigError, match="NCCL cannot connect two ranks that share a device"):
        TorchTrainer(look, scaling_config=config, torch_config=nccl).plan()
    with pytest.raises(ConfigError, match="NCCL cannot connect two ranks that share a device"):
        fit(config, storage, "CUDA_VISIBLE_DEVICES", torch_config=nccl)
    with pytest.raises(ConfigError, match="HCCL cannot connect two ranks that share a device"):
        TorchTrainer(
            look,
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"NPU": 0.5}),
            torch_config=TorchConfig(backend="hccl"),
        ).plan()
    # Two that have less than one each, but lie on different nodes, do not share.
    apart = ScalingConfig(
        num_workers=2,
        use_gpu=True,
        resources_per_worker={"GPU": 0.6},
    )
    assert TorchTrainer(look, scaling_config=apart).plan().backend == "nccl"


def test_a_collective_of_nccl_that_times_out_ends_its_process(session: Any, storage: Path) -> None:
    """Because PyTorch's variable says so, unless the user's says something else."""

    def variables(backend: str, **env_vars: str) -> Any:
        run = {"worker_runtime_env": {"env_vars": env_vars}}
        torch_config = TorchConfig(backend=backend)
        torch_config.modules += ("nccl_stub",)
        config = ScalingConfig(num_workers=2, use_gpu=True)
        found = fit(config, storage, "PATH", torch_config=torch_config, run=run)
        assert {each["backend"] for each in found} == {backend}
        first, second = (each["collective"] for each in found)
        assert first == second
        return first

    with FakeHost(modules={"nccl_stub": NCCL}):
        session({"num_cpus": 4, "num_gpus": 2})
        name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
        assert variables("gloo") == {}
        assert variables("nccl") == {name: "1"}
        assert variables("nccl", **{name: "0"}) == {name: "0"}
        dray.shutdown()


def test_a_vendors_package_that_is_missing(session: Any, storage: Path) -> None:
    session({"num_cpus": 4, "resources": {"NPU": 2}})
    config = ScalingConfig(num_workers=2, resources_per_worker={"NPU": 1})
    message = "has Ascend NPUs, which PyTorch reaches through torch_npu; it cannot be imported"
    with pytest.raises(ConfigError, match=message):
        fit(config, storage, "ASCEND_RT_VISIBLE_DEVICES")


def test_two_families_in_one_process_group(session: Any, storage: Path) -> None:
    session(
        {"num_cpus": 2, "num_gpus": 1, "accelerator_type": "A100"},
        {"num_cpus": 2, "num_gpus": 1, "accelerator_type": "AMD-Instinct-MI300X-OAM"},
    )
    config = ScalingConfig(num_workers=2, use_gpu=True)
    message = "rank 0 has NVIDIA GPUs, rank 1 has AMD GPUs"
    with pytest.raises(ConfigError, match=message):
        TorchTrainer(look, scaling_config=config).plan()
    with pytest.raises(ConfigError, match=message):
        fit(config, storage, "CUDA_VISIBLE_DEVICES")


def test_one_process_sees_what_it_asks_for(session: Any, storage: Path) -> None:
    """With num_workers=0 the function runs here, and the environment is as before at the end."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")

    def train() -> list[str | None]:
        return [str(get_devices()[0]), os.environ.get("CUDA_VISIBLE_DEVICES")]

    with FakeHost(
        files={f"dev/nvidia{i}": "" for i in range(2)},
        modules={"pynvml": "raise ImportError('not here')"},
    ):
        result = TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=0, use_gpu=True),
            run_config=RunConfig(storage_path=storage),
        ).fit()
    assert result.return_value == ["cuda:0", "0"]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
