"""Huawei's Ascend NPUs, found through CANN."""

from __future__ import annotations

from typing import ClassVar

from dray.accelerators.family import Found
from dray.accelerators.id_styles import Numbered
from dray.accelerators.vendor_queries import Package, ask
from dray.host import device_files


class Ascend(Numbered):
    """NPUs of Huawei. Ids are numbers; the runtime requires them in ascending order."""

    name: ClassVar = "ascend"
    title: ClassVar = "Ascend NPU"
    resource: ClassVar = "NPU"
    variables: ClassVar = ("ASCEND_RT_VISIBLE_DEVICES",)
    opt_outs: ClassVar = ("RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES",)
    fractions: ClassVar = True
    torch_device: ClassVar = "npu"
    torch_modules: ClassVar = ("torch_npu",)
    backend: ClassVar = "hccl"

    def find(self) -> Found | None:
        count, trouble = self._count(device_files("dev/davinci[0-9]*"), "acl", _device_count)
        if not count and not trouble:
            return None
        type_, _ = ask("acl", lambda acl: str(acl.get_soc_name() or ""))
        return Found(count=count, type=type_ or None, trouble=trouble)


def _device_count(acl: Package) -> int:
    count, code = acl.rt.get_device_count()
    if code != 0:
        raise RuntimeError(f"acl.rt.get_device_count() returns the code {code}")
    return int(count)
