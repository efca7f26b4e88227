"""FuriosaAI's NPUs, found through their management library."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dray.accelerators.family import Family, Found, Variables
from dray.accelerators.vendor_queries import Package, ask
from dray.errors import ConfigError
from dray.host import device_files

_LIBRARY = "furiosa_smi_py"


class Furiosa(Family):
    """NPUs of FuriosaAI. Ids are numbers, written as `npu:3`; a part counts as its device."""

    name: ClassVar = "furiosa"
    title: ClassVar = "FuriosaAI NPU"
    resource: ClassVar = "FURIOSA"
    variables: ClassVar = ("FURIOSA_DEVICES",)
    opt_outs: ClassVar = ("RAY_EXPERIMENTAL_NOSET_FURIOSA_DEVICES",)

    def find(self) -> Found | None:
        ours = device_files("dev/rngd*")
        if not ours and not device_files("dev/npu[0-9]*") and _LIBRARY not in sys.modules:
            return None
        devices, trouble = ask(_LIBRARY, _devices)
        if devices:
            type_, _ = ask(_LIBRARY, lambda _: _type(devices[0]))
            return Found(count=len(devices), type=type_)
        if not ours:  # /dev/npu0 may be another vendor's
            return None
        # A device has several files, so the number of files is not the number of devices.
        reason = f"{_LIBRARY} sees no device" if devices == [] else f"{_LIBRARY} is not installed"
        return Found(count=0, trouble=f"{ours[0]} is there, but {trouble or reason}")

    def parse(self, text: str) -> list[str]:
        ids = []
        for token in super().parse(text):
            match = re.fullmatch(r"(?:npu:)?(\d+)(?::.*)?", token)
            if match is None:
                raise ConfigError(f"FURIOSA_DEVICES={text!r}: {token!r} is not like npu:0 or 0")
            ids.append(match[1])
        return list(dict.fromkeys(ids))  # two parts of one device are one device

    def show(self, ids: Sequence[str], environ: Mapping[str, str], count: int) -> Variables:
        return super().show([f"npu:{i}" for i in ids], environ, count)


def _devices(smi: Package) -> list[Any]:
    _start(smi)
    return list(smi.list_devices())


@functools.cache
def _start(smi: Package) -> None:
    """Start the library, once in each process."""
    smi.init()


def _type(device: Any) -> str | None:
    """Return a device's type: `Arch.Rngd` is FURIOSA_RNGD, and `rngd+` is FURIOSA_RNGDPLUS."""
    arch = device.device_info().arch()
    if arch is None:
        return None
    word = str(arch).rpartition(".")[2].replace("+", "plus")
    return f"FURIOSA_{re.sub(r'[^A-Za-z0-9]', '', word).upper()}"
