"""What Ray's workers see of their devices: AMD's and Intel's GPUs, and what the user has set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dray.testing import FakeHost

pytestmark = pytest.mark.cluster

AMD = """
class AmdSmiInitFlags: INIT_AMD_GPUS = 1
class AmdSmiMemoryType: VRAM = 1
class AmdSmiLibraryException(Exception): pass
def amdsmi_init(flags=0): pass
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return [0, 1]
def amdsmi_get_gpu_id(device): return 0x74A1
def amdsmi_get_gpu_asic_info(device): return {"device_id": 0x74A1, "market_name": "MI300X"}
def amdsmi_get_gpu_vram_info(device): return {}
def amdsmi_get_gpu_driver_info(device): return {}
"""
INTEL = """
class Device:
    name, driver_version, global_mem_size = "Intel(R) Data Center GPU Max 1550", "1", 1
def get_devices(backend, device_type): return [Device, Device]
class SyclContext:
    def __init__(self, what): self.device_count = 2
class SyclDevice(Device):
    def __init__(self, what): pass
"""
CARD = {"sys/class/drm/card0/device/vendor": "0x8086", "dev/dri/renderD128": ""}

PROGRAM = """
import os, sys, dray
dray.init(engine="ray", address="local", num_cpus=2)
written, other = sys.argv[1:]

def shown():
    ids = dray.get_runtime_context().get_accelerator_ids()["GPU"]
    return f"shown IDs: {ids} {written}: {os.environ[written]} {other}: {os.environ.get(other)}"

@dray.remote(num_gpus=1)
class Actor:
    def ping(self):
        return shown()

@dray.remote(num_gpus=1)
def task():
    return shown()

@dray.remote(num_gpus=0.5)
class Half:
    async def ping(self):
        return shown()

actor = Actor.remote()
print(dray.get(actor.ping.remote()))
half = Half.remote()
print(dray.get(half.ping.remote()))
dray.kill(half)
print(dray.get(task.remote()))
"""


AMD_HOST = {"files": {"dev/kfd": ""}, "modules": {"amdsmi": AMD}}
CUDAS_VARIABLE = {"environment": {"CUDA_VISIBLE_DEVICES": "0,1"}}


@pytest.mark.parametrize(
    ("host", "written", "form", "other", "others"),
    [
        # HIP counts among what ROCR's leaves.
        (AMD_HOST, "ROCR_VISIBLE_DEVICES", "{}", "HIP_VISIBLE_DEVICES", "0"),
        ({**AMD_HOST, **CUDAS_VARIABLE}, "ROCR_VISIBLE_DEVICES", "{}", "HIP_VISIBLE_DEVICES", "0"),
        (
            {"files": CARD, "modules": {"dpctl": INTEL}},
            "ONEAPI_DEVICE_SELECTOR",
            "level_zero:{}",
            "ZE_AFFINITY_MASK",
            None,
        ),
    ],
    ids=["amd", "amd beside CUDA's variable", "intel"],
)
def test_variables_are_those_of_the_page(
    host: dict[str, Any], written: str, form: str, other: str, others: str | None
) -> None:
    with FakeHost(**host):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, written, other],
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("shown")]
    expected = [f"shown IDs: [{i}] {written}: {form.format(i)} {other}: {others}" for i in (0, 1)]
    assert lines == [*expected, expected[1]]


SET = """
import os, sys, dray, dray.train
from dray.train import RunConfig, ScalingConfig, UserCallback
from dray.train.torch import TorchTrainer, get_devices

variable, other, first, second = sys.argv[2:]
NAMES = (variable, other, "MEGASCALE_NUM_SLICES")

class Show(UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        for found in metrics:
            print("shown", *found["variables"], *found["devices"])

def look():
    devices = [str(device) for device in get_devices()]
    dray.train.report({"variables": [os.environ.get(n) for n in NAMES], "devices": devices})

dray.init(
    engine="ray",
    address="local",
    num_cpus=2,
    num_gpus=2,
    runtime_env={"env_vars": {variable: first}},
)
os.environ["MEGASCALE_NUM_SLICES"] = "9"  # of this machine, which the workers' may not be
for variables in ({}, {variable: second}):
    TorchTrainer(
        look,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
        run_config=RunConfig(
            storage_path=sys.argv[1],
            worker_runtime_env={"env_vars": variables},
            callbacks=[Show()],
        ),
    ).fit()
"""


@pytest.mark.parametrize(
    ("host", "variables", "values", "device"),
    [
        ({}, ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), ("4,5,6", "6,7"), "cuda"),
        (
            {"files": CARD, "modules": {"dpctl": INTEL}},
            ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"),
            ("level_zero:0,1,2", "level_zero:1,2"),
            "xpu",
        ),
    ],
    ids=["nvidia", "intel"],
)
def test_what_the_user_sets_for_workers_stays(
    tmp_path: Path,
    host: dict[str, Any],
    variables: tuple[str, str],
    values: tuple[str, str],
    device: str,
) -> None:
    """Ray itself would show each worker its own device of those that the user names."""
    with FakeHost(**host):
        done = subprocess.run(
            [sys.executable, "-c", SET, str(tmp_path), *variables, *values],
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("shown")]
    assert lines == [f"shown {v} None None {device}:{i}" for v in values for i in (0, 1)]


CHIPS = """
import os, sys, dray, dray.train
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig

NAMES = ("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS")

def look():
    return [os.environ.get(name) for name in NAMES]

dray.init(engine="ray", address="local", num_cpus=1, resources={"TPU": 4})
for chips, variables in ((1, {}), (2, {}), (1, {NAMES[0]: "2,3"}), (1, {NAMES[1]: "2,2,1"})):
    fitted = DataParallelTrainer(
        look,
        scaling_config=ScalingConfig(
            num_workers=1, use_tpu=True, resources_per_worker={"TPU": chips}
        ),
        run_config=RunConfig(
            storage_path=sys.argv[1], worker_runtime_env={"env_vars": variables}
        ),
    ).fit()
    print("shown", *fitted.return_value)
"""


def test_workers_with_some_chips_of_a_host_have_their_bounds(tmp_path: Path) -> None:
    with FakeHost():
        done = subprocess.run(
            [sys.executable, "-c", CHIPS, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("shown")]
    assert lines == [
        "shown 0 1,1,1 1,1,1",
        "shown 0,1 1,2,1 1,1,1",
        "shown 2,3 None None",
        "shown 0 2,2,1 1,1,1",
    ]
