"""AMD GPUs, found through AMD SMI."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from dray import host
from dray.accelerators.family import Found, Variables
from dray.accelerators.id_styles import CudaLike
from dray.accelerators.vendor_queries import Package, ask, detail
from dray.errors import ConfigError

_ROCR, _HIP, _CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"

# Type by PCI device id.
_TYPES = {
    0x66A1: "AMD-Instinct-MI50",
    0x738C: "AMD-Instinct-MI100",
    0x7408: "AMD-Instinct-MI250X",
    0x740C: "AMD-Instinct-MI250X-MI250",
    0x740F: "AMD-Instinct-MI210",
    0x74A0: "AMD-Instinct-MI300A",
    0x74A1: "AMD-Instinct-MI300X-OAM",
    0x74A2: "AMD-Instinct-MI308X-OAM",
    0x74A5: "AMD-Instinct-MI325X-OAM",
    0x74A9: "AMD-Instinct-MI300X-HF",
    0x75A0: "AMD-Instinct-MI350X-OAM",
    0x75A3: "AMD-Instinct-MI355X-OAM",
    0x6798: "AMD-Radeon-R9-200-HD-7900",
    0x6799: "AMD-Radeon-HD-7900",
    0x679A: "AMD-Radeon-HD-7900",
    0x679B: "AMD-Radeon-HD-7900",
}


class Amd(CudaLike):
    """GPUs of AMD with ROCm. Ids are indices, or UUIDs in ROCm's format.

    Indices in HIP's variable are among the devices that ROCR's variable leaves, so dray writes only
    one of the two. If HIP's own variable is not set, HIP uses CUDA's.
    """

    name: ClassVar = "amd"
    title: ClassVar = "AMD GPU"
    variables: ClassVar = (_ROCR, _HIP, _CUDA)
    types: ClassVar = r"AMD-"
    opt_outs: ClassVar = (
        "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES",
        "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES",
    )
    jax_platform: ClassVar = "rocm"

    def find(self) -> Found | None:
        if not host.device_files("dev/kfd"):
            return None
        found, why = ask("amdsmi", _inventory)
        return found or _by_files(why or "the package amdsmi is not installed")

    def variable(self, environ: Mapping[str, str]) -> str | None:
        return next((name for name in (_HIP, _ROCR, _CUDA) if name in environ), _ROCR)

    def visible(self, environ: Mapping[str, str]) -> list[str] | None:
        if _ROCR in environ and _HIP in environ:
            rocr, hip = environ[_ROCR], environ[_HIP]
            if self.parse(rocr) != self.parse(hip):
                raise ConfigError(
                    f"{_ROCR}={rocr!r} and {_HIP}={hip!r} differ, and HIP would count among the "
                    "devices that ROCR leaves; set only one of them"
                )
        return super().visible(environ)

    def show(self, ids: Sequence[str], environ: Mapping[str, str], count: int) -> Variables:
        shown = super().show(ids, environ, count)
        if _HIP in shown:
            shown[_ROCR] = None
        # HIP ignores an empty variable.
        return {k: "-1" if v == "" and k != _ROCR else v for k, v in shown.items()}


def _inventory(smi: Package) -> Found:
    smi.amdsmi_init()
    try:
        devices = smi.amdsmi_get_processor_handles()
        if not devices:
            return Found(count=0, trouble="the AMD driver is there, but no GPU that dray may use")
        about = [detail(smi, "amdsmi_get_gpu_asic_info", device) or {} for device in devices]
        memory = detail(smi, "amdsmi_get_gpu_vram_info", devices[0]) or {}
        driver = detail(smi, "amdsmi_get_gpu_driver_info", devices[0]) or {}
        return Found(
            count=len(devices),
            type=_TYPES.get(_number(about[0].get("device_id"))),
            driver=driver.get("driver_version"),
            memory_bytes=_number(memory.get("vram_size")) * 2**20 or None,
            names=[str(info.get("market_name", "unknown")) for info in about],
        )
    finally:
        smi.amdsmi_shut_down()


def _by_files(why: str) -> Found:
    """Return the devices from the kernel driver's files, without graphics within a processor."""
    nodes = [
        host.read(path)
        for path in host.device_files("sys/class/kfd/kfd/topology/nodes/*/properties")
    ]
    ids = [int(found[1]) for node in nodes if (found := re.search(r"\bdevice_id (\d+)", node))]
    types = [_TYPES[number] for number in ids if number in _TYPES]
    return Found(
        count=len(types),
        type=types[0] if types else None,
        names=types,
        trouble=f"{why}; without it dray knows some models only, and found {len(types)} of them",
    )


def _number(value: object) -> int:
    """Return a number from a number or hexadecimal text, depending on the library; "N/A" is 0."""
    try:
        return int(str(value), 0)
    except ValueError:
        return 0
