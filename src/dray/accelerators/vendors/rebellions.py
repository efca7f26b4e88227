"""Rebellions' NPUs, found through the package of their compiler."""

from __future__ import annotations

from typing import ClassVar

from dray.accelerators.family import Found
from dray.accelerators.id_styles import Numbered
from dray.accelerators.vendor_queries import ask
from dray.host import device_files


class Rebellions(Numbered):
    """NPUs of Rebellions. Ids are numbers."""

    name: ClassVar = "rebellions"
    title: ClassVar = "Rebellions NPU"
    resource: ClassVar = "RBLN"
    variables: ClassVar = ("RBLN_DEVICES",)
    opt_outs: ClassVar = ("RAY_EXPERIMENTAL_NOSET_RBLN_RT_VISIBLE_DEVICES",)

    def find(self) -> Found | None:
        files = device_files("dev/rbln[0-9]*")
        count, trouble = self._count(files, "rebel", lambda rebel: int(rebel.device_count()))
        if not count and not trouble:
            return None
        type_, _ = ask("rebel", lambda rebel: str(rebel.get_npu_name() or ""))
        return Found(count=count, type=type_ or None, trouble=trouble)
