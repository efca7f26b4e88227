"""Marks of tests that use NVIDIA GPUs, and the memory that is in use on one."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from dray.accelerators.vendors.nvidia import Nvidia

MEBIBYTE = 1 << 20

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"
)


def _lacks_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return True
    import torch

    return torch.version.cuda is None


def on_a_gpu() -> list[Any]:
    """Return the marks of tests in which PyTorch computes on a GPU."""
    found = Nvidia().find() is not None
    reason = "this PyTorch is built without CUDA" if found else "this machine has no NVIDIA GPU"
    return [pytest.mark.gpu, pytest.mark.skipif(not found or _lacks_cuda(), reason=reason)]


def used_memory(device: int = 0) -> int:
    """How many bytes of a GPU all processes together use."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    finally:
        pynvml.nvmlShutdown()
