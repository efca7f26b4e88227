"""Intel GPUs, found through Level Zero, or through the kernel's files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from dray import host
from dray.accelerators.family import Family, Found, Variables
from dray.accelerators.vendor_queries import output_of
from dray.errors import ConfigError

_SELECTOR, _MASK = "ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"

# The value that hides every GPU; SYCL and Level Zero ignore an empty variable.
_HIDDEN = "!*:gpu"

# The PCI device ids of cards that are certainly for computing, and their types.
_MAX = {
    "0x0bd5": "Intel-GPU-Max-1550",
    "0x0bd6": "Intel-GPU-Max-1550",
    "0x0bd9": "Intel-GPU-Max-1100",
    "0x0bda": "Intel-GPU-Max-1100",
    "0x0bdb": "Intel-GPU-Max-1100",
}

# All devices, one device, or one tile of a device.
_DEVICE = r"\*|gpu|\d+(\.\d+)*"

_ASK = """
import dpctl, json
devices = dpctl.get_devices(backend="level_zero", device_type="gpu")
print(json.dumps([[d.name, d.driver_version, d.global_mem_size] for d in devices]))
"""


class Intel(Family):
    """GPUs of Intel. Ids are indices; Level Zero decides whether of cards or of their tiles.

    Level Zero's mask is applied first, and the remaining devices are renumbered. So dray writes
    ids to only one of the two variables.
    """

    name: ClassVar = "intel"
    title: ClassVar = "Intel GPU"
    resource: ClassVar = "GPU"
    variables: ClassVar = (_SELECTOR, _MASK)
    opt_outs: ClassVar = (
        "RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK",
        "RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR",
    )
    fractions: ClassVar = True
    types: ClassVar = r"Intel-GPU-"
    torch_device: ClassVar = "xpu"
    backend: ClassVar = "xccl"

    def find(self) -> Found | None:
        vendors = host.device_files("sys/class/drm/card[0-9]*/device/vendor")
        cards = [path for path in vendors if host.read(path).lower() == "0x8086"]
        if not cards or not host.device_files("dev/dri/renderD*"):
            return None
        devices = _ask_level_zero()
        if devices:
            name, driver, memory = devices[0]
            return Found(
                count=len(devices),
                type="-".join(["Intel-GPU", *name.split()[-2:]]),
                driver=driver,
                memory_bytes=memory,
                names=[name for name, _, _ in devices],
            )
        ids = [host.read(path.replace("/vendor", "/device")).lower() for path in cards]
        types = [_MAX[number] for number in ids if number in _MAX]
        if not types:
            return None
        if devices is not None:
            return Found(count=0, trouble="Intel GPUs are there, but Level Zero finds none")
        return Found(
            count=len(types),
            type=types[0],
            names=types,
            trouble="dray cannot query Level Zero, because the package dpctl is not installed or "
            f"does not work; it counted {len(types)} cards instead, and not their tiles",
        )

    def variable(self, environ: Mapping[str, str]) -> str | None:
        return _MASK if _MASK in environ else _SELECTOR

    def visible(self, environ: Mapping[str, str]) -> list[str] | None:
        text = environ.get(_MASK, environ.get(_SELECTOR))
        if text is not None and self._limit(text) is None:
            return None
        return super().visible(environ)

    def parse(self, text: str) -> list[str]:
        return self._limit(text) or []

    def show(self, ids: Sequence[str], environ: Mapping[str, str], count: int) -> Variables:
        if self.is_opted_out(environ):
            return {}
        if not ids:
            return {_SELECTOR: _HIDDEN}
        if self.variable(environ) == _SELECTOR:
            return {_SELECTOR: f"level_zero:{','.join(ids)}"}
        selector = environ.get(_SELECTOR)
        has_ids = selector is not None and self._limit(selector) is not None
        return {_MASK: ",".join(ids), _SELECTOR: None if has_ids else selector}

    def _limit(self, text: str) -> list[str] | None:
        """Return the ids in a selector such as "level_zero:1,3;opencl:cpu", or in "1,3".

        None is no limit. Source: the manuals of DPC++ (device selector) and Level Zero (mask).
        """
        if text.strip() == _HIDDEN:
            return []
        terms = [term.strip() for term in text.split(";")]
        ids: list[str] = []
        for term in terms:
            backend, _, listed = term.rpartition(":")
            if backend.lstrip("!") not in ("", "*", "level_zero"):
                continue
            devices = [device for device in super().parse(listed) if device != "cpu"]
            if backend.startswith("!") or not all(re.fullmatch(_DEVICE, d) for d in devices):
                raise ConfigError(
                    f"dray does not understand {text!r} in {_SELECTOR} or {_MASK}; write it as "
                    "'level_zero:1,3'"
                )
            if {"*", "gpu"} & {*devices}:
                return None
            ids += devices
        only_hides = all(term.startswith("!") for term in terms)
        return None if only_hides else ids


def _ask_level_zero() -> list[tuple[str, str, int]] | None:
    """Return name, driver and memory of every device; None if Level Zero cannot be asked.

    Level Zero runs in a process of its own: it does not survive a fork, and it keeps the visibility
    variables that it has read first.
    """
    import importlib.util
    import json  # slow to import

    environ = {k: v for k, v in os.environ.items() if k not in (_SELECTOR, _MASK)}
    try:
        if importlib.util.find_spec("dpctl") is None:
            return None
        answer = output_of(*host.python(_ASK), timeout_s=20, environ=environ)
        return [(str(name), str(driver), int(size)) for name, driver, size in json.loads(answer)]
    except (ValueError, TypeError):
        return None
