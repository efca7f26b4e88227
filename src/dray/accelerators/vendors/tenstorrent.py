"""Tenstorrent's cards, found through the files of their kernel driver."""

from __future__ import annotations

from typing import ClassVar

from dray.accelerators.family import Family, Found
from dray.host import device_files, read


class Tenstorrent(Family):
    """Cards of Tenstorrent. Ids are numbers, or PCI addresses."""

    name: ClassVar = "tenstorrent"
    title: ClassVar = "Tenstorrent NPU"
    resource: ClassVar = "TTNPU"
    variables: ClassVar = ("TT_VISIBLE_DEVICES",)
    opt_outs: ClassVar = ("RAY_EXPERIMENTAL_NOSET_TENSTORRENT_VISIBLE_DEVICES",)

    def find(self) -> Found | None:
        count = len(device_files("dev/tenstorrent/[0-9]*"))  # without the directory by-id
        if not count:
            return None
        return Found(count=count, driver=read("sys/module/tenstorrent/version") or None)
