"""Programs on a machine with an NVIDIA GPU: who has it, what they may use of it, and who tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.accelerators.vendors.nvidia import Nvidia
from dray.errors import InfeasibleError
from tests.support.gates import refused_at_once, until
from tests.support.gpus import MEBIBYTE, on_a_gpu, used_memory
from tests.support.programs import Program

torch = pytest.importorskip("torch")
pytestmark = [*on_a_gpu(), pytest.mark.usefixtures("session")]

DEVICE = "cuda"

# Holds the GPU, with memory on it, until it is told to end.
HOLDER = """
import os, sys
import dray
dray.init(num_cpus=4, log_to_driver=False)
count = int(dray.cluster_resources()["GPU"])

@dray.remote(num_gpus=count)
class Holder:
    def __init__(self):
        import torch
        self.block = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")

    def about(self):
        return os.getpid(), self.block.device.type

holder = Holder.remote()
print("holds", *dray.get(holder.about.remote()), flush=True)
sys.stdin.readline()
print("ends", flush=True)
"""


@dray.remote(num_gpus=1)
def seen() -> Any:
    ids = dray.get_runtime_context().get_accelerator_ids()["GPU"]
    properties = torch.cuda.get_device_properties(0) if DEVICE == "cuda" else None
    uuid = str(getattr(properties, "uuid", ""))
    return list(ids), os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), uuid


def uuid_of(index: int) -> str:
    import pynvml

    pynvml.nvmlInit()
    try:
        uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)
    finally:
        pynvml.nvmlShutdown()


def told(*command: str) -> Any:
    """Return what a command of dray's prints as JSON."""
    whole = [sys.executable, "-m", "dray", *command, "--json"]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip(), done.stderr
    return json.loads(done.stdout)


def this_program() -> Any:
    return next(program for program in told("status") if program["pid"] == os.getpid())


@pytest.mark.parametrize("way", ["ends", "is killed"])
def test_a_program_waits_for_another_ones_gpu(tmp_path: Path, way: str) -> None:
    before = used_memory()
    path = tmp_path / "holder.py"
    path.write_text(HOLDER.replace('device="cuda"', f'device="{DEVICE}"'))
    with ExitStack() as stack:
        first = stack.enter_context(Program(path, tmp_path))
        line = first.wait_for("holds")
        assert DEVICE in line, line
        second = stack.enter_context(Program(path, tmp_path))
        dray.init(num_cpus=4)
        mine = seen.remote()
        ready, _ = dray.wait([mine], timeout=1.5)
        assert not ready, dray.get(mine)
        (device, *_) = this_program()["nodes"][0]["devices"]
        assert device["held_by"] in (first.process.pid, second.process.pid), device
        if way == "ends":
            first.say("")
            assert first.end()[0] == 0, first.lines
        else:
            first.process.kill()
        # Whichever of the two that wait is first, the other has its turn after it.
        line = second.wait_for("holds")
        assert DEVICE in line, line
        second.say("")
        assert second.end()[0] == 0, second.lines
        assert dray.get(mine, timeout=100)[:2] == (["0"], "0")
    until(lambda: used_memory() < before + 256 * MEBIBYTE)


def test_a_gpu_is_named_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = uuid_of(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
    dray.init(num_cpus=4)
    assert dray.cluster_resources()["GPU"] == 1
    ids, shown, count, found = dray.get(seen.remote())
    assert (ids, shown) == ([uuid], uuid)
    assert count == 1
    assert found in uuid
    assert this_program()["nodes"][0]["devices"][0]["id"] == uuid


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_program_that_may_see_no_gpu_has_none(
    hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    dray.init(num_cpus=4)
    assert dray.cluster_resources().get("GPU", 0) == 0

    @dray.remote
    def sees() -> bool:
        return torch.cuda.is_available()

    assert dray.get(sees.remote()) is False
    error = refused_at_once(InfeasibleError, lambda: dray.get(seen.remote()))
    assert "GPU" in str(error), str(error)


def test_status_and_doctor_name_the_gpu() -> None:
    dray.init(num_cpus=4)
    found = Nvidia().find()
    assert found is not None

    @dray.remote(num_gpus=0.25)
    class Holder:
        def ready(self) -> bool:
            return True

    holder = Holder.remote()
    assert dray.get(holder.ready.remote())
    (node,) = this_program()["nodes"]
    assert node["resources"]["GPU"] == found.count, node
    assert f"accelerator_type:{found.type}" in node["resources"], node
    assert node["devices"][0]["free"] == 0.75, node["devices"]
    shown = subprocess.run(
        [sys.executable, "-m", "dray", "status"], capture_output=True, text=True, timeout=100
    ).stdout
    assert "GPU" in shown, shown

    report = told("doctor")
    (gpus,) = [entry for entry in report["accelerators"] if entry["name"] == "nvidia"]
    assert (gpus["count"], gpus["type"]) == (found.count, found.type), gpus
    assert gpus["memory_bytes"] == found.memory_bytes, gpus
    assert gpus["memory_bytes"] > 1 << 30, gpus
    assert "GPU-" in gpus["names"][0], gpus
    assert gpus["driver"], gpus
    assert (gpus["trouble"], gpus["error"]) == ("", ""), gpus
    assert gpus["on_offer"] == [str(i) for i in range(found.count)], gpus
    assert report["torch"]["devices"]["cuda"] == found.count, report["torch"]
    assert report["training"]["backends"]["GPU"] == "nccl", report["training"]
    wrong = [problem["what"] for problem in report["problems"] if "GPU" in problem["what"]]
    assert not wrong, wrong
