"""Intel's Gaudi accelerators, found through the files of their kernel driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import ClassVar

from dray.accelerators.family import Found
from dray.accelerators.id_styles import Numbered
from dray.accelerators.vendor_queries import ask
from dray.host import device_files, read

_HABANA = "0x1da3"  # the PCI vendor id of Habana, which Gaudi still has


class Gaudi(Numbered):
    """HPUs of Intel. Ids are module numbers."""

    name: ClassVar = "gaudi"
    title: ClassVar = "Gaudi HPU"
    resource: ClassVar = "HPU"
    variables: ClassVar = ("HABANA_VISIBLE_MODULES",)
    opt_outs: ClassVar = ("RAY_EXPERIMENTAL_NOSET_HABANA_VISIBLE_MODULES",)
    torch_device: ClassVar = "hpu"
    torch_modules: ClassVar = (
        "habana_frameworks.torch.core",
        "habana_frameworks.torch.distributed.hccl",
    )
    backend: ClassVar = "hccl"
    from_zero: ClassVar = False  # a container may have only the host's modules 4 to 7

    def find(self) -> Found | None:
        nodes = [os.path.basename(path) for path in device_files("dev/accel/accel[0-9]*")]
        sysfs = [f"sys/class/accel/{node}/device" for node in nodes]
        sysfs = [path for path in sysfs if read(f"{path}/vendor").lower() == _HABANA]
        if not sysfs:  # drivers before Linux 6.2
            nodes = [os.path.basename(path) for path in device_files("dev/hl[0-9]*")]
            sysfs = [f"sys/class/habanalabs/{node}" for node in nodes]
        if not sysfs:
            return None
        return Found(
            count=len(sysfs),
            ids=_modules([read(f"{path}/module_id") for path in sysfs]),
            type=_type(read(f"{sysfs[0]}/device_type")),
        )


def _modules(driver_says: Sequence[str]) -> Sequence[str]:
    """Return the module numbers; empty if the driver is too old to have them.

    Source: the kernel's Documentation/ABI/testing/sysfs-driver-habanalabs.
    """
    told = all(said.isdecimal() for said in driver_says)
    if not told or len({*driver_says}) < len(driver_says):
        return ()
    return sorted(driver_says, key=int)


def _type(driver_says: str) -> str | None:
    if driver_says.startswith("GAUDI"):
        return f"Intel-{driver_says.split()[0]}"
    # Importing the library takes seconds, and it answers only if the program uses it already.
    if "habana_frameworks.torch.hpu" not in sys.modules:
        return None
    name, _ = ask(
        "habana_frameworks.torch.hpu",
        lambda hpu: str(hpu.get_device_name()) if hpu.is_initialized() else "",
    )
    return f"Intel-{name}" if name else None
