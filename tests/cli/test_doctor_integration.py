"""`dray doctor` tells what a machine has, what a run would use, and what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.cli.doctor
from dray.cli.diagnosis import problems_of
from dray.scheduling.device_locks import DeviceLocks
from dray.testing import FakeHost
from tests.support.hosts import numbered

CLEAR: dict[str, str | None] = {
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")),
    **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "DRAY_ENGINE")),
}
TWO_GPUS = numbered("dev/nvidia{}", 2)
PYNVML = """
from types import SimpleNamespace
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(gpu): return "NVIDIA A100-SXM4-80GB"
def nvmlDeviceGetUUID(gpu): return f"GPU-{gpu}"
def nvmlDeviceGetMemoryInfo(gpu): return SimpleNamespace(total=80 << 30)
def nvmlSystemGetDriverVersion(): return "570.1"
"""
AMDSMI = """
def amdsmi_init(): pass
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return [0, 1]
def amdsmi_get_gpu_asic_info(gpu): return {"device_id": "0x74a1", "market_name": "MI300X"}
def amdsmi_get_gpu_vram_info(gpu): return {"vram_size": 196608}
def amdsmi_get_gpu_driver_info(gpu): return {"driver_version": "6.10"}
"""
BROKEN = "raise ImportError('it is not for this Python')"


def torch(*built: str, seen: int = 0, backends: tuple[str, ...] = ("gloo",)) -> dict[str, str]:
    """A PyTorch that was built for something and sees that many of it."""
    return {
        "torch": f"""
from types import SimpleNamespace
import warnings
from torch import distributed
__version__ = "9.9"
version = SimpleNamespace(**{{name: "1" for name in {built!r}}})
def count():
    if not {seen}:
        warnings.warn("the driver is too old")
    return {seen}
cuda = SimpleNamespace(is_available=lambda: bool(count()), device_count=count)
mps = SimpleNamespace(is_built=lambda: "mps" in {built!r}, is_available=lambda: False)
backends = SimpleNamespace(mps=mps)
""",
        "torch.distributed": f"""
def is_available(): return True
def is_gloo_available(): return "gloo" in {backends!r}
def is_nccl_available(): return "nccl" in {backends!r}
""",
    }


# A JAX that sees whatever there is: the real one, if it is installed, sees no made-up device.
GOOD_JAX = {
    "jax": """
__version__ = "0.9"
def default_backend(): return "any"
def local_device_count(): return 99
"""
}
GOOD_TORCH = torch("cuda", seen=2, backends=("gloo", "nccl"))


def doctor(*options: str, before: str = "", **host: Any) -> subprocess.CompletedProcess[str]:
    """Run the command on a made-up host."""
    with made_up(**host):
        return ask(*options, before=before)


def made_up(**host: Any) -> FakeHost:
    """A host that has nothing else wrong."""
    host["environment"] = {**CLEAR, **host.get("environment", {})}
    host["modules"] = {"torch": BROKEN, **GOOD_JAX, **host.get("modules", {})}
    return FakeHost(**{"directories": ["dev/shm"], **host})


def ask(*options: str, before: str = "") -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'{before} exec "$@"', "sh", sys.executable, "-m", "dray", "doctor"]
    return subprocess.run([*command, *options], capture_output=True, text=True)


def examine(**host: Any) -> dict[str, Any]:
    """What the command would say in JSON, found in this process."""
    with made_up(**host):
        found: dict[str, Any] = json.loads(json.dumps(dray.cli.doctor.examine()))
    return found


def problems(**host: Any) -> str:
    """What is wrong, one problem a line."""
    return "\n".join(p["what"] for p in examine(**host)["problems"])


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """This machine as it is, with its real PyTorch, seen once for all tests."""
    found: dict[str, Any] = json.loads(ask("--json").stdout)
    return found


def test_this_machine_is_told_as_it_is(real: dict[str, Any]) -> None:
    machine = real["machine"]
    assert machine["executable"] == sys.executable
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 0
    assert machine["temporary_directory"]["used"] == os.environ["TMPDIR"]
    assert real["torch"]["installed"]
    assert real["torch"]["error"] == ""
    assert "gloo" in real["torch"]["backends"]
    released, _, _ = real["packages"]["torch"].partition("+")  # "+cu130" may be in one alone
    assert real["torch"]["version"].startswith(released)
    assert real["training"]["backends"]["CPU"] == "gloo"
    assert real["training"]["interface"] in real["training"]["interfaces"]


def test_a_machine_where_all_fits_has_nothing_wrong() -> None:
    host: dict[str, Any] = {"files": TWO_GPUS, "modules": {"pynvml": PYNVML, **GOOD_TORCH}}
    found = examine(**host)
    assert found["problems"] == []
    (gpus,) = found["accelerators"]
    assert (gpus["name"], gpus["count"], gpus["type"], gpus["driver"]) == (
        *("nvidia", 2, "A100", "570.1"),
    )
    assert gpus["memory_bytes"] == 80 << 30
    assert gpus["on_offer"] == ["0", "1"]
    assert found["torch"]["devices"]["cuda"] == 2
    assert found["training"]["backends"] == {"CPU": "gloo", "GPU": "nccl"}

    shown = doctor(**host, environment={"CUDA_VISIBLE_DEVICES": "1"})
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "2 NVIDIA GPUs: A100, 80 GiB each, driver 570.1" in shown.stdout
    assert "1: NVIDIA A100-SXM4-80GB (GPU-1)" in shown.stdout
    assert "on offer as GPU: 1\n" in shown.stdout
    assert "limited by CUDA_VISIBLE_DEVICES=1" in shown.stdout
    assert "gloo on CPU, nccl on GPU" in shown.stdout
    assert shown.stdout.endswith("Nothing is wrong.\n")


def test_modules_in_the_working_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger has put it there')")
    monkeypatch.chdir(tmp_path)
    assert examine(modules=GOOD_TORCH)["torch"]["error"] == ""


def test_without_any_package_it_works() -> None:
    source = Path(dray.__file__).parent.parent
    command = [sys.executable, "-S", "-m", "dray", "doctor"]
    with FakeHost(directories=["dev/shm"], environment={**CLEAR, "PYTHONPATH": str(source)}):
        shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.stderr == ""
    assert "No accelerators" in shown.stdout
    assert "PyTorch is not installed\nJAX is not installed\nPackages: none" in shown.stdout
    assert shown.stdout.endswith("Nothing is wrong.\n")
    assert shown.returncode == 0


def test_the_real_torch_without_cuda_on_a_machine_with_gpus(real: dict[str, Any]) -> None:
    if "cuda" in real["torch"]["built_for"]:
        pytest.skip("this PyTorch is built for CUDA")
    modules = {"pynvml": PYNVML}
    with FakeHost(files=TWO_GPUS, directories=["dev/shm"], modules=modules, environment=CLEAR):
        shown = ask()
    version = real["torch"]["version"]
    assert shown.returncode == 1
    assert f"PyTorch {version}, built for CPUs alone, sees no accelerators" in shown.stdout
    assert "What is wrong:\n1. " in shown.stdout
    assert (
        f"PyTorch {version} is built without CUDA, so it cannot use the NVIDIA GPUs here.\n"
        "   Install a build for CUDA"
    ) in shown.stdout


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("7", "CUDA_VISIBLE_DEVICES='7' names device 7, but this machine has 0, 1"),
        ("0,0", "CUDA_VISIBLE_DEVICES='0,0' names device 0 twice"),
        ("first", "'first', which is neither the number nor the UUID of one NVIDIA GPU"),
    ],
)
def test_a_variable_that_makes_no_sense_is_told(value: str, words: str) -> None:
    found = examine(
        files=TWO_GPUS,
        modules={"pynvml": PYNVML, **GOOD_TORCH},
        environment={"CUDA_VISIBLE_DEVICES": value},
    )
    (problem,) = found["problems"]
    assert words in problem["what"]
    assert problem["do"] == "The devices here are 0, 1."
    assert found["accelerators"][0]["variables"] == {"CUDA_VISIBLE_DEVICES": value}
    assert found["accelerators"][0]["on_offer"] == []


def test_variables_of_rocm_at_odds_are_told() -> None:
    said = problems(
        files={"dev/kfd": ""},
        modules={"amdsmi": AMDSMI, **torch("hip", seen=2, backends=("gloo", "nccl"))},
        environment={"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"},
    )
    assert said.startswith("AMD GPUs: ROCR_VISIBLE_DEVICES='0' and HIP_VISIBLE_DEVICES='1' differ")
    assert said.count("\n") == 0


def test_a_variable_for_devices_that_are_not_here_is_told() -> None:
    said = problems(modules=torch(), environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert said == "CUDA_VISIBLE_DEVICES='0' names devices, but no NVIDIA GPU is found here."
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": ""}
    assert problems(modules=torch(), environment=hidden) == ""


def test_a_driver_without_devices_is_told() -> None:
    pynvml = PYNVML.replace("return 2", "return 0")
    found = examine(files={"dev/nvidiactl": ""}, modules={"pynvml": pynvml, **torch()})
    (problem,) = found["problems"]
    assert "the NVIDIA driver is there, but no GPU" in problem["what"]
    assert "the vendor's own tool" in problem["do"]


def test_a_vendor_package_that_fails_is_told() -> None:
    said = problems(files=TWO_GPUS, modules={"pynvml": BROKEN, **GOOD_TORCH})
    assert said.startswith("NVIDIA GPUs: pynvml fails")
    assert "it is not for this Python" in said


@pytest.mark.parametrize(
    ("built", "words"),
    [
        (
            torch("cuda", seen=1, backends=("gloo", "nccl")),
            "PyTorch 9.9 sees 1 of the 2 NVIDIA GPUs on offer.",
        ),
        (
            torch("cuda", backends=("gloo", "nccl")),
            "PyTorch 9.9 sees 0 of the 2 NVIDIA GPUs on offer. It says: the driver is too old",
        ),
        (torch("cuda", seen=2), "PyTorch 9.9 is built without nccl, which workers on NVIDIA"),
        (torch("hip", seen=2), "PyTorch 9.9 is built without CUDA, so it cannot use"),
        ({"torch": BROKEN}, "PyTorch is installed, but fails: ImportError: it is not for this"),
        ({"torch": "import os; os._exit(3)"}, "fails: its process ends with status 3"),
    ],
)
def test_a_torch_that_does_not_fit_is_told(built: dict[str, str], words: str) -> None:
    said = problems(files=TWO_GPUS, modules={"pynvml": PYNVML, **built})
    assert words in said
    assert said.count("\n") == 0


INTEL_CARD = {
    "dev/dri/renderD128": "",
    "sys/class/drm/card0/device/vendor": "0x8086",
    "sys/class/drm/card0/device/device": "0x0bd5",
}


@pytest.mark.parametrize(
    ("host", "instead"),
    [
        (
            {"files": TWO_GPUS, "modules": {"pynvml": PYNVML, **torch("cuda", seen=2)}},
            ", or set TorchConfig(backend='gloo').",
        ),
        ({"files": INTEL_CARD, "modules": {"dpctl": BROKEN, **torch("xpu")}}, "."),
    ],
)
def test_gloo_is_advised_where_it_carries_the_tensors(host: dict[str, Any], instead: str) -> None:
    found = examine(**host)
    (advice,) = (p["do"] for p in found["problems"] if "use to communicate" in p["what"])
    assert advice == f"Install a build that has it{instead}"


def test_torch_needs_rocm_for_amd() -> None:
    said = problems(files={"dev/kfd": ""}, modules={"amdsmi": AMDSMI, **torch("cuda", seen=2)})
    assert said == "PyTorch 9.9 is built without ROCm, so it cannot use the AMD GPUs here."


def test_one_slice_of_a_gpu_is_all_that_torch_sees() -> None:
    modules = {"pynvml": PYNVML, **torch("cuda", seen=1, backends=("nccl",))}
    environment = {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}
    assert problems(files=TWO_GPUS, modules=modules, environment=environment) == ""


@pytest.mark.parametrize(
    ("platform", "seen", "words"),
    [
        ("cpu", 1, "JAX 0.9 sees only the CPU, so it cannot use the NVIDIA GPUs here."),
        ("gpu", 1, "JAX 0.9 sees 1 of the 2 NVIDIA GPUs on offer."),
        ("gpu", 2, ""),
    ],
)
def test_jax_is_asked_as_well(platform: str, seen: int, words: str) -> None:
    jax = f"""
__version__ = "0.9"
def default_backend(): return {platform!r}
def local_device_count(): return {seen}
"""
    found = examine(files=TWO_GPUS, modules={"pynvml": PYNVML, "jax": jax, **GOOD_TORCH})
    assert [problem["what"] for problem in found["problems"]] == [words] * bool(words)
    assert found["jax"]["devices"] == seen


def test_of_two_families_with_one_resource_it_says_which_is_offered() -> None:
    files = {**TWO_GPUS, "dev/kfd": ""}
    found = examine(files=files, modules={"pynvml": PYNVML, "amdsmi": AMDSMI, **GOOD_TORCH})
    (problem,) = found["problems"]
    assert problem["what"] == (
        "NVIDIA GPUs and AMD GPUs are both in this machine, and both are the resource GPU: "
        "dray offers only the NVIDIA GPUs."
    )
    assert [entry["on_offer"] for entry in found["accelerators"]] == [["0", "1"], []]


def test_families_that_torch_does_not_know_are_no_problem() -> None:
    found = examine(files=numbered("dev/tenstorrent/{}", 2), modules=torch())
    assert found["problems"] == []
    assert found["accelerators"][0]["on_offer"] == ["0", "1"]


def test_what_the_machine_lacks_is_told(tmp_path: Path) -> None:
    ended = doctor(
        "--json",
        directories=[],
        modules=torch(),
        environment={
            "TMPDIR": str(tmp_path / "missing"),
            "DRAY_START_METHOD": "steam",
            "GLOO_SOCKET_IFNAME": "eth99",
        },
        before="ulimit -n 512;",
    )
    found = json.loads(ended.stdout)
    said = [problem["what"] for problem in found["problems"]]
    assert said[0].startswith("There is no /dev/shm")
    assert said[1].startswith("A process may have only 512 open files")
    assert said[2].startswith(f"The temporary directory cannot be written to: TMPDIR={tmp_path}")
    assert said[3].startswith("DRAY_START_METHOD='steam' is not one of fork, spawn")
    assert said[4].startswith("GLOO_SOCKET_IFNAME='eth99' names a network interface that is not")
    assert len(said) == 5
    found["machine"]["shared_memory"] = {"is_there": True, "bytes": 64 << 20}  # Docker's default
    what, _ = problems_of(found)[0]
    assert what.startswith("/dev/shm, the shared memory, has only 64 MiB")


def test_a_place_of_locks_that_cannot_be_made_is_told() -> None:
    said = problems(
        files=TWO_GPUS,
        modules={"pynvml": PYNVML, **GOOD_TORCH},
        environment={"DRAY_CLAIMS": "/nowhere/at/all"},
    )
    assert said.startswith("/nowhere/at/all, where programs lock the devices that they use, is not")


def test_who_holds_a_device_is_shown_and_no_problem() -> None:
    modules = {"pynvml": PYNVML, **GOOD_JAX, **GOOD_TORCH}
    with FakeHost(files=TWO_GPUS, directories=["dev/shm"], modules=modules, environment=CLEAR):
        claims = DeviceLocks(
            {("GPU", "1"): "nvidia-1"}, watch=lambda *_: None, on_free=lambda device: None
        )
        assert claims.take(("GPU", "1"))
        try:
            found, shown = json.loads(ask("--json").stdout), ask()
        finally:
            claims.close()
    assert found["accelerators"][0]["held"] == {"1": os.getpid()}
    assert f"1 is in use by pid {os.getpid()}" in shown.stdout
    assert shown.returncode == 0


def test_a_family_of_another_package_that_fails_is_told(tmp_path: Path) -> None:
    about = tmp_path / "abacus-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: abacus\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[dray.accelerators]\nabacus = missing_abacus:Abacus\n")
    with FakeHost(environment={"PYTHONPATH": str(tmp_path)}):
        ended = doctor("--json")
    found = json.loads(ended.stdout)
    assert "No module named 'missing_abacus'" in found["problems"][0]["what"]
    assert found["accelerators"] == []
    assert ended.returncode == 1
