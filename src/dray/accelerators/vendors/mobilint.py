"""Mobilint's NPUs, found through their runtime or the device files."""

from __future__ import annotations

from typing import ClassVar

from dray.accelerators.family import Found
from dray.accelerators.id_styles import Numbered
from dray.host import device_files


class Mobilint(Numbered):
    """NPUs of Mobilint. Ids are numbers."""

    name: ClassVar = "mobilint"
    title: ClassVar = "Mobilint NPU"
    resource: ClassVar = "MBLT"
    variables: ClassVar = ("QBRUNTIME_VISIBLE_DEVICES",)
    opt_outs: ClassVar = ("RAY_EXPERIMENTAL_NOSET_MBLT_RT_VISIBLE_DEVICES",)

    def find(self) -> Found | None:
        aries, regulus = device_files("dev/aries[0-9]*"), device_files("dev/regulus-npu*")
        count, trouble = self._count(
            [*aries, *regulus],
            "qbruntime",
            lambda qbruntime: len(qbruntime.get_available_device_numbers()),
        )
        if not count and not trouble:
            return None
        type_ = "MOBILINT_ARIES" if aries else "MOBILINT_REGULUS" if regulus else None
        return Found(count=count, type=type_, trouble=trouble)
