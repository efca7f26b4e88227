"""NVIDIA GPUs, found through NVML."""

from __future__ import annotations

import re
from typing import ClassVar

from dray import host
from dray.accelerators.family import Found
from dray.accelerators.id_styles import CudaLike
from dray.accelerators.vendor_queries import Package, ask, detail


class Nvidia(CudaLike):
    """GPUs of NVIDIA. Ids are indices, UUIDs of GPUs, or UUIDs of MIG slices."""

    name: ClassVar = "nvidia"
    title: ClassVar = "NVIDIA GPU"
    variables: ClassVar = ("CUDA_VISIBLE_DEVICES",)
    opt_outs: ClassVar = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)
    jax_platform: ClassVar = "cuda"

    def find(self) -> Found | None:
        files = host.device_files("dev/nvidia[0-9]*")
        driver = host.device_files("dev/nvidiactl") or host.is_directory("proc/driver/nvidia")
        if not files and not driver:
            return _under_wsl()
        found, why = ask("pynvml", _inventory)
        return found or _by_files(len(files), why or "the package nvidia-ml-py is not installed")


def _under_wsl() -> Found | None:
    """Return the GPUs of Windows under WSL, where one file stands for GPUs of any vendor."""
    found, _ = ask("pynvml", _inventory) if host.device_files("dev/dxg") else (None, "")
    return found if found is not None and found.count else None


def is_slice(device: str) -> bool:
    """Return whether an id is a MIG slice's; a process sees at most one MIG slice.

    Source: the section on CUDA's visible devices in NVIDIA's guide to MIG.
    """
    return device.startswith("MIG-")


def _inventory(nvml: Package) -> Found:
    nvml.nvmlInit()
    try:
        count = int(nvml.nvmlDeviceGetCount())
        if not count:
            return Found(
                count=0, trouble="the NVIDIA driver is there, but no GPU that dray may use"
            )
        devices = [detail(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        lost = [str(index) for index, device in enumerate(devices) if device is None]
        memory = detail(nvml, "nvmlDeviceGetMemoryInfo", devices[0])
        return Found(
            count=count,
            type=_type_of(_text(detail(nvml, "nvmlDeviceGetName", devices[0]))),
            driver=_text(detail(nvml, "nvmlSystemGetDriverVersion")) or None,
            memory_bytes=None if memory is None else int(memory.total),
            names=[_name(nvml, device) for device in devices],
            trouble=f"NVML cannot reach the GPUs with index {', '.join(lost)}" if lost else "",
        )
    finally:
        nvml.nvmlShutdown()


def _by_files(count: int, why: str) -> Found:
    """Return the devices from the kernel driver's files, which say less but do not need NVML."""
    about = [host.read(path) for path in host.device_files("proc/driver/nvidia/gpus/*/information")]
    models = [found[1] for text in about if (found := re.search(r"Model:\s*(.*)", text))]
    return Found(
        count=count,
        type=_type_of(models[0]) if models else None,
        names=models,
        trouble=f"{why}; the GPUs were counted by their files in /dev instead",
    )


def _name(nvml: Package, device: object) -> str:
    """Return a GPU's name and UUID, and the UUIDs of its MIG slices; ids may be such UUIDs."""
    name = _text(detail(nvml, "nvmlDeviceGetName", device)) or "unknown"
    uuids = [_text(detail(nvml, "nvmlDeviceGetUUID", device)), *_slices(nvml, device)]
    known = ", ".join(filter(None, uuids))
    return f"{name} ({known})" if known else name


def _slices(nvml: Package, device: object) -> list[str]:
    mode = detail(nvml, "nvmlDeviceGetMigMode", device)
    if not mode or not mode[0]:
        return []
    most = detail(nvml, "nvmlDeviceGetMaxMigDeviceCount", device) or 0
    slices = [detail(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", device, i) for i in range(most)]
    return [
        _text(detail(nvml, "nvmlDeviceGetUUID", slice)) for slice in slices if slice is not None
    ]


def _text(value: str | bytes | None) -> str:
    """Return a text of NVML; older versions of its package return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _type_of(name: str) -> str | None:
    """Return "A100" for "NVIDIA A100-SXM4-80GB", and "RTX-6000" for "Quadro RTX 6000".

    The type has the words in capitals after the first word, up to the first one with a digit. Names
    of consumer cards have another form; of these only the vendor's name is removed.
    """
    words: list[str] = []
    for word in name.split()[1:]:
        model = word.partition("-")[0]
        if model != model.upper():
            break
        words.append(model)
        if re.search(r"\d", model):
            return "-".join(words)
    return "-".join(name.removeprefix("NVIDIA ").split()) or None
