"""Google's TPUs, found through device files, GKE's variables and Google Cloud's metadata server."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from dray.accelerators.family import Found, Variables
from dray.accelerators.id_styles import Numbered
from dray.host import device_files, is_directory, read

_GOOGLE = "0x1ae0"  # the PCI vendor id
_METADATA_TIMEOUT_S = 0.5

_CHIPS = "TPU_VISIBLE_CHIPS"
_CHIP_BOUNDS = "TPU_CHIPS_PER_HOST_BOUNDS"
_HOST_BOUNDS = "TPU_HOST_BOUNDS"
# The bounds for a part of a host's chips, by the number of chips; other numbers need none.
_SHAPES = {1: "1,1,1", 2: "1,2,1"}


class Tpu(Numbered):
    """TPU chips of Google. Ids are chip numbers."""

    name: ClassVar = "tpu"
    title: ClassVar = "TPU chip"
    resource: ClassVar = "TPU"
    variables: ClassVar = (_CHIPS,)
    also_set: ClassVar = (_CHIP_BOUNDS, _HOST_BOUNDS)
    opt_outs: ClassVar = ("RAY_EXPERIMENTAL_NOSET_TPU_VISIBLE_CHIPS",)
    sizes: ClassVar = (1, 2, 4, 8)
    torch_device: ClassVar = "xla"
    torch_modules: ClassVar = ("torch_xla", "torch_xla.distributed.xla_backend")
    shared: ClassVar = False  # a process uses all chips that it sees
    backend: ClassVar = "xla"
    jax_platform: ClassVar = "tpu"

    def find(self) -> Found | None:
        count = _accel_chips() or _vfio_chips()
        if not count:
            return None
        from dray.accelerators.tpu_topology import host_labels, host_resources  # slow to import

        metadata = _Metadata()
        pod = _pod_type(metadata.get("TPU_ACCELERATOR_TYPE", "accelerator-type"))
        slice_name = metadata.get("TPU_NAME", "instance-id")
        worker = metadata.get("TPU_WORKER_ID", "agent-worker-number")
        worker = worker if worker.isdecimal() else ""
        topology = os.environ.get("TPU_TOPOLOGY") or _topology(metadata.ask("tpu-env"))
        return Found(
            count=count,
            type=f"TPU-{pod.partition('-')[0].upper()}" if pod else None,
            resources=host_resources(slice_name, worker, pod),
            labels=host_labels(slice_name, worker, topology, pod),
        )

    def show(self, ids: Sequence[str], environ: Mapping[str, str], count: int) -> Variables:
        shown = super().show(ids, environ, count)
        if not shown:
            return {}
        # For all chips of the host, the variable must be unset. If the node itself is limited to
        # some chips, these are not all.
        whole = len(ids) == count > 0 and self.visible(environ) is None
        if whole:
            shown[_CHIPS] = None
        if len(ids) in _SHAPES and not whole:
            return {**shown, _CHIP_BOUNDS: _SHAPES[len(ids)], _HOST_BOUNDS: _SHAPES[1]}
        # All three variables are always returned, so that the caller restores all three.
        stale = environ.get(_CHIP_BOUNDS) in _SHAPES.values() and len(ids) not in _SHAPES
        left = {name: None if stale else environ.get(name) for name in (_CHIP_BOUNDS, _HOST_BOUNDS)}
        return {**shown, **left}


def _accel_chips() -> int:
    """Return the number of chips of the driver for older TPUs.

    Other drivers make a directory /dev/accel, and other vendors use the same device class.
    """
    files = [path for path in device_files("dev/accel*") if not is_directory(path)]
    vendors = [read(f"sys/class/accel/{os.path.basename(path)}/device/vendor") for path in files]
    return sum(vendor.lower() in ("", _GOOGLE) for vendor in vendors)


def _vfio_chips() -> int:
    """Return the number of Google's devices among those that VFIO gives to programs."""
    groups = [os.path.basename(path) for path in device_files("dev/vfio/[0-9]*")]
    return sum(_is_googles(group) for group in groups if group.isdecimal())


def _is_googles(group: str) -> bool:
    vendors = device_files(f"sys/kernel/iommu_groups/{group}/devices/*/vendor")
    return any(read(path).lower() == _GOOGLE for path in vendors)


class _Metadata:
    """The metadata of this machine, from GKE's variables or Google Cloud's metadata server."""

    def __init__(self) -> None:
        self._host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        self._is_there = True

    def get(self, variable: str, attribute: str) -> str:
        """Return a value from the variable or the server; "" if neither has it."""
        return os.environ.get(variable) or self.ask(attribute)

    def ask(self, attribute: str) -> str:
        """Return a value from the server; "" if the server does not have it."""
        if not self._is_there:
            return ""
        import http.client  # slow to import

        path = f"/computeMetadata/v1/instance/attributes/{attribute}"
        try:
            # urllib would use a proxy.
            server = http.client.HTTPConnection(self._host, timeout=_METADATA_TIMEOUT_S)
            with contextlib.closing(server):
                server.request("GET", path, headers={"Metadata-Flavor": "Google"})
                answer = server.getresponse()
                text = answer.read().decode(errors="replace").strip()
        except (OSError, ValueError, http.client.HTTPException):  # ValueError: invalid host name
            self._is_there = False  # so that detection waits at most once
            return ""
        return text if answer.status == http.HTTPStatus.OK else ""


def _pod_type(text: str) -> str:
    """Return a pod type such as `v4-16`; "" for other text. GKE writes tpu7x-16 for v7x-16."""
    match = re.fullmatch(r"(?:v|tpu)(\d+[a-z]*-\d+)", text.strip().lower())
    return f"v{match[1]}" if match else ""


def _topology(tpu_env: str) -> str:
    match = re.search(r"""^\s*TOPOLOGY:\s*['"]([^'"]*)['"]""", tpu_env, re.MULTILINE)
    return match[1] if match else ""
