"""The PyTorch devices of a rank."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from dray.accelerators import Family, family_named
from dray.errors import ConfigError
from dray.train.worker.current_session import current_session
from dray.train.worker.device_visibility import device_indices
from dray.train.worker.run_messages import Assignment

if TYPE_CHECKING:
    import torch

# Devices that PyTorch numbers by the order in which the process sees them.
_NUMBERED = ("cuda", "xpu", "npu")


def get_devices() -> list[torch.device]:
    """Return the devices of this worker; the CPU if it has no accelerator.

    GPUs of NVIDIA, AMD and MetaX are `cuda`, GPUs of Intel `xpu`, Ascend NPUs `npu`, Gaudi HPUs
    `hpu`, Apple GPUs `mps`, Neuron cores and TPU chips `xla`. If the workers of a node see each
    other's devices, the indices are those of this worker's own devices.

    Raises:
        ConfigError: PyTorch's support for the devices is not installed, or the worker does not see
            them.
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from dray.train.torch import TorchTrainer, get_devices
        >>> def train_loop():
        ...     return [str(device) for device in get_devices()]
        >>> TorchTrainer(train_loop).fit().return_value
        ['cpu']
    """
    return devices_of(current_session("get_devices").assignment)


def get_device() -> torch.device:
    """Return the device of this worker, the first if it has several; see `get_devices`.

    Raises:
        ConfigError: PyTorch's support for the device is not installed, or the worker does not see
            it.
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from dray.train.torch import TorchTrainer, get_device
        >>> def train_loop():
        ...     return str(get_device())
        >>> TorchTrainer(train_loop).fit().return_value
        'cpu'
    """
    return devices_of(current_session("get_device").assignment)[0]


def devices_of(assignment: Assignment) -> list[torch.device]:
    """Return a worker's devices."""
    import torch

    if assignment.family is None:
        return [torch.device("cpu")]
    family = family_named(assignment.family)
    load_support(family)
    kind = family.torch_device
    if kind in _NUMBERED:
        indices = device_indices(assignment, os.environ)
        return [torch.device(kind, index) for index in indices]
    if kind == "xla":  # numbered within the process
        return [
            torch.device(kind, index) for index in range(len(assignment.devices[family.resource]))
        ]
    return [torch.device(kind)]


def load_support(family: Family) -> None:
    """Import the package that PyTorch needs for a family."""
    for module in family.torch_modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"this worker has {family.title}s, which PyTorch reaches through {module}; it "
                f"cannot be imported ({error}). Install the vendor's package for PyTorch on every "
                "node"
            ) from error


def unusable(assignment: Assignment) -> str:
    """Return why PyTorch cannot use this worker's device; "" if it can."""
    import torch

    device = devices_of(assignment)[0]
    if device.type in ("cpu", "xla"):
        return ""
    if device.type == "mps":
        available = torch.backends.mps.is_available()
    else:
        available = torch.get_device_module(device).is_available()
    if not available:
        return f"torch {torch.__version__} cannot use {device.type} devices here"
    count = 1 if device.index is None else torch.get_device_module(device).device_count()
    if (device.index or 0) >= count:
        return f"torch sees {count} {device.type} devices, and {device} is not among them"
    return ""
