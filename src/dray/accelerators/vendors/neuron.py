"""The cores of AWS Trainium and Inferentia, found through `neuron-ls`."""

from __future__ import annotations

import os
import re
from types import MappingProxyType
from typing import Any, ClassVar

from dray import host
from dray.accelerators.family import Family, Found
from dray.accelerators.vendor_queries import output_of
from dray.errors import ConfigError
from dray.settings import host_root

_TOOLS = "opt/aws/neuron/bin"


class Neuron(Family):
    """Cores of AWS Neuron devices. Ids are indices among all cores of a machine."""

    name: ClassVar = "neuron"
    title: ClassVar = "Neuron core"
    resource: ClassVar = "neuron_cores"
    variables: ClassVar = ("NEURON_RT_VISIBLE_CORES",)
    opt_outs: ClassVar = ("RAY_EXPERIMENTAL_NOSET_NEURON_RT_VISIBLE_CORES",)
    torch_device: ClassVar = "xla"
    torch_modules: ClassVar = ("torch_xla", "torch_xla.distributed.xla_backend")
    backend: ClassVar = "xla"
    # For the network between EC2 instances; the values are those of AWS's guides to Trainium.
    collective_variables: ClassVar = MappingProxyType(
        {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}
    )
    jax_platform: ClassVar = "neuron"

    def find(self) -> Found | None:
        files = host.device_files("dev/neuron[0-9]*")
        if not files and not host.is_directory(_TOOLS):
            return None
        devices = _ask_neuron_ls()
        count = sum(device.get("nc_count", 0) for device in devices)
        if count:
            first = next(device for device in devices if device.get("nc_count"))
            return Found(
                count=count,
                type="aws-neuron-core",
                driver=host.read("sys/module/neuron/version") or None,
                memory_bytes=first.get("memory_size", 0) // first["nc_count"] or None,
            )
        if not files:  # Amazon's images have the tools on every machine
            return None
        return Found(
            count=len(files),
            type="aws-neuron-core",
            trouble="neuron-ls is missing or does not work, so dray counted one core for each file "
            "/dev/neuron*, although devices have more",
        )

    def parse(self, text: str) -> list[str]:
        return [core for part in super().parse(text) for core in _cores(part, text)]


def _ask_neuron_ls() -> list[dict[str, Any]]:
    """Return the valid numbers that the tool prints for each device."""
    import json  # slow to import, as is shutil
    import shutil

    path = os.pathsep.join((os.environ.get("PATH", os.defpath), os.path.join(host_root(), _TOOLS)))
    tool = shutil.which("neuron-ls", path=path)
    try:
        devices = json.loads(output_of(tool, "--json-output")) if tool else []
    except ValueError:
        return []
    if not isinstance(devices, list):
        return []
    numbers = ("nc_count", "memory_size")
    return [
        {key: device[key] for key in numbers if isinstance(device.get(key), int)}
        for device in devices
        if isinstance(device, dict)
    ]


def _cores(part: str, text: str) -> list[str]:
    """Return the cores in "3" or in "0-3"."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first > last:
        raise ConfigError(
            f"NEURON_RT_VISIBLE_CORES={text!r} is not a list of cores such as '0-3,8'"
        )
    return [str(core) for core in range(first, last + 1)]
