"""MetaX GPUs, found through MetaX's management library."""

from __future__ import annotations

from typing import ClassVar

from dray import host
from dray.accelerators.family import Found
from dray.accelerators.id_styles import CudaLike
from dray.accelerators.vendor_queries import Package, ask, detail


class Metax(CudaLike):
    """GPUs of MetaX, whose software uses CUDA's visibility variable."""

    name: ClassVar = "metax"
    title: ClassVar = "MetaX GPU"
    variables: ClassVar = ("CUDA_VISIBLE_DEVICES",)
    types: ClassVar = r"MXC"
    opt_outs: ClassVar = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)

    def find(self) -> Found | None:
        if not host.device_files("dev/mxcd"):
            return None
        found, why = ask("pymxsml.mxsml_extension", _inventory)
        why = why or "the package pymxsml is not installed"
        return found or Found(count=0, trouble=f"the MetaX driver is there, but {why}")


def _inventory(sml: Package) -> Found:
    sml.mxSmlExInit()
    try:
        count = int(sml.mxSmlExDeviceGetCount())
        if not count:
            return Found(count=0, trouble="the MetaX driver is there, but no GPU that dray may use")
        names = [_name(sml, index) for index in range(count)]
        return Found(count=count, type=names[0] or None, names=names)
    finally:
        sml.mxSmlExShutdown()


def _name(sml: Package, index: int) -> str:
    handle = detail(sml, "mxSmlExDeviceGetHandleByIndex", index)
    name = "" if handle is None else detail(sml, "mxSmlExDeviceGetName", handle) or ""
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
